"""Checkpoints: a safetensors file with the tensors, and a JSON file with the metadata and the hashes of both.

The JSON file is written last, so a checkpoint without it is incomplete and ignored. A checkpoint that was truncated,
changed or written by another run is refused with the reason.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from filfl.availability.base import Ids
from filfl.core.server import Past, State
from filfl.logits.messages import Recipients
from filfl.runs.files import sha256, to_json, write_atomic
from filfl.weights import Weights

FORMAT = 2


class Refused(Exception):
    """A checkpoint that must not be used. The message is the reason."""


@dataclass(frozen=True)
class Checkpoint:
    """The state after round t, and the size and hash of the records up to that round."""

    t: int
    state: State
    records_bytes: int
    records_sha256: str


def save(folder: Path, saved: Checkpoint, fingerprint: str) -> None:
    """Write a checkpoint. `fingerprint` identifies the run."""
    state = saved.state
    tensors = {"w.vector": state.w.vector, "w.integers": state.w.integers}
    tensors |= {"past.previous": _bits(state.past.previous), "past.seen": _bits(state.past.seen)}
    tensors |= {"recipients": _bits(state.recipients.ids)}
    tensors |= {f"memory.{name}": value for name, value in state.memory.items()}
    tensors |= {f"latest.{k}": value for k, value in state.latest.items()}
    payload = safetensors.torch.save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    metadata: dict[str, Any] = {
        "format": FORMAT,
        "run": fingerprint,
        "round": saved.t,
        "S_f": list(state.S_f),
        "filtered_at": state.past.filtered_at,
        "V": state.recipients.digest,
        "records_bytes": saved.records_bytes,
        "records_sha256": saved.records_sha256,
        "tensors_sha256": sha256(payload),
    }
    metadata["sha256"] = sha256(to_json(metadata).encode())
    tensors_path, metadata_path = _paths(folder, saved.t)
    write_atomic(tensors_path, payload)
    write_atomic(metadata_path, to_json(metadata).encode())


def load(folder: Path, t: int, fingerprint: str, device: torch.device) -> Checkpoint:
    """Read the checkpoint of round t. Whatever the files contain, no other exception than `Refused` is raised."""
    try:
        return _load(folder, t, fingerprint, device)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Refused(f"{_paths(folder, t)[1].name} was changed or truncated ({type(error).__name__})") from None


def _load(folder: Path, t: int, fingerprint: str, device: torch.device) -> Checkpoint:
    tensors_path, metadata_path = _paths(folder, t)
    try:
        metadata = json.loads(metadata_path.read_bytes())
        stored = metadata.pop("sha256")
        if sha256(to_json(metadata).encode()) != stored:
            raise Refused(f"{metadata_path.name} was changed or truncated")
    except OSError as error:
        raise Refused(f"{metadata_path.name} cannot be read: {error.strerror}") from None
    if metadata.get("format") != FORMAT:
        raise Refused(f"{metadata_path.name} has format {metadata.get('format')}, but this version reads {FORMAT}")
    if metadata["run"] != fingerprint:
        raise Refused(f"{metadata_path.name} belongs to another run (other config, data or model)")
    if metadata["round"] != t:
        raise Refused(f"{metadata_path.name} has round {metadata['round']} instead of {t}")
    try:
        payload = tensors_path.read_bytes()
    except OSError as error:
        raise Refused(f"{tensors_path.name} cannot be read: {error.strerror}") from None
    if sha256(payload) != metadata["tensors_sha256"]:
        raise Refused(f"{tensors_path.name} was changed or truncated")
    tensors = {name: value.to(device) for name, value in safetensors.torch.load(payload).items()}
    state = State(
        w=Weights(tensors["w.vector"], tensors["w.integers"]),
        S_f=tuple(metadata["S_f"]),
        past=Past(
            previous=_ids(tensors["past.previous"]),
            seen=_ids(tensors["past.seen"]),
            filtered_at=int(metadata["filtered_at"]),
        ),
        memory=_named(tensors, "memory."),
        latest={int(k): value for k, value in _named(tensors, "latest.").items()},
        recipients=Recipients(metadata["V"], _ids(tensors["recipients"])),
    )
    return Checkpoint(t, state, int(metadata["records_bytes"]), str(metadata["records_sha256"]))


def rounds_saved(folder: Path) -> list[int]:
    """The rounds with a checkpoint, newest first."""
    found = [re.fullmatch(r"round-([0-9]+)", path.stem) for path in folder.glob("round-*.json") if path.is_file()]
    return sorted((int(match[1]) for match in found if match), reverse=True)


def remove(folder: Path, t: int) -> None:
    """Remove a checkpoint, its JSON file first, so that an incomplete one is ignored."""
    tensors_path, metadata_path = _paths(folder, t)
    metadata_path.unlink(missing_ok=True)
    tensors_path.unlink(missing_ok=True)


def _paths(folder: Path, t: int) -> tuple[Path, Path]:
    return folder / f"round-{t:06d}.safetensors", folder / f"round-{t:06d}.json"


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _bits(ids: Ids) -> Tensor:
    """Client ids as a bit mask: 125 kB for a million clients."""
    mask = np.zeros(ids.max(initial=-1) + 1, dtype=bool)
    mask[ids] = True
    return torch.from_numpy(np.packbits(mask))


def _ids(bits: Tensor) -> Ids:
    return np.flatnonzero(np.unpackbits(bits.cpu().numpy()))
