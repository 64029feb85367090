"""The interface of an algorithm: what a client minimises in addition to its own loss."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from filfl.config.schema import Section


@dataclass(frozen=True, kw_only=True)
class Algorithm(Section, ABC):
    """Client k minimises F_k(w) + penalty(w, w_t). An algorithm is defined by the gradient of its penalty."""

    @abstractmethod
    def penalty_gradient(self, w: Tensor, w_t: Tensor) -> Tensor | None:
        """The gradient of the penalty at w; None if there is no penalty. Must also accept stacks [n, d] of weights."""
