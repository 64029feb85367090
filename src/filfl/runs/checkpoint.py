"""Checkpoints: a safetensors file with the numbers, and a JSON file with the rest and both their hashes.

The JSON file is written last, so a checkpoint without it never happened. A checkpoint that was cut off, changed
or made by another run is refused with the reason.
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
from filfl.filtering.when import Past
from filfl.runs.files import sha256, to_json, write_whole
from filfl.server import Handed, State
from filfl.weights import Weights

FORMAT = 2


class Refused(Exception):
    """A checkpoint that must not be used; the text says why."""


@dataclass(frozen=True)
class Saved:
    """The state after round t, and how far the records had come."""

    t: int
    state: State
    records_bytes: int
    records_sha256: str


def save(folder: Path, saved: Saved, fingerprint: str) -> None:
    """Write the checkpoint of a run; `fingerprint` says of which run it is."""
    state = saved.state
    tensors = {"w.vector": state.w.vector, "w.integers": state.w.integers}
    tensors |= {"past.previous": _bits(state.past.previous), "past.seen": _bits(state.past.seen)}
    tensors |= {"handed.to": _bits(state.handed.to)} if state.handed.digest else {}
    tensors |= {f"memory.{name}": value for name, value in state.memory.items()}
    tensors |= {f"latest.{k}": value for k, value in state.latest.items()}
    payload = safetensors.torch.save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    facts: dict[str, Any] = {
        "format": FORMAT,
        "run": fingerprint,
        "round": saved.t,
        "S_f": list(state.S_f),
        "filtered_at": state.past.filtered_at,
        **({"V": state.handed.digest} if state.handed.digest else {}),
        "records_bytes": saved.records_bytes,
        "records_sha256": saved.records_sha256,
        "tensors_sha256": sha256(payload),
    }
    facts["sha256"] = sha256(to_json(facts).encode())
    tensors_path, facts_path = _paths(folder, saved.t)
    write_whole(tensors_path, payload)
    write_whole(facts_path, to_json(facts).encode())


def load(folder: Path, t: int, fingerprint: str, device: torch.device) -> Saved:
    """Read the checkpoint of round t; raises `Refused`, and nothing else, whatever the files hold."""
    try:
        return _load(folder, t, fingerprint, device)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Refused(f"{_paths(folder, t)[1].name} was changed or cut off ({type(error).__name__})") from None


def _load(folder: Path, t: int, fingerprint: str, device: torch.device) -> Saved:
    tensors_path, facts_path = _paths(folder, t)
    try:
        facts = json.loads(facts_path.read_bytes())
        claimed = facts.pop("sha256")
        if sha256(to_json(facts).encode()) != claimed:
            raise Refused(f"{facts_path.name} was changed or cut off")
    except OSError as error:
        raise Refused(f"{facts_path.name} cannot be read: {error.strerror}") from None
    if facts.get("format") != FORMAT:
        raise Refused(f"{facts_path.name} has format {facts.get('format')}, this version reads {FORMAT}")
    if facts["run"] != fingerprint:
        raise Refused(f"{facts_path.name} belongs to another run (other config, data or model)")
    if facts["round"] != t:
        raise Refused(f"{facts_path.name} holds round {facts['round']} instead of {t}")
    try:
        payload = tensors_path.read_bytes()
    except OSError as error:
        raise Refused(f"{tensors_path.name} cannot be read: {error.strerror}") from None
    if sha256(payload) != facts["tensors_sha256"]:
        raise Refused(f"{tensors_path.name} was changed or cut off")
    tensors = {name: value.to(device) for name, value in safetensors.torch.load(payload).items()}
    state = State(
        w=Weights(tensors["w.vector"], tensors["w.integers"]),
        S_f=tuple(facts["S_f"]),
        past=Past(
            previous=_ids(tensors["past.previous"]),
            seen=_ids(tensors["past.seen"]),
            filtered_at=int(facts["filtered_at"]),
        ),
        memory=_named(tensors, "memory."),
        latest={int(k): value for k, value in _named(tensors, "latest.").items()},
        handed=Handed(facts["V"], _ids(tensors["handed.to"])) if "V" in facts else Handed(),
    )
    return Saved(t, state, int(facts["records_bytes"]), str(facts["records_sha256"]))


def rounds_saved(folder: Path) -> list[int]:
    """The rounds with a checkpoint, the newest first."""
    found = [re.fullmatch(r"round-([0-9]+)", path.stem) for path in folder.glob("round-*.json") if path.is_file()]
    return sorted((int(match[1]) for match in found if match), reverse=True)


def remove(folder: Path, t: int) -> None:
    """Remove a checkpoint; its JSON file first, so that it is never half there."""
    tensors_path, facts_path = _paths(folder, t)
    facts_path.unlink(missing_ok=True)
    tensors_path.unlink(missing_ok=True)


def _paths(folder: Path, t: int) -> tuple[Path, Path]:
    return folder / f"round-{t:06d}.safetensors", folder / f"round-{t:06d}.json"


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _bits(ids: Ids) -> Tensor:
    """Ids as one bit for every client there could be: a million of them are 125 kB."""
    there = np.zeros(ids.max(initial=-1) + 1, dtype=bool)
    there[ids] = True
    return torch.from_numpy(np.packbits(there))


def _ids(bits: Tensor) -> Ids:
    return np.flatnonzero(np.unpackbits(bits.cpu().numpy()))
