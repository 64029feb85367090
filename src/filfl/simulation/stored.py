"""`filfl.load`: the result of a finished run, from its directory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from filfl.config.config import Config
from filfl.config.schema import objects_of
from filfl.data.inputs import INPUTS, Inputs
from filfl.errors import ConfigError, PluginError, RunError
from filfl.models import Model
from filfl.runs.files import regular
from filfl.runs.reader import Run, read_finished_run, require_run
from filfl.runs.seal import MODEL, SUMMARY, unchanged
from filfl.runs.summary import summarize
from filfl.simulation.build import network
from filfl.simulation.result import Result, Trained


def load(directory: str | Path, model: Callable[[], nn.Module] | Model | None = None) -> Result:
    """The result of a finished run, as `filfl.simulate` returned it, from its directory.

    model: the function that makes your own network, if the run had one from Python: it is not stored, only its weights.
    """
    directory = Path(directory).expanduser()
    require_run(directory)
    run = read_finished_run(directory)
    try:
        config = Config.from_table(run.table).with_own(model=model)
    except ConfigError as error:
        raise RunError(f"{directory} cannot be loaded: {error.problems[0]}") from None
    return stored_result(run, config)


def stored_result(run: Run, config: Config) -> Result:
    """The result of a finished run that was read from its directory. Its model is read when it is first used."""
    assert run.summary is not None and run.clients is not None  # see `read_finished_run`
    if not unchanged(run.directory / MODEL, run.summary):
        raise RunError(f"{run.directory / MODEL} is missing or damaged; run again with --resume to repair it")
    summary = {**run.summary, **summarize(run.records, run.stopped)}
    final = StoredModel(run.directory, config, summary.get(INPUTS))
    return Result(config, run.records, summary, final, run.directory, run.clients)


@dataclass(frozen=True)
class StoredModel:
    """The final model in a run directory."""

    directory: Path
    config: Config
    inputs: Mapping[str, Any] | None
    """The table of its `Inputs`."""

    def read(self) -> Trained:
        if any(given is None for given in objects_of(self.config.model).values()):
            raise PluginError(
                f"the model of {self.directory} was given from Python; load the run with the function that makes it: "
                f'filfl.load("{self.directory}", model=...)'
            )
        if self.inputs is None:
            raise RunError(f"{self.directory / SUMMARY} does not have the inputs of the model; make the run again")
        inputs = Inputs.read(self.inputs)
        make = partial(self.config.model.build, inputs.shape, inputs.classes)
        module = network(make, self.config.seed, torch.device("cpu")).module
        try:
            module.load_state_dict(safetensors.torch.load_file(regular(self.directory / MODEL)))
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise PluginError(f"the model does not fit the weights of {self.directory}: {reason}") from None
        return Trained(module, inputs)
