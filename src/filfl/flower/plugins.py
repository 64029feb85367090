"""The parts of a config that a Flower federation provides: availability, aggregation, and judging by a function."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Annotated, Any, ClassVar, SupportsFloat

from flwr.app import ArrayRecord, MetricRecord
from flwr.common import log

from filfl.aggregation import Admitted, Aggregation, Memory
from filfl.availability import Availability
from filfl.availability.base import Ids
from filfl.config.schema import NOT_AN_OPTION, Range
from filfl.core.exchange import Exchange
from filfl.errors import ConfigError, FilflError, PluginError, one_line
from filfl.filtering.rewards import Judgement
from filfl.flower.grid_clients import GridClients
from filfl.flower.records import aggregated, in_other_types, to_arrays
from filfl.runs.metrics import LOSS_NAMES
from filfl.weights import Layout, Mismatch, Weights

ARRAYS = "arrays/"
"""Where the memory has the arrays of the model whose type is not the model's."""
Evaluate = Callable[[ArrayRecord], float] | Callable[[int, ArrayRecord], MetricRecord | None]
"""Arrays -> their loss on the filtering set; or a function like Flower's `evaluate_fn`, whose metrics have a loss."""


@dataclass(frozen=True, kw_only=True)
class ConnectedNodes(Availability):
    """S_t: the clients whose nodes are connected when the round begins."""

    name: ClassVar[str] = "connected"
    reproducible: ClassVar[bool] = False
    share: Annotated[float, Range(above=0, at_most=1)] | None = None
    """The share of the connected nodes that train per round; unset: `selection.k` nodes."""
    clients: GridClients | None = field(default=None, metadata=NOT_AN_OPTION)

    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        assert self.clients is not None
        return self.clients.connected()


@dataclass(frozen=True, kw_only=True)
class StrategyAverage(Aggregation):
    """Lines 18-19 by the wrapped strategy, from the messages that passed the guard."""

    name: ClassVar[str] = "flower"
    strategy: str = "FedAvg"
    """The class of the wrapped strategy."""
    clients: GridClients | None = field(default=None, metadata=NOT_AN_OPTION)
    metrics: dict[int, MetricRecord] = field(default_factory=dict, metadata=NOT_AN_OPTION)
    """Of the clients that trained, by round."""

    def __call__(self, t: int, memory: Memory, w_t: Weights, updates: Sequence[Admitted]) -> tuple[Memory, Weights]:
        assert self.clients is not None
        wrapped = self.clients.strategy
        try:
            arrays, metrics, notes = wrapped.average(
                t, [update.message for update in updates], self.clients.guard.answers
            )
            for note in notes:
                self.clients.messaging.note(note)
            if metrics is not None:
                self.metrics[t] = metrics
            w_next = None if arrays is None else aggregated(arrays, self.clients.layout)
            if arrays is None or w_next is None or not w_next.vector.isfinite().all():
                replies = f"{len(updates)} {'reply' if len(updates) == 1 else 'replies'}"
                what = "no model" if w_next is None else "a model that is not finite"
                self.clients.messaging.note(f"{wrapped.name} returned {what} from {replies}; the model is unchanged")
                return memory, w_t
        except Mismatch as reason:
            raise PluginError(f"{wrapped.name} returned arrays that do not fit the model: {reason}") from None
        self.clients.reuse(w_next, arrays)
        precise = in_other_types(self.clients.arrays(w_next), self.clients.layout)
        return wrapped.memory() | {f"{ARRAYS}{name}": value for name, value in precise.items()}, w_next


class LossFunction:
    """A user's function of arrays, as arrays -> loss on the filtering set."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate: Callable[..., Any] = evaluate
        self._takes_round = _number_of_arguments(evaluate) == 2

    def __call__(self, arrays: ArrayRecord, t: int = 0) -> float:
        found = self._evaluate(t, arrays) if self._takes_round else self._evaluate(arrays)
        if isinstance(found, MetricRecord):
            name = next((name for name in LOSS_NAMES if name in found), None)
            if name is None:
                raise ConfigError(
                    f"evaluate must return a loss: its MetricRecord needs one of {', '.join(LOSS_NAMES)} "
                    f"(got {', '.join(found) or 'nothing'})"
                )
            found = found[name]
        if not isinstance(found, SupportsFloat) or isinstance(found, str):
            raise ConfigError(f"evaluate must return a loss, or a MetricRecord with one (got {found!r})")
        return float(found)

    def try_once(self, arrays: ArrayRecord) -> None:
        """Call it before anybody trains, so that a mistake in it shows at once."""
        try:
            loss = self(arrays)
        except FilflError:
            raise
        except Exception as error:
            raise PluginError(
                f"evaluate failed for initial_arrays ({type(error).__name__}: {one_line(str(error))})"
            ) from error
        if not math.isfinite(loss):
            log(WARNING, "evaluate returns %g for initial_arrays: sets with such a loss have reward 0", loss)


def _number_of_arguments(function: Callable[..., Any]) -> int:
    """How many arguments a function requires."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


@dataclass(frozen=True)
class ByFunction:
    """Judges sets by a function (arrays) -> loss on the filtering set."""

    evaluate: LossFunction
    layout: Layout

    def __call__(self, S_t: Ids, exchange: Exchange) -> Judgement:
        integers = exchange.w_t.integers
        return Judgement(lambda vector: self.evaluate(to_arrays(Weights(vector, integers), self.layout), exchange.t))
