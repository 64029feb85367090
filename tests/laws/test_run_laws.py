"""Laws of whole runs: determinism, resuming, the meaning of no filter, and no side effects."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import filfl
from filfl.runs.files import to_json


def records(result: filfl.Result) -> str:
    return "\n".join(map(to_json, result.records))


def weights(result: filfl.Result) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in result.model.state_dict().values()])


@pytest.fixture
def another_number_of_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    yield
    torch.set_num_threads(threads)


def test_same_config_and_seed_give_the_same_bytes_whatever_ran_before(
    small: dict[str, Any], another_number_of_threads: None
) -> None:
    threads = torch.get_num_threads()
    first = filfl.simulate(small)
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)
    filfl.simulate({**small, "seed": 5, "filter.name": "rgf"})
    torch.set_num_threads(threads - 1)
    again = filfl.simulate(small)
    assert records(first) == records(again)
    assert torch.equal(weights(first), weights(again))


def test_another_seed_gives_other_clients_and_other_weights(small: dict[str, Any]) -> None:
    a, b = filfl.simulate(small), filfl.simulate({**small, "seed": 1})
    for key in ("available", "selected"):
        assert [r[key] for r in a.records] != [r[key] for r in b.records]
    assert a.accuracy != b.accuracy


def test_global_generators_and_the_number_of_threads_do_not_change(small: dict[str, Any]) -> None:
    dropout = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    torch.manual_seed(7)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    legacy, plain = np.random.get_state()[1].tolist(), random.getstate()
    filfl.simulate({**small, "rounds": 2}, model=lambda: dropout)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.random.get_state()[1].tolist() == legacy
    assert random.getstate() == plain
    assert torch.get_num_threads() == threads


def test_dropout_does_not_depend_on_the_global_generator(small: dict[str, Any]) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))

    torch.manual_seed(1)
    first = filfl.simulate(small, model=model)
    torch.manual_seed(2)
    assert records(first) == records(filfl.simulate(small, model=model))


@pytest.mark.parametrize("selection", ["random", "random-with-replacement", "power-of-choice", "divfl"])
@pytest.mark.parametrize("when", ["algorithm-1", "figure-2"])
def test_no_filter_is_the_keep_all_filter_bit_for_bit(small: dict[str, Any], selection: str, when: str) -> None:
    config = {**small, "selection.name": selection, "filter.when": when}
    without = filfl.simulate({**config, "filter.name": "none"})
    keeping = filfl.simulate({**config, "filter.name": "keep-all"})
    assert torch.equal(weights(without), weights(keeping))
    for key in ("available", "num_filtered", "selected", "test_loss", "test_accuracy", "selected_train_loss"):
        assert [r[key] for r in without.records] == [r[key] for r in keeping.records], key
    assert all(r["filtered"] is None for r in without.records)
    assert all(r["filtered"] == r["available"] for r in keeping.records)
    assert not any(r["did_filter"] for r in without.records) and keeping.records[0]["did_filter"]
    assert without.summary["uplink_bytes"] < keeping.summary["uplink_bytes"]


class Interrupted(Exception):
    """Ends a run in the middle."""


def stop_after(t: int) -> Callable[..., None]:
    def callback(record: dict[str, Any], state: object) -> None:
        if record["round"] == t:
            raise Interrupted

    return callback


def stored(directory: Path) -> dict[str, Any]:
    """The content of a run directory that must not depend on interruptions."""
    files = ("config.toml", "clients.csv", "rounds.jsonl", "model.safetensors")
    summary = json.loads((directory / "summary.json").read_text())
    del summary["seconds"], summary["sha256"]["times.jsonl"], summary["sha256"]["summary.json"]  # these have seconds
    times = [json.loads(line)["round"] for line in (directory / "times.jsonl").read_text().splitlines()]
    return {**{name: (directory / name).read_bytes() for name in files}, "summary": summary, "times": times}


def batch_norm_and_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.3), nn.Linear(64, 10))


LOGITS = {"filter.reward": "ensemble", "filter.transport": "logits", "filter.name": "rgf", "filter.part": 20}
UPDATES = {"selection.name": "divfl", "selection.of": "updates", "filter.when": "figure-2"}
RESUMED: dict[str, tuple[dict[str, Any], Callable[[], nn.Module] | None]] = {
    "dgf": ({}, None),
    "no filter": ({"filter.name": "none"}, None),
    "checkpoint every 3 rounds": ({"checkpoint.every": 3, "filter.when": "figure-2"}, None),
    "divfl of updates": (UPDATES, None),
    "divfl of updates, checkpoint every 3 rounds": ({**UPDATES, "checkpoint.every": 3}, None),
    "ensemble": ({"filter.name": "local-search", "filter.reward": "ensemble"}, None),
    "logits": (LOGITS, None),
    "logits, divfl of predictions": ({**LOGITS, "selection.name": "divfl", "selection.of": "predictions"}, None),
    "attack": ({"attack.name": "scaled", "attack.share": 0.3, "data.noisy": 0.2}, None),
    "evaluation every 2 rounds": ({"evaluate.every": 2, "training.schedule": "inverse", "training.beta": 1.0}, None),
    "batch normalisation and dropout": ({"model.hidden": "unset"}, batch_norm_and_dropout),
}


@pytest.mark.parametrize(("changes", "model"), RESUMED.values(), ids=RESUMED)
def test_a_run_interrupted_after_every_round_equals_the_uninterrupted_run(
    small: dict[str, Any], changes: dict[str, Any], model: Callable[[], nn.Module] | None, tmp_path: Path
) -> None:
    config = {**small, "rounds": 5, **changes}
    filfl.simulate(config, model=model, out=tmp_path / "whole")
    for t in range(1, config["rounds"] + 1):
        with pytest.raises(Interrupted):
            filfl.simulate(config, model=model, out=tmp_path / "cut", resume=True, callbacks=[stop_after(t)])
    result = filfl.simulate(config, model=model, out=tmp_path / "cut", resume=True)
    assert stored(tmp_path / "cut") == stored(tmp_path / "whole")
    assert not result.already_finished and len(result.records) == config["rounds"]


def test_fedprox_without_mu_is_fedavg_bit_for_bit(small: dict[str, Any]) -> None:
    fedavg = filfl.simulate(small)
    fedprox = filfl.simulate({**small, "algorithm.name": "fedprox", "algorithm.mu": 0.0})
    assert records(fedavg) == records(fedprox)
    assert torch.equal(weights(fedavg), weights(fedprox))


def test_the_arms_of_a_seed_share_split_availability_and_initial_weights(small: dict[str, Any], tmp_path: Path) -> None:
    def start(filter: str, seed: int) -> list[Any]:
        """What a run starts from: with so small a step size, the weights stay as they were."""
        config = {**small, "filter.name": filter, "seed": seed, "training.lr": 1e-30, "data.noisy": 0.3}
        result = filfl.simulate(config, out=tmp_path / f"{filter}-{seed}")
        return [
            (tmp_path / f"{filter}-{seed}" / "clients.csv").read_text(),  # size and fault of every client
            [record["test_loss"] for record in result.records],  # of equal weights: on the same test set
            [record["available"] for record in result.records],
            weights(result).tolist(),
        ]

    expected = start("none", seed=0)
    assert start("dgf", seed=0) == expected and start("rgf", seed=0) == expected
    assert all(one != other for one, other in zip(start("dgf", seed=1), expected, strict=True))


def test_the_arms_of_a_seed_train_on_the_same_samples(small: dict[str, Any]) -> None:
    def trained_on(filter: str) -> set[tuple[float, ...]]:
        """All samples of all clients: in every round all of them train."""
        seen: set[tuple[float, ...]] = set()

        class Recorder(nn.Sequential):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    seen.update(map(tuple, x.flatten(1).tolist()))
                return super().forward(x)

        config = {**small, "rounds": 1, "filter.name": filter, "selection.k": 12, "execution.mode": "serial"}
        del config["model.hidden"]
        everybody = {"availability.name": "always", "availability.n": "unset", "availability.every": "unset"}
        filfl.simulate({**config, **everybody}, model=lambda: Recorder(nn.Flatten(), nn.Linear(64, 10)))
        return seen

    expected = trained_on("none")
    assert trained_on("dgf") == expected and len(expected) > 1000


@pytest.mark.parametrize("empty", ["zero", "global"])
def test_the_recorded_rewards_are_those_of_the_models(blobs: filfl.FederatedData, empty: str) -> None:
    result = filfl.simulate({"rounds": 3, "selection.k": 9, "filter.period": 1, "filter.empty": empty}, data=blobs)
    for record in result.records:
        assert record["reward_filtered"] == record["reward_selected"], "S^f has at most K clients, so all are selected"
        trace = record["trace"]
        assert record["evaluations"] == 2 * len(trace) - (empty == "zero")
        # The marginal gains of the kept clients add up to R(S^f) - R({}).
        gained = sum(step["a"] for step in trace if step["kept"])
        start = record["reward_filtered"] - gained
        assert start == pytest.approx(0.0, abs=1e-5) if empty == "zero" else start > 5
    if empty == "zero":
        assert result.records[0]["trace"][0]["kept"], "with R({}) = 0 the first client is nearly always kept"


def test_opt_is_at_least_as_good_as_every_other_filter(blobs: filfl.FederatedData) -> None:
    found = {
        name: filfl.simulate({"rounds": 1, "selection.k": 2, "filter.name": name}, data=blobs).records[0]
        for name in ("opt", "dgf", "rgf", "keep-all")
    }
    best = found["opt"]["reward_filtered"]
    assert found["opt"]["evaluations"] == 2**9 - 1
    assert all(best >= record["reward_filtered"] for record in found.values())
    assert {record["reward_all"] for record in found.values()} == {found["opt"]["reward_all"]}
