"""Datasets of the Hugging Face hub: tables in memory, and a folder of parquet files loaded by flwr-datasets."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

import filfl
from filfl.data.hub import Hub
from filfl.data.shakespeare import ALPHABET
from filfl.errors import ConfigError, DataError

PLAIN = Hub(test=0.2, filtering=0.1, validation=0.1)


def pixels(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(count, 4, 5), dtype=np.uint8)


def table(count: int, seed: int, **more: Any) -> datasets.Dataset:
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=3)}
    kinds |= {name: datasets.Value("string") for name in more}
    columns = {"image": list(pixels(count, seed)), "label": list(np.arange(count) % 3), **more}
    return datasets.Dataset.from_dict(columns, datasets.Features(kinds))


def test_grey_images_become_bytes_with_one_channel() -> None:
    parts = [table(20, 0), table(30, 1)]
    data = PLAIN.federated(parts, table(7, 2), seed=0)
    assert data.x.dtype == np.uint8 and data.sample_shape == (1, 4, 5) and data.classes == 3
    assert data.num_clients == 2 and len(data.test_y) == 7
    for k, count in enumerate((20, 30)):
        source = {image.tobytes() for image in pixels(count, seed=k)}
        mine = data.x[data.offsets[k] : data.offsets[k + 1], 0]
        assert all(image.tobytes() in source for image in mine)


def test_clients_and_test_samples_are_named_by_the_column() -> None:
    parts = [table(20, 0, who=["bo"] * 20), table(20, 1, who=["al"] * 20)]
    data = replace(PLAIN, client="who").federated(parts, table(3, 2, who=["al", "bo", "zed"]), seed=0)
    assert data.names.tolist() == ["al", "bo"] and data.test_clients.tolist() == [0, 1, -1]


def test_without_a_test_table_a_share_of_every_client_is_tested() -> None:
    data = PLAIN.federated([table(20, 0), table(30, 1)], None, seed=0)
    assert np.bincount(data.test_clients).tolist() == [4, 6]


def test_texts_have_leafs_codes_and_other_string_labels_are_sorted() -> None:
    made = datasets.Dataset.from_dict({"x": ["To be " * 13 + "or"] * 10, "y": ["n"] * 10})
    other = datasets.Dataset.from_dict({"x": ["not to be " * 8], "y": ["!"]})
    data = PLAIN.federated([made], other, seed=0)
    assert data.sample_shape == (80,) and data.x.dtype == np.int8
    assert "".join(ALPHABET[c] for c in data.x[0]) == "To be " * 13 + "or" and ALPHABET[data.y[0]] == "n"
    named = datasets.Dataset.from_dict({"features": np.zeros((6, 2)).tolist(), "label": ["dog", "cat", "dog"] * 2})
    assert PLAIN.federated([named], None, seed=0).classes == 2


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        (
            {"a": [1.0], "label": [0]},
            {},
            "data.input is not set and no column is named image, .* one of a, label",
        ),
        ({"x": [[1.0]], "b": [0]}, {}, "data.target is not set"),
        ({"x": [[1.0]], "label": [0]}, {"input": "picture"}, "data.input must be one of x, label"),
        ({"x": [[1.0], [1.0, 2.0]], "label": [0, 1]}, {}, "must have the same shape"),
        ({"x": ["short", "texts"], "label": [0, 1]}, {}, r"strings must have 80 characters \(got 5 in sample 0\)"),
        ({"x": [{"a": 1}], "label": [0]}, {}, "must have images or numbers"),
    ],
)
def test_tables_with_unusable_columns_are_refused(
    columns: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=reason):
        replace(PLAIN, **options).federated([datasets.Dataset.from_dict(columns)], None, seed=0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset in the layout of the hub: a folder with one parquet file per split."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    (tmp_path / "made").mkdir()
    rng = np.random.default_rng(0)
    for split, count in {"train": 240, "test": 30}.items():
        label = rng.integers(3, size=count)
        features = (rng.normal(size=(count, 4)) + 3 * np.eye(3, 4)[label]).tolist()
        who = [f"w{i % 8}" for i in range(count)]
        made = datasets.Dataset.from_dict({"features": features, "label": label.tolist(), "who": who})
        made.to_parquet(tmp_path / "made" / f"{split}.parquet")
    return tmp_path / "made"


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning")
def test_a_run_on_a_folder_of_parquet_files(folder: Path) -> None:
    data = Hub(dataset=str(folder), client="who").load(0)
    assert data.names.tolist() == [f"w{i}" for i in range(8)] and len(data.test_y) == 30
    assert (data.test_clients >= 0).all()
    few = {tuple(Hub(dataset=str(folder), client="who", clients=3).load(seed).names) for seed in range(4)}
    assert len(few) > 1 and all(len(names) == 3 for names in few)
    config = {"rounds": 5, "data.name": "hub", "data.dataset": str(folder), "data.client": "who", "selection.k": 3}
    assert filfl.simulate(config).summary["final_accuracy"] > 0.6
    even = Hub(dataset=str(folder), clients=5).load(0)
    assert even.num_clients == 5
    arguments = ("partition_by=label", "alpha=0.5", "min_partition_size=5")
    uneven = Hub(dataset=str(folder), clients=5, partitioner="DirichletPartitioner", arguments=arguments).load(0)
    assert uneven.num_clients == 5 and uneven.num_train.std() > even.num_train.std()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning")
def test_invalid_options_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.dataset is not set"):
        Hub().load(0)
    with pytest.raises(DataError, match="cannot be loaded"):
        Hub(dataset=str(folder.parent / "nowhere")).load(0)
    with pytest.raises(DataError, match="cannot be loaded"):
        Hub(dataset=str(folder), client="nobody").load(0)
    with pytest.raises(ConfigError, match=r"data.partitioner must be one of .*IidPartitioner"):
        Hub(dataset=str(folder), partitioner="Best").load(0)
    with pytest.raises(ConfigError, match=r"data.arguments do not match IidPartitioner"):
        Hub(dataset=str(folder), arguments=("alpha=0.5",)).load(0)
    with pytest.raises(ConfigError, match=r"data.arguments must be like"):
        Hub(dataset=str(folder), arguments=("alpha",)).load(0)
    with pytest.raises(DataError, match=r"data.clients must be between 1 and the 8 clients"):
        Hub(dataset=str(folder), client="who", clients=9).load(0)


def test_training_samples_share_nothing_with_test_samples(caplog: pytest.LogCaptureFixture) -> None:
    test = table(5, 0)
    data = PLAIN.federated([table(20, 0), table(30, 1)], test, seed=0)
    tests = {row.tobytes() for row in data.test_x}
    assert not tests & {row.tobytes() for row in np.concatenate([data.x, data.filter_x])}
    assert "training samples that are also test samples, dropped: 5" in caplog.text
    rng = np.random.default_rng(0)
    text = "".join(rng.choice(list("abcdefgh"), size=500))
    made = datasets.Dataset.from_dict({"x": [text[i : i + 80] for i in range(400)], "y": list(text[80:480])})
    data = PLAIN.federated([made], None, seed=0)
    assert data.classes == 80 and len(data.test_y) == 80
    first = min(text.index("".join(ALPHABET[c] for c in row)) for row in data.test_x)
    ends = [text.index("".join(ALPHABET[c] for c in row)) + 80 for row in np.concatenate([data.x, data.filter_x])]
    assert max(ends) <= first, "a training window and a test window share no character"
