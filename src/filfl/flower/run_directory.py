"""The run directory of a run on Flower."""

import hashlib
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from logging import INFO, WARNING
from pathlib import Path

import torch
from flwr.common import log

from filfl.config.config import Config
from filfl.errors import RunError
from filfl.flower.node_registry import NodeRegistry
from filfl.logits.messages import Recipients
from filfl.runs import RunStore, finished, open_store
from filfl.runs.files import to_json
from filfl.runs.store import repair_finished, stored_config
from filfl.weights import Layout

AUTO = "auto"
"""The value of `out` for a new directory."""


def new_directory() -> Path:
    """The default run directory: a new one for every run, below the current directory."""
    return Path("runs") / f"flower-{datetime.now():%Y%m%d-%H%M%S-%f}"


def can_write(directory: Path | None) -> bool:
    """Whether a run directory can be made; a server without a disk to write to runs without one."""
    try:
        assert directory is not None
        directory.mkdir(parents=True)
    except OSError as error:
        log(WARNING, "the run is not stored: %s cannot be made (%s); choose a directory with out", directory, error)
        return False
    return True


def open_run_store(
    stack: ExitStack,
    out: Path,
    config: Config,
    layout: Layout,
    registry: NodeRegistry,
    rounds: int | None,
) -> RunStore:
    """The run store in `out`, with the state to resume from."""
    # The initial weights do not identify the run: they may differ when it is resumed. Nor does the number of rounds:
    # a run may be continued.
    entries = [(e.name, e.shape, str(e.dtype)) for e in layout.entries]
    identity = {key: value for key, value in config.identity().items() if key != "rounds"}
    fingerprint = hashlib.sha256(to_json([identity, entries]).encode()).hexdigest()
    device, say = torch.get_default_device(), partial(log, INFO)
    registered = registry.registered(config.data.trusted)
    if summary := finished(out, fingerprint):
        asked = stored_config(out).get("rounds", 0)
        if rounds is None or rounds <= asked:
            if registry.by_client:
                repair_finished(out, replace(config, rounds=asked), registered, summary, say)
            raise RunError(
                f"{out} holds a finished run of {asked} rounds; to continue it, ask for more rounds; to start again, "
                "choose another directory"
            )
    store = stack.enter_context(
        open_store(out, config, registered, fingerprint, device, True, say, ignored=frozenset(["rounds"]))
    )
    log(INFO, "run directory: %s", out.resolve())
    if store.resumed:
        if rounds is None:
            raise RunError(
                f"{out} holds an interrupted run, which only FilFL.start can resume; choose another directory"
            )
        # In a new run, nodes do not have V.
        store.resumed = replace(store.resumed, recipients=Recipients())
        log(INFO, "resuming after round %d of the run in %s", len(store.records), out)
    return store
