"""The server's filtering set V, judged without turning every candidate into records and back."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from filfl.cores import num_cores
from filfl.errors import PluginError
from filfl.evaluation import Loss, Samples, cross_entropy, mean_loss
from filfl.filtering.judges import LossOf
from filfl.filtering.reward import AverageReward
from filfl.flower.records import to_arrays, to_weights
from filfl.server import CountedReward
from filfl.simulation.inference import Inference, how_many
from filfl.simulation.setup import pick_device
from filfl.weights import FlatModel, Layout, Mismatch, Weights

Evaluate = Callable[[ArrayRecord], float]
"""Arrays -> their loss on the filtering set."""


class FilteringSet:
    """The samples that the server filters by, and the network that judges them; give it to `FilFL` as `evaluate`.

    model: a function that makes the network, such as its class. x, y: arrays or tensors.
    A plain function `evaluate(arrays) -> loss` does the same and is slower: for every candidate the weights become
    bytes and weights again. The ensemble reward needs this class.
    """

    def __init__(
        self, model: Callable[[], nn.Module], x: Any, y: Any, loss: Loss = cross_entropy, device: str = "auto"
    ) -> None:
        where = pick_device(device)
        self.net = FlatModel(model(), where)
        inputs, targets = torch.as_tensor(x).to(where), torch.as_tensor(y).to(where)
        if len(inputs) != len(targets) or not len(targets):
            raise PluginError(
                f"the filtering set needs as many inputs as targets, and some (got {len(inputs)} and {len(targets)})"
            )
        one, zero = torch.ones((), device=where), torch.zeros((), device=where)
        self.samples = Samples(inputs, targets, one, zero).aligned()
        self.loss = loss
        self._build = model

    @classmethod
    def of(cls, net: FlatModel, build: Callable[[], nn.Module], samples: Samples, loss: Loss) -> "FilteringSet":
        """From filfl's own parts."""
        made = cls.__new__(cls)
        made.net, made.samples, made.loss, made._build = net, samples, loss, build
        return made

    def __call__(self, arrays: ArrayRecord) -> float:
        """The loss of a model on the filtering set, as `evaluate` of `FilFL` gives it."""
        try:
            return mean_loss(self.net, to_weights(arrays, self.net.layout), self.samples, self.loss)
        except Mismatch as reason:
            raise PluginError(f"the arrays do not fit the network of the filtering set: {reason}") from None

    def inference(self) -> Inference:
        """Networks that judge several candidates at a time."""
        at_once = how_many(self.net, len(self.samples), num_cores())
        return Inference(self.net, lambda: FlatModel(self._build(), self.net.device), at_once)


def plain_reward(
    evaluate: Evaluate | None, layout: Layout, from_global: bool
) -> Callable[[Mapping[int, Tensor], Weights, LossOf | None], CountedReward]:
    """What `filfl.server.FilFL.reward` asks for, where the user has a function of arrays."""

    def reward(trained: Mapping[int, Tensor], w_t: Weights, judged: LossOf | None) -> CountedReward:
        def loss(vector: Tensor) -> float:
            assert evaluate is not None
            return float(evaluate(to_arrays(Weights(vector, w_t.integers), layout)))

        empty = w_t.vector if from_global else None
        return AverageReward(trained, judged or loss, empty, dtype=w_t.vector.dtype)

    return reward
