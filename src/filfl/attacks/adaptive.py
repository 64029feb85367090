"""Attackers that know the filtering set, and send the most harmful update that looks harmless on it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from filfl.attacks.base import Colluders, Collusion
from filfl.data.federated import FederatedData

if TYPE_CHECKING:
    from filfl.config.config import Config

STEPS = 20
"""Bisections of the length."""


@dataclass(frozen=True, kw_only=True)
class Adaptive(Collusion):
    """All attackers send mean - factor d: the mean of what they trained, moved back against it in the direction d in
    which the loss on the filtering set does not change at first. The factor is the largest one with which that loss is
    not above the median of what the attackers' own updates reach, each alone: to whoever judges an update by its loss
    on the filtering set, it is an ordinary one."""

    def problems_with(self, config: "Config", data: FederatedData) -> list[str]:
        needs = 'attack.name = "adaptive" needs a filtering set of the server; set data.filtering or filter.path'
        return [] if len(data.filter_y) else [needs]

    def sent_together(self, known: Colluders) -> Tensor:
        if known.loss_on_V is None or known.gradient_on_V is None:
            return known.updates
        loss_on_V, mean = known.loss_on_V, known.mean
        allowed = float(torch.tensor([loss_on_V(update) for update in known.updates], dtype=torch.float64).median())
        if not loss_on_V(mean) <= allowed:
            return mean
        gradient = known.gradient_on_V(mean)
        squared = float(gradient @ gradient)
        direction = mean - gradient * (float(mean @ gradient) / squared) if squared > 0 else mean

        def passes(factor: float) -> bool:
            return loss_on_V(mean - factor * direction) <= allowed

        low, high = 0.0, 1.0
        while passes(high) and high < 2.0**STEPS:
            low, high = high, 2 * high
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if passes(middle) else (low, middle)
        return mean - low * direction
