"""CIFAR-10: three formats give the same data, and invalid files are refused."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from filfl.data.cifar10 import BATCHES, Cifar10, read_cifar10
from filfl.errors import DataError

Written = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILFL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def images() -> Written:
    """Six batches of twelve images, as [n, 3, 32, 32]."""
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(72, 3, 32, 32), dtype=np.uint8)
    y = rng.integers(10, size=72)
    return {"x_train": x[:60], "y_train": y[:60], "x_test": x[60:], "y_test": y[60:]}


def batches(images: Written) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    x = np.concatenate([images["x_train"], images["x_test"]]).reshape(6, 12, 3072)
    y = np.concatenate([images["y_train"], images["y_test"]]).reshape(6, 12)
    return {name: (x[i], y[i]) for i, name in enumerate(BATCHES)}


def write_pickles(folder: Path, images: Written, protocol: int = 2) -> Path:
    folder = folder / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, (x, y) in batches(images).items():
        batch = {b"batch_label": name.encode(), b"labels": y.tolist(), b"data": x, b"filenames": [b"a.png"] * 12}
        (folder / name).write_bytes(pickle.dumps(batch, protocol))
    return folder


def write_binary(folder: Path, images: Written) -> Path:
    folder = folder / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, (x, y) in batches(images).items():
        pairs = zip(x, y, strict=True)
        (folder / f"{name}.bin").write_bytes(b"".join(bytes([label]) + image.tobytes() for image, label in pairs))
    return folder


def write_npz(folder: Path, images: Written, **changes: Any) -> Path:
    path = folder / "cifar.npz"
    channels_last = {name: images[name].transpose(0, 2, 3, 1) for name in ("x_train", "x_test")}
    arrays = {name: array for name, array in {**images, **channels_last, **changes}.items() if array is not None}
    np.savez(path, **arrays)
    return path


def same(read: list[np.ndarray], images: Written) -> bool:
    pairs = zip(read, images.values(), strict=True)
    return all(np.array_equal(mine, given) and mine.flags.c_contiguous for mine, given in pairs)


def test_all_three_formats_give_the_same_data(tmp_path: Path, images: Written) -> None:
    paths = [write_pickles(tmp_path, images), write_binary(tmp_path, images), write_npz(tmp_path, images)]
    assert all(same(read_cifar10(path), images) for path in paths)
    loaded = [Cifar10(path=str(path), clients=4, filtering=0.1).load(7) for path in paths]
    assert len({data.fingerprint() for data in loaded}) == 1
    assert loaded[0].sample_shape == (3, 32, 32) and loaded[0].x.dtype == np.uint8 and loaded[0].classes == 10
    assert len(loaded[0].filter_y) == 6 and len(loaded[0].y) == 54
    assert np.array_equal(loaded[0].test_x, images["x_test"]) and np.array_equal(loaded[0].test_y, images["y_test"])


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickle_protocols_2_to_5_are_read(tmp_path: Path, images: Written, protocol: int) -> None:
    assert same(read_cifar10(write_pickles(tmp_path, images, protocol)), images)


@pytest.mark.parametrize("protocol", [2, 5])
def test_column_major_arrays_are_read(tmp_path: Path, images: Written, protocol: int) -> None:
    folder = write_pickles(tmp_path, images)
    for name, (x, y) in batches(images).items():
        batch = {b"data": np.asfortranarray(x), b"labels": y.tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol))
    assert same(read_cifar10(folder), images)


def test_there_are_ten_classes_even_if_the_last_is_missing(tmp_path: Path, images: Written) -> None:
    few = {name: images[name] % 3 for name in ("y_train", "y_test")}
    assert Cifar10(path=str(write_npz(tmp_path, images, **few)), clients=2).load(0).classes == 10


def test_python_2_pickles_are_read(tmp_path: Path, images: Written) -> None:
    """The original files were written by Python 2: strings are bytes, and numpy's module is numpy.core."""
    folder = write_pickles(tmp_path, images)
    for name, (x, y) in batches(images).items():
        (folder / name).write_bytes(python_2_pickle(x, y.tolist()))
    assert b"numpy.core.multiarray" in (folder / "test_batch").read_bytes()
    assert same(read_cifar10(folder), images)


def python_2_pickle(x: np.ndarray, labels: list[int]) -> bytes:
    def string(content: bytes) -> bytes:  # BINSTRING, which Python 3 no longer writes
        return b"T" + len(content).to_bytes(4, "little") + content

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little")

    kind = b"cnumpy\ndtype\n" + string(b"u1") + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + string(b"|") + b"NNN" + number(-1 % 2**32) + number(-1 % 2**32) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + string(b"b") + b"\x87R"
    array += b"(" + number(1) + number(len(x)) + number(3072) + b"\x86" + kind + b"\x89" + string(x.tobytes()) + b"tb"
    listed = b"](" + b"".join(map(number, labels)) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + listed + b"u."


def test_the_parent_folder_and_layout_variants_of_the_npz_are_read(tmp_path: Path, images: Written) -> None:
    write_pickles(tmp_path / "py", images)
    write_binary(tmp_path / "bin", images)
    assert same(read_cifar10(tmp_path / "py"), images) and same(read_cifar10(tmp_path / "bin"), images)
    channels_first = {name: images[name] for name in ("x_train", "x_test")}
    columns = {name: images[name][:, None].astype(np.uint8) for name in ("y_train", "y_test")}
    assert same(read_cifar10(write_npz(tmp_path, images, **channels_first, **columns)), images)


def test_pickles_are_parsed_once_and_then_read_from_the_cache(
    tmp_path: Path, images: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_pickles(tmp_path, images)
    read_cifar10(folder)
    monkeypatch.setattr("filfl.data.cifar10.read_pickle", None)
    assert same(read_cifar10(folder), images)
    os.utime(folder / "data_batch_3", ns=(1, 1))
    with pytest.raises(TypeError):
        read_cifar10(folder)


def test_images_are_normalised_by_the_usual_mean_and_deviation(tmp_path: Path, images: Written) -> None:
    data = Cifar10(path=str(write_npz(tmp_path, images)), clients=2).load(0)
    assert data.scale.shape == data.shift.shape == (3, 1, 1) and data.scale.dtype == np.float32
    for colour, (mean, std) in enumerate([(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)]):
        mine = (data.test_x * data.scale + data.shift)[:, colour]
        assert np.allclose(mine, (images["x_test"][:, colour] / 255 - mean) / std, atol=1e-5)


class Malicious:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_nothing_is_executed(tmp_path: Path, images: Written, protocol: int) -> None:
    folder = write_pickles(tmp_path, images)
    trace = tmp_path / "trace"
    (folder / "data_batch_4").write_bytes(pickle.dumps(Malicious(f"echo > {trace}"), protocol))
    with pytest.raises(DataError, match=r"data_batch_4 calls \w+.system, .* nothing of it was executed"):
        Cifar10(path=str(folder), clients=2).load(0)
    assert not trace.exists()
    os.system(f"echo > {trace}")
    assert trace.exists(), "executing the command creates the file"


@pytest.mark.parametrize(
    "name", ["builtins\neval", "builtins\ngetattr", "numpy\nload", "numpy\nfromfile", "numpy.core.multiarray\nscalar"]
)
def test_only_the_names_that_arrays_need_are_allowed(tmp_path: Path, images: Written, name: str) -> None:
    folder = write_pickles(tmp_path, images)
    (folder / "test_batch").write_bytes(b"\x80\x02c" + name.encode() + b"\nX\x01\x00\x00\x001\x85R.")
    with pytest.raises(DataError, match=" calls " + name.replace("\n", ".")):
        read_cifar10(folder)


X, Y = np.zeros((12, 3072), dtype=np.uint8), [0] * 12


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps({b"data": X, b"labels": Y})[:-900], "not a complete pickle"),
        (b"", "not a complete pickle"),
        (b"no pickle", "not a complete pickle"),
        (pickle.dumps([1, 2]), "must be a dict"),
        (pickle.dumps({b"data": X}), "must be a dict with"),
        (pickle.dumps({"data": X, "labels": Y}), "must be a dict with"),
        (pickle.dumps({b"data": [1, 2], b"labels": Y}), r'b"data" must be an array \(got list\)'),
        (b"\x80\x02}(C\x04datacnumpy\nndarray\n)RC\x06labels]u.", 'b"data" must be an array'),
        (pickle.dumps({b"data": X.astype(float), b"labels": Y}), "images must be uint8, .* got f8"),
        (pickle.dumps({b"data": X[:, :3000], b"labels": Y}), r"32 x 32 pixels in 3 colours \(got shape \[3000\]"),
        (pickle.dumps({b"data": X, b"labels": "no"}), "must be a list of integers"),
        (pickle.dumps({b"data": X, b"labels": [0.5] * 12}), "must be a list of integers"),
        (pickle.dumps({b"data": X, b"labels": [0] * 11}), r"must be 12 integers, one per image \(got int64\[11\]\)"),
        (pickle.dumps({b"data": X, b"labels": [0] * 11 + [10]}), r"labels must be from 0 to 9 \(got 10\)"),
        (pickle.dumps({b"data": X, b"labels": [0] * 11 + [-1]}), r"labels must be from 0 to 9 \(got -1\)"),
        (pickle.dumps({b"data": X, b"labels": [0] * 11 + [2**80]}), "must be 12 integers"),
        (pickle.dumps({b"data": X[:0], b"labels": []}), "there are no images"),
    ],
)
def test_bad_pickles_are_refused_with_their_file(tmp_path: Path, images: Written, content: bytes, reason: str) -> None:
    folder = write_pickles(tmp_path, images)
    (folder / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match=reason) as error:
        read_cifar10(folder)
    assert str(folder / "data_batch_2") in str(error.value)
    assert not list((tmp_path / "cache").glob("*")), "invalid data is not cached"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bytes(3073 * 2 - 1), "is truncated: its 6145 bytes are not a multiple of 3073"),
        (b"", "there are no images"),
        (b"\x0a" + bytes(3072), r"labels must be from 0 to 9 \(got 10\)"),
    ],
)
def test_bad_binary_batches_are_refused_with_their_file(
    tmp_path: Path, images: Written, content: bytes, reason: str
) -> None:
    folder = write_binary(tmp_path, images)
    (folder / "data_batch_5.bin").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_5.bin.*{reason}"):
        read_cifar10(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"y_test": None}, "has no array y_test; it must have x_train, y_train, x_test, y_test"),
        ({"x_train": np.zeros((60, 32, 32, 3))}, r"images must be uint8, .* \(got float64\)"),
        ({"x_train": np.zeros((60, 28, 28), np.uint8)}, r"got shape \[28, 28\]"),
        ({"x_test": np.zeros(12, np.uint8)}, r"got shape \[\]"),
        ({"x_test": np.zeros((0, 32, 32, 3), np.uint8)}, "x_test and y_test: there are no images"),
        ({"y_train": np.zeros(60)}, "must be 60 integers, one per image"),
        ({"y_train": np.zeros(59, int)}, r"must be 60 integers, one per image \(got int64\[59\]\)"),
        ({"y_train": np.full(60, 10)}, r"x_train and y_train: labels must be from 0 to 9 \(got 10\)"),
        ({"y_test": np.array([None] * 12)}, "cannot be read as an .npz of plain arrays"),
    ],
)
def test_bad_npz_files_are_refused(tmp_path: Path, images: Written, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason) as error:
        read_cifar10(write_npz(tmp_path, images, **changes))
    assert "cifar.npz" in str(error.value)


def test_truncated_npz_files_are_refused(tmp_path: Path, images: Written) -> None:
    whole = write_npz(tmp_path, images).read_bytes()
    np.save(tmp_path / "one.npy", images["x_test"])
    single = (tmp_path / "one.npy").read_bytes()
    for content in (single, whole[:5000], whole[:-3], b"", b"text", whole[:3000] + bytes(500) + whole[3500:]):
        (tmp_path / "cifar.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be read as an \.npz"):
            read_cifar10(tmp_path / "cifar.npz")


def test_missing_files_and_wrong_paths_are_refused(
    tmp_path: Path, images: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ending, folder in {"": write_pickles(tmp_path, images), ".bin": write_binary(tmp_path, images)}.items():
        (folder / f"data_batch_3{ending}").unlink()
        with pytest.raises(DataError, match=f"lacks data_batch_3{ending}; unpack"):
            read_cifar10(folder)
    (tmp_path / "empty").mkdir()
    (tmp_path / "cifar.tar.gz").touch()
    for name, reason in {
        "empty": "has no CIFAR-10 batches",
        "nothing": "nothing does not exist",
        "cifar.tar.gz": "neither a folder nor an .npz; unpack it",
    }.items():
        with pytest.raises(DataError, match=reason):
            Cifar10(path=str(tmp_path / name)).load(0)
    (tmp_path / "data").mkdir()
    for folder in (None, tmp_path / "data"):
        monkeypatch.delenv("FILFL_DATA", raising=False)
        if folder:
            monkeypatch.setenv("FILFL_DATA", str(folder))
        with pytest.raises(DataError, match=r"data\.path is not set; set it to the folder"):
            Cifar10().load(0)


def test_too_few_images_for_the_clients_are_refused(tmp_path: Path, images: Written) -> None:
    with pytest.raises(DataError, match=r"200 clients cannot have data.min_size = 10 .* at most 6 clients can"):
        Cifar10(path=str(write_npz(tmp_path, images)), filtering=0.0).load(0)


@pytest.mark.skipif(
    "FILFL_DATA" not in os.environ,
    reason="FILFL_DATA (the folder with real data) is not set",
)
def test_the_real_images() -> None:
    data = Cifar10().load(0)
    assert (len(data.test_y), len(data.filter_y), len(data.y), data.num_clients) == (2000, 100, 9900, 200)
    assert np.diff(data.offsets).min() >= 10 and data.classes == 10
    assert np.bincount(data.test_y).tolist() == [200] * 10
    assert np.bincount(np.concatenate([data.y, data.filter_y])).tolist() == [1000] * 10
    few = np.mean([len(np.unique(data.y[a:b])) for a, b in zip(data.offsets, data.offsets[1:], strict=False)])
    assert few < 9, "Dir(0.5) leaves clients without some classes"

    # Compare with the raw arrays of the file, pixel by pixel.
    with np.load(Path(os.environ["FILFL_DATA"]) / "cifar10_subset_10k_2k.npz") as stored:
        source = {name: stored[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    for i, row, column, colour in [(0, 0, 0, 0), (7, 31, 2, 1), (1999, 5, 30, 2)]:
        assert data.test_x[i, colour, row, column] == source["x_test"][i, row, column, colour]
    labels: dict[bytes, list[int]] = {}
    for image, label in zip(source["x_train"], source["y_train"], strict=True):
        labels.setdefault(image.tobytes(), []).append(int(label))
    for image, label in zip([*data.x, *data.filter_x], [*data.y, *data.filter_y], strict=True):
        labels[image.transpose(1, 2, 0).tobytes()].remove(int(label))
    assert not any(labels.values()), "every training image belongs to exactly one client or the server, with its label"
    tested = {image.tobytes() for image in source["x_test"]}
    repeated = {image.tobytes() for image in source["x_train"]} & tested
    held = {image.transpose(1, 2, 0).tobytes() for image in [*data.x, *data.filter_x]}
    assert held & tested == repeated

    inputs = data.x * data.scale + data.shift
    assert np.abs(inputs.mean(axis=(0, 2, 3))).max() < 0.05 and np.abs(inputs.std(axis=(0, 2, 3)) - 1).max() < 0.05
