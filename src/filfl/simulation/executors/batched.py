"""One step of SGD for many clients in one computation, each with its own weights and its own batch."""

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from filfl.algorithms import Algorithm
from filfl.evaluation import Loss, Samples
from filfl.weights import FlatModel

TRACE_AFTER = 16
"""Steps of one shape before it is traced: tracing takes about as long as a hundred steps, which a short run does not
have. Traced or not, the kernels and so the bits are the same."""


@dataclass(frozen=True)
class Rule:
    """The parts of a step beside the gradient, the same for all clients and rounds."""

    algorithm: Algorithm
    momentum: float
    weight_decay: float


jit_trace: Callable[..., "Step"] = torch.jit.trace

Step = Callable[..., Tensor]
"""(stack, velocity, w_t, index, share, rate) -> loss of every client; changes the stack [C, d] and the velocity.

index [C, B] are the samples of each client's batch, share [C, B] their shares of its mean (0 where a batch is padded),
rate [C] the step sizes (0 for a client that has finished)."""


class BatchedModel:
    """A network as a function of many clients' weights, and its training step, traced once that pays off."""

    def __init__(self, model: FlatModel, samples: Samples, loss: Loss) -> None:
        self._model = model
        self._samples = samples
        self._loss = loss
        self._layout = model.layout
        self._uses: dict[tuple[int, Rule], int] = {}
        self._traced: dict[tuple[int, Rule], Step] = {}
        self._lock = threading.Lock()

    def step(
        self, rule: Rule, stack: Tensor, velocity: Tensor, w_t: Tensor, index: Tensor, share: Tensor, rate: Tensor
    ) -> Tensor:
        """One step of every client in the stack; the losses before it."""
        key = (len(stack), rule)
        tensors = (stack, velocity, w_t, index, share, rate)
        traced = self._traced.get(key)
        if traced is None:
            with self._lock:  # the module can be called by one thread at a time
                self._uses[key] = self._uses.get(key, 0) + 1
                if self._uses[key] <= TRACE_AFTER:
                    return self._eager(rule)(*tensors, self._samples.x, self._samples.y)
                traced = self._traced[key] = self._traced.get(key) or self._trace(rule, tensors)
        return traced(*tensors, self._samples.x, self._samples.y)

    def gradients(
        self, stack: Tensor, w_t: Tensor, index: Tensor, share: Tensor, all_x: Tensor, all_y: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """Every client's gradient, one tensor [C, ...] per parameter, and its loss."""
        params = self._layout.views(stack)
        fixed = self._fixed(w_t)
        x, y = self._samples.inputs(all_x[index]), all_y[index]

        def loss(params: list[Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
            return (self.sample_losses(dict(self._named(params), **fixed), x, y) * share).sum()

        gradients, losses = vmap(grad_and_value(loss))(params, x, y, share)
        return gradients, losses

    def sample_losses(self, state: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample by itself, as a batch of one."""
        outputs = functional_call(self._model.module, dict(state), (x,))
        losses: Tensor = vmap(self._loss)(outputs.unsqueeze(1), y.unsqueeze(1))
        return losses

    def flat(self, gradients: list[Tensor]) -> Tensor:
        """Gradients per parameter as one vector per client: [C, d]."""
        return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)

    def _eager(self, rule: Rule) -> Step:
        def step(
            stack: Tensor, velocity: Tensor, w_t: Tensor, index: Tensor, share: Tensor, rate: Tensor, *data: Tensor
        ) -> Tensor:
            gradients, losses = self.gradients(stack, w_t, index, share, *data)
            penalty = rule.algorithm.penalty_gradient(stack, w_t[: stack.shape[1]])
            penalties = self._layout.views(penalty) if penalty is not None else [None] * len(gradients)
            views, velocities = (
                self._layout.views(stack),
                self._layout.views(velocity) if rule.momentum else [None] * len(gradients),
            )
            for w, gradient, pull, v in zip(views, gradients, penalties, velocities, strict=True):
                direction = gradient
                if rule.weight_decay:
                    direction = direction + rule.weight_decay * w
                if pull is not None:
                    direction = direction + pull
                if v is not None:
                    direction = v.mul_(rule.momentum).add_(direction)
                w.addcmul_(direction, rate.view(-1, *[1] * (w.dim() - 1)), value=-1)
            return losses

        return step

    def _trace(self, rule: Rule, tensors: tuple[Tensor, ...]) -> Step:
        """The step without Python between its kernels."""
        # Tracing executes the step, so it works on copies of what a step changes.
        stack, velocity, *rest = tensors
        example = (stack.clone(), velocity.clone(), *rest, self._samples.x, self._samples.y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated, but nothing else is as fast on a CPU
            graph = make_fx(self._eager(rule))(*example)
            try:
                return jit_trace(graph, example, check_trace=False)
            except RuntimeError:  # torch.jit lacks some kernels (a convolution's gradient): then run the graph itself
                return graph

    def _named(self, params: list[Tensor]) -> dict[str, Tensor]:
        by_start = {entry.start: value for entry, value in zip(self._layout.trained, params, strict=True)}
        trained = self._layout.num_trained
        return {e.name: by_start[e.start] for e in self._layout.entries if not e.integer and e.stop <= trained}

    def _fixed(self, w_t: Tensor) -> dict[str, Tensor]:
        """What training does not change: frozen parameters and buffers, equal for all clients."""
        trained = self._layout.num_trained
        others = [e for e in self._layout.entries if not e.integer and e.start >= trained]
        return {e.name: w_t[e.start : e.stop].view(e.shape) for e in others}
