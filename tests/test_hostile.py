"""Clients that lie, in the simulator: they are named, and nothing else differs from a run in which they are silent."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import filfl
from filfl.errors import ConfigError, RunError
from filfl.filtering.by_models import NO_JUDGEMENT
from hostile import (
    GRADIENT_ANSWERS,
    LIAR,
    LOGITS,
    LOSS_ANSWERS,
    RUNS,
    UPDATES,
    assert_silent,
    blobs,
    in_memory,
    rounds,
    silent,
    silent_runs,
)

Expected = dict[str, Any]


@pytest.fixture(scope="module")
def expected() -> Expected:
    return silent_runs()


@pytest.mark.parametrize("lie", UPDATES)
def test_a_false_update_equals_no_update(lie: str, expected: Expected) -> None:
    run = "no filter, by examples"
    assert_silent(run, expected[run], update=UPDATES[lie])


@pytest.mark.parametrize("lie", LOSS_ANSWERS)
def test_a_false_loss_equals_no_answer(lie: str, expected: Expected) -> None:
    for run in ("federated", "power-of-choice"):
        assert_silent(run, expected[run], loss=LOSS_ANSWERS[lie])


@pytest.mark.parametrize("lie", GRADIENT_ANSWERS)
def test_a_false_gradient_equals_no_answer(lie: str, expected: Expected) -> None:
    assert_silent("divfl", expected["divfl"], gradient=GRADIENT_ANSWERS[lie])


@pytest.mark.parametrize("lie", LOGITS)
def test_a_false_claim_of_logits_equals_no_claim(lie: str, expected: Expected) -> None:
    assert_silent("logits", expected["logits"], logits=LOGITS[lie])


@pytest.mark.parametrize("seed", range(20))
def test_random_lies(seed: int, expected: Expected) -> None:
    in_memory(seed, expected)


@pytest.mark.parametrize("run", ["federated", "power-of-choice of 6"])
def test_a_false_number_of_examples_at_registration_counts_as_unknown(run: str) -> None:
    lying, records = rounds(RUNS[run], size=lambda n: 10**9)
    unknown, others = rounds(RUNS[run], size=lambda n: 0)
    assert torch.equal(lying.w.vector, unknown.w.vector)
    assert [record["selected"] for record in records] == [record["selected"] for record in others]
    reason = "it claims 1,000,000,000 examples, more than 1000 times the median of the other clients (24)"
    assert records[0]["refused"] == {str(LIAR): reason} and not others[0]["refused"]


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e308])
def test_a_single_judge_that_cannot_be_used_keeps_all_clients(loss: float) -> None:
    lies = {"loss": lambda reply, rng: loss}
    found = [rounds({"filter.data": "variable", "seed": seed}, 1, **lies)[1][0] for seed in range(12)]
    judged = [record for record in found if record["judges"] == [LIAR]]
    assert judged, "the false client must be the judge at least once"
    for record in judged:
        assert record["filtered"] == list(range(9)) and NO_JUDGEMENT in record["notes"]
        assert record["refused"].keys() == {str(LIAR)}
    assert not any(NO_JUDGEMENT in record["notes"] for record in found if record["judges"] != [LIAR])


def test_a_train_loss_that_is_not_credible_does_not_reach_the_record() -> None:
    from dataclasses import replace

    honest = rounds(RUNS["no filter"], update=lambda reply, rng: replace(reply, train_loss=math.nan))
    for loss in (math.inf, 1e308, -1e9):
        lying = rounds(RUNS["no filter"], update=lambda reply, rng, x=loss: replace(reply, train_loss=x))
        assert torch.equal(lying[0].w.vector, honest[0].w.vector)
        for mine, theirs in zip(lying[1], honest[1], strict=True):
            assert mine["selected_train_loss"] == theirs["selected_train_loss"] is not None and not mine["refused"]
            assert mine["notes"][0].startswith(f"client {LIAR}: the train loss is")


DIVERGES = {"rounds": 5, "filter.name": "none", "selection.k": 9, "training.lr": 1e30, "training.epochs": 20}


def test_a_run_in_which_every_update_is_refused_stops_after_three_rounds(tmp_path: Path) -> None:
    records: list[Any] = []
    with pytest.raises(RunError, match=r"refused in 3 rounds in a row; in round 3, client 0: .* guard.stop_after to 0"):
        filfl.simulate(
            DIVERGES, blobs(), out=tmp_path / "run", callbacks=[lambda record, state: records.append(record)]
        )
    assert [record["round"] for record in records] == [1, 2, 3]
    # Nothing is lost: the run is resumed with another number of rounds until it stops.
    result = filfl.simulate({**DIVERGES, "guard.stop_after": 0}, blobs(), out=tmp_path / "run", resume=True)
    assert [record["round"] for record in result.records] == [1, 2, 3, 4, 5]
    assert result.records[:3] == [{k: v for k, v in r.items() if k != "seconds"} for r in records]


def test_rounds_with_updates_in_between_do_not_stop_a_run() -> None:
    from filfl.core.round import ALL_REFUSED
    from filfl.runs.loop import stop_if_all_refused

    refused = {"round": 1, "notes": [f"{ALL_REFUSED}; the model is unchanged"], "refused": {"3": "no"}}
    fine = {"round": 1, "notes": [], "refused": {"3": "no"}}
    for records, stop_after in (([], 3), ([refused] * 2, 3), ([refused, refused, fine], 3), ([refused] * 9, 0)):
        stop_if_all_refused(records, stop_after)
    with pytest.raises(RunError):
        stop_if_all_refused([fine, refused, refused, refused], 3)


def test_bounds_are_options() -> None:
    with pytest.raises(ConfigError, match=r"guard.norm must be a number of at least 1 \(got 0.5\)"):
        filfl.simulate({"guard.norm": 0.5}, blobs())
    raised = {**RUNS["no filter"], "guard.examples": 1e9}
    assert not rounds(raised, update=UPDATES["10000000 examples"])[1][0]["refused"]
    assert rounds(RUNS["no filter"], update=silent)[1][0]["refused"] == {str(LIAR): "no reply"}
