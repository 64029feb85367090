"""`filfl verify`: hashes of all files, and rounds that are recomputed to the byte."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import filfl
from conftest import SMALL
from filfl.commands.verify import spans
from filfl.errors import ConfigError, RunError
from filfl.runs.files import sha256
from filfl.simulation.verification import choose, segments
from sealed import reseal


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six rounds, with three checkpoints."""
    out = tmp_path_factory.mktemp("verify") / "run"
    filfl.simulate({**SMALL, "rounds": 6, "filter.name": "prune", "checkpoint.keep": 3}, out=out, progress=False)
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_an_untouched_run_is_verified(run: Path) -> None:
    found = filfl.verify(run, rounds=6)
    assert found.ok and found.finished and found.why_not is None
    assert found.recomputed == (1, 2, 3, 4, 5, 6) and found.not_recomputed == ()
    assert found.checkpoints == (4, 5, 6)
    assert set(found.files) == {path.name for path in run.iterdir() if path.is_file()} - {".lock"}
    some = filfl.verify(run, rounds=2, seed=1)
    assert some.ok and len(some.recomputed) == 2 and len(some.not_recomputed) == 4
    default = filfl.verify(run)
    assert default.ok and len(default.recomputed) >= 1


NAMES = ["config.toml", "clients.csv", "rounds.jsonl", "times.jsonl", "model.safetensors", "summary.json"]
CHECKPOINTS = ["checkpoints/round-000004.checkpoint", "checkpoints/round-000006.checkpoint"]


@given(name=st.sampled_from([*NAMES, *CHECKPOINTS]), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(name: str, where: float, bit: int, whole: Path) -> None:
    path = whole / name
    before = path.read_bytes()
    changed = bytearray(before)
    changed[int(where * len(before))] ^= 1 << bit
    path.write_bytes(changed)
    try:
        found = _without_data(whole)
    finally:
        path.write_bytes(before)
    if name == "summary.json" and json.loads(before) == _json(bytes(changed)):
        assert found == (), "a space between two values"
    else:
        assert any(Path(name).name in problem or "checkpoint of round" in problem for problem in found), name


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def _without_data(directory: Path) -> tuple[str, ...]:
    """The problems that the hashes show. Without the data, which takes time to load, no round is recomputed."""
    from filfl.runs.reader import scan_run
    from filfl.simulation.verification import _Checks

    checks = _Checks(scan_run(directory), (directory / "rounds.jsonl").read_bytes().split(b"\n")[:-1])
    checks.check_files()
    checks.check_checkpoints(None)
    return checks.result().problems


def edit_round(run: Path, t: int) -> None:
    """Change the accuracy of a round."""
    path = run / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[t - 1])
    record["test_accuracy"] = record["metrics"]["accuracy"] = 0.999
    lines[t - 1] = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    path.write_bytes(b"".join(lines))


def test_an_edited_round_is_named_even_with_new_hashes(run: Path) -> None:
    edit_round(run, 2)
    problems = " ".join(filfl.verify(run, rounds=0).problems)
    assert "rounds.jsonl was changed after the run was finished" in problems
    reseal(run)
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    found = filfl.verify(run, rounds=2)
    assert any("summary.json: final_accuracy is" in problem for problem in found.problems)
    assert found.problems[-1].startswith('round 2 differs: metrics is {"accuracy": 0.999} in rounds.jsonl, and {')
    assert found.recomputed == (1, 2) and found.not_recomputed == (3, 4, 5, 6)


def test_a_model_with_a_new_hash_is_not_that_of_the_last_checkpoint(run: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(run / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] += 1
    save_file(weights, run / "model.safetensors")
    summary = json.loads((run / "summary.json").read_bytes())
    summary["sha256"]["model.safetensors"] = sha256((run / "model.safetensors").read_bytes())
    (run / "summary.json").write_text(json.dumps(summary))
    reseal(run)
    assert filfl.verify(run, rounds=0).problems == ("model.safetensors is not the model of the last checkpoint",)


def test_other_data_and_functions_from_python(tmp_path: Path, blobs: Any) -> None:
    config = {"rounds": 2, "selection.k": 2}
    halved: Any = {"half": lambda outputs, targets: 0.5}
    filfl.simulate(config, blobs, metrics=halved, out=tmp_path / "run", progress=False)
    without = filfl.verify(tmp_path / "run")
    assert without.ok and "needs an object from Python" in str(without.why_not) and without.recomputed == ()
    without = filfl.verify(tmp_path / "run", data=blobs)
    assert without.ok and without.why_not == "the run had its own metrics from Python; call filfl.verify with it"
    found = filfl.verify(tmp_path / "run", data=blobs, metrics=halved, rounds=2)
    assert found.ok and found.recomputed == (1, 2)
    x = blobs.x.copy()
    x[0, 0] += 1e-3
    other = filfl.verify(tmp_path / "run", data=replace(blobs, x=x), metrics=halved)
    assert other.problems == ("the data or the model here are not those of the run",) and not other.recomputed


def test_a_run_that_is_not_finished_is_verified_by_its_checkpoints(small: dict[str, Any], tmp_path: Path) -> None:
    def stop(record: Any, state: object) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filfl.simulate(small, out=tmp_path / "run", callbacks=[stop], progress=False)
    found = filfl.verify(tmp_path / "run", rounds=3)
    assert found.ok and not found.finished and found.recomputed == (1, 2, 3) and found.checkpoints == (2, 3)
    edit_round(tmp_path / "run", 1)
    assert filfl.verify(tmp_path / "run", rounds=0).problems == (
        "checkpoint of round 3: rounds.jsonl was changed or truncated before round 3",
        "checkpoint of round 2: rounds.jsonl was changed or truncated before round 2",
    )


def test_verify_command(cli: Callable[..., str], run: Path) -> None:
    shown = cli("verify", str(run), "--rounds", "6")
    assert "hashes        config.toml, clients.csv, rounds.jsonl, times.jsonl, model.safetensors, summary.json" in shown
    assert "recomputed    rounds 1-6" in shown and "not recomputed: no round" in shown
    edit_round(run, 5)
    found = json.loads(cli("verify", str(run), "--rounds", "1", "--json", code=1))
    assert found["ok"] is False and found["checkpoints"] == [4] and len(found["recomputed"]) == 1
    assert "failed        rounds.jsonl was changed after the run" in cli("verify", str(run), "--rounds", "0", code=1)
    assert "is not a run directory" in cli("verify", "nowhere", code=1)
    with pytest.raises(ConfigError, match="rounds must be a whole number"):
        filfl.verify(run, rounds=-1)
    with pytest.raises(RunError, match="is not a run directory"):
        filfl.verify(run / "checkpoints")


def test_a_run_on_flower_is_verified_by_its_files(cli: Callable[..., str], run: Path) -> None:
    config = (run / "config.toml").read_text()
    on_flower = config.replace('[aggregation]\nname = "mean"', '[aggregation]\nname = "flower"\nstrategy = "FedAvg"')
    assert on_flower != config
    (run / "config.toml").write_text(on_flower)
    reseal(run)
    shown = cli("verify", str(run))
    assert "recomputed    no round: this is a run on Flower, whose rounds need the nodes and their data" in shown
    assert shown.rstrip().endswith("The files are as the run wrote them.") and "error" not in shown


@given(st.data())
def test_chosen_rounds_are_within_the_budget_and_can_be_recomputed(data: st.DataObject) -> None:
    """Every chosen round follows a start or another chosen round, and all together cost at most the budget."""
    costs = data.draw(st.lists(st.floats(0.1, 10), max_size=30))
    starts = {0, *data.draw(st.sets(st.integers(1, 30)))}
    budget = data.draw(st.floats(0, 100))
    chosen = choose(starts, costs, budget, data.draw(st.integers(0, 5)))
    assert all(t - 1 in starts or t - 1 in chosen for t in chosen) and set(chosen) <= {*range(1, len(costs) + 1)}
    assert sum(costs[t - 1] for t in chosen) <= budget * (1 + 1e-9)
    assert [t for group in segments(chosen, starts) for t in group] == chosen
    assert all(group[0] - 1 in starts for group in segments(chosen, starts))
    assert choose(starts, costs, sum(costs) * 2, 0) == [*range(1, len(costs) + 1)], "all rounds, if all are paid for"
    assert len(choose(starts, costs, 0.0, 0, at_least_one=True)) == min(1, len(costs))


def test_rounds_are_shown_as_spans() -> None:
    assert spans([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert spans([]) == ""
