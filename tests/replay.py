"""Compare the decisions of two runs that may round differently: two executors, or Flower and the simulator.

The second run applies the decisions of the first one, so that one different decision does not change later rounds. In
every round it also computes its own decision from its own rewards, losses and gradients. Values must agree with the
first run within `TOLERANCE`. Decisions must be equal, unless they are ties within `TOLERANCE`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

import filfl
from filfl.config.config import Config
from filfl.filtering import Step
from filfl.filtering.screen import Screened
from filfl.selection.base import Ask, Selection
from filfl.selection.divfl import DivFL, distances, gain
from filfl.selection.power_of_choice import PowerOfChoice

TOLERANCE = 1e-5
"""For rewards, losses and gains, relative to max(1, |value|). The largest difference measured over these tests and five
sets of CPU kernels (ATEN_CPU_CAPABILITY, MKL_CBWR) is 5e-7."""

EQUAL = ("did_filter", "considered", "filtered", "selected", "refused", "evaluations", "uplink_bytes", "downlink_bytes")
CLOSE = ("selected_train_loss", "test_loss", "reward_all", "reward_filtered", "reward_selected", "surrogate_filtered")


def replay(table: Mapping[str, Any], expected: Sequence[Mapping[str, Any]], **arguments: Any) -> filfl.Result:
    """Run a config with the decisions in the records `expected`, and compare its own results with them."""
    config = Config.read(table).with_changes({"filter.honest_gain": False})  # it calls the filter on halves of V
    decisions = Decisions(config, expected)
    config = config.with_changes({"filter.screen": False})  # `decisions` screens
    own_filter = None if config.filter.name == "none" else decisions.filter
    result = filfl.simulate(
        config, filter=own_filter, selection=decisions.select, callbacks=[decisions.next_round], **arguments
    )
    for ours, theirs in zip(result.records, expected, strict=True):
        for key in EQUAL:
            assert ours[key] == theirs[key], (ours["round"], key)
        for key in CLOSE:
            assert close(ours[key], theirs[key]), (ours["round"], key, ours[key], theirs[key])
    return result


def close(one: float | None, other: float | None) -> bool:
    """Whether both are None, or two numbers that agree within the tolerance."""
    if one is None or other is None:
        return one is other
    return abs(one - other) <= TOLERANCE * max(1.0, abs(other))


class Decisions:
    """A filter and a selection that apply the decisions of another run and check their own against them."""

    def __init__(self, config: Config, expected: Sequence[Mapping[str, Any]]) -> None:
        method: Callable[..., filfl.Filtering] | None = config.filter.method
        self._own_filter = Screened(method) if method and config.filter.screens else method
        self._own_selection: Selection = config.selection
        self._expected = list(expected)
        self._done = 0

    @property
    def _record(self) -> Mapping[str, Any]:
        """The record of the current round."""
        return self._expected[self._done]

    def next_round(self, record: object, state: object) -> None:
        self._done += 1

    def filter(self, clients: Sequence[int], reward: Any, rng: np.random.Generator) -> filfl.Filtering:
        assert self._own_filter is not None
        own, trace = self._own_filter(clients, reward, rng), self._record["trace"]
        kept = [step["client"] for step in trace if step["kept"]]
        assert [step.client for step in own.trace] == [step["client"] for step in trace]
        if trace and all(step["a"] is None for step in trace):
            assert list(own.kept) == kept or is_local_optimum(frozenset(kept), clients, reward)
            return filfl.Filtering(kept=tuple(kept), trace=own.trace)
        for ours, theirs in zip(own.trace, trace, strict=True):
            assert is_same_step(ours, theirs), (self._record["round"], ours, theirs)
            if ours.kept != theirs["kept"]:
                break  # after a different decision the two filters evaluate different sets
        return filfl.Filtering(kept=tuple(kept), trace=own.trace)

    def select(self, pool: Any, k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        chosen: list[int] = self._record["selected"]
        ask = cast(Ask, AskedOnce(ask))
        own = sorted(int(i) for i in self._own_selection(pool, k, ask, rng))
        assert own == chosen or is_tie(self._own_selection, own, chosen, pool, ask), (self._record["round"], own)
        return chosen


class AskedOnce:
    """What a selection may ask, with every answer kept: to look at a tie must not send messages, which are counted."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._answers: dict[tuple[str, tuple[int, ...]], Any] = {}

    def __getattr__(self, question: str) -> Callable[[Any], Any]:
        def answer(pool: Any) -> Any:
            asked = question, tuple(pool)
            if asked not in self._answers:
                self._answers[asked] = getattr(self._ask, question)(pool)
            return self._answers[asked]

        return answer


def is_same_step(ours: Step, theirs: Mapping[str, Any]) -> bool:
    """Whether two greedy filters decided alike about a client, or the decision is a tie."""
    if theirs["a"] is None:
        return ours.a is None and not ours.kept and not theirs["kept"]  # screened
    if not (close(ours.a, theirs["a"]) and close(ours.b, theirs["b"])):
        return False
    assert ours.a is not None and ours.b is not None
    # In DGF, p is 0 or 1 and jumps at a = b. In RGF, p = a' / (a' + b'): the smaller the sum, the larger its error.
    gains = max(ours.a, 0.0) + max(ours.b, 0.0)
    tolerance_of_p = math.inf if abs(ours.a - ours.b) <= 2 * TOLERANCE else 2 * TOLERANCE / max(gains, TOLERANCE)
    # Both filters draw the same random number, so that equal p give equal decisions.
    return abs(ours.p - theirs["p"]) <= tolerance_of_p and (ours.kept == theirs["kept"] or ours.p != theirs["p"])


def is_local_optimum(S: frozenset[int], clients: Sequence[int], reward: Any) -> bool:
    """Whether adding or removing any one client gains at most the tolerance."""
    return all(not S ^ {u} or reward(S ^ {u}) <= reward(S) + TOLERANCE for u in clients)


def is_tie(selection: Selection, own: Sequence[int], chosen: Sequence[int], pool: Any, ask: Ask) -> bool:
    """Whether `chosen` is as good as `own`, within the tolerance."""
    if len(own) != len(chosen):
        return False
    if isinstance(selection, PowerOfChoice):
        losses = ask.losses(pool)
        ours, theirs = (sorted(losses[i] for i in ids) for ids in (own, chosen))
        return all(map(close, ours, theirs))
    if isinstance(selection, DivFL):
        vectors = getattr(ask, selection.of)(pool)
        ids = sorted(vectors)
        D = distances([vectors[i] for i in ids])
        return is_greedy(D, np.full(len(D), D.max()), {ids.index(i) for i in chosen})
    return False


def is_greedy(D: Any, nearest: Any, chosen: set[int]) -> bool:
    """Whether a greedy algorithm could choose these indices in some order, within the tolerance."""
    best = max(gain(D, nearest, i) for i in range(len(D)))
    return not chosen or any(
        gain(D, nearest, i) >= best - TOLERANCE * D.max() and is_greedy(D, np.minimum(nearest, D[:, i]), chosen - {i})
        for i in chosen
    )
