"""A user's own plug-ins by import path: one file with a class, its options and its constraints."""

import json
import sys
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import filfl
from filfl.config.config import Config, override
from filfl.config.plugins import KINDS, name_of, option_names
from filfl.config.schema import Fraction
from filfl.errors import ConfigError
from filfl.filtering import DGF, Filter, Filtering

FILTER = '''
from dataclasses import dataclass

from filfl.filtering import Filter, Filtering
from filfl.config.schema import Fraction


@dataclass(frozen=True, kw_only=True)
class BestShare(Filter):
    """Keep the clients with the highest reward, each evaluated alone."""

    share: Fraction = 0.5
    """The share of clients to keep. 0 keeps one client, 1 keeps all."""

    def __call__(self, clients, reward, rng):
        ranked = sorted(clients, key=lambda k: reward(frozenset({k})), reverse=True)
        return Filtering(kept=tuple(ranked[: max(1, round(self.share * len(ranked)))]))

    def problems(self, config):
        if config.selection.k > 4:
            return [f"filter.share needs selection.k of at most 4 (got {config.selection.k})"]
        return []
'''
OTHERS = """
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from filfl import FederatedData, Filtering
from filfl.aggregation import Aggregation
from filfl.algorithms import Algorithm
from filfl.attacks import Attack
from filfl.availability import Availability
from filfl.data import Dataset
from filfl.filtering import Filter
from filfl.models import Model
from filfl.selection import Selection

plugin = dataclass(frozen=True, kw_only=True)


@plugin
class MyFilter(Filter):
    def __call__(self, clients, reward, rng):
        return Filtering(kept=tuple(clients[::2]))


@plugin
class MySelection(Selection):
    def __call__(self, pool, k, ask, rng):
        return [int(i) for i in pool[-k:]]


@plugin
class MyModel(Model):
    width: int = 3

    def build(self, sample_shape, classes):
        size = int(np.prod(sample_shape))
        return nn.Sequential(nn.Flatten(), nn.Linear(size, self.width), nn.Linear(self.width, classes))


@plugin
class MyData(Dataset):
    def read(self, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(240, 2)).astype(np.float32)
        return FederatedData.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(240) % 8)


@plugin
class MyAvailability(Availability):
    def __call__(self, t, num_clients, seed):
        return np.arange(t % 2, num_clients, 2)


@plugin
class MyAlgorithm(Algorithm):
    def penalty_gradient(self, w, w_t):
        return 0.1 * (w - w_t)


@plugin
class MyAggregation(Aggregation):
    def __call__(self, *arguments):
        *_, memory, w_t, updates = arguments
        return memory, updates[0].weights


@plugin
class MyAttack(Attack):
    def bad(self, num_clients, seed):
        return np.arange(2)

    def sent(self, w, w_t):
        return 0 * w


@plugin
class Unfinished(Filter):
    pass


class Undecorated(Filter):
    share: float = 0.5

    def __call__(self, clients, reward, rng):
        return Filtering(kept=tuple(clients))


@plugin
class WithTable(MyFilter):
    table: dict = field(default_factory=dict)


@plugin
class WithSize(MyFilter):
    size: int = 3


def function(clients, reward, rng):
    return Filtering(kept=tuple(clients))
"""
CLASSES = {
    "filter": "MyFilter",
    "selection": "MySelection",
    "model": "MyModel",
    "data": "MyData",
    "availability": "MyAvailability",
    "algorithm": "MyAlgorithm",
    "aggregation": "MyAggregation",
    "attack": "MyAttack",
}
BEST = "my_filters:BestShare"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the user's modules. They can be imported as by the command line."""
    (tmp_path / "my_filters.py").write_text(FILTER)
    (tmp_path / "my_plugins.py").write_text(OTHERS)
    (tmp_path / "broken.py").write_text("import filfl\n1 / 0\n")
    (tmp_path / "needy.py").write_text("import nothing_of_that_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for module in ("my_filters", "my_plugins", "broken", "needy"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def test_a_filter_by_import_path_in_toml_and_on_the_command_line(small: dict[str, Any], folder: Path, cli) -> None:
    table = override({}, {**small, "filter.name": BEST, "filter.share": 0.25, "filter.period": 2})
    Path("mine.toml").write_text(tomli_w.dumps(table))
    cli("run", "mine.toml", "--out", "toml")
    assert [len(record["filtered"]) for record in records(folder / "toml") if record["did_filter"]] == [2] * 3
    stored = tomllib.loads((folder / "toml" / "config.toml").read_text())["filter"]
    assert (stored["name"], stored["share"], stored["period"]) == (BEST, 0.25, 2)

    Path("plain.toml").write_text(tomli_w.dumps(override({}, small)))
    pairs = [f"filter.name={BEST}", "filter.share=0.25", "filter.period=2"]
    cli("run", "plain.toml", "--out", "set", *(word for pair in pairs for word in ("--set", pair)))
    assert records(folder / "set") == records(folder / "toml")
    shown = cli("run", "plain.toml", "--set", f"filter.name={BEST}", "--set", "selection.k=5", code=2)
    assert "error: filter.share needs selection.k of at most 4 (got 5)" in shown
    shown = cli("run", "plain.toml", "--set", f"filter.name={BEST}", "--set", "filter.share=2", code=2)
    assert "error: filter.share must be a number between 0 and 1 (got 2)" in shown


def test_arms_by_import_path_in_worker_processes_and_resumed(small: dict[str, Any], folder: Path, cli) -> None:
    Path("plain.toml").write_text(tomli_w.dumps(override({}, {**small, "rounds": 3})))
    arms = ["--arm", "dgf:filter.name=dgf", "--arm", f"best:filter.name={BEST},filter.share=1.0"]
    arguments = ["compare", "plain.toml", *arms, "--seeds", "1", "--jobs", "2", "--out", "both"]
    cli(*arguments)
    run = folder / "both" / "best" / "seed-0"
    before = records(run)
    assert all(set(record["filtered"]) == set(record["considered"]) for record in before if record["did_filter"])
    (run / "summary.json").unlink()
    (run / "rounds.jsonl").write_text("")
    for file in (run / "checkpoints").iterdir():
        file.unlink()
    cli(*arguments, "--resume")
    assert records(run) == before


def test_a_resumed_run_is_identified_by_the_import_path(small: dict[str, Any], tmp_path: Path) -> None:
    config = {**small, "rounds": 3, "filter.name": BEST}
    done = filfl.simulate(config, out=tmp_path / "run")
    assert filfl.simulate(config, out=tmp_path / "run", resume=True).records == done.records
    with pytest.raises(filfl.FilflError, match=r"filter.name: \"my_filters:BestShare\" there, \"dgf\" here"):
        filfl.simulate({**small, "rounds": 3}, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("section", KINDS)
def test_every_section_takes_an_import_path(section: str, small: dict[str, Any]) -> None:
    name = f"my_plugins:{CLASSES[section]}"
    base = {key: value for key, value in small.items() if not key.startswith(f"{section}.") or key == "selection.k"}
    extra = {"filter.size": 10} if section == "data" else {}
    result = filfl.simulate({**base, "rounds": 2, f"{section}.name": name, "selection.k": 2, **extra})
    assert len(result.records) == 2
    assert result.config.table()[section]["name"] == name
    assert Config.from_table(result.config.table()) == result.config
    plugin = result.config.filter.method if section == "filter" else getattr(result.config, section)
    assert name_of(section, plugin) == name


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"filter.name": "nowhere:MyFilter"}, "there is no module nowhere; start filfl in the folder that contains it"),
        ({"filter.name": "my_plugins.deeper:MyFilter"}, "there is no module my_plugins.deeper"),
        ({"filter.name": "my_filters:Other"}, "my_filters has no Other; it has BestShare"),
        (
            {"filter.name": "my_plugins:function"},
            "a class that inherits from filfl.filtering.Filter (got a function)",
        ),
        ({"filter.name": "my_plugins:MySelection"}, "filfl.filtering.Filter (got the class MySelection)"),
        ({"selection.name": "my_plugins:MyFilter"}, "inherits from filfl.selection.Selection (got the class MyFilter)"),
        ({"filter.name": "my_plugins:Unfinished"}, "must define __call__, as filfl.filtering.Filter requires"),
        ({"filter.name": "my_plugins:Undecorated"}, "must be a dataclass; put @dataclass(frozen=True, kw_only=True)"),
        ({"filter.name": "my_plugins:WithTable"}, 'the type of "table" is not supported'),
        ({"filter.name": "my_plugins:WithSize"}, "has the option size, which every filter has; rename it"),
        ({"filter.name": "broken:Filter"}, "importing broken fails: ZeroDivisionError: division by zero"),
        ({"filter.name": "needy:Filter"}, "importing needy fails: No module named 'nothing_of_that_name'"),
        ({"filter.name": ":Filter"}, "is not an import path; write package.module:Class"),
        ({"filter.name": "my filters:Filter"}, "is not an import path; write package.module:Class"),
        ({"filter.name": BEST, "filter.shar": 1}, "unknown key filter.shar; did you mean filter.share?"),
        (
            {"filter.name": BEST, "filter.restarts": 1},
            "is an option of local-search, not of my_filters:BestShare; remove it",
        ),
    ],
)
def test_mistakes_in_an_import_path_are_reported(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        Config.from_table(override({"selection": {"k": 2}}, changes))
    assert sentence in str(error.value)


def test_changing_from_and_to_an_import_path_keeps_what_applies() -> None:
    base = {"selection": {"k": 2}, "filter": {"name": BEST, "share": 0.1, "period": 2}}
    assert override(base, {"filter.name": "dgf"})["filter"] == {"name": "dgf", "period": 2}
    poc = {"name": "power-of-choice", "k": 2, "d": 7}
    assert override({"selection": poc}, {"selection.name": "my_plugins:MySelection"})["selection"] == {
        "name": "my_plugins:MySelection",
        "k": 2,
    }
    assert option_names("filter", "nowhere:MyFilter") == set(), "the error comes when the config is read"


@dataclass(frozen=True, kw_only=True)
class FirstShare(Filter):
    """Keep the first clients."""

    share: Fraction = 0.5

    def __call__(self, clients: Any, reward: Any, rng: Any) -> Filtering:
        return Filtering(kept=tuple(clients[: max(1, round(self.share * len(clients)))]))


def test_a_plugin_given_from_python_is_identified_by_its_import_path(small: dict[str, Any]) -> None:
    result = filfl.simulate({**small, "rounds": 1}, filter=FirstShare(share=0.25))
    assert len(result.records[0]["filtered"]) == 2
    stored = result.config.table()["filter"]
    assert (stored["name"], stored["share"]) == (f"{__name__}:FirstShare", 0.25)
    assert name_of("filter", DGF()) == "dgf"
    for wrong, sentence in (
        ("WithTable", 'the type of "table" is not supported'),
        ("Undecorated", "must be a dataclass"),
        ("WithSize", "has the option size, which every filter has"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            Config().with_own(filter=getattr(import_module("my_plugins"), wrong)())
    assert Config.from_table({"filter": {"name": "filfl.filtering.greedy:DGF"}}).table()["filter"]["name"] == "dgf"


def test_data_command_takes_an_import_path(cli) -> None:
    assert "clients" in cli("data", "my_plugins:MyData")
    assert 'data.name = "arrays" needs an object from Python' in cli("data", "arrays", code=2)


def test_list_shows_the_options_of_a_plugin(cli) -> None:
    shown = cli("list", BEST)
    assert 'filter.name = "my_filters:BestShare"' in shown
    assert "a number between 0 and 1; default 0.5" in shown and "0 keeps one client, 1 keeps all." in shown
    shown = cli("list", "local-search")
    assert "filter.restarts" in shown and "a whole number of at least 0; default 2" in shown
    shown = cli("list", "redraw")
    assert "availability.n" in shown and "required" in shown and "default 5" in shown
    assert all(len(line) <= 80 for name in (*KINDS, "training", "divfl") for line in cli("list", name).splitlines())
    both = cli("list", "none")
    assert 'filter.name = "none"' in both and 'attack.name = "none"' in both
    assert 'did you mean "local-search"?' in cli("list", "localsearch", code=2)
    assert "there is no module nowhere" in cli("list", "nowhere:Filter", code=2)
