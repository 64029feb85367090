"""The ensemble reward: a surrogate of Eq. (3) that averages the outputs of the clients instead of their weights."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor

from filfl.errors import PluginError
from filfl.evaluation import Loss, cross_entropy, sample_losses
from filfl.filtering.rewards import AverageReward, Floats, Ints, OnSamples

MAX_NUMBERS = 1 << 22
"""How many outputs of averaged clients are computed at a time: 16 MB, measured faster than more or less."""
CAP = 1.5
"""The loss at which `capped` cuts, in units of that of guessing. At 1, oversized and reversed updates are found less
surely, since they spoil a model until it is worse than guessing; at 2, random labels are."""
PRESENT = 0.5
"""The smallest share of the classes that `on_present_classes` looks at alone. A V of few samples lacks most of many
classes by chance. Wrong labels then show in what a model predicts for classes that V does not have."""


class EnsembleReward(OnSamples):
    """R_ens(S) = max(0, c - loss(1/|S| sum_{k in S} z_k)), where z_k are the outputs of client k's weights on all of V.

    To first order in the distance between the clients' weights, the outputs of averaged weights are the averaged
    outputs. After one inference over V per client, which is what `evaluations` counts, any set costs one sum and one
    loss. `own` gives the outputs of the global model, where a filter asks for them. R({}) is 0, or, where `empty` gives
    outputs for the empty set, their reward, which costs one more inference if a filter asks for it.
    """

    def __init__(
        self,
        outputs: Mapping[int, Tensor],
        targets: Tensor,
        loss: Loss,
        own: Callable[[], Tensor] | None = None,
        empty: Callable[[], Tensor] | None = None,
    ) -> None:
        self.evaluations = len(outputs)
        # One client with non-finite outputs would spoil every sum that it was part of.
        self._broken = frozenset(k for k, z in outputs.items() if not z.isfinite().all())
        self._outputs = {k: z for k, z in outputs.items() if k not in self._broken}
        self.clients, self.num_samples = list(self._outputs), len(targets)
        self._targets, self._loss, self._own, self._empty = targets, loss, own, empty
        self._cap = math.inf
        shape = next((z.shape for z in outputs.values()), ())
        self._R = AverageReward(
            {k: z.flatten() for k, z in self._outputs.items()},
            lambda mean: float(loss(mean.view(shape), targets)),
            None if empty is None else self._outputs_of_empty,
        )

    def __call__(self, subset: frozenset[int]) -> float:
        return 0.0 if subset & self._broken else self._R(subset)

    def knows(self, subset: frozenset[int]) -> bool:
        """Always true: no set needs another inference over V."""
        return True

    def losses_at(self, weights: Floats) -> Floats:
        z = self._with_global if weights.shape[1] > len(self.clients) else self._stack
        return self._losses(torch.from_numpy(weights).to(z), lambda rows: rows @ z)

    def losses_near(self, center: Floats, which: Ints, share: float) -> Floats:
        z = self._with_global if len(center) > len(self.clients) else self._stack
        moved = (1 - share) * (torch.from_numpy(center).to(z) @ z)
        return self._losses(torch.from_numpy(which).to(z.device), lambda rows: z[rows].mul_(share).add_(moved))

    def _losses(self, rows: Tensor, averaged: Callable[[Tensor], Tensor]) -> Floats:
        """The losses of the averages of these rows, a part of the rows at a time."""
        parts = rows.split(max(1, MAX_NUMBERS // max(1, self._stack.shape[1])))
        losses = torch.cat([self._sample_losses(averaged(part)) for part in parts])
        return losses.double().clamp(max=self._cap).cpu().numpy()

    def _sample_losses(self, z: Tensor) -> Tensor:
        """The loss of each sample for outputs that are flat as in `_stack`: [r, m]."""
        m, targets = self.num_samples, self._targets
        if self._classes:  # the classes come first, so that the sums over them are vectorized over the samples
            z = z.view(len(z), self._classes, m)
            return z.logsumexp(dim=1) - z[:, targets, torch.arange(m, device=z.device)]
        shape = next(iter(self._outputs.values())).shape[1:]
        repeated = targets.repeat(len(z), *[1] * (targets.ndim - 1))
        return sample_losses(self._loss, z.view(len(z) * m, *shape), repeated).view(len(z), m)

    @cached_property
    def _stack(self) -> Tensor:
        """The outputs of all clients, one row each."""
        return torch.stack([self._flat(z) for z in self._outputs.values()])

    @cached_property
    def _with_global(self) -> Tensor:
        """The same, and the outputs of the global model as the last row."""
        return torch.cat([self._stack, self._flat(self._global_outputs())[None]])

    def _flat(self, z: Tensor) -> Tensor:
        return (z.T if self._classes else z).flatten()

    def global_losses(self) -> Floats:
        losses: Floats = self._losses(self._flat(self._global_outputs())[None], lambda rows: rows)[0]
        return losses

    def _global_outputs(self) -> Tensor:
        if self._own is None:
            raise PluginError("the outputs of the global model are not known to this reward")
        return self._own()

    def _outputs_of_empty(self) -> Tensor:
        assert self._empty is not None
        self.evaluations += 1
        return self._empty().flatten()

    def on(self, rows: Ints) -> "EnsembleReward":
        index = torch.from_numpy(rows).to(self._targets.device)
        return self._part(lambda z: z[index], self._targets[index])

    def on_present_classes(self) -> "EnsembleReward":
        present, targets = torch.unique(self._targets, return_inverse=True)
        if not PRESENT * self._classes <= len(present) < self._classes:
            return self
        part = self._part(lambda z: z[:, present], targets)
        part.memory = self.memory
        return part

    def capped(self) -> "EnsembleReward":
        """No sample has a cross-entropy of more than `CAP` times that of guessing."""
        if not self._classes:
            return self
        part = self._part(lambda z: z, self._targets)
        part.memory, part._cap = self.memory, CAP * math.log(self._classes)
        return part

    @cached_property
    def _classes(self) -> int:
        """The number of classes; 0 where the loss is not the cross-entropy of class labels, all of which count."""
        z, y = next(iter(self._outputs.values()), None), self._targets
        are_labels = self._loss is cross_entropy and y.ndim == 1 and not y.is_floating_point() and bool((y >= 0).all())
        return z.shape[1] if z is not None and z.ndim == 2 and are_labels else 0

    def _part(self, of: Callable[[Tensor], Tensor], targets: Tensor) -> "EnsembleReward":
        """The same reward on a part of the outputs."""
        own, empty = self._own, self._empty
        part = EnsembleReward(
            {k: of(z) for k, z in self._outputs.items()},
            targets,
            self._loss,
            None if own is None else lambda: of(own()),
            None if empty is None else lambda: of(empty()),
        )
        part.K = self.K
        return part
