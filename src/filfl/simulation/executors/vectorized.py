"""Simulated clients that train together, many of them in one batched computation.

Clients train in blocks: a block's weights are one stack [C, d], and its step is batched over the clients. Each client
sees exactly its own batches in its own order; where sizes differ, batches are padded with samples of weight 0. How a
cohort is divided into blocks depends on the cohort alone, and a block is computed by one thread, so the result does not
depend on the number of cores.
"""

import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from filfl.algorithms.local_sgd import batches
from filfl.core.clients import Failure, Update
from filfl.core.queries import GradientQuery, LossQuery, Query
from filfl.data import FederatedData
from filfl.evaluation import CHUNK, Loss
from filfl.rng import stream
from filfl.simulation.executors.batched import BatchedModel
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.wrappers.forwarding import Forwarding
from filfl.weights import FlatModel, Weights

BLOCK = {"cpu": 16, "cuda": 64}
"""The largest number of clients in a block. Smaller on a CPU, so that their weights stay in its cache and a large
cohort has a block for every core; in much smaller blocks, starting the kernels takes longer than running them."""

TRIAL_STEPS = 2
TOLERANCE = 1e-2
"""Largest distance between training together and one by one, relative to the distance trained: rounding is far below, a
wrong batch far above."""


@dataclass(frozen=True)
class _Plan:
    """The clients of a block and their batches."""

    block: list[int]
    index: Tensor
    """[S, C, B]: the samples of each step."""
    share: Tensor
    """[S, C, B]: their shares of the mean; 0 for padding."""
    sizes: Tensor
    """[S, C]: the sizes of the batches without padding."""


class VectorizedClients(Forwarding):
    """Simulated clients that train together. A block that raises is trained by the serial executor instead, so that
    the client that raises is the only one to fail."""

    def __init__(
        self, data: FederatedData, model: FlatModel, loss: Loss, training: LocalTraining, threads: int
    ) -> None:
        self._data = data
        self._model = model
        self._training = training
        self._serial = SerialClients(data, model, loss, training)
        super().__init__(self._serial)
        self._samples = self._serial.samples
        self._batched = BatchedModel(model, self._samples, loss, training)
        self._width = int(data.num_train.max())
        self._pool = ThreadPoolExecutor(threads, "clients", initializer=torch.set_num_threads, initargs=(1,))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        # All batches are drawn first: drawing needs Python's lock, and would stall the threads, whose kernels do not.
        plans = [self._plan(t, block) for block in self._blocks(ids)]

        def attempt(plan: _Plan) -> dict[int, Update] | None:
            try:
                return self._train(t, plan, weights)
            except Exception:
                return None

        run = map if self._model.device.type == "cuda" or len(plans) == 1 else self._pool.map
        replies: dict[int, Update | Failure] = {}
        # All blocks first: the serial executor uses the same network.
        for plan, trained in zip(plans, list(run(attempt, plans)), strict=True):
            replies |= trained or self._serial.train(t, plan.block, weights)
        return {k: replies[k] for k in ids}

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        """Losses and gradients are batched over the clients; other queries are answered one by one."""
        if isinstance(query, LossQuery):
            return self._losses(query, ids, weights)
        if not isinstance(query, GradientQuery):
            return self._serial.query(query, ids, weights)
        replies: dict[int, Any] = {}
        for block in self._blocks(ids):
            try:
                replies |= zip(block, self._gradients(block, weights), strict=True)
            except Exception:
                replies |= self._serial.query(query, block, weights)
        return {k: replies[k] for k in ids}

    @torch.no_grad()
    def _losses(self, query: LossQuery, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        """All clients' samples go through the model together, since it is the same model for all of them."""
        parts = [np.arange(*self._serial.span(k, query.split)) for k in ids]
        self._model.load(weights)
        self._model.module.eval()
        state = self._model.layout.unflatten(weights)
        try:
            index = torch.from_numpy(np.concatenate(parts)).to(self._model.device)
            losses = [self._batched.sample_losses(state, *self._samples.batch(at)) for at in index.split(CHUNK)]
            each = torch.cat(losses).double().cpu().numpy()
        except Exception:
            return self._serial.query(query, ids, weights)
        ends = np.cumsum([len(part) for part in parts])
        return {k: float(own.mean()) for k, own in zip(ids, np.split(each, ends[:-1]), strict=True)}

    def _blocks(self, ids: Sequence[int]) -> list[list[int]]:
        """The cohort in as few blocks as the limit allows, of about equal length. Clients of similar size share a
        block, so that there is little padding."""
        cohort = np.unique(np.array(ids, dtype=np.int64))
        by_size = cohort[np.argsort(self.num_examples(cohort), kind="stable")]
        count = -(-len(cohort) // BLOCK[self._model.device.type])
        return [part.tolist() for part in np.array_split(by_size, count)] if count else []

    def train_block(self, t: int, block: list[int], weights: Weights) -> dict[int, Update]:
        """Train these clients together; raises where that is not possible."""
        return self._train(t, self._plan(t, block), weights)

    def _train(self, t: int, plan: _Plan, weights: Weights) -> dict[int, Update]:
        options = self._training.options
        self._model.module.train()
        block = plan.block
        trained = self._model.layout.num_trained
        stack = weights.vector.repeat(len(block), 1)
        w = stack[:, :trained]
        velocity = torch.zeros_like(w) if options.momentum else w[:, :0]
        rates = (plan.sizes > 0) * torch.tensor(options.lr_at(t), dtype=stack.dtype, device=stack.device)
        losses = [
            self._batched.step(w, velocity, weights.vector, index, share, rate)
            for index, share, rate in zip(plan.index, plan.share, rates, strict=True)
        ]
        totals = (torch.stack(losses).double() * plan.sizes).sum(dim=0) / plan.sizes.sum(dim=0)
        sizes = self.num_examples(block).tolist()
        return {
            k: Update(Weights(row, weights.integers), size, loss)
            for k, row, size, loss in zip(block, stack, sizes, totals.tolist(), strict=True)
        }

    def _plan(self, t: int, block: list[int]) -> _Plan:
        """The batches of every step, exactly those that each client would draw alone."""
        seed, options = self._training.seed, self._training.options
        steps = [
            list(batches(size, options.batch, options.epochs, options.steps, stream(seed, t, "batches", k)))
            for k, size in zip(block, self.num_examples(block).tolist(), strict=True)
        ]
        shape = (max(map(len, steps)), len(block), min(options.batch, self._width))
        index = np.empty(shape, dtype=np.int64)
        index[:] = self._data.offsets[block][:, None]
        sizes = np.zeros(shape[:2], dtype=np.int64)
        for c, (k, own) in enumerate(zip(block, steps, strict=True)):
            for s, chosen in enumerate(own):
                index[s, c, : len(chosen)] = chosen + self._data.offsets[k]
                sizes[s, c] = len(chosen)
        share = (np.arange(shape[-1]) < sizes[..., None]) / np.maximum(sizes, 1)[..., None]
        on_device = [torch.from_numpy(array).to(self._model.device) for array in (index, share, sizes)]
        return _Plan(block, on_device[0], on_device[1].to(self._model.layout.dtype), on_device[2])

    def _gradients(self, block: list[int], weights: Weights) -> Tensor:
        """The gradient of each client's mean loss, in chunks of its samples."""
        self._model.module.eval()
        trained = self._model.layout.num_trained
        w = weights.vector[:trained].expand(len(block), trained)
        num, starts = self.num_examples(block), self._data.offsets[block]
        total = torch.zeros_like(w)
        for start in range(0, int(num.max()), CHUNK):
            sizes = np.clip(num - start, 0, CHUNK)
            at = np.arange(int(sizes.max()))
            real = at < sizes[:, None]
            index = starts[:, None] + np.where(real, start + at, 0)
            share = torch.from_numpy(real / num[:, None]).to(w)
            chunk = torch.from_numpy(index).to(w.device)
            gradients, _ = self._batched.gradients(w, weights.vector, chunk, share, self._samples.x, self._samples.y)
            total += torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
        return total


def why_not_batched(data: FederatedData, model: FlatModel, loss: Loss, training: LocalTraining) -> str | None:
    """Why this model and this loss cannot be batched over clients; None where they can.

    Two clients train together, and the result is compared with training them one by one.
    """
    if training.augment is not None:
        return "augment changes the batches of one client at a time"
    if not training.options.is_sgd:
        return f'training.optimizer = "{training.options.optimizer}" trains one client at a time'
    if any(isinstance(module, _BatchNorm) for module in model.module.modules()):
        return "BatchNorm computes its statistics over a whole batch, and stores them for one client at a time"
    sizes = data.num_train
    ids = sorted({int(sizes.argmin()), int(sizes.argmax())})  # of very different sizes, so that batches are padded
    short = replace(training, options=replace(training.options, epochs=None, steps=TRIAL_STEPS))
    start = model.weights()
    alone = SerialClients(data, model, loss, short).train(1, ids, start)
    together = VectorizedClients(data, model, loss, short, threads=1)
    try:
        with warnings.catch_warnings():
            # torch computes an operator without a batched form one by one, with a warning.
            warnings.simplefilter("error")
            batched = together.train_block(1, ids, start)
    except Exception as error:
        return _reason(error)
    finally:
        together.close()
        model.load(start)
    same = all(isinstance(reply, Update) and _agree(batched[k], reply, start) for k, reply in alone.items())
    return None if same else "batched over clients, training gives other weights (is the loss a mean over the samples?)"


def _reason(error: Exception) -> str:
    """The reason in a few words, from one of torch's long messages."""
    text = str(error)
    if "randomness" in text:
        return "it draws random numbers in training (dropout)"
    if "data-dependent control flow" in text:
        return "its control flow depends on the data (an `if` on a tensor, or .item())"
    if missing := re.search("batching rule for ([\\w:]+)", text):
        return f"torch has no batched form of {missing[1]}"
    return f"{type(error).__name__}: {text.splitlines()[0].rstrip('.') if text else 'no reason given'}"


def _agree(one: Update, other: Update, start: Weights) -> bool:
    assert isinstance(one.weights, Weights)
    assert isinstance(other.weights, Weights)
    trained = (other.weights.vector - start.vector).norm()
    same_weights = bool((one.weights.vector - other.weights.vector).norm() <= TOLERANCE * trained)
    return same_weights and abs(one.train_loss - other.train_loss) <= TOLERANCE * abs(other.train_loss)
