"""The interface of server optimisers: the mean of the updates is the gradient of an optimiser on the server."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from filfl.aggregation.base import Admitted, Aggregation, Memory
from filfl.aggregation.mean import ByExamples, Mean
from filfl.aggregation.median import Median
from filfl.aggregation.server_side import WithServer
from filfl.weights import Weights

MEANS: dict[str, Aggregation] = {"mean": Mean(), "by-examples": ByExamples(), "median": Median()}


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(WithServer):
    """A step of an optimiser for the weights that are trained. Statistics such as those of BatchNorm are averaged."""

    of: Literal["mean", "by-examples", "median"] = "mean"
    """What the updates are averaged by first: the aggregation of this name. Flower's strategies have by-examples."""

    def __call__(self, t: int, memory: Memory, w_t: Weights, updates: Sequence[Admitted]) -> tuple[Memory, Weights]:
        _, averaged = MEANS[self.of](t, {}, w_t, updates)
        before, after = self.server.trained(w_t.vector).double(), self.server.trained(averaged.vector)
        memory, step = self.step(t, after.double() - before, memory)
        after.copy_(before + step)
        return memory, averaged

    @abstractmethod
    def step(self, t: int, d_t: Tensor, memory: Memory) -> tuple[Memory, Tensor]:
        """The step from the mean d_t of the updates, in float64."""
