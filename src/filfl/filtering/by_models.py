"""A filter round in which all considered clients send their weights: lines 4-9 of Algorithm 1, as in the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from torch import Tensor

from filfl.availability.base import Ids
from filfl.core.evidence import FilterMemory
from filfl.core.exchange import Exchange
from filfl.core.selector import Selector, whole_numbers
from filfl.core.server import Assessment, Outcome, Past, Rewards, State
from filfl.errors import PluginError
from filfl.filtering.assessment import Assess
from filfl.filtering.base import FilterFunction, Filtering, expect
from filfl.filtering.ensemble import EnsembleReward
from filfl.filtering.exhaustive import opt
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.judges import Judge
from filfl.filtering.keep_all import KeepAll
from filfl.filtering.rewards import CountedReward, OnSamples
from filfl.rng import stream
from filfl.weights import Weights

AnyReward = TypeVar("AnyReward", bound=CountedReward)
NOBODY_JUDGED = "no trusted client was available to judge; all clients were kept"
NO_JUDGEMENT = "no client that judged gave a usable answer; all clients were kept"


@dataclass(frozen=True)
class ByModels:
    """All considered clients train and send their weights; the filter looks for the set whose average is best."""

    seed: int
    filter: FilterFunction
    """chi-GF, or any other filter."""
    judge: Judge
    """On whose data a set is judged."""
    ensemble: FilteringSet | None = None
    """V, where the filter maximises the ensemble reward as a surrogate."""
    empty_is_global: bool = False
    """Whether the reward of the empty set is that of the global model, instead of 0."""
    verify: int = 0
    """How many of the sets found by the surrogate are judged by the true reward, beside the set of all clients."""
    assess: Assess | None = None
    """What else is measured; None is nothing."""
    values_on: FilteringSet | None = None
    """V, where clients are valued although the filter does not maximise the surrogate."""
    optimum: bool = False
    """Whether to search for the best of all subsets as well, for the record only."""

    def __call__(
        self, t: int, S_t: Ids, considered: list[int], state: State, selector: Selector, exchange: Exchange
    ) -> Outcome:
        clock = exchange.clock
        w = exchange.train(considered)  # lines 4-8
        clients = [k for k in considered if k in w]
        latest = selector.after_updates(state.latest, w, state.w)
        with clock("filter"):  # line 9: Algorithm 2
            weights = {k: w[k].weights.vector for k in clients}
            judgement = self.judge(S_t, exchange)
            R = judgement.reward(weights, state.w, self.empty_is_global)  # Eq. (3)
            surrogate = self.surrogate(weights, state.w) if self.ensemble is not None and clients else None
            maximised = prepared(surrogate or R, selector.K, state.filter_memory)
            filter = self.filter if judgement.possible else KeepAll()
            filtering, sets = run_filter(filter, clients, maximised, self.seed, t)
            blind = judgement.possible and bool(judgement.clients) and R.evaluations > 0 and not R.judged
            if blind:
                filter = KeepAll()
                filtering, sets = run_filter(filter, clients, maximised, self.seed, t)
            unjudged = [NO_JUDGEMENT] if blind else [] if judgement.possible else [NOBODY_JUDGED]
            kept = sets[0]
            S_f = best_verified(sets, clients, R, self.verify) if self.verify else kept
        evaluations = R.evaluations + R.half_evaluations + (surrogate.evaluations if surrogate else 0)
        assessment = Assessment(state.evidence)
        if self.assess and clients:
            with clock("assess"):
                outputs = surrogate
                if surrogate is None and self.values_on is not None:
                    outputs = prepared(ensemble_reward(self.values_on, weights, state.w), selector.K, {})
                assessment = self.assess(t, filter, clients, kept, maximised, outputs, state.evidence)
        optimum = None
        if self.optimum and clients and judgement.possible:
            with clock("optimum"):
                optimum = R(checked_sets(opt(clients, R), clients)[0])
        A_t = selector(sorted(S_f) or sorted(w), exchange, latest, state.selected)  # line 17 of Algorithm 2
        verified = [] if S_f == kept else [f"verified: {len(S_f)} clients instead of the {len(kept)} filtered"]
        with clock("filter"):
            return Outcome(
                S_f=tuple(sorted(S_f)),
                eligible=tuple(sorted(S_f)),
                A_t=A_t,
                updates=w,
                past=Past(previous=S_t, seen=S_t, filtered_at=t),
                latest=latest,
                recipients=state.recipients,
                notes=[*filtering.notes, *verified, *empty_note(clients, S_f), *unjudged],
                did_filter=True,
                considered=considered,
                filtered_clients=clients,
                rewards=rewards_of(R, clients, S_f, A_t, bool(judgement.clients) or not judgement.possible),
                surrogates=rewards_of(surrogate, clients, S_f, A_t) if surrogate else Rewards(),
                optimum=optimum,
                evaluations=evaluations,
                half_evaluations=R.half_evaluations,
                trace=trace_of(filtering),
                judges=judgement.clients,
                filter_memory=memory_after(state.filter_memory, filtering),
                assessment=assessment,
            )

    def surrogate(self, weights: Mapping[int, Tensor], w_t: Weights) -> EnsembleReward:
        """The reward of the averaged outputs."""
        assert self.ensemble is not None
        return ensemble_reward(self.ensemble, weights, w_t, self.empty_is_global)


def ensemble_reward(
    V: FilteringSet, weights: Mapping[int, Tensor], w_t: Weights, empty_is_global: bool = False
) -> EnsembleReward:
    """The loss of the averaged outputs on V."""
    outputs = V.outputs([Weights(vector, w_t.integers) for vector in weights.values()])
    own = cache(lambda: V.outputs([w_t])[0])
    empty = own if empty_is_global else None
    return EnsembleReward(dict(zip(weights, outputs, strict=True)), V.targets(), V.loss_function, own, empty)


def prepared(reward: AnyReward, K: int, memory: FilterMemory) -> AnyReward:
    """A reward that also tells the filter K and what it remembered."""
    if isinstance(reward, OnSamples):
        reward.K, reward.memory = K, MappingProxyType(dict(memory))
    return reward


def memory_after(memory: FilterMemory, filtering: Filtering) -> FilterMemory:
    """What the filter remembers after this filtering."""
    new = {whole_numbers("filter", [k])[0]: tuple(map(float, numbers)) for k, numbers in filtering.memory.items()}
    return {**memory, **new}


def run_filter(
    filter: FilterFunction, clients: Sequence[int], reward: CountedReward, seed: int, t: int
) -> tuple[Filtering, list[frozenset[int]]]:
    """Run Algorithm 2 or another filter. Returns its result, and the kept set and the runners-up as sets."""
    if not clients:
        return Filtering(kept=()), [frozenset()]
    filtering = filter(clients, reward, stream(seed, t, "filter"))
    return filtering, checked_sets(filtering, clients)


def checked_sets(filtering: Filtering, clients: Sequence[int]) -> list[frozenset[int]]:
    """The set that a filter kept and its runners-up; raises where a filter must not return them."""
    if not isinstance(filtering, Filtering):
        raise PluginError(f"the filter must return a Filtering (got {filtering!r})")
    found = [whole_numbers("filter", kept) for kept in (filtering.kept, *filtering.runners_up)]
    for kept in found:
        if not set(kept) <= set(clients) or len(set(kept)) < len(kept):
            raise PluginError(f"the filter must keep some of {clients}, each once (got {kept})")
    return [frozenset(kept) for kept in found]


def best_verified(
    sets: Sequence[frozenset[int]], clients: Sequence[int], reward: CountedReward, most: int
) -> frozenset[int]:
    """The set with the highest true reward: one of the first `most` sets, or all clients. Ties go to the first.

    `sets` is the set that the filter kept, then its runners-up: all clients must be strictly better to replace it.
    """
    candidates = [*sets[:most], frozenset(clients)]
    expect(reward, iter(candidates))
    return max(candidates, key=reward)


def rewards_of(
    R: CountedReward, clients: Sequence[int], S_f: frozenset[int], A_t: Sequence[int], only_known: bool = False
) -> Rewards:
    """The rewards for the record. `only_known`: only rewards that are known already, so that no message is sent."""

    def of(subset: frozenset[int]) -> float | None:
        return R(subset) if subset and (not only_known or R.knows(subset)) else None

    return Rewards(of(frozenset(clients)), of(S_f), of(frozenset(A_t)))


def trace_of(filtering: Filtering) -> list[dict[str, Any]]:
    """The decisions of a filter, for the record."""
    return [{**asdict(step), "client": whole_numbers("filter", [step.client])[0]} for step in filtering.trace]


def empty_note(clients: Sequence[int], S_f: frozenset[int]) -> list[str]:
    return [] if S_f or not clients else ["the filter kept no client; selected from all that trained"]
