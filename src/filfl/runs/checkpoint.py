"""Checkpoints: one safetensors file per round with the state, preceded by the hash of its content.

A checkpoint that was truncated, changed or written by another run is refused with the reason.
"""

import json
import re
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from filfl.availability.base import Ids
from filfl.core.evidence import Evidence, Measured
from filfl.core.server import Past, State
from filfl.logits.doubts import Doubts
from filfl.logits.messages import Recipients
from filfl.runs.files import regular, sha256, to_json, write_atomic
from filfl.weights import Weights

FORMAT = 7
HASH_LENGTH = 64


class Refused(Exception):
    """A checkpoint that must not be used. The message is the reason."""


class OtherRun(Refused):
    """An intact checkpoint of another run."""


def path_of(folder: Path, t: int) -> Path:
    return folder / f"round-{t:06d}.checkpoint"


def save(folder: Path, t: int, state: State, fingerprint: str, records_sha256: str) -> None:
    """Write the state after round t. `fingerprint` identifies the run, the hash its records up to that round."""
    write_atomic(path_of(folder, t), encode(t, state, fingerprint, records_sha256))


def encode(t: int, state: State, fingerprint: str, records_sha256: str) -> tuple[bytes, bytes]:
    """The hash and the content of a checkpoint: equal states give equal bytes."""
    values = {
        "format": FORMAT,
        "run": fingerprint,
        "round": t,
        "S_f": state.S_f,
        "selected": state.selected,
        "filtered_at": state.past.filtered_at,
        "V": state.recipients.digest,
        "records_sha256": records_sha256,
        "doubts": {str(k): left for k, left in state.doubts.filterings.items()},
        "filter_memory": {str(k): numbers for k, numbers in state.filter_memory.items()},
        "evidence": {
            "clients": {str(k): astuple(measured) for k, measured in state.evidence.clients.items()},
            "updates": {str(k): astuple(measured) for k, measured in state.evidence.updates.items()},
            "filterings": state.evidence.filterings,
            "gains": state.evidence.gains,
            "warned": sorted(state.evidence.warned),
        },
    }
    tensors = {
        "values": torch.frombuffer(bytearray(to_json(values).encode()), dtype=torch.uint8),
        "w.vector": state.w.vector,
        "w.integers": state.w.integers,
        "past.previous": _bits(state.past.previous),
        "past.seen": _bits(state.past.seen),
        "recipients": _bits(state.recipients.ids),
        **{f"memory.{name}": value for name, value in state.memory.items()},
        **{f"latest.{k}": value for k, value in state.latest.items()},
    }
    content = safetensors.torch.save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    return sha256(content).encode(), content


def load(folder: Path, t: int, fingerprint: str | None, records_sha256: str, device: torch.device) -> State:
    """Read the state after round t. Whatever the file contains, no other exception than `Refused` is raised.

    fingerprint: that of the run; None accepts any run.
    """
    path = path_of(folder, t)
    try:
        stored = regular(path).read_bytes()
    except OSError as error:
        raise Refused(f"{path.name} cannot be read: {error.strerror}") from None
    content = stored[HASH_LENGTH:]
    if sha256(content).encode() != stored[:HASH_LENGTH]:
        raise Refused(f"{path.name} was changed or truncated")
    try:
        tensors = {name: value.to(device) for name, value in safetensors.torch.load(content).items()}
        values = json.loads(tensors["values"].cpu().numpy().tobytes())
        if values["format"] != FORMAT:
            raise Refused(f"{path.name} has format {values['format']}, but this version reads {FORMAT}")
        if fingerprint is not None and values["run"] != fingerprint:
            raise OtherRun(f"{path.name} belongs to another run (other config, data or model)")
        if values["round"] != t:
            raise Refused(f"{path.name} has round {values['round']} instead of {t}")
        if values["records_sha256"] != records_sha256:
            raise Refused(f"rounds.jsonl was changed or truncated before round {t}")
        return State(
            w=Weights(tensors["w.vector"], tensors["w.integers"]),
            S_f=tuple(values["S_f"]),
            selected=tuple(map(int, values["selected"])),
            past=Past(_ids(tensors["past.previous"]), _ids(tensors["past.seen"]), int(values["filtered_at"])),
            memory=_named(tensors, "memory."),
            latest={int(k): value for k, value in _named(tensors, "latest.").items()},
            recipients=Recipients(values["V"], _ids(tensors["recipients"])),
            doubts=Doubts({int(k): int(left) for k, left in values["doubts"].items()}),
            filter_memory={int(k): tuple(map(float, numbers)) for k, numbers in values["filter_memory"].items()},
            evidence=_evidence(values["evidence"]),
        )
    except Refused:
        raise
    except Exception as error:  # of any parser, for any content
        raise Refused(f"{path.name} was changed or truncated ({type(error).__name__})") from None


def _evidence(stored: dict[str, Any]) -> Evidence:
    return Evidence(
        clients={int(k): Measured(*map(float, sums)) for k, sums in stored["clients"].items()},
        updates={int(k): Measured(*map(float, sums)) for k, sums in stored["updates"].items()},
        filterings=int(stored["filterings"]),
        gains=tuple((float(in_sample), float(honest)) for in_sample, honest in stored["gains"]),
        warned=frozenset(map(str, stored["warned"])),
    )


def rounds_saved(folder: Path) -> list[int]:
    """The rounds with a checkpoint, newest first."""
    found = [re.fullmatch(r"round-([0-9]+)\.checkpoint", path.name) for path in folder.iterdir() if path.is_file()]
    rounds = (int(match[1]) for match in found if match)
    return sorted((t for t in rounds if path_of(folder, t).is_file()), reverse=True)


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _bits(ids: Ids) -> Tensor:
    """Client ids as a bit mask: 125 kB for a million clients."""
    mask = np.zeros(ids.max(initial=-1) + 1, dtype=bool)
    mask[ids] = True
    return torch.from_numpy(np.packbits(mask))


def _ids(bits: Tensor) -> Ids:
    return np.flatnonzero(np.unpackbits(bits.cpu().numpy()))
