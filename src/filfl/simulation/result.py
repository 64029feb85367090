"""The result of a run, from `filfl.simulate` or read again by `filfl.load`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from filfl.config.config import Config
from filfl.config.plugins import name_of
from filfl.data.inputs import Inputs
from filfl.display import as_html, as_text, count, some, sparkline
from filfl.errors import ConfigError, PluginError
from filfl.runs.client_table import ClientTable
from filfl.runs.clients import ClientRow, client_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

NEEDS_MATPLOTLIB = 'needs matplotlib; install it with pip install "filfl[plots]"'
MOST_METRICS = 4
"""How many metrics the description of a result shows."""


@dataclass(frozen=True)
class Trained:
    """A network with its final weights, and the form of its inputs."""

    module: nn.Module
    inputs: Inputs

    def read(self) -> "Trained":
        return self


class FinalModel(Protocol):
    """Where the final model is: in memory (`Trained`), or in a run directory."""

    def read(self) -> Trained: ...


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run."""

    config: Config
    records: list[dict[str, Any]]
    """One per round, as in rounds.jsonl."""
    summary: dict[str, Any]
    final: FinalModel = field(compare=False)
    directory: Path | None
    table: ClientTable = field(compare=False)
    """Names, sizes and faults of the clients."""
    already_finished: bool = False

    @property
    def model(self) -> nn.Module:
        """The network with the final weights, in evaluation mode."""
        return self._trained.module

    @cached_property
    def _trained(self) -> Trained:
        trained = self.final.read()
        trained.module.eval()
        return trained

    def predict(self, x: ArrayLike) -> NDArray[Any]:
        """The final model's answer for new samples, given in the same form as the data of the run: the class of each
        sample, or its number where the targets are numbers."""
        module, inputs = self._trained.module, self._trained.inputs
        weights = next(value for value in module.parameters() if value.is_floating_point())
        module.eval()
        with torch.no_grad():
            outputs = torch.cat([module(batch) for batch in inputs.batches(x, weights.dtype, weights.device)])
        answers: NDArray[Any] = (outputs.argmax(dim=-1) if inputs.classes else outputs).cpu().numpy()
        return answers

    @property
    def accuracy(self) -> list[float | None]:
        """The test accuracy of every round; None where it was not tested."""
        return [record["test_accuracy"] for record in self.records]

    @property
    def clients(self) -> "DataFrame":
        """Who helps and who hurts: one row per client, lowest value first, with the columns of `filfl clients --json`.

        Needs pandas: pip install "filfl[pandas]".
        """
        columns = [each.name for each in fields(ClientRow)]
        rows = [asdict(row) for row in self._client_rows]
        return pandas_for("result.clients").DataFrame(rows, columns=columns).set_index("id", drop=False)

    def to_frame(self) -> "DataFrame":
        """One row per round: the numbers of its record, its metrics, and how many clients were selected and refused.

        Needs pandas: pip install "filfl[pandas]".
        """
        return pandas_for("result.to_frame()").DataFrame(map(_row, self.records)).set_index("round", drop=False)

    def plot(self, axes: "Sequence[Axes] | NDArray[Any] | None" = None, **line: Any) -> "NDArray[Any]":
        """Draw accuracy and losses over the rounds with matplotlib, and return the axes.

        Needs matplotlib: pip install "filfl[plots]".

        axes: those of another result, to draw both: `second.plot(first.plot())`.
        line: options of the lines, such as label="rgf" or color="red".
        """
        panels = {"Test accuracy": "test_accuracy", "Test loss": "test_loss"}
        if all(value is None for value in self.accuracy):
            del panels["Test accuracy"]
        if axes is None:
            pyplot = pyplot_for("result.plot()")
            size = (4.8 * len(panels), 3.6)
            axes = pyplot.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)[1].flatten()
        drawn = np.asarray(axes, dtype=object).flatten()
        if len(drawn) != len(panels):
            raise ConfigError(f"plot needs one of the axes for each of {', '.join(panels)} (got {len(drawn)} axes)")
        for axis, (title, key) in zip(drawn, panels.items(), strict=True):
            points = [(record["round"], record[key]) for record in self.records if record[key] is not None]
            axis.plot(*zip(*points, strict=True), **{"label": self.config.name, **line})
            axis.set(title=title, xlabel="Round")
            if len(axis.lines) > 1:
                axis.legend()
        return drawn

    @cached_property
    def _client_rows(self) -> list[ClientRow]:
        return client_rows(self.records, self.table)

    def __repr__(self) -> str:
        return as_text(*self._description())

    def _repr_html_(self) -> str:
        return as_html(*self._description())

    def _description(self) -> tuple[str, dict[str, str]]:
        config, summary = self.config, self.summary
        plugins = {section: name_of(section, getattr(config, section)) for section in ("data", "selection")}
        title = (
            f"{config.name}: {count(len(self.records), 'round')}, seed {config.seed}, data {plugins['data']}, "
            f"filter {config.filter.name}, selection {plugins['selection']}"
        )
        facts = {}
        curves = ("final accuracy", "final_accuracy", "test_accuracy"), ("final loss", "final_loss", "test_loss")
        for fact, final, key in curves:
            if summary.get(final) is not None:
                course = sparkline([record[key] for record in self.records])
                facts[fact] = f"{summary[final]:.3f} {course}"
        tested: Mapping[str, Any] = next(
            (record["metrics"] for record in reversed(self.records) if record["metrics"]), {}
        )
        metrics = {name: value for name, value in tested.items() if name != "accuracy" and value is not None}
        if metrics:
            shown = [f"{name} {value:.3g}" for name, value in metrics.items()]
            facts["metrics"] = some(shown, MOST_METRICS)
        if "test_set" in summary:
            facts["tested on"] = summary["test_set"]
        available = self.records[-1]["num_available"] if self.records else 0
        facts["kept"] = f"{summary['mean_filtered'] or 0:.1f} of {available} clients, mean over the rounds"
        facts["upload"] = f"{summary['uplink_bytes'] / 1e6:.1f} MB"
        if any(row.value is not None for row in self._client_rows):
            helps, hurts = ([r.name for r in self._client_rows if r.verdict == v] for v in ("helps", "hurts"))
            names = f": {some(hurts, 10)}" if hurts else ""
            facts["clients"] = f"{len(helps)} help, {len(hurts)} hurt{names}"
        if self.directory:
            facts["directory"] = str(self.directory)
        return title, facts


def pandas_for(what: str) -> ModuleType:
    """The module pandas; an error with the command that installs it where it is missing."""
    try:
        import pandas
    except ImportError:
        raise PluginError(f'{what} needs pandas; install it with pip install "filfl[pandas]"') from None
    module: ModuleType = pandas
    return module


def pyplot_for(what: str) -> ModuleType:
    """The module matplotlib.pyplot; an error with the command that installs it where it is missing."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise PluginError(f"{what} {NEEDS_MATPLOTLIB}") from None
    return pyplot


def can_draw() -> bool:
    """Whether matplotlib is installed. It is not imported."""
    return find_spec("matplotlib") is not None


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a record, with its metrics in columns of their own."""
    lists = ("available", "filtered")  # None where they are not listed
    numbers = {key: value for key, value in record.items() if not isinstance(value, list | dict) and key not in lists}
    numbers |= {f"num_{key}": len(record[key]) for key in ("considered", "selected", "refused")}
    return numbers | {f"metrics.{name}" if name in numbers else name: v for name, v in record["metrics"].items()}
