"""The reward of a run: what `filter.reward` says, on the server's filtering set or by the clients that judge."""

from collections.abc import Callable, Mapping

from torch import Tensor

from filfl.evaluation import Loss, Samples, mean_loss
from filfl.filtering.judges import LossOf
from filfl.filtering.reward import AverageReward
from filfl.sections import FilterOptions
from filfl.server import CountedReward
from filfl.simulation.inference import Inference
from filfl.weights import Weights


def make_reward(
    options: FilterOptions, inference: Inference, filter_set: Samples, loss: Loss
) -> Callable[[Mapping[int, Tensor], Weights, LossOf | None], CountedReward]:
    """What `FilFL.reward` asks for."""

    def reward(trained: Mapping[int, Tensor], w_t: Weights, judged: LossOf | None) -> CountedReward:
        def loss_on_V(vector: Tensor) -> float:
            with inference.network() as net:
                return mean_loss(net, Weights(vector, w_t.integers), filter_set, loss)

        empty = w_t.vector if options.empty == "global" else None
        if judged:  # messages to clients go out one by one
            return AverageReward(trained, judged, empty)
        return AverageReward(trained, loss_on_V, empty, at_once=inference.at_once, each=inference.each)

    return reward
