"""Laws of the rule that decides claims."""

from hypothesis import assume, given
from hypothesis import strategies as st

from filfl.report.claims import MARGIN, NOT_WORSE, decide
from filfl.report.statistics import LEVEL, Estimate, difference, estimate

numbers = st.floats(-0.3, 0.3).map(lambda x: round(x, 4))
samples = st.lists(numbers, min_size=2, max_size=12)
sizes = st.none() | st.floats(0.001, 0.2)
signs = st.sampled_from([">", "<", "~", ">="])


@given(samples, signs, sizes, st.booleans())
def test_a_decision_never_says_more_than_the_interval(
    values: list[float], sign: str, size: float | None, in_points: bool
) -> None:
    found = estimate(values)
    decision, tests = decide(found, sign, size if sign in "<>" else None, in_points)
    low, high = found.interval if sign != "<" else (-found.interval[1], -found.interval[0])
    assert all(0 <= p <= 1 for p in tests.values())
    if sign in "<>":
        assert (decision == "yes") == (low > 0) and (decision == "no") == (high < 0)
        if decision == "smaller":
            assert low <= 0 <= high < size
        if decision == "equivalent":
            assert in_points and abs(found.mean) < MARGIN and low <= 0 <= high
        if decision == "open":
            assert low <= 0 <= high and (size is None or high >= size)
    elif sign == "~":
        assert decision != "yes" or abs(found.mean) < MARGIN
        assert decision != "no" or min(abs(low), abs(high)) > MARGIN
    else:
        assert (decision == "yes") == (low > -NOT_WORSE) and (decision == "no") == (high < -NOT_WORSE)


@given(samples, sizes)
def test_both_directions_of_a_claim_mirror_each_other(values: list[float], size: float | None) -> None:
    found = estimate(values)
    mirrored = estimate([-value for value in values])
    assert decide(found, ">", size, True)[0] == decide(mirrored, "<", size, True)[0]
    assert decide(found, "~", None, True)[0] == decide(mirrored, "~", None, True)[0]
    words = {decide(found, sign, None, True)[0] for sign in "<>"}
    assert words in ({"yes", "no"}, {"equivalent"}, {"open"}), "a claim and its opposite never both hold"


@given(numbers, st.floats(0.0001, 0.1), st.integers(1, 30))
def test_a_value_is_excluded_from_the_interval_if_and_only_if_its_p_is_small(
    mean: float, stderr: float, df: int
) -> None:
    found = Estimate(mean, stderr, df, df + 1)
    for value in (0.0, MARGIN, -NOT_WORSE):
        assume(abs(found.p_equal(value) - LEVEL) > 1e-9)
        low, high = found.interval
        assert (found.p_equal(value) < LEVEL) == (not low <= value <= high)


@given(numbers, st.floats(0.0001, 0.1), st.integers(1, 30))
def test_equivalence_is_never_shown_where_the_difference_is_beyond_the_margin(
    mean: float, stderr: float, df: int
) -> None:
    shown = Estimate(mean, stderr, df, df + 1).p_beyond(MARGIN) < LEVEL
    assert not shown or abs(mean) < MARGIN
    if shown:  # a smaller standard error, or a mean closer to zero, shows it as well
        assert Estimate(mean, stderr / 2, df, df + 1).p_beyond(MARGIN) < LEVEL
        assert Estimate(mean / 2, stderr, df, df + 1).p_beyond(MARGIN) < LEVEL


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8), numbers)
def test_what_a_seed_adds_to_both_arms_cancels(pairs: list[tuple[float, float]], shift: float) -> None:
    mine, theirs = zip(*pairs, strict=True)
    found = difference(mine, theirs)
    moved = difference([a + shift * i for i, a in enumerate(mine)], [b + shift * i for i, b in enumerate(theirs)])
    assert abs(found.mean - moved.mean) < 1e-9 and abs(found.stderr - moved.stderr) < 1e-9


@given(samples)
def test_one_seed_and_missing_seeds_decide_nothing_by_themselves(values: list[float]) -> None:
    one = estimate([values[0], None])
    assert all(decide(one, sign, 0.1, True)[0] == "open" for sign in (">", "<", "~", ">="))
    assert estimate([*values, None]) == estimate(values)
