"""Saved data: opened again it is equal, and a damaged folder is refused."""

import errno
import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import filfl
from filfl import FederatedData
from filfl.data.digits import Digits
from filfl.data.folder import metadata_digest
from filfl.errors import DataError
from filfl.simulation.executors.serial import samples_on
from filfl.weights import FlatModel


def saved(data: FederatedData, folder: Path) -> FederatedData:
    data.save(folder)
    return FederatedData.open(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=settings.default.max_examples // 4)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.sampled_from([np.float32, np.uint8, np.int8]),
    st.sampled_from([0.0, 0.3]),
    st.booleans(),
)
def test_opened_data_equals_saved_data(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], dtype: type, share: float, named: bool
) -> None:
    owners = np.repeat(np.arange(len(counts)), counts)
    names = np.array(["ann", "Zoë", "", "\n", "a,b", '"'])[owners] if named else 10**12 + owners
    x = np.arange(2 * len(owners)).reshape(-1, 2).astype(dtype)
    data = FederatedData.from_arrays(x, owners % 3, names, test=(x[:1], [0]), filtering=share, validation=share)
    back = saved(data, tmp_path_factory.mktemp("data") / "deep" / "folder")
    for field in fields(FederatedData):
        there, here = getattr(data, field.name), getattr(back, field.name)
        assert np.array_equal(there, here) and np.asarray(there).dtype == np.asarray(here).dtype, field.name
    assert back.fingerprint() == data.fingerprint()
    assert all(isinstance(getattr(back, name), np.memmap) for name in ("x", "y", "offsets", "names", "test_x"))
    assert not back.x.flags.writeable


@pytest.mark.parametrize("changes", [{}, {"data.noisy": 0.3}, {"filter.name": "none", "selection.name": "divfl"}])
def test_mapped_data_gives_the_same_run_bit_for_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    data = Digits(clients=12).load(0)
    config = {"rounds": 3, "filter.size": 40, "selection.k": 3, "model.hidden": [8], **changes}
    filfl.simulate(config, data=data, out=tmp_path / "memory")
    filfl.simulate(config, data=saved(data, tmp_path / "data"), out=tmp_path / "mapped")
    for name in ("rounds.jsonl", "model.safetensors", "clients.csv", "config.toml"):
        assert (tmp_path / "memory" / name).read_bytes() == (tmp_path / "mapped" / name).read_bytes(), name
    again = filfl.simulate(config, FederatedData.open(tmp_path / "data"), out=tmp_path / "memory", resume=True)
    assert again.already_finished, "the fingerprint of the run does not depend on mapping"


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_samples_of_mapped_data_are_not_copied(dtype: type, tmp_path: Path) -> None:
    x = np.arange(20).reshape(10, 2).astype(dtype)
    data = FederatedData.from_arrays(x, [0, 1] * 5, [0, 1] * 5, test=(x[:1], [0]))
    for mine in (data, saved(data, tmp_path / "data")):
        samples = samples_on(FlatModel(nn.Linear(2, 2), torch.device("cpu")), mine, mine.x, mine.y)
        assert np.shares_memory(samples.x.numpy(), mine.x) and np.shares_memory(samples.y.numpy(), mine.y)


class InPlace(nn.Module):
    """Changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.relu_())


def test_an_in_place_layer_does_not_change_the_files(blobs: FederatedData, tmp_path: Path) -> None:
    blobs.save(tmp_path / "data")
    before = contents(tmp_path / "data")
    config = {"rounds": 2, "selection.name": "power-of-choice", "selection.k": 2, "filter.name": "none"}
    filfl.simulate(config, data=FederatedData.open(tmp_path / "data"), model=InPlace)
    assert contents(tmp_path / "data") == before


def test_files_are_mapped_read_only_if_memory_cannot_be_reserved(
    blobs: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.save(tmp_path / "data")
    real, modes = np.lib.format.open_memmap, []

    def scarce(path: Path, mode: str) -> np.memmap:
        modes.append(mode)
        if mode == "c":
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return real(path, mode)

    monkeypatch.setattr(np.lib.format, "open_memmap", scarce)
    config = {"rounds": 2, "selection.k": 2}
    mapped = filfl.simulate(config, data=FederatedData.open(tmp_path / "data"))
    assert modes == ["c", "r"] * 13 and mapped.records == filfl.simulate(config, data=blobs).records


def test_the_fingerprint_of_mapped_data_is_the_stored_one(blobs: FederatedData, tmp_path: Path) -> None:
    mapped = saved(blobs, tmp_path / "data")
    x = tmp_path / "data" / "x.npy"
    status = x.stat()
    x.write_bytes(x.read_bytes()[:-1] + b"\x01")
    os.utime(x, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert FederatedData.open(tmp_path / "data").fingerprint() == blobs.fingerprint(), "x is not read"
    assert replace(mapped, x=mapped.x[::-1]).fingerprint() != blobs.fingerprint(), "a slice has no stored hash"
    noisy = blobs.with_wrong_labels(0.5, 1)
    assert mapped.with_wrong_labels(0.5, 1).fingerprint() == noisy.fingerprint() != blobs.fingerprint()


def test_a_copy_of_the_folder_is_accepted_and_a_change_is_detected(blobs: FederatedData, tmp_path: Path) -> None:
    blobs.save(tmp_path / "data")
    x = tmp_path / "data" / "x.npy"
    os.utime(x, ns=(1, 1))
    assert FederatedData.open(tmp_path / "data").fingerprint() == blobs.fingerprint()
    x.write_bytes(x.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DataError, match=r"x\.npy was changed after it was saved"):
        FederatedData.open(tmp_path / "data")


def _change_metadata(folder: Path, **changes: Any) -> None:
    """Change data.json, and its hash as well."""
    path = folder / "data.json"
    changed = {**json.loads(path.read_text()), **changes}
    del changed["digest"]
    path.write_text(json.dumps({**changed, "digest": metadata_digest(changed)}))


def _replace(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new, 1))


DAMAGE = {
    "missing": (lambda folder: (folder / "y.npy").unlink(), r"y\.npy cannot be read: No such file"),
    "truncated": (lambda folder: os.truncate(folder / "x.npy", 200), r"x\.npy was changed or truncated \(200 bytes"),
    "no JSON": (lambda folder: (folder / "data.json").unlink(), r"was not written by FederatedData\.save"),
    "half a JSON": (lambda folder: os.truncate(folder / "data.json", 20), r"data\.json is damaged"),
    "a list": (lambda folder: (folder / "data.json").write_text("[]"), r"data\.json is damaged"),
    "other format": (
        lambda folder: _change_metadata(folder, format=9),
        "format 9, but this version reads format 2",
    ),
    "no entry": (lambda folder: _change_metadata(folder, arrays={}), r"x\.npy or its entry in data\.json is damaged"),
    "other text": (
        lambda folder: (folder / "data.json").write_text(
            (folder / "data.json").read_text().replace("client", "server")
        ),
        r"data\.json was changed after it was saved",
    ),
    "byte order": (
        lambda folder: _replace(folder / "x.npy", b"'<f4'", b"'>f4'"),
        r"x\.npy was changed after it was saved \(its header\)",
    ),
    "trusted": (lambda folder: _change_metadata(folder, trusted=[99]), "trusted must be numbers of clients"),
    "trusted number": (lambda folder: _change_metadata(folder, trusted=3), "the metadata of .* is damaged"),
    "origin": (
        lambda folder: _change_metadata(folder, test_from=[]),
        "filter_from and test_from must be one of server",
    ),
    "encoding": (lambda folder: _change_metadata(folder, encoding={"columns": 3}), "the metadata of .* is damaged"),
    "no classes": (lambda folder: _change_metadata(folder, classes=None), r"no valid number of classes \(got None\)"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_folders_are_refused_with_a_reason(damage: str, blobs: FederatedData, tmp_path: Path) -> None:
    blobs.save(tmp_path / "data")
    apply, reason = DAMAGE[damage]
    apply(tmp_path / "data")
    with pytest.raises(DataError, match=reason):
        FederatedData.open(tmp_path / "data")


def test_invalid_arrays_and_missing_folders_are_refused(blobs: FederatedData, tmp_path: Path) -> None:
    blobs.save(tmp_path / "data")
    (tmp_path / "data" / "x.npy").write_bytes(b"\x00" * (tmp_path / "data" / "x.npy").stat().st_size)
    with pytest.raises(DataError, match=r"x\.npy was changed after it was saved \(its header\)"):
        FederatedData.open(tmp_path / "data")
    with pytest.raises(DataError, match=r"nowhere was not written by FederatedData.save"):
        FederatedData.open(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: {"names": d.names[1:]}, "train_ends has 9, names has 8, noisy has 9 entries"),
        (lambda d: {"y": d.y[1:]}, "x has .*, y has"),
        (lambda d: {"test_clients": d.test_clients[1:]}, "test_clients has"),
        (lambda d: {"filter_y": d.filter_y[0]}, "filter_y has no entries"),
        (lambda d: {"offsets": d.offsets[1:]}, r"offsets must have 10 entries \(got 9\)"),
        (lambda d: {"offsets": d.offsets + 1}, "do not split the .* samples into clients"),
        (lambda d: {"train_ends": d.train_ends + 99}, "do not split the .* samples into clients"),
    ],
)
def test_inconsistent_arrays_are_refused(change: Any, reason: str, blobs: FederatedData, tmp_path: Path) -> None:
    replace(blobs, **change(blobs)).save(tmp_path / "data")
    with pytest.raises(DataError, match=f"has inconsistent arrays: .*{reason}"):
        FederatedData.open(tmp_path / "data")


def test_save_overwrites_nothing_and_leaves_no_incomplete_folder(
    blobs: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat").write_text("cat")
    for taken in ("photos", "photos/cat"):
        with pytest.raises(DataError, match="already exists; choose another folder"):
            blobs.save(tmp_path / taken)
    (tmp_path / "empty").mkdir()
    assert saved(blobs, tmp_path / "empty").fingerprint() == blobs.fingerprint()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="data cannot be written: No space left on device"):
        blobs.save(tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "photos"]
