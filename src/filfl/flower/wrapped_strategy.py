"""A strategy of Flower that is wrapped: it makes the messages and the average for the nodes that filfl selects."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import Tensor

from filfl.errors import ConfigError
from filfl.flower.records import one

DERIVED = "current_arrays"
"""The attribute in which strategies keep the model that they sent last; they get it again in every round."""


class WrappedStrategy:
    """The wrapped strategy: a copy without its own sampling of nodes, which would wait indefinitely for nodes that it
    does not see, and draws from a generator without a seed."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = copy.deepcopy(strategy)
        self._chain = list(_chain(self.strategy))
        leaf = self._chain[-1]
        if not isinstance(leaf, FedAvg):
            raise ConfigError(
                f"strategy must be a strategy of Flower that averages models, such as FedAvg, FedProx, FedAdam or "
                f"FedTrimmedAvg (got {type(strategy).__name__})"
            )
        self.name = type(strategy).__name__
        self.weighted_by = leaf.weighted_by_key
        self.fraction_evaluate = leaf.fraction_evaluate
        self.ignored = leaf.fraction_train not in (0.0, 1.0)
        """Whether the strategy was set to sample nodes itself."""
        self._arrays_key = leaf.arrayrecord_key
        leaf.fraction_train = leaf.fraction_evaluate = 1.0
        leaf.min_train_nodes = leaf.min_evaluate_nodes = leaf.min_available_nodes = 1
        self._at_start = [dict(vars(each)) for each in self._chain]

    def train_messages(
        self, t: int, arrays: ArrayRecord, config: ConfigRecord, nodes: Sequence[int], grid: Grid
    ) -> list[Message]:
        copied = ConfigRecord(dict(config))
        return list(self.strategy.configure_train(t, arrays, copied, _only(nodes, grid)))

    def evaluate_messages(
        self, t: int, arrays: ArrayRecord, config: ConfigRecord, nodes: Sequence[int], grid: Grid
    ) -> list[Message]:
        copied = ConfigRecord(dict(config))
        return list(self.strategy.configure_evaluate(t, arrays, copied, _only(nodes, grid)))

    def average(self, t: int, replies: Sequence[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The strategy's average of replies that passed the guard."""
        return self.strategy.aggregate_train(t, self._with_common_metrics(replies, with_arrays=True))

    def evaluated(self, t: int, replies: Sequence[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(t, self._with_common_metrics(replies, with_arrays=False))

    def _with_common_metrics(self, replies: Sequence[Message], with_arrays: bool) -> list[Message]:
        """The replies with the metrics that all of them have: a reply with other metrics would make Flower raise."""
        metrics: list[MetricRecord] = [one(reply.content.metric_records, "metrics") for reply in replies]
        kinds = [{(name, _length(value)) for name, value in record.items()} for record in metrics]
        shared = {name for name, _ in set.intersection(*kinds)} if kinds else set()
        cleaned = []
        for reply, record in zip(replies, metrics, strict=True):
            content = RecordDict({"metrics": MetricRecord({name: record[name] for name in record if name in shared})})
            if with_arrays:
                content[self._arrays_key] = one(reply.content.array_records, "arrays")
            for name, config in reply.content.config_records.items():
                content.setdefault(name, config)
            copied = copy.copy(reply)
            copied.content = content
            cleaned.append(copied)
        return cleaned

    def memory(self) -> dict[str, Tensor]:
        """What the strategies keep from round to round: arrays, and numbers that have changed since the start."""
        found: dict[str, Any] = {}
        for depth, (each, before) in enumerate(zip(self._chain, self._at_start, strict=True)):
            for name, value in vars(each).items():
                key = f"{depth}/{name}"
                if name == DERIVED:
                    continue
                if isinstance(value, dict) and value and all(isinstance(v, np.ndarray) for v in value.values()):
                    found |= {f"{key}/of/{inner}": array for inner, array in value.items()}
                elif isinstance(value, list) and value and all(isinstance(v, np.ndarray) for v in value):
                    found |= {f"{key}/at/{i}": array for i, array in enumerate(value)}
                elif isinstance(value, np.ndarray) or (_is_number(value) and value != before.get(name)):
                    found[key] = value
        return {key: torch.tensor(np.asarray(value)) for key, value in found.items()}

    def restore(self, memory: Iterable[tuple[str, Tensor]]) -> None:
        """Restore what `memory` returned."""
        lists: dict[tuple[int, str], dict[int, Any]] = {}
        for key, tensor in memory:
            depth, name, *rest = key.split("/", 3)
            each, array = self._chain[int(depth)], tensor.cpu().numpy()
            if not rest:
                setattr(each, name, array if array.ndim else array.item())
            elif rest[0] == "at":
                lists.setdefault((int(depth), name), {})[int(rest[1])] = array
            else:
                if not getattr(each, name):
                    setattr(each, name, {})
                getattr(each, name)[rest[1]] = array
        for (where, name), arrays in lists.items():
            setattr(self._chain[where], name, [arrays[i] for i in sorted(arrays)])


def _chain(strategy: Strategy | None) -> Iterator[Strategy]:
    """A strategy, and those that it wraps in turn."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)


class _Only:
    """A grid that shows only some of its nodes."""

    def __init__(self, nodes: Sequence[int], grid: Grid) -> None:
        self._nodes, self._grid = list(nodes), grid

    def get_node_ids(self) -> list[int]:
        return self._nodes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def _only(nodes: Sequence[int], grid: Grid) -> Grid:
    return cast(Grid, _Only(nodes, grid))


def _length(value: object) -> int | None:
    return len(value) if isinstance(value, list) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
