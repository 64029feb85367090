"""Malformed and hostile replies of a client, and the law that they obey: a client that lies equals one that is silent.

`in_memory(seed)` runs one random case and raises AssertionError where the law does not hold; `on_flower(seed)` in
tests/flower/hostile_nodes.py does the same through messages of Flower. The tables are the cases; a new one is one line.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from filfl import FederatedData
from filfl.config.config import Config
from filfl.core.clients import Failure
from filfl.core.queries import GradientQuery, Query
from filfl.core.round import filfl_round
from filfl.core.server import Server, State
from filfl.evaluation import cross_entropy
from filfl.logits.messages import LogitReply
from filfl.runs.loop import json_safe
from filfl.simulation.build import make_parts, open_server
from filfl.system import Stopwatch, one_thread
from filfl.weights import Weights

Rng = np.random.Generator
Lie = Callable[[Any, Rng], Any]
"""(the honest reply, a generator) -> the reply that is sent."""
Case = TypeVar("Case")

HUGE = (3e38, -3e38, 1e30, 1e20)
"""Weights that are finite."""
COUNTS = (0, -1, 2**63, 2**63 - 1, 10**12, 10**9, 10**7, math.nan, math.inf, 2.5, True, None, "12", [5], b"5")
LOSSES = (math.nan, math.inf, -math.inf, 1e308, -1e308, 1e39, 1e12, -1e6, 1e4, "1.0", None, True, [1.0], {}, object())
TEXTS = (
    "\x1b[31mred\x1b[0m\x07",
    "two\r\nlines\x00",
    "\u202egpj.exe\u2066\u200b",
    "\ud800half",
    "x" * 10**6,
    "\x9b2J",
    "",
)


def one_weight(vector: torch.Tensor, value: float, rng: Rng) -> torch.Tensor:
    changed = vector.clone()
    changed[int(rng.integers(len(vector)))] = value
    return changed


def with_vector(change: Callable[[torch.Tensor, Rng], torch.Tensor]) -> Lie:
    return lambda update, rng: replace(
        update, weights=Weights(change(update.weights.vector, rng), update.weights.integers)
    )


UPDATES: dict[str, Lie] = {
    "NaN in one weight": with_vector(lambda v, rng: one_weight(v, math.nan, rng)),
    "inf in one weight": with_vector(lambda v, rng: one_weight(v, math.inf, rng)),
    **{f"one weight of {value:g}": with_vector(lambda v, rng, x=value: one_weight(v, x, rng)) for value in HUGE},
    "all weights of 1e30": with_vector(lambda v, rng: torch.full_like(v, 1e30)),
    "a million times the weights": with_vector(lambda v, rng: 1e6 * (v + 1)),
    "too short": with_vector(lambda v, rng: v[:-1]),
    "too long": with_vector(lambda v, rng: torch.cat([v, v])),
    "another shape": with_vector(lambda v, rng: v[None]),
    "empty": with_vector(lambda v, rng: v[:0]),
    "float64": with_vector(lambda v, rng: v.double()),
    "whole numbers": with_vector(lambda v, rng: v.long()),
    "complex numbers": with_vector(lambda v, rng: v + 1j),
    "integer buffers that do not exist": lambda update, rng: replace(
        update, weights=Weights(update.weights.vector, torch.ones(3, dtype=torch.int64))
    ),
    "a state without keys": lambda update, rng: replace(update, weights={}),
    "a state with other keys": lambda update, rng: replace(update, weights={rng.choice(TEXTS): torch.ones(2)}),
    "a state of texts": lambda update, rng: replace(update, weights={"weight": "a", "bias": "b"}),
    "no weights": lambda update, rng: replace(update, weights=None),
    **{f"{n!r} examples": lambda update, rng, n=n: replace(update, num_examples=n) for n in COUNTS},
    "a train loss that is a text": lambda update, rng: replace(update, train_loss="low"),
    "no reply at all": lambda update, rng: None,
    "an answer to another question": lambda update, rng: 0.5,
    "an exception": lambda update, rng: ValueError("no"),
    **{f"a failure with the reason {i}": lambda update, rng, text=text: Failure(text) for i, text in enumerate(TEXTS)},
}
"""Replies to a request to train."""

LOGITS: dict[str, Lie] = {
    "10^9 examples": lambda reply, rng: replace(reply, num_examples=10**9),
    "NaN examples": lambda reply, rng: replace(reply, num_examples=math.nan),
    "NaN logits": lambda reply, rng: _with_logits(reply, torch.full_like(reply.logits.values, math.nan)),
    "logits of 1e30": lambda reply, rng: _with_logits(reply, torch.full_like(reply.logits.values, 1e30)),
    "logits of another shape": lambda reply, rng: _with_logits(reply, reply.logits.values[:-1]),
    "logits of another type": lambda reply, rng: _with_logits(reply, reply.logits.values.double()),
    "no logits": lambda reply, rng: replace(reply, logits=None),
    "no reply at all": lambda reply, rng: None,
}
"""Replies to a request for logits."""

LOSS_ANSWERS: dict[str, Lie] = {f"a loss of {str(value)[:20]}": lambda _, rng, v=value: v for value in LOSSES}
"""Answers to a query for a loss."""
GRADIENT_ANSWERS: dict[str, Lie] = {
    "a gradient of NaN": lambda g, rng: torch.full_like(g, math.nan),
    "one value of inf": lambda g, rng: one_weight(g, math.inf, rng),
    "one value of 1e30": lambda g, rng: one_weight(g, 1e30, rng),
    "one value of 3e38": lambda g, rng: one_weight(g, 3e38, rng),
    "a gradient of another shape": lambda g, rng: g[:-1],
    "a number": lambda g, rng: 1.0,
    "nothing": lambda g, rng: None,
}
"""Answers to a query for a gradient."""


def _with_logits(reply: LogitReply, values: torch.Tensor) -> LogitReply:
    return replace(reply, logits=replace(reply.logits, values=values))


RUNS: dict[str, dict[str, Any]] = {
    "no filter": {"filter.name": "none"},
    "no filter, by examples": {"filter.name": "none", "aggregation.name": "by-examples"},
    "dgf": {"filter.name": "dgf"},
    "federated": {"filter.name": "dgf", "filter.data": "federated"},
    "power-of-choice": {"filter.name": "none", "selection.name": "power-of-choice", "selection.k": 4},
    "power-of-choice of 6": {
        "filter.name": "none",
        "selection.name": "power-of-choice",
        "selection.k": 4,
        "selection.d": 6,
    },
    "divfl": {"filter.name": "none", "selection.name": "divfl", "selection.k": 4},
    "logits": {"filter.name": "dgf", "filter.transport": "logits", "filter.reward": "ensemble"},
}
LIAR = 4
CLIENTS = 9
ROUNDS = 2


def draw(cases: Mapping[str, Case], rng: Rng) -> tuple[str, Case]:
    """One of the cases."""
    name = sorted(cases)[int(rng.integers(len(cases)))]
    return name, cases[name]


@dataclass(frozen=True)
class Tampered:
    """Clients, of which one sends other replies than it should."""

    clients: Any
    update: Lie = lambda reply, rng: reply
    logits: Lie = lambda reply, rng: reply
    loss: Lie = lambda reply, rng: reply
    gradient: Lie = lambda reply, rng: reply
    size: Callable[[int], int] = lambda n: n
    seed: int = 0
    who: int = LIAR

    def __getattr__(self, name: str) -> Any:
        return getattr(self.clients, name)

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        return self._changed(self.clients.train(t, ids, weights), self.update)

    def upload(self, t: int, ids: Sequence[int]) -> dict[int, Any]:
        return self._changed(self.clients.upload(t, ids), self.update)

    def train_for_logits(self, t: int, ids: Sequence[int], weights: Weights, request: Any) -> dict[int, Any]:
        return self._changed(self.clients.train_for_logits(t, ids, weights, request), self.logits)

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        lie = self.gradient if isinstance(query, GradientQuery) else self.loss
        return self._changed(self.clients.query(query, ids, weights), lie)

    def num_examples(self, ids: Any) -> NDArray[np.int64]:
        sizes: NDArray[np.int64] = self.clients.num_examples(ids)
        return np.array([self.size(int(n)) if k == self.who else n for k, n in zip(ids, sizes, strict=True)], np.int64)

    def _changed(self, replies: Mapping[int, Any], lie: Lie) -> dict[int, Any]:
        rng = np.random.default_rng(self.seed)
        return {k: lie(reply, rng) if k == self.who else reply for k, reply in replies.items()}


def silent(reply: Any, rng: Rng) -> Failure:
    return Failure("no reply")


def blobs() -> FederatedData:
    """Three Gaussian blobs; the clients have different numbers of samples."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(CLIENTS), [10, 15, 20, 25, 30, 35, 40, 45, 50])
    y = rng.integers(3, size=len(owners))
    return FederatedData.from_arrays(rng.normal(size=(len(y), 4)) + 2 * np.eye(3, 4)[y], y, owners)


@contextlib.contextmanager
def opened(changes: Mapping[str, Any]) -> Iterator[tuple[Server, State]]:
    """A small federation, assembled as in `filfl.simulate`."""
    table = {"selection.k": CLIENTS, "filter.period": 1, "execution.mode": "serial", **changes}
    config = Config.read(table).with_own(data=blobs(), model=lambda: nn.Linear(4, 3))
    parts = make_parts(config, cross_entropy, {}, lambda text: None)
    with one_thread(), open_server(parts, lambda text: None) as server:
        yield server, parts.start


def rounds(changes: Mapping[str, Any], number: int = ROUNDS, **lies: Any) -> tuple[State, list[dict[str, Any]]]:
    """The last state and the records of some rounds with a client that sends other replies."""
    with opened(changes) as (server, state):
        server, records = replace(server, clients=Tampered(server.clients, **lies)), []
        for t in range(1, number + 1):
            state, record = filfl_round(t, state, server, Stopwatch())
            records.append(json_safe(record.table()))
        return state, records


def assert_silent(run: str, expected: tuple[State, list[dict[str, Any]]], **lies: Any) -> None:
    """The law: the model and the records are those of a run in which the client does not reply, bit for bit. The record
    names the client and nobody else. Only the bytes of its replies and the reason may differ."""
    (state, records), (there, without) = rounds(RUNS[run], **lies), expected
    assert torch.equal(state.w.vector, there.w.vector)
    apart = {"refused", "uplink_bytes", "downlink_bytes"}
    for mine, theirs in zip(records, without, strict=True):
        assert {k: v for k, v in mine.items() if k not in apart} == {k: v for k, v in theirs.items() if k not in apart}
        assert mine["refused"].keys() == theirs["refused"].keys() <= {str(LIAR)}
        for reason in mine["refused"].values():
            assert reason.isprintable() and len(reason) <= 200, ascii(reason)
    assert any(record["refused"] for record in records), "nobody was named"


TRAINING = {name: RUNS[name] for name in ("no filter", "no filter, by examples", "dgf")}
JUDGED = {name: RUNS[name] for name in ("federated", "power-of-choice", "power-of-choice of 6")}


def silent_runs() -> dict[str, tuple[State, list[dict[str, Any]]]]:
    """What the law compares with: runs in which the client does not reply to the message that it lies about."""
    return {
        **{run: rounds(RUNS[run], update=silent) for run in TRAINING},
        **{run: rounds(RUNS[run], loss=silent) for run in JUDGED},
        "divfl": rounds(RUNS["divfl"], gradient=silent),
        "logits": rounds(RUNS["logits"], logits=silent),
    }


def in_memory(seed: int, expected: Mapping[str, tuple[State, list[dict[str, Any]]]] | None = None) -> str:
    """One random lie in one random run. Returns what it was."""
    rng = np.random.default_rng(seed)
    kinds: dict[str, tuple[Mapping[str, Any], Mapping[str, Lie]]] = {
        "update": (TRAINING, UPDATES),
        "loss": (JUDGED, LOSS_ANSWERS),
        "gradient": ({"divfl": RUNS["divfl"]}, GRADIENT_ANSWERS),
        "logits": ({"logits": RUNS["logits"]}, LOGITS),
    }
    kind, (runs, lies) = draw(kinds, rng)
    (run, _), (name, lie) = draw(runs, rng), draw(lies, rng)
    known = expected[run] if expected else rounds(RUNS[run], **{kind: silent})
    assert_silent(run, known, **{kind: lie}, seed=seed)
    return f"{run}: {name}"
