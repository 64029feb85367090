"""FEMNIST and other images in LEAF's format: valid files are read exactly, invalid ones are refused."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import filfl
from filfl.data.femnist import Femnist
from filfl.errors import DataError

REAL = os.environ.get("FILFL_DATA")
needs_real_data = pytest.mark.skipif(not REAL, reason="FILFL_DATA (the folder with real data) is not set")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FILFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def leaf(folder: Path, **splits: dict[str, tuple[Any, Any]]) -> Path:
    """A LEAF folder with the given users in each split."""
    for split in ("train", "test"):
        users = splits[split]
        (folder / split).mkdir(parents=True)
        content = {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
        }
        (folder / split / "all_data_0.json").write_text(json.dumps(content))
    return folder


def pictures(count: int, seed: int, pixels: int = 784) -> list[list[float]]:
    return (np.random.default_rng(seed).integers(256, size=(count, pixels)) / 255).tolist()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    users = {f"w{i}": (pictures(20, i), [i] * 20) for i in range(3)}
    tests = {f"w{i}": (pictures(3, 100 + i), [i] * 3) for i in range(3)}
    return leaf(tmp_path / "leaf", train=users, test=tests)


def test_leaf_files_are_read_pixel_by_pixel(small: Path) -> None:
    data = Femnist(path=str(small)).load(0)
    assert data.names.tolist() == ["w0", "w1", "w2"] and data.sample_shape == (1, 28, 28) and data.classes == 62
    assert data.x.dtype == np.uint8
    assert [len(data.test_y), len(data.filter_y)] == [9, 3]
    assert data.num_train.tolist() == [15, 15, 15] and np.diff(data.offsets).tolist() == [19, 19, 19]
    for k in range(3):
        mine = data.x[data.offsets[k] : data.offsets[k + 1]].reshape(-1, 784)
        source = np.rint(np.array(pictures(20, k)) * 255).astype(np.uint8)
        rows = {row.tobytes() for row in source}
        assert all(row.tobytes() in rows for row in mine)
        assert (data.y[data.offsets[k] : data.offsets[k + 1]] == k).all()
    assert data.test_clients.tolist() == data.test_y.tolist()


def test_inverted_images_are_one_minus_the_images(small: Path) -> None:
    data, inverted = (Femnist(path=str(small), inverted=each).load(0) for each in (False, True))
    for given, other in ((data.x, inverted.x), (data.test_x, inverted.test_x), (data.filter_x, inverted.filter_x)):
        assert (255 - given.astype(int) == other).all()
    assert (data.y == inverted.y).all()


def test_clients_are_drawn_with_the_seed(small: Path) -> None:
    drawn = {tuple(Femnist(path=str(small), clients=2).load(seed).names) for seed in range(8)}
    assert len(drawn) > 1 and all(len(names) == 2 for names in drawn)
    chosen = Femnist(path=str(small), clients=2).load(0)
    assert set(chosen.test_clients.tolist()) == {0, 1}, "only the chosen writers are tested"
    with pytest.raises(DataError, match=r"data.clients must be between 1 and the 3 clients"):
        Femnist(path=str(small), clients=4).load(0)


def test_training_images_that_are_also_test_images_are_dropped_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = {"a": (pictures(10, 1), [1] * 10), "b": (pictures(10, 2), [2] * 10)}
    test = {"a": (pictures(2, 9), [1, 1]), "b": ([train["a"][0][4]], [2])}
    data = Femnist(path=str(leaf(tmp_path / "leaf", train=train, test=test))).load(0)
    assert "leaf: training samples that are also test samples, dropped: 1" in caplog.text
    everything = {row.tobytes() for row in np.concatenate([data.x, data.filter_x])}
    assert len(everything) == 19 and not everything & {row.tobytes() for row in data.test_x}


def test_writers_without_training_images_are_left_out_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = {"a": (pictures(10, 1), [1] * 10), "empty": ([], [])}
    test = {"a": (pictures(2, 3), [1, 1]), "only tested": (pictures(2, 4), [3, 3])}
    data = Femnist(path=str(leaf(tmp_path / "leaf", train=train, test=test))).load(0)
    assert data.names.tolist() == ["a"] and len(data.test_y) == 2
    assert "leaf: writers with test images but no training images, left out: 1" in caplog.text


def test_the_cache_is_used_and_a_damaged_one_is_written_again(
    small: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Femnist(path=str(small)).load(0).fingerprint()
    (entry,) = own_cache.glob("*.npz")
    monkeypatch.setattr("filfl.data.femnist.read_leaf", lambda files: pytest.fail("the source was parsed again"))
    assert Femnist(path=str(small)).load(0).fingerprint() == first
    monkeypatch.undo()
    monkeypatch.setenv("FILFL_CACHE", str(own_cache))
    for damage in (b"", entry.read_bytes()[:-100], b"PK" + b"\0" * 500):
        entry.write_bytes(damage)
        assert Femnist(path=str(small)).load(0).fingerprint() == first
    file = small / "train" / "all_data_0.json"
    file.write_text(file.read_text().replace('"w0"', '"v0"'))
    assert Femnist(path=str(small)).load(0).names[0] == "v0", "a changed source is read again"
    assert sorted(path.name for path in small.iterdir()) == ["test", "train"], "nothing is written beside the source"


def test_size_and_classes_of_images_are_options(tmp_path: Path) -> None:
    colourful = leaf(
        tmp_path / "own",
        train={f"u{i}": (pictures(30, i, 4 * 5 * 3), [i % 7] * 30) for i in range(6)},
        test={"u0": (pictures(5, 77, 4 * 5 * 3), [0] * 5)},
    )
    config = {"rounds": 1, "data.name": "femnist", "data.path": str(colourful), "data.classes": 7, "selection.k": 2}
    result = filfl.simulate({**config, "data.image": [4, 5, 3]})
    assert result.model[-1].out_features == 7 and result.model[1].in_features == 60
    data = Femnist(path=str(colourful), classes=7, image=(4, 5, 3)).load(0)
    assert data.sample_shape == (3, 4, 5)
    sample = np.rint(np.array(pictures(5, 77, 60)[0]) * 255).reshape(4, 5, 3)
    assert (data.test_x[0] == sample.transpose(2, 0, 1)).all(), "channels come last in the file and first in the tensor"


def test_pixels_that_are_not_bytes_become_float32(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(12, 4)).tolist()
    folder = leaf(tmp_path / "own", train={"a": (x[:10], [0] * 10)}, test={"a": (x[10:], [0, 0])})
    data = Femnist(path=str(folder), classes=1, image=(2, 2)).load(0)
    assert data.x.dtype == np.float32 and np.allclose(data.test_x.reshape(2, 4), x[10:])


def broken(folder: Path, how: str) -> Path:
    good = {"a": (pictures(10, 1), [1] * 10)}
    bad: dict[str, Any] = {
        "label out of range": {"a": (pictures(10, 1), [62] * 10)},
        "half a label": {"a": (pictures(10, 1), [1.5] * 10)},
        "wrong size": {"a": (pictures(10, 1, 100), [1] * 10)},
        "ragged": {"a": ([*pictures(9, 1), [0.5]], [1] * 10)},
        "other size later": {**good, "b": (pictures(10, 1, 100), [1] * 10)},
        "too few y": {"a": (pictures(10, 1), [1] * 9)},
        "text": {"a": (["abc"] * 10, [1] * 10)},
        "empty rows": {"a": ([[]] * 10, [1] * 10)},
    }
    tests = {"no test users": {}, "wrong size": bad["wrong size"]}
    leaf(folder, train=bad.get(how, good), test=tests.get(how, good))
    file = folder / "train" / "all_data_0.json"
    if how == "half a file":
        file.write_text(file.read_text()[:5000])
    elif how == "not LEAF's":
        file.write_text('{"people": []}')
    elif how == "twice the same":
        file.write_text(file.read_text().replace('"users": ["a"]', '"users": ["a", "a"]'))
    elif how == "wrong count":
        file.write_text(file.read_text().replace('"num_samples": [10]', '"num_samples": [11]'))
    elif how == "no train folder":
        file.unlink()
    return folder


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("label out of range", r"labels must be between 0 and 61 with data.classes = 62 \(got 62 in sample \d+\)"),
        ("half a label", "user a: x must be rows of finite numbers, and y must be integers"),
        ("twice the same", "users must name each user of user_data exactly once"),
        ("wrong count", "num_samples does not match user_data"),
        ("empty rows", "user a: x must be rows of finite numbers"),
        ("wrong size", r"images have shape \[100\], which does not match data.image = \[28, 28\] with its 784 pixels"),
        ("ragged", "user a: x must be rows of numbers, all of one length"),
        ("other size later", "user b: images have 100 pixels, those before have 784"),
        ("too few y", "x and y of user a must be lists of the same length"),
        ("text", "user a: x must be rows of numbers, all of one length"),
        ("half a file", r"all_data_0.json is not valid JSON"),
        ("not LEAF's", "is not a LEAF file"),
        ("no train folder", r"train has no .json file"),
        ("no test users", "and both must occur"),
    ],
)
def test_broken_leaf_folders_are_refused(how: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason):
        Femnist(path=str(broken(tmp_path / "leaf", how))).load(0)


def test_missing_sources_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FILFL_DATA", raising=False)
    with pytest.raises(DataError, match=r"data.path is not set; set it to a folder with LEAF's"):
        Femnist().load(0)
    with pytest.raises(DataError, match=r"data.path: .*nowhere does not exist"):
        Femnist(path=str(tmp_path / "nowhere")).load(0)
    (tmp_path / "x.npz").write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"cannot be read as an .npz"):
        Femnist(path=str(tmp_path / "x.npz")).load(0)
    np.savez(tmp_path / "y.npz", images=np.zeros((2, 28, 28), dtype=np.uint8), labels=[0, 0], writers=[0, 0])
    with pytest.raises(DataError, match="has no array split; it must have images, labels, writers, split"):
        Femnist(path=str(tmp_path / "y.npz")).load(0)


def arrays(**changes: Any) -> dict[str, Any]:
    n = np.arange(40)
    images = np.random.default_rng(0).integers(256, size=(40, 28, 28), dtype=np.uint8)
    return {"images": images, "labels": n % 5, "writers": n % 4, "split": n // 30, **changes}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"images": np.zeros((40, 14, 56), dtype=np.uint8)}, r"images have shape \[14, 56\]"),
        ({"images": np.zeros((40, 28, 28), dtype=np.int64)}, "images must be uint8 or floating point"),
        ({"labels": np.array(3)}, "labels must have one entry per image"),
        ({"labels": np.arange(40)[:, None] % 5}, "labels must have one entry per image"),
        ({"labels": np.full(40, 1.5)}, "labels must be integers"),
        ({"split": np.zeros((40, 2))}, "split must have one entry"),
        ({"split": np.zeros(40)}, "and both must occur"),
        ({"writer_names": np.array(["a", "b"])}, "writers must be between 0 and 1, indices into writer_names"),
    ],
)
def test_npz_with_unusable_arrays_is_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **arrays(**changes))
    with pytest.raises(DataError, match=reason):
        Femnist(path=str(tmp_path / "x.npz")).load(0)


def test_npz_layout_variants_give_equal_data(tmp_path: Path) -> None:
    same = {}
    for name, changes in {
        "plain": {},
        "named": {"writers": np.array(["w0", "w1", "w2", "w3"])[np.arange(40) % 4]},
        "huge ids": {"writers": np.arange(40) % 4 + 4_000_000_000},
        "floats": {"images": arrays()["images"] / 255},
        "float bytes": {"images": arrays()["images"].astype(float)},
        "flat": {"images": arrays()["images"].reshape(40, 784)},
    }.items():
        np.savez(tmp_path / "x.npz", **arrays(**changes))
        same[name] = Femnist(path=str(tmp_path / "x.npz")).load(0).fingerprint()
    assert set(same.values()) == {same["plain"]}
    np.save(tmp_path / "y.npy", np.zeros(3))
    (tmp_path / "y.npy").rename(tmp_path / "y.npz")
    with pytest.raises(DataError, match=r"cannot be read as an .npz"):
        Femnist(path=str(tmp_path / "y.npz")).load(0)
    with pytest.raises(DataError, match=r"data.image must be \[height, width\]"):
        Femnist(path=str(tmp_path / "x.npz"), image=(784,)).load(0)


@needs_real_data
def test_the_real_npz() -> None:
    data = Femnist().load(0)
    with np.load(Path(str(REAL)) / "femnist_leaf_writers.npz") as file:
        source = {name: file[name] for name in file.files}
    images, split, writers = source["images"], source["split"], source["writers"]
    assert data.num_clients == 294 and data.classes == 62
    assert (data.test_x[:, 0] == images[split == 1]).all() and (data.test_y == source["labels"][split == 1]).all()
    tests = {row.tobytes() for row in images[split == 1]}
    left = [i for i in np.flatnonzero(split == 0) if images[i].tobytes() not in tests]
    assert len(data.y) + len(data.filter_y) == len(left)
    assert not tests & {row.tobytes() for row in np.concatenate([data.x, data.filter_x])[:, 0]}
    names = source["writer_names"]
    for k in (0, 100, 293):
        count = sum(names[writers[i]] == data.names[k] for i in left)
        assert data.num_train[k] == count - int(0.2 * count + 1e-9) - int(0.05 * count + 1e-9)
    assert (data.names[data.test_clients] == names[writers[split == 1]]).all()


@needs_real_data
def test_the_real_leaf_files() -> None:
    folder = Path(str(REAL)) / "leaf" / "femnist"
    data = Femnist(path=str(folder), filtering=0.0).load(0)
    assert data.x.dtype == np.uint8
    read: dict[str, dict[str, list[bytes]]] = {"train": {}, "test": {}}
    for file in folder.rglob("*.json"):
        for name, user in json.loads(file.read_text())["user_data"].items():
            rows = [bytes(round(value * 255) for value in image) for image in user["x"]]
            read[file.parent.name].setdefault(name, []).extend(rows)
    tests = {row for rows in read["test"].values() for row in rows}
    assert sorted(row.tobytes() for row in data.test_x) == sorted(row for rows in read["test"].values() for row in rows)
    for k, name in enumerate(data.names):
        mine = data.x[data.offsets[k] : data.offsets[k + 1]]
        assert sorted(row.tobytes() for row in mine) == sorted(row for row in read["train"][name] if row not in tests)
