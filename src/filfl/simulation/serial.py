"""The `Clients` door on one machine, one client after the other."""

import warnings
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.algorithms.local_sgd import batches, local_sgd
from filfl.clients import Failure, Job, Split, Update
from filfl.evaluation import Loss, Samples, full_gradient, mean_loss
from filfl.rng import stream, torch_seeded
from filfl.selection.base import AnyIds
from filfl.weights import FlatModel, Weights

Answer = TypeVar("Answer")


class Scaled(Protocol):
    """Bytes in this data become `x * scale + shift`."""

    @property
    def scale(self) -> object: ...
    @property
    def shift(self) -> object: ...


class Held(Scaled, Protocol):
    """What a simulated client's work needs of `FederatedData`; another process has only this of it."""

    @property
    def x(self) -> object: ...
    @property
    def y(self) -> object: ...
    @property
    def offsets(self) -> NDArray[np.int64]: ...
    @property
    def train_ends(self) -> NDArray[np.int64]: ...


class SerialClients:
    """Simulated clients that take turns on one model. Whatever a client raises costs only itself its turn."""

    def __init__(self, data: Held, model: FlatModel, loss: Loss) -> None:
        self._data = data
        self._model = model
        self._loss = loss
        self.samples = samples_on(model, data, data.x, data.y)

    def train(self, ids: Sequence[int], weights: Weights, job: Job) -> dict[int, Update | Failure]:
        def train(k: int) -> Update:
            return self._train(k, weights, job)

        return {k: _attempt("training", train, k) for k in ids}

    def losses(self, ids: Sequence[int], weights: Weights, split: Split) -> dict[int, float | Failure]:
        def loss(k: int) -> float:
            return mean_loss(self._model, weights, self._part(k, split), self._loss)

        return {k: _attempt("its loss", loss, k) for k in ids}

    def gradients(self, ids: Sequence[int], weights: Weights) -> dict[int, Tensor | Failure]:
        def gradient(k: int) -> Tensor:
            return full_gradient(self._model, weights, self._part(k, "train"), self._loss)

        return {k: _attempt("its gradient", gradient, k) for k in ids}

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        of = np.asarray(ids, dtype=np.int64)
        return np.asarray(self._data.train_ends[of] - self._data.offsets[of])

    def _train(self, k: int, weights: Weights, job: Job) -> Update:
        samples = self._part(k, "train")
        order = stream(job.seed, job.round, "batches", k)
        with torch_seeded(stream(job.seed, job.round, "dropout", k), self._model.device):
            train_loss = local_sgd(
                self._model,
                weights,
                samples,
                self._loss,
                job.algorithm,
                batches(len(samples), job.batch, job.epochs, job.steps, order),
                lr=job.lr,
                momentum=job.momentum,
                weight_decay=job.weight_decay,
            )
        return Update(self._model.weights(), len(samples), train_loss)

    def span(self, k: int, split: Split) -> tuple[int, int]:
        """Where a client's samples of a split lie; its training samples where the split is empty."""
        start, middle, stop = (
            int(i) for i in (self._data.offsets[k], self._data.train_ends[k], self._data.offsets[k + 1])
        )
        return (middle, stop) if split == "validation" and middle < stop else (start, middle)

    def _part(self, k: int, split: Split) -> Samples:
        return self.samples.part(*self.span(k, split))


def _attempt(what: str, ask: Callable[[int], Answer], k: int) -> Answer | Failure:
    try:
        return ask(k)
    except Exception as error:
        return Failure(f"{what} raised {type(error).__name__}: {error}")


def samples_on(model: FlatModel, data: Scaled, x: object, y: object) -> Samples:
    """Arrays of a federated dataset as samples where the model is; inputs that are not integers in its dtype."""

    def tensor(values: object) -> Tensor:
        with warnings.catch_warnings():
            # Data that lies in files cannot be written to, and nobody here wants to.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            moved = torch.as_tensor(values).to(model.device)
        return moved.to(model.layout.dtype) if moved.is_floating_point() else moved

    return Samples(tensor(x), tensor(y), tensor(data.scale), tensor(data.shift))
