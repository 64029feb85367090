"""A patch in the corner of an image, for which the model is to give the class of the attackers' choice.

Gu, Dolan-Gavitt, Garg: BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain. 2017.
Bagdasaryan, Veit, Hua, Estrin, Shmatikov: How To Backdoor Federated Learning. AISTATS 2020.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from filfl.attacks.base import AttackByShare, Triggered
from filfl.config.schema import Count, Fraction, Positive, Whole
from filfl.data.federated import FederatedData
from filfl.data.samples import Array
from filfl.rng import SETUP, stream

if TYPE_CHECKING:
    from filfl.config.config import Config


@dataclass(frozen=True, kw_only=True)
class Backdoor(AttackByShare):
    """Attacking clients train on images of which some have a bright patch in a corner and the label `target`. The
    metric attack_success is the share of the test images of other classes that the model takes for `target` when they
    have the patch."""

    target: Whole = 0
    """The class that images with the patch are to be taken for."""
    patch: Count = 3
    """The height and width of the patch in pixels. It is in the bottom right corner."""
    poisoned_share: Fraction = 0.5
    """The share of an attacking client's images that get the patch, rounded to whole images."""
    factor: Positive = 1.0
    """An attacking client sends w_t + factor (w - w_t)."""

    def problems_with(self, config: "Config", data: FederatedData) -> list[str]:
        name = 'attack.name = "backdoor"'
        if not data.classes or len(data.sample_shape) != 3:
            return [f"{name} needs images with class labels, but a sample has the shape {data.sample_shape}"]
        problems = []
        if self.target >= data.classes:
            problems.append(f"attack.target must be below the number of classes, {data.classes} (got {self.target})")
        if self.patch >= min(data.sample_shape[1:]):
            problems.append(f"attack.patch must be smaller than the images, {data.sample_shape[1:]} (got {self.patch})")
        return problems

    def with_patch(self, images: Array, brightest: Any) -> Array:
        """Copies of these images [m, channels, height, width] with the patch."""
        patched = np.array(images)
        patched[:, :, -self.patch :, -self.patch :] = brightest
        return patched

    def poisoned(self, data: FederatedData, seed: int) -> FederatedData:
        x, y = np.array(data.x), np.array(data.y)
        for k in self.bad(data.num_clients, seed):
            n = data.offsets[k + 1] - data.offsets[k]
            drawn = stream(seed, SETUP, "backdoor", int(k)).permutation(n)[: round(self.poisoned_share * n)]
            mine = data.offsets[k] + drawn
            x[mine] = self.with_patch(x[mine], data.x.max())
            y[mine] = self.target
        return replace(data, x=x, y=y)

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        return w if self.factor == 1 else w_t + self.factor * (w - w_t)

    def triggered(self, data: FederatedData) -> Triggered:
        others = np.flatnonzero(data.test_y != self.target)
        return Triggered(self.with_patch(data.test_x[others], data.x.max()), self.target)
