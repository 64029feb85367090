"""The interface of a query: a question to clients about their data, at given weights."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from filfl.evaluation import Loss, Samples
from filfl.weights import FlatModel, Layout, Weights

Split = Literal["train", "validation"]
Batches = Iterable[tuple[Tensor | dict[str, Tensor], Tensor]]


@dataclass(frozen=True)
class Query(ABC):
    """A query and its reply: how a client computes it, how large it is, and what the server accepts."""

    name: ClassVar[str]
    """On Flower, the message type is query.filfl_NAME."""
    measured: ClassVar[str] = "the answer"
    """What `magnitude` measures, for the reason of a refusal."""
    is_vector: ClassVar[bool] = False
    """Whether the reply is a vector over the trained parameters, instead of a number."""
    split: Split = "train"
    """The client's samples that the query is about; its training samples where the split is empty."""

    @abstractmethod
    def answer(self, model: FlatModel, weights: Weights, samples: Samples, loss: Loss) -> Any:
        """The reply of a simulated client."""

    @abstractmethod
    def answer_on_flower(self, model: nn.Module, batches: Batches, loss: Loss) -> float | dict[str, Tensor] | None:
        """The reply of a Flower client whose `model` has the weights: a number, or a vector as tensors by parameter.
        None if there are no samples."""

    @abstractmethod
    def num_bytes(self, layout: Layout) -> int:
        """The size of a reply."""

    def check(self, reply: Any, layout: Layout) -> Any:
        """The reply, if the server can use it; raises `Mismatch` otherwise."""
        return reply

    def magnitude(self, reply: Any) -> float:
        """The size of a checked reply, by which it is compared with those of the other clients."""
        return abs(float(reply))
