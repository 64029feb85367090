"""Data files: damaged, truncated, with other headers, or made to do harm. A saved folder is accepted only if it is
what was saved."""

import gzip
import io
import json
import os
import random
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from filfl import FederatedData
from filfl.data.cifar10 import Cifar10
from filfl.data.femnist import Femnist
from filfl.data.image_folder import Images
from filfl.data.shakespeare import Shakespeare
from filfl.data.sources import cached
from filfl.data.table import Table
from filfl.errors import DataError, FilflError

from .campaign import Part, Wrong, check_sentence, flipped, sentence

COUNT = 40
HEADER = 128
"""The length of the header of a small .npy file."""


def _arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "images": rng.integers(0, 256, (COUNT, 28, 28), dtype=np.uint8),
        "labels": rng.integers(0, 62, COUNT),
        "writers": np.arange(COUNT) % 4,
        "split": (np.arange(COUNT) // 4 % 5 == 0).astype(int),
        "writer_names": np.array(["ann", "bob", "cy", "Zoë"]),
    }


def _cifar() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (COUNT, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, COUNT)
    return {"x_train": images[:30], "y_train": labels[:30], "x_test": images[30:], "y_test": labels[30:]}


def leaf(users: Any = ("a", "b"), data: Any = None, **more: Any) -> dict[str, Any]:
    """A LEAF file of two writers with two images each."""
    own = {user: {"x": [[0.1 * i] * 784 for i in range(2)], "y": [1, 2]} for user in ("a", "b")}
    return {
        "users": list(users) if isinstance(users, tuple) else users,
        "user_data": own if data is None else data,
        **more,
    }


class DataFiles(Part):
    name = "data"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.good = folder / "good"
        self.good.mkdir()
        np.savez(self.good / "femnist.npz", **_arrays())
        np.savez_compressed(self.good / "compressed.npz", **_arrays())
        np.savez_compressed(self.good / "cifar.npz", **_cifar())
        write_leaf(self.good / "leaf", leaf(), leaf(num_samples=[2, 2]))
        lines = [{"play": "p", "role": role, "text": "To be, or not to be. " * 30} for role in "abc"]
        text = "\n".join(map(json.dumps, lines)).encode()
        (self.good / "speeches.jsonl").write_bytes(text)
        (self.good / "speeches.jsonl.gz").write_bytes(gzip.compress(text, mtime=0))
        rows = [f"s{i % 3},{i % 2},{i * 0.5},{'mf'[i % 2]}" for i in range(30)]
        (self.good / "table.csv").write_text("\n".join(["site,y,age,sex", *rows]))
        (self.good / "table.csv.gz").write_bytes(gzip.compress((self.good / "table.csv").read_bytes(), mtime=0))
        import pandas

        pandas.read_csv(self.good / "table.csv").to_parquet(self.good / "table.parquet")
        for i in range(12):
            path = self.good / "images" / f"c{i % 3}" / "ab"[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(_arrays()["images"][i]).save(path)
        x, y = np.arange(240, dtype=np.float32).reshape(60, 4), np.arange(60) % 3
        self.saved = FederatedData.from_arrays(x, y, [f"site {i % 5}" for i in range(60)])
        self.saved.save(self.good / "saved")

    def case(self, rng: random.Random) -> None:
        names = sorted(path.name for path in self.good.iterdir())
        name = rng.choice([*names, "saved", "saved"])
        with self._copy(name) as copy:
            files = [copy] if copy.is_file() else sorted(path for path in copy.rglob("*") if path.is_file())
            file = rng.choice(files)
            content = file.read_bytes()
            # Headers are where the damage is interpreted: half of the cases damage the first 200 bytes only.
            head = rng.choice((len(content), min(200, len(content))))
            before = file.stat()
            # The content of a saved array is read again only if its modification time changed, its header always.
            same_time = name == "saved" and file.suffix == ".npy" and rng.random() < 0.3
            head = HEADER if same_time else head
            file.write_bytes(flipped(content[:head], rng) + content[head:])
            if same_time:
                os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            self.load(name, copy)

    def load(self, name: str, path: Path) -> None:
        """Read a file or folder: a result or a sentence; of a saved folder, the data that was saved or a sentence."""
        result = sentence(lambda: READERS[name.split(".")[0]](path))
        if isinstance(result, FederatedData) and name == "saved":
            same = result.fingerprint() == self.saved.fingerprint() and np.array_equal(result.names, self.saved.names)
            equal = same and np.array_equal(result.x, self.saved.x) and result.x.dtype == self.saved.x.dtype
            if not equal or result.class_names != self.saved.class_names or result.trusted != self.saved.trusted:
                raise Wrong("a saved folder that was changed is accepted")

    @contextmanager
    def _copy(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder, _cache(Path(folder) / "cache"):
            source, copy = self.good / name, Path(folder) / name
            shutil.copytree(source, copy) if source.is_dir() else shutil.copy2(source, copy)
            yield copy

    def corpus(self) -> Mapping[str, Callable[[], None]]:
        return {name: partial(self._known, make) for name, make in CORPUS.items()}

    def _known(self, make: Callable[[Path], Any]) -> None:
        """A case of the corpus: it must be refused with a sentence."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder, _cache(Path(folder) / "cache"):
            try:
                make(Path(folder))
            except FilflError as error:
                check_sentence(str(error))
                return
            raise Wrong("damaged data was accepted")


READERS: dict[str, Callable[[Path], FederatedData]] = {
    "femnist": lambda path: Femnist(path=str(path)).load(0),
    "compressed": lambda path: Femnist(path=str(path)).load(0),
    "cifar": lambda path: Cifar10(path=str(path), clients=2).load(0),
    "leaf": lambda path: Femnist(path=str(path)).load(0),
    "speeches": lambda path: Shakespeare(path=str(path), min_chars=1).load(0),
    "table": lambda path: Table(path=str(path), client="site", target="y").load(0),
    "images": lambda path: Images(path=str(path)).load(0),
    "saved": lambda path: FederatedData.open(path),
}


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    before = os.environ.get("FILFL_CACHE")
    os.environ["FILFL_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("FILFL_CACHE")
        if before is not None:
            os.environ["FILFL_CACHE"] = before


def write_leaf(folder: Path, train: Any, test: Any) -> None:
    for split, content in (("train", train), ("test", test)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        (folder / split / "a.json").write_text(json.dumps(content))


def _npz(folder: Path, **changes: Any) -> FederatedData:
    np.savez(folder / "a.npz", **{**_arrays(), **changes})
    return Femnist(path=str(folder / "a.npz")).load(0)


def _header(folder: Path, shape: str, descr: str = "'|u1'") -> FederatedData:
    """An .npz whose header of the images does not match its content."""
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        for name, array in _arrays().items():
            file = io.BytesIO()
            np.save(file, array)
            content = file.getvalue()
            if name == "images":
                header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
                content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + b"few"
            archive.writestr(f"{name}.npy", content)
    return Femnist(path=str(folder / "a.npz")).load(0)


def _archive(folder: Path, place: int, value: int) -> FederatedData:
    """An .npz whose table of contents has another value in this byte of each entry."""
    np.savez(folder / "a.npz", **_arrays())
    content = bytearray((folder / "a.npz").read_bytes())
    at = content.find(b"PK\x01\x02")
    while at >= 0:
        content[at + place] = value
        at = content.find(b"PK\x01\x02", at + 4)
    (folder / "a.npz").write_bytes(content)
    return Femnist(path=str(folder / "a.npz")).load(0)


def _zlib(folder: Path) -> FederatedData:
    np.savez_compressed(folder / "a.npz", **_arrays())
    content = bytearray((folder / "a.npz").read_bytes())
    content[400:1200] = bytes(byte ^ 0xFF for byte in content[400:1200])
    (folder / "a.npz").write_bytes(content)
    return Femnist(path=str(folder / "a.npz")).load(0)


def _bomb(folder: Path, suffix: str) -> FederatedData:
    try:
        return _exploded(folder, suffix)
    except DataError as error:
        if "FILFL_MAX_GB" not in str(error):
            raise Wrong(f"it was refused for another reason: {error}") from None
        raise


def _exploded(folder: Path, suffix: str) -> FederatedData:
    """A small file that decompresses to 3 MB, with a limit of 1 MB."""
    with _variable("FILFL_MAX_GB", "0.001"):
        if suffix == ".npz":
            np.savez_compressed(folder / "a.npz", **{**_arrays(), "images": np.zeros((COUNT * 100, 28, 28), np.uint8)})
            return Femnist(path=str(folder / "a.npz")).load(0)
        if suffix == ".png":
            Image.new("RGB", (1000, 1000)).save(folder / "a.png")
            (folder / "c/d").mkdir(parents=True)
            (folder / "a.png").rename(folder / "c/d/a.png")
            return Images(path=str(folder)).load(0)
        if suffix == ".parquet":
            import pandas

            frame = pandas.DataFrame({"site": ["a"] * 200_000, "y": 1})
            frame.to_parquet(folder / "a.parquet")
            return Table(path=str(folder / "a.parquet"), client="site", target="y").load(0)
        name = f"a{suffix}.gz"
        (folder / name).write_bytes(gzip.compress(b" " * 3_000_000))
        if suffix == ".csv":
            return Table(path=str(folder / name), client="site", target="y").load(0)
        return Shakespeare(path=str(folder / name)).load(0)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _undecodable(folder: Path) -> FederatedData:
    """A .parquet whose texts are not UTF-8."""
    import pandas

    path = folder / "a.parquet"
    pandas.DataFrame({"site": ["site 1", "site 2"] * 5, "y": [0, 1] * 5}).to_parquet(path, compression=None)
    path.write_bytes(path.read_bytes().replace(b"site 1", b"\xffite 1"))
    return Table(path=str(path), client="site", target="y").load(0)


def _long_name(folder: Path) -> FederatedData:
    """An .npz in which the name of an array is as long as the file, which the message of zipfile quotes."""
    np.savez_compressed(folder / "a.npz", **_arrays())
    content = bytearray((folder / "a.npz").read_bytes())
    content[26:28] = b"\xff\xff"
    (folder / "a.npz").write_bytes(content)
    return Femnist(path=str(folder / "a.npz")).load(0)


def _leaf(folder: Path, content: Any, reader: str = "leaf") -> FederatedData:
    write_leaf(folder, content, content)
    return READERS[reader](folder)


def _loop(folder: Path) -> FederatedData:
    write_leaf(folder, leaf(), leaf())
    (folder / "train/a.json").unlink()
    (folder / "train/a.json").symlink_to("a.json")
    return Femnist(path=str(folder)).load(0)


def _devices(folder: Path) -> FederatedData:
    write_leaf(folder, leaf(), leaf())
    (folder / "train/a.json").unlink()
    (folder / "train/a.json").symlink_to("/dev/zero")
    return Femnist(path=str(folder)).load(0)


def _byte_order(folder: Path) -> FederatedData:
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    FederatedData.from_arrays(x, np.arange(20) % 2, np.arange(20) % 4).save(folder / "saved")
    file = folder / "saved" / "x.npy"
    status, content = file.stat(), file.read_bytes()
    file.write_bytes(content.replace(b"'<f4'", b"'>f4'"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return FederatedData.open(folder / "saved")


def _saved_device(folder: Path) -> FederatedData:
    (folder / "data.json").symlink_to("/dev/zero")
    return FederatedData.open(folder)


def _cached(folder: Path, write: Callable[[Path], Any]) -> None:
    """A cache that is not one must not be used: the source is parsed again."""
    source = folder / "source"
    source.write_text("source")
    expected = {"values": np.arange(3)}
    cached("fuzz-1", [source], lambda: expected)
    (path,) = (folder / "cache").iterdir()
    path.unlink()
    write(path)
    got = cached("fuzz-1", [source], lambda: expected)
    if got.keys() != expected.keys() or not np.array_equal(got["values"], expected["values"]):
        raise Wrong(f"the cache is believed: {got}")
    raise DataError("parsed again")


def _member(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("values", b"text")


STRUCTURED = np.zeros(COUNT, dtype=[("a", "u1"), ("b", "f4")])
CORPUS: dict[str, Callable[[Path], Any]] = {
    "bad zlib data": _zlib,
    "a header of 10 TB": partial(_header, shape="(40, 10000000000, 28)"),
    "a header beyond 64 bits": partial(_header, shape="(10000000000000000000000,)"),
    "a header of negative shape": partial(_header, shape="(-1, -784)"),
    "a header of objects": partial(_header, shape="(40,)", descr="'|O'"),
    "encrypted": partial(_archive, place=8, value=1),
    "unknown compression": partial(_archive, place=10, value=99),
    "a name of 65,535 bytes": _long_name,
    "a .parquet whose texts are not UTF-8": _undecodable,
    "members that are not arrays": lambda folder: (
        _member(folder / "a.npz"),
        Femnist(path=str(folder / "a.npz")).load(0),
    ),
    "structured writers": partial(_npz, writers=STRUCTURED),
    "structured labels": partial(_npz, labels=STRUCTURED),
    "structured names": partial(_npz, writer_names=STRUCTURED),
    "names without dimension": partial(_npz, writer_names=np.array("ann")),
    "names of two dimensions": partial(_npz, writer_names=np.array([["a"] * 4] * 4)),
    "equal names": partial(_npz, writer_names=np.array(["a"] * 4)),
    "images without dimension": partial(_npz, images=np.array(1, dtype=np.uint8)),
    "a bomb .npz": partial(_bomb, suffix=".npz"),
    "a bomb .jsonl.gz": partial(_bomb, suffix=".jsonl"),
    "a bomb .csv.gz": partial(_bomb, suffix=".csv"),
    "a bomb .parquet": partial(_bomb, suffix=".parquet"),
    "a bomb .png": partial(_bomb, suffix=".png"),
    "LEAF of a list": partial(_leaf, content=[]),
    "LEAF of a number": partial(_leaf, content=3),
    "LEAF with numbers as users": partial(_leaf, content=leaf(users=[0], data=[{"x": [], "y": []}])),
    "LEAF with a list as a user": partial(_leaf, content=leaf(users=["a"], data={"a": [1]})),
    "LEAF with objects as users": partial(_leaf, content=leaf(users=[{}])),
    "LEAF with a number of 400 digits": partial(
        _leaf, content=leaf(users=["a"], data={"a": {"x": [[10**400]], "y": [1]}})
    ),
    "LEAF with a label of 400 digits": partial(
        _leaf, content=leaf(users=["a"], data={"a": {"x": [[1]], "y": [10**400]}})
    ),
    "a file that links to itself": _loop,
    "a device": lambda folder: Femnist(path="/dev/zero").load(0),
    "a device as speeches": lambda folder: Shakespeare(path="/dev/zero").load(0),
    "LEAF of devices": _devices,
    "a saved folder with a device": _saved_device,
    "a path that is too long": lambda folder: Femnist(path="a" * 5000).load(0),
    "the home of nobody": lambda folder: Femnist(path="~nobody-at-all/a").load(0),
    "another byte order": _byte_order,
    "a cache that is an array": partial(_cached, write=lambda path: np.save(path.open("wb"), np.arange(3))),
    "a cache without arrays": partial(_cached, write=lambda path: np.savez(path)),
    "a cache with other arrays": partial(_cached, write=lambda path: np.savez(path, values=np.arange(9))),
    "a cache of texts": partial(_cached, write=_member),
    "a cache that is a folder": partial(_cached, write=lambda path: path.mkdir()),
}
