"""A filtering set from a file: its samples are used as they are, and an unusable file is refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import filfl
from filfl.data.filter_file import with_filter_file
from filfl.data.shakespeare import ALPHABET
from filfl.errors import ConfigError, DataError


def test_npz(blobs: filfl.FederatedData, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(7, 4)), np.arange(7) % 3
    np.savez(tmp_path / "v.npz", x=x, y=y)
    data = with_filter_file(blobs, str(tmp_path / "v.npz"))
    assert np.allclose(data.filter_x, x) and data.filter_y.tolist() == y.tolist()
    config = {"rounds": 2, "selection.k": 2, "filter.data": "file", "filter.path": str(tmp_path / "v.npz")}
    result = filfl.simulate({**config, "filter.size": 5}, blobs)
    assert result.records[0]["evaluations"] > 0
    with pytest.raises(ConfigError, match=r"filter.size must be between 1 and the 7 samples"):
        filfl.simulate({**config, "filter.size": 8}, blobs)


def test_text(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "roles.jsonl.gz", "wt") as file:
        for k in range(4):
            text = "".join(np.random.default_rng(k).choice(list("abcde "), size=2000))
            print(json.dumps({"play": "p", "role": str(k), "n": 0, "text": text}), file=file)
    (tmp_path / "v.txt").write_text("To filter, or not to filter, that is the question. " * 20)
    config = {"rounds": 1, "data.name": "shakespeare", "data.path": str(tmp_path / "roles.jsonl.gz"), "selection.k": 2}
    config |= {"data.min_chars": 1, "data.most": 5, "model.name": "lstm", "model.hidden": 4, "model.layers": 1}
    config |= {"filter.data": "file", "filter.path": str(tmp_path / "v.txt"), "filter.size": 12}
    assert filfl.simulate(config).records[0]["evaluations"] == 8
    from filfl.data.shakespeare import Shakespeare

    roles = Shakespeare(path=str(tmp_path / "roles.jsonl.gz"), min_chars=1).load(0)
    data = with_filter_file(roles, str(tmp_path / "v.txt"))
    text = (tmp_path / "v.txt").read_text()
    for i, (window, label) in enumerate(zip(data.filter_x, data.filter_y, strict=True)):
        assert "".join(ALPHABET[c] for c in [*window, label]) == text[81 * i : 81 * (i + 1)]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.zeros((2, 4))}, "has no array y; it must have x, y"),
        ({"x": np.zeros((2, 4)), "y": [0]}, r"must have the same length \(got 2 and 1\)"),
        ({"x": np.zeros((2, 5)), "y": [0, 0]}, r"are float32\[5\] .* but those of the clients are float32\[4\]"),
        ({"x": np.zeros((2, 4)), "y": [0, 9]}, r"labels of .* must be between 0 and 2 \(got 9\)"),
        ({"x": np.full((2, 4), np.nan), "y": [0, 0]}, "must be finite"),
        ({"x": np.zeros((2, 4)), "y": [0.5, 0.5]}, "float32 targets"),
    ],
)
def test_files_with_unusable_arrays_are_refused(
    arrays: dict[str, Any], reason: str, blobs: filfl.FederatedData, tmp_path: Path
) -> None:
    np.savez(tmp_path / "v.npz", **arrays)
    with pytest.raises(DataError, match=reason):
        with_filter_file(blobs, str(tmp_path / "v.npz"))


def test_missing_and_invalid_files_are_refused(blobs: filfl.FederatedData, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"filter.path: .*nothing.npz is not a file"):
        with_filter_file(blobs, str(tmp_path / "nothing.npz"))
    (tmp_path / "v.npz").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"cannot be read as an \.npz"):
        with_filter_file(blobs, str(tmp_path / "v.npz"))
    for config in ({"filter.data": "file"}, {"filter.path": "x.npz"}):
        with pytest.raises(ConfigError, match="belong together"):
            filfl.simulate(config, blobs)
