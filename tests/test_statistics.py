"""The statistics of a comparison, on records small enough to compute by hand."""

import itertools
from typing import Any

import pytest
from scipy import stats

from filfl.config.figure import Expectation
from filfl.report.claims import MARGIN, Outcome, outcomes, verdict
from filfl.report.measures import MEASURES
from filfl.report.statistics import LEVEL, compare_arms, compared, default_rounds, default_target
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


VALUES = {
    "none": {"accuracy": [0.50, 0.51, 0.52], "kept": [1.0, 1.0, 1.0]},
    "dgf": {"accuracy": [0.60, 0.61, 0.62], "kept": [0.4, 0.5, 0.6]},
    "wild": {"accuracy": [0.40, 0.60, 0.80], "kept": [0.4, 0.5, 0.6]},
    "lost": {"kept": [0.5, 0.5, 0.5]},
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("dgf accuracy > none", "yes"),
        ("dgf accuracy < none", "no"),
        ("none accuracy < dgf", "yes"),
        ("wild accuracy > none", "direction only"),
        ("dgf accuracy ~ none", "no"),
        ("dgf accuracy ~ wild", "yes"),
        ("dgf kept < 0.6", "yes"),
        ("dgf kept > 0.6", "no"),
        ("lost accuracy > none", "not measured"),
        ("dgf accuracy > lost", "not measured"),
    ],
)
def test_rule_for_one_expectation(text: str, holds: str) -> None:
    (outcome,) = outcomes([text], VALUES)
    assert outcome.holds == holds
    assert LEVEL == 0.05 and MARGIN == 0.02


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_verdict_over_all_combinations(size: int) -> None:
    """ "in part" needs at least one "yes"; a "no" is never hidden by "direction only"."""
    expectation = Expectation.parse("dgf accuracy > none")
    for kinds in itertools.product(("yes", "direction only", "no", "not measured"), repeat=size):
        word = verdict([Outcome(expectation, None, None, holds) for holds in kinds])
        if all(holds == "yes" for holds in kinds):
            expected = "yes"
        elif "yes" in kinds:
            expected = "in part"
        elif "no" in kinds:
            expected = "no"
        elif "direction only" in kinds:
            expected = "direction only"
        else:
            expected = "not measured"
        assert word == expected, kinds


def test_verdict_without_expectations() -> None:
    assert verdict([]) == "not measured"
