"""One step of SGD for many clients in one computation, each with its own weights and its own batch."""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from filfl.evaluation import Loss, Samples
from filfl.simulation.executors.serial import LocalTraining
from filfl.weights import FlatModel

TRACE_AFTER = 16
"""Steps of one shape before it is traced: tracing takes about as long as a hundred steps, which a short run does not
have. Traced or not, the kernels and so the bits are the same."""


jit_trace: Callable[..., "Step"] = torch.jit.trace

Step = Callable[..., Tensor]
"""(stack, velocity, w_t, index, share, rate) -> loss of every client; changes the stack [C, d] and the velocity.

index [C, B] are the samples of each client's batch, share [C, B] their shares of its mean (0 where a batch is padded),
rate [C] the step sizes (0 for a client that has finished)."""


def clipped(gradients: list[Tensor], limit: float) -> list[Tensor]:
    """Every client's gradient, scaled down to the norm `limit` where it is larger, as by torch's clip_grad_norm_."""
    norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    factors = (limit / (norms + 1e-6)).clamp(max=1)
    return [gradient * factors.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]


class BatchedModel:
    """A network as a function of many clients' weights, and its training step, traced once that pays off."""

    def __init__(self, model: FlatModel, samples: Samples, loss: Loss, training: LocalTraining) -> None:
        self._model = model
        self._samples = samples
        self._loss = loss
        self._training = training
        self._layout = model.layout
        self._uses: Counter[int] = Counter()
        self._traced: dict[int, Step] = {}
        self._lock = threading.Lock()

    def step(self, stack: Tensor, *others: Tensor) -> Tensor:
        """One step of every client in the stack, as `Step`; the losses before it."""
        clients = len(stack)
        tensors = (stack, *others, self._samples.x, self._samples.y)
        traced = self._traced.get(clients)
        if traced is None:
            with self._lock:  # the module can be called by one thread at a time
                self._uses[clients] += 1
                if self._uses[clients] <= TRACE_AFTER:
                    return self._eager(*tensors)
                traced = self._traced[clients] = self._traced.get(clients) or self._trace(*tensors)
        return traced(*tensors)

    def gradients(
        self, stack: Tensor, w_t: Tensor, index: Tensor, share: Tensor, all_x: Tensor, all_y: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """Every client's gradient, one tensor [C, ...] per parameter, and its loss."""
        x, y = self._samples.inputs(all_x[index]), all_y[index]

        def loss(params: list[Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
            return (self.sample_losses(self._state(params, w_t), x, y) * share).sum()

        gradients, losses = vmap(grad_and_value(loss))(self._layout.views(stack), x, y, share)
        return gradients, losses

    def sample_losses(self, state: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample by itself, as a batch of one."""
        outputs = functional_call(self._model.module, dict(state), (x,))
        losses: Tensor = vmap(self._loss)(outputs.unsqueeze(1), y.unsqueeze(1))
        return losses

    def _eager(
        self, stack: Tensor, velocity: Tensor, w_t: Tensor, index: Tensor, share: Tensor, rate: Tensor, *data: Tensor
    ) -> Tensor:
        options, views = self._training.options, self._layout.views
        gradients, losses = self.gradients(stack, w_t, index, share, *data)
        penalty = self._training.algorithm.penalty_gradient(stack, w_t[: stack.shape[1]])
        if options.clip is not None:
            if penalty is not None:
                gradients = [gradient + pull for gradient, pull in zip(gradients, views(penalty), strict=True)]
                penalty = None
            gradients = clipped(gradients, options.clip)
        penalties = views(penalty) if penalty is not None else [None] * len(gradients)
        velocities = views(velocity) if options.momentum else [None] * len(gradients)
        for w, direction, pull, v in zip(views(stack), gradients, penalties, velocities, strict=True):
            if options.weight_decay:
                direction = direction + options.weight_decay * w
            if pull is not None:
                direction = direction + pull
            if v is not None:
                direction = v.mul_(options.momentum).add_(direction)
            w.addcmul_(direction, rate.view(-1, *[1] * (w.dim() - 1)), value=-1)
        return losses

    def _trace(self, stack: Tensor, velocity: Tensor, *others: Tensor) -> Step:
        """The step without Python between its kernels."""
        # Tracing executes the step, so it works on copies of what a step changes.
        example = (stack.clone(), velocity.clone(), *others)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated, but nothing else is as fast on a CPU
            graph = make_fx(self._eager)(*example)
            try:
                return jit_trace(graph, example, check_trace=False)
            except RuntimeError:  # torch.jit lacks some kernels (a convolution's gradient): then run the graph itself
                return graph

    def _state(self, params: list[Tensor], w_t: Tensor) -> dict[str, Tensor]:
        """A client's state: its trained parameters; what training does not change is that of w_t."""
        trained = {entry.start: value for entry, value in zip(self._layout.trained, params, strict=True)}
        return {
            e.name: trained[e.start] if e.start in trained else w_t[e.start : e.stop].view(e.shape)
            for e in self._layout.entries
            if not e.integer
        }
