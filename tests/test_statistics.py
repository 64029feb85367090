"""The statistics of a comparison, on records small enough to compute by hand."""

import math
from typing import Any

import pytest
from scipy import stats

from filfl.config.figure import Expectation
from filfl.errors import ConfigError
from filfl.report.claims import (
    MARGIN,
    NOT_WORSE,
    Outcome,
    corrected,
    measured_text,
    outcome_of,
    outcomes,
    second_outcome,
    size_inside,
    values_in,
)
from filfl.report.formatting import MINUS, NONE
from filfl.report.measures import MEASURES
from filfl.report.statistics import (
    LEVEL,
    compare_arms,
    compared,
    default_rounds,
    default_target,
    difference,
    estimate,
)
from filfl.report.table import comparison_table


def records(accuracies: list[float | None], filtered: int = 4) -> list[dict[str, Any]]:
    return [
        {
            "round": t,
            "test_accuracy": accuracy,
            "test_loss": accuracy,
            "num_filtered": filtered,
            "uplink_bytes": 1_000_000,
        }
        for t, accuracy in enumerate(accuracies, start=1)
    ]


RUNS = {
    "base": [records([0.1, 0.2, 0.3]), records([0.2, 0.3, 0.4]), records([0.1, 0.1, 0.1])],
    "other": [records([0.5, 0.6, 0.7], 2), records([0.5, None, 0.9], 2), records([0.1, 0.2, 0.6], 2)],
}
AGAINST = {"base": "base", "other": "base"}


def test_means_deviations_and_tests() -> None:
    base, other = compare_arms(RUNS, AGAINST, target=0.6, at=[1, 2])
    finals = {"base": [0.2, 0.3, 0.1], "other": [0.6, 0.7, 0.3]}  # means of the (at most five) last tested rounds
    accuracy = other.measures["accuracy"]
    assert accuracy.mean == pytest.approx(1.6 / 3)
    assert accuracy.std == pytest.approx(0.2081666)
    assert accuracy.values == pytest.approx(finals["other"])
    assert other.accuracy_at[2].mean == pytest.approx((0.6 + 0.5 + 0.2) / 3), "untested: the last tested round"
    assert other.rounds_to_target.mean == pytest.approx((2 + 3 + 3) / 3)
    assert other.uplink_to_target.mean == pytest.approx(8e6 / 3)
    assert base.rounds_to_target is None
    assert other.measures["filtered"].mean == 2
    tested = other.tests["accuracy"]
    assert tested.difference == pytest.approx(1 / 3)
    assert tested.welch_p == pytest.approx(stats.ttest_ind(finals["other"], finals["base"], equal_var=False).pvalue)
    assert tested.paired_p == pytest.approx(stats.ttest_rel(finals["other"], finals["base"]).pvalue)
    assert base.tests == {}


def test_paired_test_by_hand() -> None:
    # Differences of 0.4, 0.4, 0.2: t = mean / (std / sqrt(3)) = 0.3333 / (0.11547 / 1.73205) = 5.
    _, other = compare_arms(RUNS, AGAINST, 0.6, [1])
    assert other.tests["accuracy"].paired_p == pytest.approx(2 * stats.t.sf(5.0, df=2))


@pytest.mark.parametrize(
    "runs",
    [
        {"base": [records([0.5])], "other": [records([0.6])]},
        {"base": [records([0.5])] * 3, "other": [records([0.5])] * 3},
        {"base": [records([0.5])] * 2, "other": [records([None])] * 2},
        {"base": [records([0.5]), records([0.4])], "other": [records([None]), records([0.6])]},
    ],
)
def test_undefined_tests_have_no_p(runs) -> None:
    _, other = compare_arms(runs, AGAINST, 0.6, [1])
    tested = other.tests.get("accuracy")
    assert tested is None or (tested.welch_p is None and tested.paired_p is None)


def test_welch_test_is_defined_if_one_arm_is_constant() -> None:
    # Means 100 and 50, variances 0 and 100 over 2 seeds: t = 50 / sqrt(100 / 2) = 7.07 with 1 degree of freedom.
    tested = compared([100.0, 100.0], [50 + 50**0.5, 50 - 50**0.5])
    assert tested.welch_p == pytest.approx(2 * stats.t.sf(50**0.5, df=1))
    assert compared([0.6, 0.6], [0.5, 0.5]).welch_p is None


def test_defaults() -> None:
    assert default_rounds(60) == (10, 30, 60)
    assert default_rounds(1) == (1,)
    assert default_target(RUNS) == pytest.approx(0.9 * 1.6 / 3)


def test_table_shows_how_many_seeds_reached_the_target() -> None:
    partly = {**RUNS, "other": [*RUNS["other"][:2], records([0.1])]}
    table = comparison_table("title", compare_arms(partly, AGAINST, 0.6, [1]), 0.6, 3)
    assert table.columns["rounds\nto 0.6"] == ["never", "2 (2/3)"]
    text = comparison_table("title", compare_arms(RUNS, AGAINST, 0.6, [1]), 0.6, 3).markdown()
    assert "| other | 0.533±0.208 |" in text and "other against base" in text


def test_measures_use_the_records_that_have_them() -> None:
    filtering = {"reward_all": 7.5, "reward_filtered": 8.0, "reward_optimum": 10.0, "num_available": 8}
    filtering["honest_gain"] = 0.25
    between = {"reward_all": None, "reward_filtered": None, "num_available": 8}
    metrics = [{"client_accuracy": 0.5, "worst_tenth": 0.1}, {}, {"client_accuracy": 0.7, "worst_tenth": 0.2}]
    plain = records([0.1, None, 0.3], filtered=2)
    with_more = [
        {**record, **more, "metrics": scores, "selected_train_loss": loss}
        for record, more, scores, loss in zip(plain, [filtering, between, filtering], metrics, [3, 2, 1], strict=True)
    ]
    with_more[2]["reward_filtered"] = 9.0
    found = {name: measure.of(with_more) for name, measure in MEASURES.items()}
    assert found["ratio"] == pytest.approx((0.8 + 0.9) / 2)
    assert found["gap"] == pytest.approx((2 + 1) / 2)
    assert found["gain-on-v"] == pytest.approx((0.5 + 1.5) / 2)
    assert found["gain"] == pytest.approx(0.25)
    assert found["mean-accuracy"] == pytest.approx(0.2)
    assert found["kept"] == pytest.approx(2 / 8)
    assert found["client-accuracy"] == pytest.approx(0.6)
    assert found["worst-tenth"] == pytest.approx(0.15)
    assert found["selected-train-loss"] == pytest.approx(2)
    assert found["uplink"] == pytest.approx(3)
    assert found["distance"] is None
    without = {name: measure.of(plain) for name, measure in MEASURES.items()}
    missing = (
        "ratio",
        "gap",
        "gain",
        "gain-on-v",
        "kept",
        "client-accuracy",
        "worst-tenth",
        "selected-train-loss",
        "distance",
        "rate",
    )
    assert {without[name] for name in (*missing, "neighbourhood")} == {None}


@pytest.mark.parametrize(("a", "c"), [(5.0, 0.0), (5.0, 0.2), (0.0, 0.2)])
def test_rate_and_neighbourhood_of_a_known_curve(a: float, c: float) -> None:
    run = [{**record, "metrics": {"distance": a / record["round"] + c}} for record in records([None] * 50)]
    assert MEASURES["neighbourhood"].of(run) == pytest.approx(c, abs=1e-9)
    assert MEASURES["distance"].of(run) == pytest.approx(sum(a / t + c for t in range(46, 51)) / 5)
    rate = MEASURES["rate"].of(run)
    assert rate == pytest.approx(-1 if c == 0 else 0, abs=1e-9) if a * c == 0 else -1 < rate < 0


def test_overlap_of_consecutive_filterings_by_hand() -> None:
    def filtering(considered: list[int], kept: list[int]) -> dict[str, Any]:
        return {"did_filter": True, "considered": considered, "filtered": kept}

    between = {"did_filter": False, "considered": [], "filtered": [1]}
    # Clients 2, 3 and 4 are in both: {2, 3} and {3, 4} share one of three. Then nobody is in both.
    run = [filtering([1, 2, 3, 4], [1, 2, 3]), between, filtering([2, 3, 4, 5], [3, 4, 5]), filtering([7], [7])]
    assert MEASURES["overlap"].of(run[:3]) == pytest.approx(1 / 3)
    assert MEASURES["overlap"].of(run) == pytest.approx(1 / 3), "a pair without common clients does not count"
    assert MEASURES["overlap"].of(run[:2]) is None


def test_optimism_uses_the_reward_that_the_filter_maximised() -> None:
    true = {"reward_all": 7.5, "reward_filtered": 8.0, "honest_gain": 0.2}
    assert MEASURES["optimism"].of([true]) == pytest.approx(0.3)
    assert MEASURES["optimism"].of([{**true, "surrogate_all": 1.0, "surrogate_filtered": 1.25}]) == pytest.approx(0.05)
    assert MEASURES["optimism"].of([{**true, "honest_gain": None}]) is None


def test_difference_is_paired_where_two_seeds_are_shared_and_else_by_welch() -> None:
    paired = difference([0.6, 0.7, 0.3, None], [0.2, 0.3, 0.1, 0.9])
    # Differences of 0.4, 0.4 and 0.2 have the mean 1/3 and the standard error 0.11547 / sqrt(3) = 1/15.
    assert (paired.mean, paired.stderr) == pytest.approx((1 / 3, 1 / 15)) and (paired.df, paired.seeds) == (2, 3)
    assert paired.interval == pytest.approx((1 / 3 - 4.302653 / 15, 1 / 3 + 4.302653 / 15)) and paired.paired
    a, b = [0.6, 0.7, 0.3], [0.2, 0.3, 0.1]
    welch = difference([*a, None, None, None], [None, None, None, *b])
    expected = stats.ttest_ind(a, b, equal_var=False)
    assert not welch.paired and welch.p_equal(0) == pytest.approx(expected.pvalue)
    assert welch.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert difference([0.5], [0.4]).interval == (-math.inf, math.inf)
    assert difference([None, 0.5], [0.4, None]) is None


def test_tests_of_an_estimate_equal_those_of_scipy() -> None:
    values = [0.01, 0.03, -0.005, 0.02]
    found = estimate(values)
    assert found.p_equal(0.004) == pytest.approx(stats.ttest_1samp(values, 0.004).pvalue)
    above, below = (stats.ttest_1samp(values, m, alternative=a) for m, a in ((-0.02, "greater"), (0.02, "less")))
    assert found.p_beyond(0.02) == pytest.approx(max(above.pvalue, below.pvalue))
    same = estimate([0.01, 0.01])
    assert same.interval == (0.01, 0.01) and same.p_equal(0) == 0 and same.p_equal(0.01) == 1
    assert same.p_beyond(0.02) == 0 and same.p_beyond(0.01) == 1


VALUES = {
    "none": {"accuracy": [0.50, 0.51, 0.52], "kept": [1.0, 1.0, 1.0]},
    "dgf": {"accuracy": [0.60, 0.62, 0.61], "kept": [0.4, 0.5, 0.6]},
    "near": {"accuracy": [0.501, 0.509, 0.520], "kept": [0.4, 0.5, 0.6]},
    "wild": {"accuracy": [0.40, 0.60, 0.80], "kept": [0.4, 0.5, 0.6]},
    "lost": {"kept": [0.5, 0.5, 0.5]},
}
# dgf - none: 0.10, 0.11, 0.09, so 0.10 +- 4.30 * 0.01 / sqrt(3) = [0.075, 0.125]. near - none: 0.001, -0.001, 0, so
# [-0.0025, 0.0025]. wild - none: -0.10, 0.09, 0.28, so 0.09 +- 4.30 * 0.19 / sqrt(3) = [-0.38, 0.56].
# dgf kept: 0.5 +- 4.30 * 0.1 / sqrt(3) = [0.25, 0.75].


@pytest.mark.parametrize(
    ("text", "decision", "inside"),
    [
        ("dgf accuracy > none", "yes", None),
        ("dgf accuracy > none by 0.10", "yes", True),
        ("dgf accuracy > none by 0.07", "yes", False),
        ("dgf accuracy < none by 0.10", "no", False),
        ("none accuracy < dgf by 0.10", "yes", True),
        ("near accuracy > none by 0.10", "equivalent", False),
        ("wild accuracy > none by 0.10", "open", True),
        ("wild accuracy > none by 0.60", "smaller", False),
        ("wild accuracy < none by 0.40", "smaller", False),
        ("near accuracy ~ none", "yes", None),
        ("dgf accuracy ~ none", "no", None),
        ("wild accuracy ~ none", "open", None),
        ("near accuracy >= none", "yes", None),
        ("none accuracy >= dgf", "no", None),
        ("wild accuracy >= none", "open", None),
        ("dgf kept < 0.8", "yes", None),
        ("dgf kept > 0.8", "no", None),
        ("dgf kept < 0.6 by 0.1", "open", True),
        ("dgf kept ~ 0.5", "open", None),
        ("lost accuracy > none", "not measured", None),
        ("dgf accuracy > lost", "not measured", None),
    ],
)
def test_rule_for_one_expectation(text: str, decision: str, inside: bool | None) -> None:
    (outcome,) = outcomes([text], VALUES)
    assert (outcome.decision, size_inside(outcome)) == (decision, inside)
    assert (LEVEL, MARGIN, NOT_WORSE) == (0.05, 0.02, 0.01)


def test_measured_text() -> None:
    texts = [
        measured_text(outcome_of(Expectation.parse(text), VALUES))
        for text in ("dgf accuracy > none", "dgf kept < 0.6", "dgf kept < none", "lost accuracy > none")
    ]
    texts = [text.replace(MINUS, "-") for text in texts]
    assert texts == ["+10.0 points [+7.5, +12.5]", "0.5 [0.252, 0.748]", "-0.5 [-0.748, -0.252]", NONE]


def test_correction_of_benjamini_and_hochberg_by_hand() -> None:
    # Four tests with p = 0.01, 0.04, 0.03 and 0.5: in order 4 * 0.01 / 1, 4 * 0.03 / 2 = 0.06, 4 * 0.04 / 3 = 0.0533.
    expectation = Expectation.parse("dgf accuracy > none")
    tests = ({"zero": 0.01, "alike": 0.5}, {"zero": 0.04}, {"zero": 0.03})
    first, second, third = corrected(Outcome(expectation, None, "yes", p) for p in tests)
    assert first.adjusted == pytest.approx({"zero": 0.04, "alike": 0.5})
    assert second.q == pytest.approx(0.16 / 3) and third.q == pytest.approx(0.16 / 3)
    assert first.survives and not second.survives and corrected([]) == []


def test_second_measure_is_the_mean_accuracy_without_a_size() -> None:
    values = {arm: {"accuracy": [0.1, 0.2], "mean-accuracy": [x, x + 0.01]} for arm, x in (("a", 0.5), ("b", 0.4))}
    second = second_outcome(Expectation.parse("a accuracy > b by 0.1"), values)
    assert str(second.expectation) == "a mean-accuracy > b" and second.expectation.size is None
    assert second.estimate.mean == pytest.approx(0.1) and second.decision == "yes"
    assert second_outcome(Expectation.parse("a test-loss < b"), values) is None
    assert second_outcome(Expectation.parse("a accuracy > 0.4"), values) is None


def test_a_run_that_never_reaches_the_target_counts_with_all_its_rounds() -> None:
    base, other = compare_arms(RUNS, AGAINST, target=0.6, at=[1])
    values = values_in([base, other], rounds=3, target=0.6)
    assert values["other"]["rounds-to-target"] == [2, 3, 3] and values["base"]["rounds-to-target"] == [3, 3, 3]
    outcome = outcome_of(Expectation.parse("other rounds-to-target < base"), values)
    assert outcome.estimate.mean == pytest.approx(-1 / 3)
    assert "rounds-to-target" not in values_in([base, other], rounds=3, target=None)["base"]


@pytest.mark.parametrize("text", ["a accuracy > b by 0", "a accuracy > b by -1", "a accuracy ~ b by 1", "a b > c by"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"figure\.expect"):
        Expectation.parse(text)
