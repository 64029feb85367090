"""A strategy of Flower that is wrapped: it makes the messages and the average for the nodes that filfl selects."""

import copy
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.server.strategy import Strategy as LegacyStrategy
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import Tensor

from filfl.core.guard import beyond_others
from filfl.errors import ConfigError, one_line
from filfl.flower.records import arrays_of, metrics_of

DERIVED = "current_arrays"
"""The attribute in which strategies keep the model that they sent last; they get it again in every round."""
CONFIG = "config"
"""Where the memory has the train config, which strategies may change over the rounds."""
SAMPLING = ("fraction_train", "fraction_evaluate", "min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
"""The attributes of a strategy by which it samples nodes."""
MAX_NAME, MOST_NAMED = 50, 5
"""How much a note shows of the names of metrics."""
WRAPPABLE = "FedAvg, FedProx, FedAdam, FedTrimmedAvg and others that average models"


class WrappedStrategy:
    """The user's strategy. While it makes messages, its own sampling of nodes is switched off: it would wait
    indefinitely for nodes that it does not see, and it draws from a generator without a seed."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.name = strategy, type(strategy).__name__
        self._chain = [strategy]  # and the strategies that it wraps in turn
        while (wrapped := getattr(self._chain[-1], "strategy", None)) is not None:
            self._chain.append(wrapped)
        self._leaf = leaf = averaging(self._chain, self.name)
        self.weighted_by, self.arrays_key = leaf.weighted_by_key, leaf.arrayrecord_key
        self._loss_name = getattr(leaf, "train_loss_key", None)
        self._at_start = [dict(vars(each)) for each in self._chain]
        self._config, self._first_config = ConfigRecord(), dict[str, Any]()
        self._changed_before: dict[str, Any] = {}
        """What the strategy had changed in the train config before the run was resumed."""

    @property
    def samples_itself(self) -> bool:
        """Whether the strategy was set to train a part of the nodes."""
        return self._leaf.fraction_train not in (0.0, 1.0)

    @property
    def fraction_evaluate(self) -> float:
        return float(self._leaf.fraction_evaluate)

    @property
    def min_available_nodes(self) -> int:
        return int(self._leaf.min_available_nodes)

    @property
    def own_start(self) -> str | None:
        """The name of a class in the chain whose `start` is its own, and is not called."""
        for each in self._chain:
            owner = next(cls for cls in type(each).__mro__ if "start" in vars(cls))
            if owner is not Strategy:
                return owner.__name__
        return None

    @property
    def accounts_privacy(self) -> bool:
        """Whether a privacy accountant is attached."""
        return any(getattr(each, "accountant", None) is not None for each in self._chain)

    @contextmanager
    def _all_nodes(self) -> Iterator[None]:
        """Without the strategy's own sampling."""
        before = {name: getattr(self._leaf, name) for name in SAMPLING}
        try:
            for name in SAMPLING:
                setattr(self._leaf, name, 1.0 if name.startswith("fraction") else 1)
            yield
        finally:
            for name, value in before.items():
                setattr(self._leaf, name, value)

    def train_messages(self, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """To the nodes of the grid. The strategy may change the config, as it may without filfl."""
        if config is not self._config:
            self._config, self._first_config = config, dict(config)
            for name, value in self._changed_before.items():
                config[name] = value
        with self._all_nodes():
            return list(self.strategy.configure_train(t, arrays, config, grid))

    def evaluate_messages(self, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        with self._all_nodes():
            return list(self.strategy.configure_evaluate(t, arrays, config, grid))

    def average(
        self, t: int, replies: Sequence[Message], most: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None, list[str]]:
        """The strategy's average of replies that passed the guard, their metrics, and notes.

        most: a metric of a client that is more than this many times the median of the others is left out.
        """
        alike, notes = self._with_same_metrics(replies, most, with_arrays=True)
        return *self.strategy.aggregate_train(t, alike), notes

    def evaluated(self, t: int, replies: Sequence[Message], most: float) -> tuple[MetricRecord | None, list[str]]:
        """The strategy's mean of the clients' metrics, and notes."""
        alike, notes = self._with_same_metrics(replies, most, with_arrays=False)
        return self.strategy.aggregate_evaluate(t, alike), notes

    def _with_same_metrics(
        self, replies: Sequence[Message], most: float, with_arrays: bool
    ) -> tuple[list[Message], list[str]]:
        """The replies with the same metrics in each, as Flower requires, and notes on what was changed.

        A metric that most clients report stays: a client without it gets the mean of the others, which leaves the mean
        as it is. A metric of half of the clients or fewer is left out.
        """
        reported = [metrics_of(reply, self.weighted_by) for reply in replies]
        records, notes = self._credible([record for _, record in reported], most)
        metrics = [(name, record) for (name, _), record in zip(reported, records, strict=True)]
        kinds = Counter(_kind(name, value) for _, record in metrics for name, value in record.items())
        shared = {name: (name, length) for (name, length), number in kinds.items() if 2 * number > len(replies)}
        rare = [name for name, _ in kinds if name not in shared]
        if rare:
            notes.append(f"metrics that half of the clients or fewer report are left out: {_listed(rare)}")
        weights = np.array([float(cast(float, record[self.weighted_by])) for _, record in metrics])
        means, missing = dict[str, Any](), defaultdict[int, list[str]](list)
        for name, kind in shared.items():
            have = [name in record and _kind(name, record[name]) == kind for _, record in metrics]
            if not all(have):
                values = np.array([record[name] for (_, record), has in zip(metrics, have, strict=True) if has])
                means[name] = np.average(values, axis=0, weights=weights[have]).tolist()
                if lacking := sum(name not in record or _kind(name, record[name]) != kind for _, record in reported):
                    missing[lacking].append(name)
        notes += [f"{n} of {len(replies)} clients did not report {_listed(names)}" for n, names in missing.items()]
        key = _most_common(key for key, _ in metrics)
        found = [arrays_of(reply, self.arrays_key) for reply in replies] if with_arrays else []
        arrays_key = _most_common(name for name, _ in found)
        alike = []
        for i, (reply, (own_key, record)) in enumerate(zip(replies, metrics, strict=True)):
            own = {name: value for name, value in record.items() if shared.get(name) == _kind(name, value)}
            content = {name: each for name, each in reply.content.items() if name != own_key}
            content[key] = MetricRecord({name: own.get(name, means.get(name, 0.0)) for name in shared})
            if with_arrays:
                name, arrays = found[i]
                content = {other: each for other, each in content.items() if other != name} | {arrays_key: arrays}
            copied = copy.copy(reply)
            copied.content = RecordDict(content)
            alike.append(copied)
        return alike, notes

    def _credible(self, records: Sequence[Mapping[str, Any]], most: float) -> tuple[list[Mapping[str, Any]], list[str]]:
        """The metrics of each client without those that no honest client sends, and notes. A strategy may weight
        clients by a metric, as QFedAvg does by the train loss."""
        wrong = defaultdict[str, set[int]](set)
        for name in {name for record in records for name in record} - {self.weighted_by}:
            values = {i: np.atleast_1d(record[name]) for i, record in enumerate(records) if name in record}
            wrong[name] |= beyond_others(
                {i: float(np.abs(v).max(initial=0.0)) for i, v in values.items()}, most, name
            ).keys()
            negative = {i for i, v in values.items() if v.min(initial=0.0) < 0}
            if name == self._loss_name and 2 * len(negative) < len(values):
                wrong[name] |= negative  # QFedAvg raises it to a power
        clients = set().union(*wrong.values())
        if not clients:
            return list(records), []
        named = _listed(sorted(name for name, who in wrong.items() if who))
        notes = [f"metrics of {len(clients)} of {len(records)} clients are not credible and left out: {named}"]
        kept: list[Mapping[str, Any]] = [
            {n: v for n, v in record.items() if i not in wrong[n]} for i, record in enumerate(records)
        ]
        return kept, notes

    def memory(self) -> dict[str, Tensor]:
        """What the strategies keep from round to round: arrays, numbers that have changed since the start, and their
        changes to the train config."""
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
        return {key: torch.tensor(np.asarray(value)) for key, value in found.items()} | self._changed_config()

    def _changed_config(self) -> dict[str, Tensor]:
        new = {k: v for k, v in self._config.items() if self._first_config.get(k) != v and not isinstance(v, bytes)}
        changed = self._changed_before | new
        return {CONFIG: torch.tensor(list(json.dumps(changed).encode()), dtype=torch.uint8)} if changed else {}

    def restore(self, memory: Iterable[tuple[str, Tensor]]) -> None:
        """Restore what `memory` returned."""
        found: dict[tuple[str, str, str], dict[str, Any]] = defaultdict(dict)
        for where, tensor in memory:
            if where == CONFIG:
                self._changed_before = json.loads(bytes(tensor.tolist()))
                continue
            depth, name, kind, key = where.split("/", 3)
            array = tensor.cpu().numpy()
            found[depth, name, kind][key] = array if array.ndim or kind != "value" else array.item()
        for (depth, name, kind), parts in found.items():
            value: Any = parts[""] if kind == "value" else parts
            if kind == "list":
                value = [parts[i] for i in sorted(parts, key=int)]
            setattr(self._chain[int(depth)], name, value)


def averaging(chain: Sequence[Any], name: str) -> FedAvg:
    """The innermost strategy, if it averages models."""
    leaf = chain[-1]
    if isinstance(leaf, LegacyStrategy):
        raise ConfigError(
            f"strategy must not be one of flwr.server.strategy, Flower's former interface (got {name}); take the class "
            f"of the same name from flwr.serverapp.strategy: {WRAPPABLE}"
        )
    if isinstance(leaf, flower.FedXgbBagging | flower.FedXgbCyclic):
        raise ConfigError(
            f"{name} collects trees and averages no weights, so a filter cannot judge the average of a set of clients; "
            f"filfl wraps {WRAPPABLE}"
        )
    if not isinstance(leaf, FedAvg):
        raise ConfigError(f"strategy must be a strategy of Flower that averages models: {WRAPPABLE} (got {name})")
    return leaf


def _kind(name: str, value: Any) -> tuple[str, int | None]:
    """The name of a metric, and how many numbers it has where it is a list."""
    return name, len(value) if isinstance(value, list) else None


def _listed(names: Sequence[str]) -> str:
    """Names that clients chose, for a note: a client may send thousands, of any text."""
    shown = ", ".join(one_line(name, MAX_NAME) for name in names[:MOST_NAMED])
    return f"{shown} and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else shown


def _most_common(names: Iterable[str]) -> str:
    return next((name for name, _ in Counter(names).most_common(1)), "")


@dataclass(frozen=True)
class OnlyNodes:
    """A grid that shows only some of its nodes."""

    nodes: list[int]
    grid: Grid

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)
