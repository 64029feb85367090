"""Messages of clients: some of them answer with anything that a program could send. No answer ends a run, and the
global model stays finite.

Half of the cases are those of tests/hostile.py and tests/flower/hostile_nodes.py, which raise where one lie in one run
changes more than silence would.
"""

import contextlib
import logging
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import filfl
from filfl.core.clients import Failure, TrainingClients, Update
from filfl.core.queries import Query
from filfl.simulation import build
from filfl.simulation.wrappers.forwarding import Forwarding
from filfl.weights import Weights

from .campaign import Part, Wrong, has_control_characters, sentence
from .combinations import SMALL

Lie = Callable[[random.Random, Update, Weights], Update | Failure]
NUMBERS = (0.0, -1.0, 1e-45, 1e38, 3e38, -3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "\x1b[2J\x1b[31mred", "a\nb\r\x00", "é" * 10_000, "<script>alert(1)</script>", "\ud800", "[/bold]")


def _changed(rng: random.Random, update: Update, w_t: Weights) -> Update:
    """One or all weights replaced by a number that is not usual."""
    assert isinstance(update.weights, Weights)
    vector = update.weights.vector.clone()
    place = slice(None) if rng.random() < 0.5 else slice(rng.randrange(len(vector)), None)
    vector[place] = rng.choice(NUMBERS)
    return replace(update, weights=Weights(vector, update.weights.integers))


def _scaled(rng: random.Random, update: Update, w_t: Weights) -> Update:
    assert isinstance(update.weights, Weights)
    factor = rng.choice((-4.0, -1.0, 0.0, 1e3, 1e30))
    vector = w_t.vector + factor * (update.weights.vector - w_t.vector)
    return replace(update, weights=Weights(vector, update.weights.integers))


def _shape(rng: random.Random, update: Update, w_t: Weights) -> Update:
    assert isinstance(update.weights, Weights)
    vector = update.weights.vector
    other = rng.choice((vector[:-1], vector[:0], vector.repeat(2), vector[:, None], vector.double(), vector > 0))
    return replace(update, weights=Weights(other, update.weights.integers))


def _state(rng: random.Random, update: Update, w_t: Weights) -> Update:
    """A state dict with other names or values than those of the model."""
    return replace(update, weights=rng.choice(({}, {"a": torch.ones(3)}, {"": None}, {1: 2})))


def _count(rng: random.Random, update: Update, w_t: Weights) -> Update:
    return replace(update, num_examples=rng.choice((0, -1, 10**9, 2**63, 10**400)))


def _loss(rng: random.Random, update: Update, w_t: Weights) -> Update:
    return replace(update, train_loss=rng.choice(NUMBERS))


def _silence(rng: random.Random, update: Update, w_t: Weights) -> Failure:
    return Failure(rng.choice(TEXTS), rng.choice((0, 2**40)))


LIES: list[Lie] = [_changed, _scaled, _shape, _state, _count, _loss, _silence]
SAME_FORM: list[Lie] = [_changed, _scaled, _count, _loss, _silence]
"""Lies in weights of the right form: for the logits transport, a simulation computes the outputs of these weights."""


def _laws() -> list[Callable[[int], object]]:
    """A client that lies equals one that is silent: in memory, and with messages of Flower."""
    here = Path(__file__).parents[1]
    with mock.patch.object(sys, "path", [str(here), str(here / "flower"), *sys.path]):
        return [import_module("hostile").in_memory, import_module("hostile_nodes").on_flower]


LAWS = _laws()


class Lying(Forwarding):
    """Clients of which a share answers with a lie."""

    def __init__(self, clients: TrainingClients, rng: random.Random, lies: Sequence[Lie], share: float) -> None:
        super().__init__(clients)
        self._rng, self._lies, self._share = rng, lies, share

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        replies = self._clients.train(t, ids, weights)
        return {k: self._told(reply, weights) for k, reply in replies.items()}

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        replies = self._clients.query(query, ids, weights)
        lied = {k: self._rng.choice((*NUMBERS, Failure("gone"))) for k in replies if self._rng.random() < self._share}
        return replies if query.is_vector else {**replies, **lied}

    def _told(self, reply: Update | Failure, w_t: Weights) -> Update | Failure:
        if isinstance(reply, Failure) or self._rng.random() >= self._share:
            return reply
        return self._rng.choice(self._lies)(self._rng, reply, w_t)


@contextlib.contextmanager
def lying(rng: random.Random, share: float, lies: Sequence[Lie] = LIES) -> Iterator[None]:
    """Simulated clients of which a share lies in every answer."""
    opened = build.open_clients

    @contextlib.contextmanager
    def open_lying(*arguments: Any) -> Iterator[TrainingClients]:
        with opened(*arguments) as clients:
            yield Lying(clients, rng, lies, share)

    with mock.patch.object(build, "open_clients", open_lying):
        yield


class Messages(Part):
    name = "messages"

    def case(self, rng: random.Random) -> None:
        if rng.random() < 0.5:
            with mock.patch.object(logging.getLogger("flwr"), "disabled", True):
                rng.choice(LAWS)(rng.getrandbits(32))
            return
        config = {
            **SMALL,
            "execution.mode": "serial",
            "filter.name": rng.choice(("none", "dgf", "prune", "local-search")),
            "selection.name": rng.choice(("random", "power-of-choice")),
        }
        if config["filter.name"] in ("prune", "local-search") and rng.random() < 0.5:
            config |= {"filter.reward": "ensemble", "filter.transport": "logits"}
        lies = SAME_FORM if "filter.transport" in config else LIES
        with lying(rng, rng.choice((0.2, 0.5, 1.0)), lies):
            result = sentence(lambda: filfl.simulate(config, progress=False, say=lambda text: None))
        if not isinstance(result, filfl.Result):
            raise Wrong(f"the answer of a client ended the run: {result}; {config}")
        for name, tensor in result.model.state_dict().items():
            if not np.isfinite(tensor.numpy()).all():
                raise Wrong(f"{name} of the global model is not finite: {config}")
        for record in result.records:
            if any(has_control_characters(reason) for reason in record["refused"].values()):
                raise Wrong(f"control characters in a record: {record['refused']}")
