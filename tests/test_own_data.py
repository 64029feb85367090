"""Own data in other forms: torch datasets, folders of images, Hugging Face datasets and texts."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

import filfl
from filfl import FederatedData
from filfl.data.filter_file import with_filter_file
from filfl.data.hub import Hub
from filfl.data.image_folder import Images
from filfl.errors import ConfigError, DataError


def picture(seed: int, height: int = 6, width: int = 5, colours: int = 0) -> np.ndarray:
    shape = (height, width, colours) if colours else (height, width)
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def save(array: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def everything(data: FederatedData) -> set[bytes]:
    return {row.tobytes() for row in np.concatenate([data.x, data.filter_x, data.test_x])}


# Images of arrays.


def test_images_with_channels_last_are_turned() -> None:
    last = np.stack([picture(i, colours=3) for i in range(20)])
    first = np.ascontiguousarray(np.moveaxis(last, -1, 1))
    y, owners = np.arange(20) % 2, np.arange(20) % 4
    a = FederatedData.from_arrays(last, y, owners, filtering=(last[:2], y[:2]))
    b = FederatedData.from_arrays(first, y, owners, filtering=(first[:2], y[:2]))
    assert a.sample_shape == (3, 6, 5) and a.fingerprint() == b.fingerprint()


# Torch datasets.


class Owned(Dataset):
    """Samples (x, y, metadata), as some benchmarks have them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        return torch.full((3,), float(i)), torch.tensor(i % 2), {"hospital": f"h{i % 4}"}


def test_a_tensor_dataset_with_a_list_of_clients() -> None:
    x, y = torch.arange(120.0).reshape(40, 3), torch.arange(40) % 3
    owners = [f"c{i % 4}" for i in range(40)]
    data = FederatedData.from_dataset(TensorDataset(x, y), owners, seed=5, test=TensorDataset(x[:3], y[:3]))
    same = FederatedData.from_arrays(x.numpy(), y.numpy(), owners, seed=5, test=(x[:3].numpy(), y[:3].numpy()))
    assert data.fingerprint() == same.fingerprint() and data.names.tolist() == ["c0", "c1", "c2", "c3"]


def test_a_function_gives_the_client_of_a_sample() -> None:
    data = FederatedData.from_dataset(Owned(), lambda sample: sample[2]["hospital"], filtering=0.3)
    assert data.names.tolist() == ["h0", "h1", "h2", "h3"]
    for k in range(4):
        assert all(row[0] % 4 == k for row in data.x[data.offsets[k] : data.offsets[k + 1]])
    assert filfl.simulate({"rounds": 1, "selection.k": 2}, data=data).records


@pytest.mark.parametrize(
    ("colours", "channels_last", "shape"),
    [(0, False, (1, 6, 5)), (3, False, (3, 6, 5)), (2, True, (2, 6, 5)), (2, False, (6, 5, 2))],
)
def test_images_of_a_dataset_get_their_channels_first(
    colours: int, channels_last: bool, shape: tuple[int, ...]
) -> None:
    samples = [(picture(i, colours=colours), "even" if i % 2 == 0 else "odd") for i in range(20)]
    data = FederatedData.from_dataset(Listed(samples), np.arange(20) % 2, channels_last=channels_last)
    assert data.sample_shape == shape and data.class_names == ("even", "odd")


class Listed(Dataset):
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> Any:
        return self.samples[i]


@pytest.mark.parametrize(
    ("dataset", "client_of", "reason"),
    [
        (Listed([]), [], "dataset is empty"),
        (Listed([torch.zeros(2)]), [0], r"samples must be pairs \(x, y\) \(got Tensor in sample 0\)"),
        (
            Listed([(np.zeros(2), 0), (np.zeros(3), 1)]),
            [0, 1],
            r"same shape \(got \[2\] in sample 0, \[3\] in sample 1",
        ),
        (Listed([(np.zeros(2), 0)] * 4), [0, 1], "one client per sample .got 2 for 4 samples"),
        (Listed([(np.zeros(2), 0)] * 4), ["a"] * 4, r"client_of has a single client \(a\)"),
        (Listed([("a text", 0)] * 4), [0, 1] * 2, "got str.; for texts, see FederatedData.from_texts"),
        (iter([]), [], "must have a length and samples by index"),
        (Listed([(np.zeros((2, 2)), 0)] * 4), [0, 1] * 2, "channels_last needs images"),
    ],
)
def test_datasets_that_cannot_be_used(dataset: Any, client_of: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        FederatedData.from_dataset(dataset, client_of, channels_last="channels" in reason)


# Folders of images.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three clients with two classes of ten grey images each."""
    for i in range(60):
        save(picture(i), tmp_path / "images" / f"clinic-{i % 3}" / ("cat" if i % 2 else "dog") / f"{i}.png")
    return tmp_path / "images"


def test_a_folder_by_client_and_class(folder: Path) -> None:
    data = FederatedData.from_image_folder(folder)
    assert data.names.tolist() == ["clinic-0", "clinic-1", "clinic-2"] and data.class_names == ("cat", "dog")
    assert data.sample_shape == (1, 6, 5) and data.x.dtype == np.uint8
    assert everything(data) == {picture(i).tobytes() for i in range(60)}
    label = {picture(i).tobytes(): "cat" if i % 2 else "dog" for i in range(60)}
    assert all(label[x.tobytes()] == data.class_names[y] for x, y in zip(data.x, data.y, strict=True))
    owner = {picture(i).tobytes(): i % 3 for i in range(60)}
    assert all(owner[x.tobytes()] == k for x, k in zip(data.test_x, data.test_clients, strict=True))
    assert Images(path=str(folder)).load(0).fingerprint() == data.fingerprint()


def test_a_folder_by_class_with_a_table_of_clients(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = ["file,client"]
    for i in range(40):
        name = f"{'cat' if i % 2 else 'dog'}/{i}.jpg"
        save(picture(i, colours=3), tmp_path / "images" / name)
        rows.append(f"{name},0{i % 4}")
    (tmp_path / "images" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "images" / ".DS_Store").write_text("hidden")
    (tmp_path / "clients.csv").write_text("\n".join(rows) + "\n")
    data = FederatedData.from_image_folder(tmp_path / "images", client_table=tmp_path / "clients.csv")
    assert data.names.tolist() == ["00", "01", "02", "03"] and data.sample_shape == (3, 6, 5)
    assert "files that are not images, left out: cat/notes.txt" in caplog.text
    (tmp_path / "clients.csv").write_text("\n".join(rows[:-1]) + "\n")
    with pytest.raises(DataError, match=r"no client for 1 of 40 images, such as cat/39.jpg"):
        FederatedData.from_image_folder(tmp_path / "images", client_table=tmp_path / "clients.csv")
    (tmp_path / "clients.csv").write_text("path,client\n")
    with pytest.raises(DataError, match=r"the table has no rows"):
        FederatedData.from_image_folder(tmp_path / "images", client_table=tmp_path / "clients.csv")
    (tmp_path / "clients.csv").write_text("path,client\na,b\n")
    with pytest.raises(DataError, match=r"must have the columns file and client \(it has path, client; no file\)"):
        FederatedData.from_image_folder(tmp_path / "images", client_table=tmp_path / "clients.csv")


def test_images_are_resized_and_mixed_ones_get_three_colours(folder: Path) -> None:
    save(picture(100, height=12, width=9, colours=3), folder / "clinic-0" / "cat" / "large.png")
    with pytest.raises(DataError, match=r"different sizes: 6 x 5 .*, 12 x 9 .*; set size"):
        FederatedData.from_image_folder(folder)
    assert FederatedData.from_image_folder(folder, size=8).sample_shape == (3, 8, 8)
    assert FederatedData.from_image_folder(folder, size=(4, 7)).sample_shape == (3, 4, 7)
    assert Images(path=str(folder), size=8).load(0).sample_shape == (3, 8, 8)
    with pytest.raises(DataError, match="size must be one or two whole numbers"):
        FederatedData.from_image_folder(folder, size=0)


def test_a_trusted_folder_is_resized_like_those_of_the_clients(folder: Path, tmp_path: Path) -> None:
    for i in range(4):
        save(picture(200 + i, height=12, colours=3), tmp_path / "trusted" / ("cat" if i % 2 else "dog") / f"{i}.png")
    data = FederatedData.from_image_folder(folder, filtering=tmp_path / "trusted")
    assert data.filter_x.shape == (4, 1, 6, 5) and sorted(data.filter_y) == [0, 0, 1, 1]
    from_file = with_filter_file(FederatedData.from_image_folder(folder), str(tmp_path / "trusted"))
    assert np.array_equal(from_file.filter_x, data.filter_x) and np.array_equal(from_file.filter_y, data.filter_y)
    save(picture(1), tmp_path / "trusted" / "bird" / "1.png")
    with pytest.raises(DataError, match=r"filter.path: classes must be one of cat, dog \(got bird\)"):
        with_filter_file(FederatedData.from_image_folder(folder), str(tmp_path / "trusted"))


def test_folders_that_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere does not exist; give a folder with client/class/file"):
        FederatedData.from_image_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"must have images in client/class/file.png .* or give client_table"):
        FederatedData.from_image_folder(folder / "clinic-0")
    with pytest.raises(DataError, match=r"must have images in class/file.png.* \(got clinic-0/cat/15.png\)"):
        FederatedData.from_image_folder(folder, client_table="unused.csv")
    with pytest.raises(DataError, match=r"images has a single client \(clinic-0\)"):
        for other in ("clinic-1", "clinic-2"):
            (folder / other).rename(tmp_path / other)
        FederatedData.from_image_folder(folder)
    (folder / "clinic-1" / "cat").mkdir(parents=True)
    (folder / "clinic-1" / "cat" / "broken.png").write_bytes(b"\x89PNG nothing more")
    with pytest.raises(DataError, match=r"broken.png cannot be read: not an image"):
        FederatedData.from_image_folder(folder)
    whole = (folder / "clinic-0" / "cat" / "15.png").read_bytes()
    (folder / "clinic-1" / "cat" / "broken.png").write_bytes(whole[:50])
    with pytest.raises(DataError, match=r"broken.png cannot be read: "):
        FederatedData.from_image_folder(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no images; it must have files like client/class/file.png"):
        FederatedData.from_image_folder(tmp_path / "empty")
    with pytest.raises(DataError, match=r"data.path is not set; set it to a folder with client/class/file.png"):
        Images().load(0)


# Hugging Face.


def table(count: int, seed: int = 0, **more: Any) -> datasets.Dataset:
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "owl"])}
    kinds |= {"site": datasets.Value("string")}
    columns = {"image": [picture(seed + i, colours=3) for i in range(count)], "label": [i % 2 for i in range(count)]}
    columns |= {"site": [f"site {i % 4}" for i in range(count)]}
    return datasets.Dataset.from_dict(columns, datasets.Features(kinds))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_saved_dataset_with_splits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets.disable_progress_bars()
    both = datasets.DatasetDict({"train": table(40), "test": table(8, seed=100)})
    both.save_to_disk(tmp_path / "saved")
    for given in (both, tmp_path / "saved", str(tmp_path / "saved")):
        data = FederatedData.from_huggingface(given, client="site", target="label")
        assert data.names.tolist() == [f"site {i}" for i in range(4)] and len(data.test_y) == 8
        assert data.class_names == ("cat", "dog", "owl") and data.classes == 3 and data.sample_shape == (3, 6, 5)
        assert data.test_clients.tolist() == [i % 4 for i in range(8)]
        tests = {np.moveaxis(picture(100 + i, colours=3), -1, 0).tobytes() for i in range(8)}
        assert {row.tobytes() for row in data.test_x} == tests
    hub = Hub(dataset=str(tmp_path / "saved"), client="site", filtering=0.1).load(0)
    assert hub.fingerprint() == data.fingerprint() and hub.class_names == data.class_names
    with caplog.at_level("WARNING"):
        assert Hub(dataset=str(tmp_path / "saved"), clients=5).load(0).num_clients == 5
    assert "data.client is not set" in caplog.text and "image, label, site" in caplog.text
    with pytest.raises(DataError, match="and there is no folder"):
        Hub(dataset=str(tmp_path / "savd")).load(0)
    with pytest.raises(ConfigError, match=r"data.split must be one of train, test \(got all\)"):
        Hub(dataset=str(tmp_path / "saved"), client="site", split="all").load(0)
    with pytest.raises(DataError, match="cannot be split into clients"):
        Hub(dataset=str(tmp_path / "saved"), client="nobody").load(0)


def test_a_dataset_without_splits() -> None:
    data = FederatedData.from_huggingface(table(40), client="site", test=0.5, filtering=0.0)
    assert len(data.test_y) == 20 and len(data.filter_y) == 0 and data.classes == 3
    checked = FederatedData.from_huggingface(table(40), client="site", filtering=table(9, seed=100))
    given = {np.moveaxis(picture(100 + i, colours=3), -1, 0).tobytes() for i in range(9)}
    assert {row.tobytes() for row in checked.filter_x} == given and checked.filter_from == "server"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_trusted_clients_of_a_saved_dataset_give_the_same_sets_as_in_python(tmp_path: Path) -> None:
    table(80).save_to_disk(tmp_path / "saved")
    ours = FederatedData.from_huggingface(str(tmp_path / "saved"), client="site", trusted=["site 1"])
    hub = Hub(dataset=str(tmp_path / "saved"), client="site", trusted=("site 1",)).load(0)
    assert hub.fingerprint() == ours.fingerprint() and len(hub.filter_y) == 7 and len(hub.test_y) == 5


def test_texts_of_a_dataset_need_a_tokenizer() -> None:
    texts = [f"word {'more ' * (i % 3)}{i}" for i in range(20)]
    made = datasets.Dataset.from_dict({"text": texts, "y": ["no", "yes"] * 10, "who": [i % 2 for i in range(20)]})
    with pytest.raises(DataError, match="column text has texts; set tokenizer"):
        FederatedData.from_huggingface(made, client="who")
    data = FederatedData.from_huggingface(made, client="who", tokenizer=lambda text: [len(text)], length=2)
    assert data.sample_shape == (2,) and data.x.dtype == np.int32 and data.class_names == ("no", "yes")


@pytest.mark.parametrize(
    ("dataset", "options", "reason"),
    [
        (lambda: table(8), {"client": "who"}, "client must be one of the columns image, label, site .got who"),
        (lambda: table(8), {"client": "site", "target": "y"}, "target must be one of image, label, site .got y"),
        (lambda: table(8).rename_column("image", "photo"), {"client": "site"}, "input is not set .* one of photo"),
        (lambda: table(0), {"client": "site"}, "the dataset is empty"),
        (
            lambda: datasets.DatasetDict({"all": table(8)}),
            {"client": "site"},
            "no split train; set split to one of all",
        ),
        (lambda: [1, 2], {"client": "site"}, "must be a Dataset or DatasetDict of Hugging Face.*got list"),
        (lambda: Path("nowhere"), {"client": "site"}, "nowhere does not exist"),
        (lambda: Path("/"), {"client": "site"}, "was not written by save_to_disk"),
    ],
)
def test_hugging_face_datasets_that_cannot_be_used(dataset: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        FederatedData.from_huggingface(dataset(), **options)


# Texts.


def letters(text: str) -> list[int]:
    return [ord(letter) - ord("a") + 1 for letter in text]


def test_texts_are_cut_and_padded_at_the_start() -> None:
    texts, labels, owners = ["abc", "abcdef", "", "b"] * 5, ["x", "y", "x", "y"] * 5, ["p", "q"] * 10
    given = {"tokenizer": letters, "length": 4, "filtering": (["cab"], ["x"]), "test": (["abcde", "a"], ["y", "z"])}
    data = FederatedData.from_texts(texts, labels, owners, **given)
    assert data.filter_x.tolist() == [[0, 3, 1, 2]] and data.test_x.tolist() == [[1, 2, 3, 4], [0, 0, 0, 1]]
    assert data.class_names == ("x", "y", "z") and data.test_y.tolist() == [1, 2]
    assert {tuple(row) for row in data.x.tolist()} == {(0, 1, 2, 3), (1, 2, 3, 4), (0, 0, 0, 0), (0, 0, 0, 2)}
    run = {"rounds": 1, "selection.k": 1, "model.name": "lstm", "model.hidden": 4, "model.layers": 1}
    assert filfl.simulate(run, data=data).records


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"length": 0}, "length must be a whole number of at least 1"),
        ({"tokenizer": lambda text: [-1]}, r"must return a list of whole numbers of at least 0 \(got \[-1\]\)"),
        ({"tokenizer": lambda text: text.split()}, "must return a list of whole numbers"),
        ({"texts": ["a", None] * 5}, "text 1 must be a text .got NoneType"),
        ({"client_ids": ["p"] * 10}, "client_ids has a single client"),
    ],
)
def test_texts_that_cannot_be_used(change: dict[str, Any], reason: str) -> None:
    given = {"texts": ["a", "b"] * 5, "y": [0, 1] * 5, "client_ids": list("pqpqpqpqpq")}
    with pytest.raises(DataError, match=reason):
        FederatedData.from_texts(**{**given, "tokenizer": letters, "length": 3, **change})
