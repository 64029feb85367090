"""The rewards of a run: the true one, and what `filter.reward` puts in its place for the filter."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from filfl.clients import Failure
from filfl.errors import ConfigError
from filfl.evaluation import Loss, Samples, mean_loss, outputs
from filfl.filtering.judges import LossOf
from filfl.filtering.reward import AverageReward
from filfl.logits import Form
from filfl.sections import FilterOptions
from filfl.server import ByLogits, CountedReward
from filfl.simulation.inference import Inference
from filfl.weights import Weights


def make_reward(
    options: FilterOptions, inference: Inference, filter_set: Samples, loss: Loss
) -> Callable[[Mapping[int, Tensor], Weights, LossOf | None], CountedReward]:
    """What `FilFL.reward` asks for: on the server's filtering set, or by the clients that judge."""

    def reward(trained: Mapping[int, Tensor], w_t: Weights, judged: LossOf | None) -> CountedReward:
        def loss_on_V(vector: Tensor) -> float:
            with inference.network() as net:
                return mean_loss(net, Weights(vector, w_t.integers), filter_set, loss)

        empty = w_t.vector if options.empty == "global" else None
        if judged:  # messages to clients go out one by one
            return AverageReward(trained, judged, empty, dtype=w_t.vector.dtype)
        return AverageReward(
            trained, loss_on_V, empty, dtype=w_t.vector.dtype, at_once=inference.at_once, each=inference.each
        )

    return reward


def make_surrogate(
    options: FilterOptions, inference: Inference, filter_set: Samples, loss: Loss
) -> Callable[[Mapping[int, Tensor], Weights], CountedReward] | None:
    """What `FilFL.surrogate` asks for."""
    if options.reward == "average" or options.transport == "logits":
        return None

    def surrogate(trained: Mapping[int, Tensor], w_t: Weights) -> CountedReward:
        def on_V(vector: Tensor) -> Tensor:
            with inference.network() as net:
                return outputs(net, Weights(vector, w_t.integers), filter_set)

        empty = on_V(w_t.vector) if options.empty == "global" else None
        answers = dict(zip(trained, inference.each(on_V, trained.values()), strict=True))
        return EnsembleReward(answers, filter_set.y, loss, empty)

    return surrogate


def make_by_logits(options: FilterOptions, inference: Inference, filter_set: Samples, loss: Loss) -> ByLogits | None:
    """What `FilFL.logits` asks for."""
    if options.transport == "models" or options.name == "none":
        return None
    V = filter_set.without_targets()

    def says(weights: Sequence[Weights], samples: Samples) -> list[Tensor | Failure]:
        return says_to(inference, weights, samples)

    def reward(answers: Mapping[int, Tensor], w_t: Weights, rows: Tensor | None) -> CountedReward:
        part = filter_set if rows is None else filter_set.at(rows)
        empty = None
        if options.empty == "global":
            with inference.network() as net:
                empty = outputs(net, w_t, part)
        return EnsembleReward(answers, part.y, loss, empty)

    def loss_of(z: Tensor, rows: Tensor | None) -> float:
        return float(loss(z, filter_set.y if rows is None else filter_set.y[rows.to(filter_set.y.device)]))

    with inference.network() as net:
        one = outputs(net, net.weights(), V.part(0, 1))
    if options.top is not None and (one.dim() != 2 or options.top >= one.shape[1]):
        # A config is checked against its data before; in a federation only the model is known.
        told = f"{one.shape[1]} classes" if one.dim() == 2 else f"numbers of shape {list(one.shape[1:])}"
        raise ConfigError(f"filter.top must be below the classes of the model, which says {told} (got {options.top})")
    return ByLogits(
        V=V,
        digest=digest_of(V),
        outputs=tuple(one.shape[1:]),
        form=Form(options.precision, options.top),
        part=options.part,
        says=says,
        reward=reward,
        loss=loss_of,
    )


def says_to(inference: Inference, weights: Sequence[Weights], samples: Samples) -> list[Tensor | Failure]:
    """What each of these models says to the samples; why it cannot, where it raises."""

    def run(each: Weights) -> Tensor | Failure:
        try:
            with inference.network() as net:
                return outputs(net, each, samples)
        except Exception as error:
            return Failure(f"its model raised {type(error).__name__} on V: {error}")

    return inference.each(run, weights)


def digest_of(V: Samples) -> str:
    """The name of a public V: a hash of its inputs, and of what makes them of bytes."""
    named = hashlib.sha256()
    for part in (V.x, V.scale, V.shift):
        part = part.cpu().contiguous()
        named.update(f"{part.dtype} {list(part.shape)} ".encode() + part.numpy().tobytes())
    return named.hexdigest()


class EnsembleReward:
    """R_ens(S) = max(0, c - loss(1/|S| sum_{k in S} z_k)), with z_k what client k's weights say to all of V.

    To first order in how far the clients moved apart, the outputs of averaged weights are the averaged outputs. So
    after one pass over V a client, which is what `evaluations` counts, any set costs one sum and one loss.
    """

    def __init__(self, answers: Mapping[int, Tensor], targets: Tensor, loss: Loss, empty: Tensor | None = None) -> None:
        self.evaluations = len(answers) + (empty is not None)
        # A client that answers with what is no number would blind every sum that it once was part of.
        self._broken = frozenset(k for k, z in answers.items() if not z.isfinite().all())
        shape = next(iter(answers.values())).shape
        self._R = AverageReward(
            {k: z.flatten() for k, z in answers.items() if k not in self._broken},
            lambda mean: float(loss(mean.view(shape), targets)),
            None if empty is None else empty.flatten(),
        )

    def __call__(self, subset: frozenset[int]) -> float:
        return 0.0 if subset & self._broken else self._R(subset)

    def knows(self, subset: frozenset[int]) -> bool:
        """No set needs another pass over V."""
        return True
