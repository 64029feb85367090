"""The numbers of a comparison, on records small enough to work out by hand."""

from typing import Any

import pytest
from scipy import stats

from filfl.report.statistics import compare_arms, default_rounds, default_target
from filfl.report.table import columns, markdown_table


def records(accuracies: list[float | None], filtered: int = 4) -> list[dict[str, Any]]:
    return [
        {
            "round": t,
            "test_accuracy": accuracy,
            "test_loss": accuracy,
            "train_loss": accuracy,
            "metrics": {} if accuracy is None else {"accuracy": accuracy, "worst_tenth": accuracy / 2},
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
    assert other.final_accuracy.mean == pytest.approx(1.6 / 3)
    assert other.final_accuracy.std == pytest.approx(0.2081666)
    assert other.accuracy_at[2].mean == pytest.approx((0.6 + 0.5 + 0.2) / 3), "an untested round shows the one before"
    assert other.rounds_to_target.mean == pytest.approx((2 + 3 + 3) / 3)
    assert other.uplink_to_target.mean == pytest.approx(8e6 / 3)
    assert base.rounds_to_target is None
    assert other.mean_filtered.mean == 2
    assert other.total_uplink.mean == 3e6
    assert other.final_train_loss.mean == pytest.approx(1.6 / 3)
    assert other.worst_tenth.mean == pytest.approx(0.8 / 3) and other.client_accuracy is None
    assert other.welch_p == pytest.approx(stats.ttest_ind(finals["other"], finals["base"], equal_var=False).pvalue)
    assert other.paired_p == pytest.approx(stats.ttest_rel(finals["other"], finals["base"]).pvalue)
    assert base.welch_p is base.paired_p is None


def test_the_paired_test_uses_the_pairs() -> None:
    # Differences of 0.4, 0.4, 0.2: t = mean / (std / sqrt(3)) = 0.3333 / (0.11547 / 1.73205) = 5.
    _, other = compare_arms(RUNS, AGAINST, 0.6, [1])
    assert other.paired_p == pytest.approx(2 * stats.t.sf(5.0, df=2))


@pytest.mark.parametrize(
    "runs",
    [
        {"base": [records([0.5])], "other": [records([0.6])]},
        {"base": [records([0.5])] * 3, "other": [records([0.5])] * 3},
        {"base": [records([0.5])] * 2, "other": [records([None])] * 2},
    ],
)
def test_tests_that_say_nothing_say_nothing(runs) -> None:
    _, other = compare_arms(runs, AGAINST, 0.6, [1])
    assert other.welch_p is None and other.paired_p is None


def test_one_arm_without_any_spread_can_be_tested() -> None:
    runs = {"base": [records([0.6]), records([0.6])], "other": [records([0.4]), records([0.42])]}
    # t = 0.19 / (0.01414 / 1.41421) = 19 with one degree of freedom
    assert compare_arms(runs, AGAINST, 0.6, [1])[1].welch_p == pytest.approx(2 * stats.t.sf(19.0, df=1))


def test_defaults() -> None:
    assert default_rounds(60) == (10, 30, 60)
    assert default_rounds(1) == (1,)
    assert default_target(RUNS) == pytest.approx(0.9 * 1.6 / 3)


def test_the_table_says_who_never_got_there_and_who_did_in_part() -> None:
    partly = {**RUNS, "other": [*RUNS["other"][:2], records([0.1])]}
    headings, rows = columns(compare_arms(partly, AGAINST, 0.6, [1]), 0.6)
    table = [dict(zip(headings, row, strict=True)) for row in rows]
    assert table[0]["rounds\nto 0.6"] == "never"
    assert table[1]["rounds\nto 0.6"] == "2 (2/3)"
    text = markdown_table("title", compare_arms(RUNS, AGAINST, 0.6, [1]), 0.6, 3)
    assert "| other | 0.533±0.208 |" in text and "other against base" in text
