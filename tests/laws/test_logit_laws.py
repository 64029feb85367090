"""Laws of runs with `filter.transport = "logits"`."""

from typing import Any

import pytest
import torch
from torch import nn

import filfl
from filfl.errors import ConfigError

ENSEMBLE = {"filter.name": "local-search", "filter.reward": "ensemble"}
LOGITS = {**ENSEMBLE, "filter.transport": "logits"}
DIFFERENT = {"uplink_bytes", "downlink_bytes", "reward_all", "reward_filtered", "evaluations"}
"""The fields of a filter round that differ between the two transports."""


def weights(result: filfl.Result) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in result.model.state_dict().values()])


def quiet(config: dict[str, Any], **more: Any) -> filfl.Result:
    return filfl.simulate(config, say=lambda _: None, **more)


def assert_equal_but_for_the_transport(models: filfl.Result, logits: filfl.Result) -> None:
    for one, other in zip(models.records, logits.records, strict=True):
        different = {key for key in one if one[key] != other[key]}
        assert different <= (DIFFERENT if one["did_filter"] else set()), (one["round"], different)
        if one["did_filter"]:
            assert other["evaluations"] == one["evaluations"] + len(set(other["selected"]))
            assert other["reward_filtered"] in (None, one["reward_filtered"])
    assert torch.equal(weights(models), weights(logits))


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("serial", "dgf"),
        ("serial", "keep-all"),
        ("vectorized", "rgf"),
        ("vectorized", "local-search"),
        ("processes", "local-search"),
    ],
)
def test_full_logits_equal_models_with_the_ensemble_reward_bit_for_bit(
    small: dict[str, Any], mode: str, name: str
) -> None:
    config = {**small, "execution.mode": mode, "execution.workers": 2, **ENSEMBLE, "filter.name": name}
    assert_equal_but_for_the_transport(quiet(config), quiet({**config, "filter.transport": "logits"}))


@pytest.mark.parametrize(
    "changes",
    [
        {"filter.empty": "global"},
        {"filter.when": "figure-2"},
        {"filter.cap": 5},
        {"selection.name": "power-of-choice"},
        {"selection.name": "random-with-replacement"},
        {"selection.name": "divfl", "selection.of": "updates", "filter.period": 99, "availability.every": 99},
        {"aggregation.name": "by-examples"},
        {"data.noisy": 0.4, "filter.name": "dgf"},
        {"attack.name": "sign-flip", "attack.share": 0.3},
        {"attack.name": "scaled", "attack.share": 0.3, "execution.mode": "vectorized"},
        {"execution.memory": 1e-6, "execution.mode": "serial"},
        {"execution.memory": 1e-6, "execution.mode": "serial"},
        {"algorithm.name": "fedprox", "algorithm.mu": 0.1},
    ],
    ids=lambda changes: "-".join(f"{value}" for value in changes.values()),
)
def test_logits_equal_models_under_every_option(small: dict[str, Any], changes: dict[str, Any]) -> None:
    config = {**small, **ENSEMBLE, **changes}
    models, logits = quiet(config), quiet({**config, "filter.transport": "logits"})
    if changes.get("selection.of") == "updates":
        # The server receives only the updates of A_t, so only the first round is equal.
        models.records[1:], logits.records[1:] = [], []
        assert models.records[0]["selected"] == logits.records[0]["selected"]
        return
    assert_equal_but_for_the_transport(models, logits)


def test_models_with_batchnorm_and_dropout_pass_the_check(small: dict[str, Any]) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 10))

    del small["model.hidden"]
    models, logits = (quiet({**small, **c}, model=model) for c in (ENSEMBLE, LOGITS))
    assert_equal_but_for_the_transport(models, logits)
    reasons = {reason for record in logits.records for reason in record["refused"].values()}
    assert all("Expected more than 1 value per channel" in reason for reason in reasons), "a batch of one sample"


@pytest.mark.parametrize("mode", ["serial", "vectorized"])
@pytest.mark.parametrize(
    "encoding",
    [
        {"filter.precision": "float16"},
        {"filter.precision": "int8"},
        {"filter.part": 15},
        {"filter.top": 3},
        {"filter.precision": "int8", "filter.part": 15, "filter.top": 3},
    ],
    ids=lambda encoding: "-".join(f"{key.partition('.')[2]}-{value}" for key, value in encoding.items()),
)
def test_smaller_encodings_refuse_no_true_claim_and_filter_nearly_as_well(
    small: dict[str, Any], mode: str, encoding: dict[str, Any]
) -> None:
    config = {**small, **LOGITS, "filter.name": "dgf", "execution.mode": mode, "rounds": 6}
    full, less = quiet(config), quiet({**config, **encoding})
    assert not any(record["refused"] for record in less.records)
    assert less.summary["uplink_bytes"] < full.summary["uplink_bytes"]
    first, other = full.records[0], less.records[0]
    assert other["surrogate_all"] == pytest.approx(
        first["surrogate_all"], abs=0.3 if "filter.part" in encoding else 0.1
    )
    assert less.accuracy[-1] > 0.6 * full.accuracy[-1]


def test_V_is_sent_once_per_client(small: dict[str, Any]) -> None:
    models, logits = quiet({**small, **ENSEMBLE, "rounds": 8}), quiet({**small, **LOGITS, "rounds": 8})
    V, had = 40 * 64, set()
    for one, other in zip(models.records, logits.records, strict=True):
        new = set(other["considered"]) - had
        assert other["downlink_bytes"] == one["downlink_bytes"] + V * len(new)
        had |= new


def test_regression_uses_the_outputs_as_logits() -> None:
    config = {"data.name": "ridge", "model.name": "linear", "rounds": 4, "selection.k": 3, **LOGITS}
    config |= {"data.clients": 10, "training.lr": 0.01}
    models, logits = quiet({**config, "filter.transport": "models"}), quiet(config)
    for one, other in zip(models.records, logits.records, strict=True):
        assert (one["filtered"], one["selected"], one["test_loss"]) == tuple(
            other[key] for key in ("filtered", "selected", "test_loss")
        )
    with pytest.raises(ConfigError, match=r"filter\.top needs class labels, but this dataset has numeric targets"):
        quiet({**config, "filter.top": 2})


def test_a_run_warns_if_logits_are_larger_than_models(small: dict[str, Any]) -> None:
    messages: list[str] = []
    filfl.simulate({**small, **LOGITS, "rounds": 1}, say=messages.append)
    # 8 clients, 40 samples of 10 classes, 610 weights, K = 3.
    logits, model = 40 * 10 * 4 + 16, 610 * 4 + 16
    more, less = (8 * logits + 3 * model) / 1e6, 8 * model / 1e6
    assert more > less
    assert f'"logits" sends more than "models" here: {more:.3g} MB per filter round (8 times' in messages[0]
    assert f"instead of {less:.3g} MB (8 models)" in messages[0]
    messages.clear()
    filfl.simulate({**small, **LOGITS, "rounds": 1, "filter.precision": "int8"}, say=messages.append)
    filfl.simulate({**small, **LOGITS, "rounds": 1, "filter.name": "none"}, say=messages.append)
    assert not messages


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filter.reward": "average"}, 'needs filter.reward = "ensemble"'),
        ({"filter.verify": 2}, "set filter.verify to 0"),
        ({"filter.optimum": True}, "remove filter.optimum"),
        ({"filter.data": "variable"}, 'set filter.data to "server" or "file"'),
        ({"filter.size": 10, "filter.part": 11}, r"filter.part must be between 1 and filter.size = 10 \(got 11\)"),
        (
            {"filter.transport": "models", "filter.part": 5},
            'filter.part applies to logits only; set filter.transport to "logits"',
        ),
        ({"filter.transport": "models", "filter.precision": "int8"}, "filter.precision applies to logits"),
        ({"filter.transport": "models", "filter.top": 5}, "filter.top applies to logits"),
        ({"selection.name": "divfl"}, 'set selection.of to "predictions"'),
        ({"filter.transport": "models", "selection.name": "divfl", "selection.of": "predictions"}, "logits of filter"),
        ({"filter.name": "none", "selection.name": "divfl", "selection.of": "predictions"}, "logits of filter rounds"),
        ({"filter.transport": "weights"}, "filter.transport must be one of models, logits"),
        ({"filter.top": 10}, r"filter.top must be below the 10 classes of the data \(got 10\)"),
        ({"filter.size": "unset", "filter.part": 9999}, "filter.part must be between 1 and the"),
    ],
)
def test_invalid_combinations_raise_with_advice(small: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    from filfl.config.config import override
    from filfl.config.experiment import Experiment

    table = override(override({}, {**small, **LOGITS}), changes)
    with pytest.raises(ConfigError, match=message):
        quiet(Experiment(table).config({}))
