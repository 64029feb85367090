"""What an algorithm is: what a client minimises besides its own loss."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Client k minimises F_k(w) + penalty(w, w_t); an algorithm is its penalty, given by its gradient."""

    @abstractmethod
    def penalty_gradient(self, w: Tensor, w_t: Tensor) -> Tensor | None:
        """The gradient of the penalty in w; None where there is no penalty. Works on stacks [n, d] too."""
