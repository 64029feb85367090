"""The hashes of a finished run: summary.json has one of every other file, and one of itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filfl.config.experiment import RUN_CONFIG
from filfl.runs.files import file_sha256, regular, sha256, to_json, write_atomic

CONFIG, CLIENTS, RECORDS, TIMES = RUN_CONFIG, "clients.csv", "rounds.jsonl", "times.jsonl"
MODEL, SUMMARY = "model.safetensors", "summary.json"
SEALED = (CONFIG, CLIENTS, RECORDS, TIMES, MODEL)
"""The files of a finished run, apart from the summary itself."""


def write_summary(directory: Path, summary: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """Write summary.json with the hashes of the other files. `known`: hashes that need not be computed from a file."""
    others = {name: file_sha256(directory / name) for name in SEALED if name not in known}
    sealed = {**summary, "sha256": {**others, **known}}
    sealed["sha256"][SUMMARY] = _own_hash(sealed)
    write_atomic(directory / SUMMARY, (json.dumps(sealed, indent=2, allow_nan=False) + "\n").encode())
    return sealed


def parse_summary(content: bytes) -> dict[str, Any] | None:
    """The summary in the content of summary.json; None if it was changed after it was written."""
    try:
        summary = json.loads(content)
        return summary if summary["sha256"][SUMMARY] == _own_hash(summary) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def read_summary(directory: Path) -> dict[str, Any] | None:
    """The summary of a finished run; None if there is none, or if it was changed."""
    try:
        return parse_summary(regular(directory / SUMMARY).read_bytes())
    except OSError:
        return None


def changed_files(directory: Path, summary: Mapping[str, Any]) -> list[str]:
    """The files that are missing or that were changed after the run was finished."""
    return [name for name in SEALED if not unchanged(directory / name, summary)]


def unchanged(path: Path, summary: Mapping[str, Any]) -> bool:
    try:
        return bool(file_sha256(path) == summary["sha256"].get(path.name))
    except OSError:
        return False


def _own_hash(summary: Mapping[str, Any]) -> str:
    hashes = {name: value for name, value in summary["sha256"].items() if name != SUMMARY}
    return sha256(to_json({**summary, "sha256": hashes}).encode())
