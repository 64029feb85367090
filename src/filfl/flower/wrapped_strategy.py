"""A strategy of Flower that is wrapped: it makes the messages and the average for the nodes that filfl selects."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
        self._chain = [self.strategy]  # and the strategies that it wraps in turn
        while (wrapped := getattr(self._chain[-1], "strategy", None)) is not None:
            self._chain.append(wrapped)
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

    def train_messages(self, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """To all nodes of the grid."""
        return list(self.strategy.configure_train(t, arrays, ConfigRecord(dict(config)), grid))

    def evaluate_messages(self, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        return list(self.strategy.configure_evaluate(t, arrays, ConfigRecord(dict(config)), grid))

    def average(self, t: int, replies: Sequence[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The strategy's average of replies that passed the guard."""
        return self.strategy.aggregate_train(t, self._with_common_metrics(replies, with_arrays=True))

    def evaluated(self, t: int, replies: Sequence[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(t, self._with_common_metrics(replies, with_arrays=False))

    def _with_common_metrics(self, replies: Sequence[Message], with_arrays: bool) -> list[Message]:
        """The replies with the metrics that all of them have: a reply with other metrics would make Flower raise."""
        metrics: list[MetricRecord] = [one(reply.content.metric_records, "metrics") for reply in replies]
        kinds = [{(name, len(v) if isinstance(v, list) else None) for name, v in record.items()} for record in metrics]
        shared = {name for name, _ in set.intersection(*kinds)} if kinds else set()
        cleaned = []
        for reply, record in zip(replies, metrics, strict=True):
            common = MetricRecord({name: record[name] for name in record if name in shared})
            copied = copy.copy(reply)
            copied.content = RecordDict({**reply.content.config_records, "metrics": common})
            if with_arrays:
                copied.content[self._arrays_key] = one(reply.content.array_records, "arrays")
            cleaned.append(copied)
        return cleaned

    def memory(self) -> dict[str, Tensor]:
        """What the strategies keep from round to round: arrays, and numbers that have changed since the start."""
        found: dict[str, Any] = {}
        for depth, (each, before) in enumerate(zip(self._chain, self._at_start, strict=True)):
            for name, value in vars(each).items():
                parts = dict(enumerate(value)) if isinstance(value, list) else value
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if name == DERIVED:
                    continue
                if isinstance(parts, dict) and all(isinstance(part, np.ndarray) for part in parts.values()):
                    kind = "list" if isinstance(value, list) else "dict"
                    found |= {f"{depth}/{name}/{kind}/{key}": part for key, part in parts.items()}
                elif isinstance(value, np.ndarray) or (is_number and value != before.get(name)):
                    found[f"{depth}/{name}/value/"] = value
        return {key: torch.tensor(np.asarray(value)) for key, value in found.items()}

    def restore(self, memory: Iterable[tuple[str, Tensor]]) -> None:
        """Restore what `memory` returned."""
        found: dict[tuple[str, str, str], dict[str, Any]] = defaultdict(dict)
        for where, tensor in memory:
            depth, name, kind, key = where.split("/", 3)
            array = tensor.cpu().numpy()
            found[depth, name, kind][key] = array if array.ndim or kind != "value" else array.item()
        for (depth, name, kind), parts in found.items():
            value: Any = parts[""] if kind == "value" else parts
            if kind == "list":
                value = [parts[i] for i in sorted(parts, key=int)]
            setattr(self._chain[int(depth)], name, value)


@dataclass(frozen=True)
class OnlyNodes:
    """A grid that shows only some of its nodes."""

    nodes: list[int]
    grid: Grid

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)
