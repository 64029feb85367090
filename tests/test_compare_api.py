"""`filfl.compare`: the command from Python, with the user's own data, model, loss, metrics and filters."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from torch import nn

import filfl
from conftest import SMALL
from filfl.errors import ConfigError, FilflError, PluginError

ARMS: dict[str, dict[str, Any]] = {"none": {"filter.name": "none"}, "dgf": {"filter.name": "dgf"}}
TOML = """
name = "small"
rounds = 3
[data]
clients = 12
[model]
hidden = [4]
[filter]
size = 40
[selection]
k = 2
[arms.none]
"filter.name" = "none"
[arms.dgf]
"filter.name" = "dgf"
"""


def first_two(clients: Any, reward: Any, rng: Any) -> filfl.Filtering:
    return filfl.Filtering(kept=tuple(sorted(clients)[:2]))


# A script without `if __name__ == "__main__"`, with a lambda and with functions of its own.
SCRIPT = """
import json, sys
import numpy as np
from torch import nn
import filfl

print("started")
rng = np.random.default_rng(0)
y = rng.integers(3, size=270)
x = rng.normal(size=(270, 4)) + 2 * np.eye(3, 4)[y]
data = filfl.FederatedData.from_arrays(x, y, [f"site-{i % 9}" for i in range(270)], filtering=(x[:30], y[:30]))

def half(clients, reward, rng):
    return filfl.Filtering(kept=tuple(sorted(clients)[:4]))

def plain_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)

arms = {"all": {"filter.name": "none"}, "half": {"filter": half, "filter.period": 1}}
given = {"data": data, "model": lambda: nn.Linear(4, 3), "loss": plain_loss}
metrics = {"accuracy": lambda o, t: float((o.argmax(-1) == t).float().mean()), "one": lambda o, t: 1.0}
comparison = filfl.compare({"rounds": 2, "selection.k": 3}, arms, seeds=2, jobs=1, metrics=metrics, **given)
for arm, changes in arms.items():
    for seed, result in enumerate(comparison.results[arm]):
        own = {"filter": half} if arm == "half" else {}
        keys = {k: v for k, v in changes.items() if k != "filter"}
        alone = filfl.simulate({"rounds": 2, "selection.k": 3, "seed": seed, **keys}, metrics=metrics, **given, **own)
        assert alone.records == result.records, arm
        assert np.array_equal(alone.predict(x), result.predict(x))
assert {tuple(r["filtered"]) for r in comparison.results["half"][0].records} == {(0, 1, 2, 3)}
assert comparison.results["half"][0].records[0]["metrics"]["one"] == 1.0
json.dump(comparison.to_frame().accuracy.to_dict(), open(sys.argv[1], "w"))
print(comparison)
"""


def test_a_script_compares_its_own_functions_on_its_own_data(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", "means.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("started") == 1, "the workers do not run the script again"
    means = json.loads((tmp_path / "means.json").read_text())
    for arm, mean in means.items():
        (row,) = [line for line in done.stdout.splitlines() if line.startswith(f"{arm} ")]
        assert row.split()[1].startswith(f"{mean:.3f}±")
    assert not list(tmp_path.glob("runs*")), "nothing is written without out"


def test_python_and_command_line_give_the_same_comparison(cli: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(TOML)
    printed = cli("compare", "small.toml", "--seeds", "2", "--jobs", "2", "--out", "out")
    names = [path.relative_to(tmp_path) for path in (tmp_path / "out").rglob("*") if path.suffix in (".md", ".jsonl")]
    before = {name: (tmp_path / name).read_bytes() for name in names}
    with pytest.raises(FilflError, match="already contains a comparison"):
        filfl.compare("small.toml", seeds=2, out="out")
    comparison = filfl.compare("small.toml", seeds=2, out="out", resume=True)
    assert {name: (tmp_path / name).read_bytes() for name in names} == before
    assert comparison.path == Path("out/table.md")
    assert comparison.path.read_text(encoding="utf-8") == comparison.table.markdown()
    for row in str(comparison.table).splitlines()[-2:]:
        start = " ".join(row.split()[:6])  # a narrow terminal shows the other columns below
        assert any(" ".join(line.split()).startswith(start) for line in printed.splitlines())

    assert repr(comparison) == str(comparison.table) and len(repr(comparison).splitlines()) <= 8
    frame, runs = comparison.to_frame(), comparison.to_frame(by="run")
    assert list(frame.index) == ["none", "dgf"] and list(runs.index) == [(a, s) for a in ARMS for s in (0, 1)]
    for arm, results in comparison.results.items():
        finals = [result.summary["final_accuracy"] for result in results]
        assert [result.config.seed for result in results] == [0, 1]
        assert runs.loc[arm].accuracy.tolist() == finals
        assert frame.loc[arm, "accuracy"] == pytest.approx(np.mean(finals))
        assert frame.loc[arm, "accuracy_std"] == pytest.approx(np.std(finals, ddof=1))
    tested = comparison.statistics[1].tests["accuracy"]
    assert frame.loc["dgf", "accuracy_difference"] == pytest.approx(frame.accuracy["dgf"] - frame.accuracy["none"])
    assert (frame.loc["dgf", "welch_p"], frame.loc["dgf", "paired_p"]) == (tested.welch_p, tested.paired_p)
    assert frame.loc["dgf", "against"] == "none" and frame.loc["none", ["welch_p", "against"]].isna().all()
    with pytest.raises(ConfigError, match='by must be "arm" or "run"'):
        comparison.to_frame(by="seed")  # type: ignore[arg-type]

    axes = comparison.plot()
    assert [line.get_label() for line in axes[0].lines] == ["none", "dgf"]
    assert axes[0].lines[1].get_ydata()[-1] == pytest.approx(
        np.mean([result.accuracy[-1] for result in comparison.results["dgf"]])
    )
    plt.close("all")


def test_html_of_a_comparison_escapes_its_texts() -> None:
    from filfl.report.table import ComparisonTable

    table = ComparisonTable("<i>", {"arm": ["a<b>"], "|S^f|": ["1 & 2"]}, "caption <u>")
    page = table._repr_html_()
    assert "a&lt;b&gt;" in page and "1 &amp; 2" in page and "&lt;i&gt;" in page and "<u>" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "there is nothing to compare"),
        ({"arms": ["dgf"]}, "arms must be a mapping of changes by the name of the arm"),
        ({"arms": {"dgf": "dgf"}}, "arms must be a mapping of changes by the name of the arm"),
        ({"arms": {"a": {"filter.nam": "dgf"}}}, "arms.a: unknown key filter.nam; did you mean filter.name?"),
        ({"arms": {"a": {"filter": 3}}}, "filter must be a plug-in or a function (got int)"),
        ({"arms": {"a/b": {}}}, "the name of an arm must be letters"),
        ({"arms": {"a": {"seed": 3}}}, "an arm cannot change seed"),
        ({"arms": {"a": {"against": "b"}}}, "against must be one of a"),
        ({"arms": ARMS, "seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"arms": ARMS, "seeds": [1, 2]}, "seeds must be a whole number of at least 1"),
        ({"arms": ARMS, "jobs": True}, "jobs must be a whole number of at least 1"),
        ({"arms": ARMS, "target": 80}, "target must be an accuracy between 0 and 1"),
        ({"arms": ARMS, "resume": True}, "resume needs out"),
        ({"arms": {"a": {"data.name": "arrays"}}}, 'data.name = "arrays" needs an object from Python'),
        ({"arms": ARMS, "model": nn.Linear(2, 2)}, "model must be a function that makes a new module"),
    ],
)
def test_mistakes_are_reported_before_the_first_run(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FilflError) as error:
        filfl.compare(SMALL, **arguments)
    assert message in str(error.value)


def test_what_cannot_be_sent_to_a_worker_is_reported(tmp_path: Path, small: dict[str, Any]) -> None:
    with (tmp_path / "log").open("w") as file:
        log = lambda record, state: file.write("round")  # noqa: E731
        with pytest.raises(PluginError, match="none seed-0 cannot be sent to its worker process"):
            filfl.compare(small, ARMS, seeds=1, callbacks=[log])


def test_an_arm_that_names_another_plugin_does_not_use_the_object_of_the_config(blobs: filfl.FederatedData) -> None:
    from filfl.commands.compare import _arms, _experiment

    config = filfl.Config.read({"selection.k": 2}).with_own(data=blobs, filter=first_two)
    experiment = _experiment(config)
    arms = _arms({"mine": {}, "dgf": {"filter.name": "dgf"}, "other": {"filter": max}})
    mine, dgf, other = (experiment.config({}, arm) for arm in arms)
    assert mine.filter.method.function is first_two and dgf.filter.name == "dgf" and other.filter.method.function is max
    assert all(config.data.data is blobs for config in (mine, dgf, other))
