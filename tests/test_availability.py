"""Availabilities follow their formulas and depend on round and seed alone."""

import numpy as np
import pytest

from filfl.availability import AVAILABILITIES
from filfl.availability.always import Always
from filfl.availability.diurnal import Diurnal
from filfl.availability.lognormal import Lognormal
from filfl.availability.redraw import Redraw

EXAMPLES = [Always(), Redraw(n=7, every=5), Diurnal(), Lognormal()]


def test_every_availability_is_tested() -> None:
    assert {type(example) for example in EXAMPLES} == set(AVAILABILITIES.values())


@pytest.mark.parametrize("availability", EXAMPLES, ids=lambda a: type(a).__name__)
def test_availability_is_a_function_of_round_and_seed(availability) -> None:
    forwards = [availability(t, 20, 1).tolist() for t in range(1, 13)]
    backwards = [availability(t, 20, 1).tolist() for t in reversed(range(1, 13))][::-1]
    assert forwards == backwards
    for ids in forwards:
        assert ids == sorted(set(ids)) and set(ids) <= set(range(20))
    if not isinstance(availability, Always):
        assert forwards != [availability(t, 20, 2).tolist() for t in range(1, 13)]


def test_redraw_changes_at_multiples_and_only_there() -> None:
    S = {t: Redraw(n=7, every=5)(t, 40, 0).tolist() for t in range(1, 16)}
    assert S[1] == S[2] == S[3] == S[4] != S[5] == S[9] != S[10] == S[14] != S[15]
    assert all(len(ids) == 7 for ids in S.values())
    assert Redraw(n=7, every=1)(1, 40, 0).tolist() != Redraw(n=7, every=1)(2, 40, 0).tolist()


def share_of_rounds(availability, num_clients: int = 200, rounds: int = 400) -> np.ndarray:
    there = np.zeros((rounds, num_clients))
    for t in range(1, rounds + 1):
        there[t - 1, availability(t, num_clients, 0)] = 1
    return there


def test_diurnal_availability_has_the_period_of_a_day() -> None:
    there = share_of_rounds(Diurnal(mean=0.5, amplitude=0.5, period=24), rounds=480)
    assert there.mean() == pytest.approx(0.5, abs=0.02)
    by_hour = there.reshape(20, 24, 200).mean(axis=0)
    assert (by_hour.max(axis=0) > 0.8).all() and (by_hour.min(axis=0) < 0.2).all()
    # A shift of half a day turns high probabilities into low ones.
    assert np.corrcoef(by_hour.ravel(), np.roll(by_hour, 12, axis=0).ravel())[0, 1] < -0.8


def test_diurnal_without_amplitude_has_a_constant_probability() -> None:
    there = share_of_rounds(Diurnal(mean=0.3, amplitude=0.0))
    assert there.mean(axis=0) == pytest.approx(0.3, abs=0.12)


def test_lognormal_does_not_overflow() -> None:
    for sigma in (300.0, 1e4, 1e308):
        for seed in range(5):
            available = Lognormal(sigma=sigma)(1, 20, seed)
            assert 1 <= len(available) <= 3, "the most reliable client is always there, hardly any other"


def test_lognormal_reliability() -> None:
    assert share_of_rounds(Lognormal(sigma=0.0), rounds=5).all()
    p = share_of_rounds(Lognormal(sigma=0.7)).mean(axis=0)
    assert p.max() == 1.0
    log_c = np.log(p[p > 0])
    assert np.std(log_c) == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize("availability", EXAMPLES, ids=lambda a: type(a).__name__)
def test_most_available_is_an_upper_bound(availability) -> None:
    assert all(len(availability(t, 20, 1)) <= availability.most_available(20) for t in range(1, 13))
    assert Redraw(n=7).most_available(20) == 7
