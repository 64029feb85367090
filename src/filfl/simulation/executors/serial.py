"""Simulated clients that train one after the other."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.algorithms import Algorithm
from filfl.algorithms.local_sgd import batches, local_sgd
from filfl.algorithms.optimizers import local_optimizer
from filfl.config.config import Config
from filfl.config.sections import Training
from filfl.core.clients import Failure, Update
from filfl.core.queries import Query
from filfl.core.queries.base import Split
from filfl.data import FederatedData
from filfl.evaluation import Augment, Loss, Samples
from filfl.rng import stream, torch_seeded
from filfl.selection.base import AnyIds
from filfl.weights import FlatModel, Weights

Reply = TypeVar("Reply")


@dataclass(frozen=True)
class LocalTraining:
    """The local training of every client and round: what it minimises and how; `seed` addresses its random draws."""

    seed: int
    algorithm: Algorithm
    options: Training
    augment: Augment | None = None

    @classmethod
    def of(cls, config: Config, augment: Augment | None) -> "LocalTraining":
        return cls(config.seed, config.algorithm, config.training, augment)

    def update(self, t: int, k: int | None, model: FlatModel, w_t: Weights, samples: Samples, loss: Loss) -> Update:
        """The update of client k in round t; k is None where the server itself trains."""
        options, seed = self.options, self.seed
        if self.augment is not None:
            samples = samples.augmented(self.augment, stream(seed, t, "augment", k))
        with torch_seeded(stream(seed, t, "dropout", k), model.device):
            steps = batches(len(samples), options.batch, options.epochs, options.steps, stream(seed, t, "batches", k))
            what = (model, w_t, samples, loss, self.algorithm, steps)
            if options.is_sgd:
                train_loss = local_sgd(*what, options.lr_at(t), options.momentum, options.weight_decay, options.clip)
            else:
                train_loss = local_optimizer(*what, partial(options.new_optimizer, t=t), options.clip)
        return Update(model.weights(), len(samples), train_loss)


@dataclass(frozen=True)
class ClientData:
    """The part of `FederatedData` that local training needs; worker processes have only this part."""

    x: Tensor
    y: Tensor
    scale: Tensor
    shift: Tensor
    offsets: NDArray[np.int64]
    train_ends: NDArray[np.int64]


class SerialClients:
    """Simulated clients that share one network. An exception in one client's training affects that client only."""

    def __init__(self, data: FederatedData | ClientData, model: FlatModel, loss: Loss, training: LocalTraining) -> None:
        self._data = data
        self._model = model
        self._loss = loss
        self._training = training
        self.samples = samples_on(model, data, data.x, data.y)

    @property
    def num_clients(self) -> int:
        return len(self._data.train_ends)

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        return {k: _attempt("training", partial(self._train, t, k, weights)) for k in ids}

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        def answer(k: int) -> Any:
            samples = self.samples.part(*self.span(k, query.split))
            return query.answer(self._model, weights, samples, self._loss)

        return {k: _attempt(f"computing the {query.name}", partial(answer, k)) for k in ids}

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        of = np.asarray(ids, dtype=np.int64)
        return np.asarray(self._data.train_ends[of] - self._data.offsets[of])

    def _train(self, t: int, k: int, weights: Weights) -> Update:
        samples = self.samples.part(*self.span(k, "train"))
        return self._training.update(t, k, self._model, weights, samples, self._loss)

    def span(self, k: int, split: Split) -> tuple[int, int]:
        """The range of a client's samples of a split; its training samples where the split is empty."""
        start, stop = self._data.offsets[k : k + 2].tolist()
        middle = int(self._data.train_ends[k])
        return (middle, stop) if split == "validation" and middle < stop else (start, middle)


def _attempt(task: str, run: Callable[[], Reply]) -> Reply | Failure:
    try:
        return run()
    except Exception as error:
        return Failure(f"{task} raised {type(error).__name__}: {error}")


def samples_on(model: FlatModel, data: FederatedData | ClientData, x: object, y: object) -> Samples:
    """Arrays of a federated dataset as samples on the model's device; floating-point inputs in its dtype."""

    def tensor(values: object) -> Tensor:
        with warnings.catch_warnings():
            # Mapped files are read-only, and nothing here writes to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            moved = torch.as_tensor(values).to(model.device)
        return moved.to(model.layout.dtype) if moved.is_floating_point() else moved

    return Samples(tensor(x), tensor(y), tensor(data.scale), tensor(data.shift))
