"""Configs: valid values are kept exactly, invalid ones are reported with their key."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import filfl
from filfl.algorithms.fedprox import FedProx
from filfl.attacks import ATTACKS
from filfl.config.config import Config, override
from filfl.config.experiment import Experiment, parse_arm, parse_changes, shipped_names
from filfl.config.plugins import KINDS
from filfl.config.sections import FilterOptions
from filfl.errors import ConfigError, DataError, PluginError
from filfl.filtering import DGF, RGF, LocalSearch
from filfl.models.mlp import MLP
from filfl.selection import OwnSelection
from filfl.selection.power_of_choice import PowerOfChoice

NEEDED = {"redraw": {"n": 5}, **{name: {"share": 0.3} for name in ATTACKS if name != "none"}}


def config(changes: dict[str, Any]) -> Config:
    return Experiment({}).config(changes)


@pytest.mark.parametrize(
    ("section", "name"), [(section, name) for section in KINDS for name in KINDS[section].registry]
)
def test_every_plugin_survives_a_round_trip_through_toml(section: str, name: str) -> None:
    import tomllib

    import tomli_w

    made = Config.from_table({section: {"name": name, **NEEDED.get(name, {})}})
    written = tomli_w.dumps(made.table())
    assert Config.from_table(tomllib.loads(written)) == made
    assert made.table()[section]["name"] == name


@given(
    st.fixed_dictionaries(
        {
            "rounds": st.integers(1, 9),
            "data.alpha": st.floats(0.01, 99),
            "filter.name": st.sampled_from(list(KINDS["filter"].registry)),
            "selection.name": st.sampled_from(list(KINDS["selection"].registry)),
            "algorithm.name": st.just("fedprox"),
            "algorithm.mu": st.floats(0, 3),
            "training.steps": st.integers(1, 9),
        }
    )
)
def test_a_config_is_read_back_from_its_table(changes: dict[str, Any]) -> None:
    made = config(changes)
    assert Config.from_table(made.table()) == made


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"selektion.k": 3}, "unknown key selektion; did you mean selection?"),
        ({"selection.kk": 3}, "unknown key selection.kk; did you mean selection.k?"),
        ({"round": 3}, "unknown key round; did you mean rounds?"),
        ({"filter.perod": 3}, "unknown key filter.perod; did you mean filter.period?"),
        (
            {"filter.name": "dfg"},
            "filter.name must be one of none, keep-all, dgf, rgf, opt, local-search, prune, oracle, own, "
            'an import path package.module:Class (got "dfg"); did you mean "dgf"?',
        ),
        ({"selection.name": "poc"}, "selection.name must be one of random, random-with-replacement, power-of-choice"),
        ({"data.name": "mnist"}, 'did you mean "mnist5k"?'),
        ({"filter.period": 0}, "filter.period must be a whole number of at least 1 (got 0)"),
        ({"data.alpha": 0}, "data.alpha must be a number above 0 (got 0)"),
        ({"data.alpha": -1.5}, "data.alpha must be a number above 0 (got -1.5)"),
        ({"data.alpha": float("nan")}, "data.alpha must be a number above 0 (got nan)"),
        ({"data.noisy": 1.2}, "data.noisy must be a number between 0 and 1 (got 1.2)"),
        ({"data.test": 1}, "data.test must be a number of at least 0 and below 1 (got 1)"),
        ({"rounds": 2.5}, "rounds must be a whole number of at least 1 (got 2.5)"),
        ({"rounds": True}, "rounds must be a whole number of at least 1 (got true)"),
        ({"rounds": "ten"}, 'rounds must be a whole number of at least 1 (got "ten")'),
        ({"filter.when": "always"}, 'filter.when must be one of algorithm-1, figure-2 (got "always")'),
        ({"selection.k": 80}, "selection.k must be between 1 and data.clients = 20 (got 80)"),
        (
            {"availability.name": "redraw", "availability.n": 4},
            "selection.k must be between 1 and the 4 available clients (got 5)",
        ),
        (
            {"availability.name": "redraw", "availability.n": 50},
            "availability.n must be between 1 and data.clients = 20",
        ),
        ({"availability.name": "redraw"}, "availability.n is missing; it must be a whole number of at least 1"),
        ({"filter.reward": "ensembel"}, 'filter.reward must be one of average, ensemble (got "ensembel")'),
        (
            {"filter.reward": "ensemble", "filter.data": "variable"},
            'needs a filtering set on the server, but that of filter.data = "variable" is on clients',
        ),
        ({"filter.verify": 3}, 'set filter.verify to 0, or filter.reward to "ensemble"'),
        ({"attack.share": 0.3}, ", backdoor and adaptive, not of none; remove it"),
        ({"attack.name": "sign-flip"}, "attack.share is missing; it must be a number between 0 and 1"),
        ({"attack.name": "signflip"}, 'did you mean "sign-flip"?'),
        ({"attack.name": "scaled", "attack.share": 1.5}, "attack.share must be a number between 0 and 1 (got 1.5)"),
        (
            {"attack.name": "scaled", "attack.share": 0.5, "attack.factor": 0},
            "attack.factor must be a number above 0 (got 0)",
        ),
        (
            {"attack.name": "sign-flip", "attack.share": 0.5, "attack.factor": 2.0},
            "attack.factor is an option of scaled, ipm and backdoor, not of sign-flip; remove it",
        ),
        ({"filter.optimum": 1}, "filter.optimum must be true or false (got 1)"),
        (
            {"filter.optimum": True, "filter.data": "federated"},
            'filter.optimum with filter.data = "federated" would send every subset to clients',
        ),
        ({"filter.cap": 3}, "selection.k must be between 1 and filter.cap = 3 (got 5)"),
        ({"selection.name": "power-of-choice", "selection.d": 3}, "selection.d must be at least selection.k = 5"),
        ({"selection.d": 9}, "selection.d is an option of power-of-choice, not of random; remove it"),
        ({"filter.restarts": 9}, "filter.restarts is an option of local-search, not of dgf; remove it"),
        (
            {"filter.name": "none", "filter.restarts": 9},
            "filter.restarts is an option of local-search, not of none; remove it",
        ),
        ({"filter.name": "none", "filter.sise": 9}, "unknown key filter.sise; did you mean filter.size?"),
        (
            {"filter.name": "local-search", "filter.restart": 9},
            "unknown key filter.restart; did you mean filter.restarts?",
        ),
        (
            {"filter.name": "local-search", "filter.restarts": -1},
            "filter.restarts must be a whole number of at least 0",
        ),
        ({"training.epochs": 2, "training.steps": 3}, "training.epochs = 2 and training.steps = 3 exclude each other"),
        ({"training.schedule": "step"}, "needs training.factor and training.every"),
        ({"training.schedule": "inverse"}, "needs training.beta"),
        ({"training.schedule": "milestones"}, "needs training.factor and training.milestones"),
        ({"training.schedule": "milestones", "training.milestones": [0]}, "training.milestones must be a list, each"),
        ({"data.trusted": [1.5]}, "data.trusted must be a list, each item a text"),
        ({"model.hidden": [8, 0]}, "model.hidden must be a list, each item a whole number of at least 1"),
        ({"name": "../up"}, "name must be letters, digits"),
        ({"data": [{"name": "digits"}]}, "data is a section; write [data]"),
        ({"data.name": ["digits"]}, "data.name must be one of digits"),
        ({"training.lr": 10**400}, "training.lr must be a number above 0 (got a huge number)"),
        ({"filter.name": "RGF"}, 'did you mean "rgf"?'),
        ({"filter": "dgf"}, 'filter is a section; write filter.name = "dgf"'),
        ({"execution": "serial"}, 'execution is a section; write execution.mode = "serial"'),
        ({"execution.device": 3}, "execution.device must be a text (got 3)"),
    ],
)
def test_mistakes_are_reported_with_key_value_and_allowed_values(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(changes)
    assert sentence in str(error.value)


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        config({"rounds": 0, "data.alpha": 0, "filter.siz": 3})
    assert len(error.value.problems) == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"filter.size": 5000}, "filter.size must be between 1 and the 143 samples"),
        ({"data.filtering": 0.0}, "the server's filtering set is empty"),
        ({"filter.name": "opt", "data.clients": 21}, "set filter.cap to 20 or less"),
        (
            {"filter.optimum": True, "data.clients": 21},
            "filter.optimum = true evaluates all subsets of at most 20 clients, but 21 may be available",
        ),
        ({"data.clients": 9000}, "cannot have data.min_size = 10 samples each"),
        ({"execution.device": "cuda:99"}, 'execution.device = "cuda:99" is not available'),
        ({"execution.device": "meta"}, "execution.device must be auto, cpu, cuda or cuda:N"),
        ({"execution.device": "gpu"}, 'execution.device = "gpu" is not available'),
        ({"data.name": "arrays"}, 'data.name = "arrays" needs an object from Python'),
        ({"model.name": "own"}, 'model.name = "own" needs an object from Python'),
        ({"filter.name": "own"}, 'filter.name = "own" needs an object from Python'),
        ({"selection.name": "own"}, 'selection.name = "own" needs an object from Python'),
        ({"availability.name": "connected"}, 'availability.name = "connected" exists only on Flower'),
        ({"aggregation.name": "flower"}, 'aggregation.name = "flower" exists only on Flower'),
    ],
)
def test_problems_with_the_data_or_the_machine_are_reported_before_any_round(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(filfl.FilflError) as error:
        filfl.simulate(changes, out=tmp_path / "run")
    assert sentence in str(error.value)
    assert not (tmp_path / "run").exists(), "nothing was written"


def test_limits_depend_on_the_size_of_the_given_data(blobs: filfl.FederatedData) -> None:
    many = filfl.FederatedData.from_arrays(
        blobs.x, blobs.y, np.arange(len(blobs.y)) % 40, test=(blobs.test_x, blobs.test_y)
    )
    config = {
        "rounds": 1,
        "filter.name": "none",
        "availability.name": "redraw",
        "availability.n": 30,
        "selection.k": 25,
    }
    assert len(filfl.simulate(config, many).records[0]["selected"]) == 25


def test_a_client_without_training_samples_is_refused(blobs: filfl.FederatedData) -> None:
    empty = replace(blobs, train_ends=np.where(np.arange(9) == 4, blobs.offsets[:-1], blobs.train_ends))
    with pytest.raises(ConfigError, match=r"client 4 has no training samples \(1 of 9 have none\)"):
        filfl.simulate({"selection.k": 2}, empty)


def test_given_data_is_checked(blobs: filfl.FederatedData) -> None:
    with pytest.raises(ConfigError, match=r"selection.k must be between 1 and the 9 clients of the data"):
        filfl.simulate({"selection.k": 10}, data=blobs)
    with pytest.raises(ConfigError, match=r"availability.n must be between 1 and the 9 clients"):
        filfl.simulate({"availability.name": "redraw", "availability.n": 15}, data=blobs)


def test_changing_a_plugin_drops_the_options_of_the_old_one() -> None:
    base = {"selection": {"name": "power-of-choice", "k": 3, "d": 9}, "training": {"epochs": 2}}
    assert override(base, {"selection.name": "random"})["selection"] == {"name": "random", "k": 3}
    with pytest.raises(ConfigError, match=r"selection.d is an option of power-of-choice"):
        Experiment(base).config({"selection.d": 5, "selection.name": "random"})
    assert "d" not in override(base, {"selection.d": "unset"})["selection"]
    assert override(base, {"training.steps": 7})["training"] == {"steps": 7}
    assert base["selection"]["d"] == 9, "the base is not modified"


def test_changing_the_filter_drops_its_options_and_keeps_the_general_ones() -> None:
    base = config({"filter.name": "local-search", "filter.restarts": 7, "filter.period": 3})
    assert base.filter.method == LocalSearch(restarts=7)
    changed = base.with_changes({"filter.name": "rgf"})
    assert (changed.filter.method, changed.filter.period) == (RGF(), 3)
    assert base.with_changes({"filter.name": "none"}).filter.method is None
    assert base.with_changes({"filter.restarts": "unset"}).filter.method == LocalSearch()


def test_with_changes_equals_reading_the_changed_table() -> None:
    base = {"selection.name": "power-of-choice", "selection.d": 9, "training.epochs": 2, "rounds": 3}
    for changes in (
        {"selection.name": "random", "filter.name": "rgf"},
        {"training.steps": 5},
        {"data": {"alpha": 0.1}, "seed": 4},
        {},
    ):
        assert config(base).with_changes(changes) == Config.from_table(override(override({}, base), changes))
    with pytest.raises(ConfigError, match=r"selection.d must be at least selection.k = 10 \(got 9\)"):
        config(base).with_changes({"selection.k": 10})
    with pytest.raises(ConfigError, match="unknown key selektion; did you mean selection"):
        config(base).with_changes({"selektion.k": 10})


def first(pool: Any, k: int, ask: Any, rng: Any) -> list[int]:
    return [int(i) for i in pool[:k]]


def everybody(clients: Any, reward: Any, rng: Any) -> filfl.Filtering:
    return filfl.Filtering(kept=tuple(clients))


def test_objects_from_python_keep_the_options_that_apply(blobs: filfl.FederatedData) -> None:
    base = config({"selection.name": "power-of-choice", "selection.d": 9, "selection.k": 4, "data.noisy": 0.2})
    own = base.with_own(data=blobs, model=lambda: None, filter=everybody, selection=first)
    assert own.selection == OwnSelection(function=first, k=4)
    table = own.table()
    assert table["selection"] == {"name": "own", "k": 4, "every": 1} and table["data"]["noisy"] == 0.2
    assert (table["filter"]["name"], table["filter"]["period"], table["model"]) == ("own", 5, {"name": "own"})
    changed = own.with_changes({"selection.k": 3, "filter.period": 2})
    assert changed.selection == OwnSelection(function=first, k=3), "the object stays"
    assert changed.filter.method == own.filter.method and changed.filter.period == 2
    random = changed.with_changes({"selection.name": "random"}).table()["selection"]
    assert random == {"name": "random", "k": 3, "every": 1}


def test_a_plugin_from_python_is_used_with_its_own_options() -> None:
    made = Config().with_own(filter=LocalSearch(restarts=1), selection=PowerOfChoice(k=2, d=7), model=MLP(hidden=(3,)))
    assert made.table()["selection"] == {"name": "power-of-choice", "k": 2, "every": 1, "d": 7}
    assert (made.table()["filter"]["name"], made.table()["filter"]["restarts"]) == ("local-search", 1)
    with pytest.raises(ConfigError, match=r"selection.d must be at least selection.k = 5 \(got 2\)"):
        Config().with_own(selection=PowerOfChoice(d=2))


@pytest.mark.parametrize(
    ("given", "kind", "sentence"),
    [
        ({"data": ([[1.0]], [0])}, DataError, r"data must be FederatedData.*\(got tuple\)"),
        ({"filter": 3}, PluginError, r"filter must be a plug-in or a function \(got int\)"),
        ({"filter": DGF}, PluginError, r"use DGF\(\) instead of the class"),
        ({"selection": "random"}, PluginError, r"selection must be a plug-in or a function \(got str\)"),
    ],
)
def test_other_objects_are_refused(given: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        Config().with_own(**given)


def test_a_config_made_in_python_is_checked_like_a_file() -> None:
    with pytest.raises(ConfigError) as error:
        Config(filter=FilterOptions(period=0), selection=PowerOfChoice(d=2.5), rounds=0).with_own()
    assert len(error.value.problems) == 3
    whole, real = Config(algorithm=FedProx(mu=1)), config({"algorithm.name": "fedprox", "algorithm.mu": 1})
    assert repr(whole.identity()) == repr(real.identity()), "1 and 1.0 are the same run"


@pytest.mark.parametrize("source", [3, None, {3: 4}])
def test_other_sources_of_a_config_are_refused(source: object) -> None:
    with pytest.raises(ConfigError, match="config must be a Config, a mapping of keys, or a TOML file"):
        Config.read(source)


def test_workers_alone_do_not_change_the_identity() -> None:
    assert config({"execution.workers": 3}).identity() == Config().identity()
    assert config({"execution.mode": "serial"}).identity() != Config().identity()


def test_changes_from_the_command_line() -> None:
    assert parse_changes(
        ["selection.k=5", "filter.name=rgf", "data.noisy = 0.5", 'name="x=y"', "model.hidden=[3, 4]"]
    ) == {
        "selection.k": 5,
        "filter.name": "rgf",
        "data.noisy": 0.5,
        "name": "x=y",
        "model.hidden": [3, 4],
    }
    arm = parse_arm("dgf:filter.name=dgf,model.hidden=[3,4],selection.k=3,against=none")
    assert arm.changes == {"filter.name": "dgf", "model.hidden": [3, 4], "selection.k": 3}
    assert (arm.name, arm.against) == ("dgf", "none")
    for wrong in ("selection.k", "=3", "rounds=2\nseed=4"):
        with pytest.raises(ConfigError, match="must be key=value"):
            parse_changes([wrong])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rounds = ", "is not valid TOML"),
        ("[arms]\nx = 3", "arms.x is a section"),
        ("arms = 3", "arms must be a section"),
        ('[arms.x]\n"filter.nam" = "dgf"', "arms.x: unknown key filter.nam; did you mean filter.name?"),
        ("[arms.x]\nseed = 3", "arms.x: an arm cannot change seed"),
        ("x = " + "[" * 9999, "is not valid TOML"),
        ("rounds = " + "9" * 5000, "is not valid TOML"),
        ('[arms.x]\nagainst = "y"', "arms.x: against must be one of x"),
        ('[arms."a/b"]', "the name of an arm must be letters, digits"),
        ("[compare]\nseed = 3", "unknown key compare.seed; did you mean compare.seeds?"),
        ("rounds = 3", "there is nothing to compare"),
    ],
)
def test_experiment_files_with_mistakes(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        experiment = Experiment.load(path)
        for arm in experiment.checked_arms():
            experiment.config({}, arm)
    assert sentence in str(error.value)


def test_files_in_the_current_folder_do_not_change_shipped_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Experiment.load("poc-femnist").config({})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "femnist").write_text("rounds = 7")
    (tmp_path / "poc-femnist").mkdir()
    assert Experiment.load("poc-femnist").config({}) == expected
    assert Experiment.load("femnist").config({}).rounds == 7


def test_a_missing_file_is_reported_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*nothing.toml.*known: .*demo"):
        Experiment.load(tmp_path / "nothing.toml")
    with pytest.raises(ConfigError, match="is a folder"):
        Experiment.load(tmp_path)
    (tmp_path / "bom.toml").write_text("rounds = 7", encoding="utf-8-sig")
    assert Experiment.load(tmp_path / "bom.toml").config({}).rounds == 7
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        Experiment.load(tmp_path / "binary.toml")


def test_arm_overrides_command_line_overrides_base() -> None:
    arms = {"none": {"filter.name": "none"}}
    experiment = Experiment.from_table({"filter": {"name": "dgf", "period": 5}, "arms": arms})
    made = experiment.config({"filter.name": "rgf", "filter.period": 2, "seed": 9}, experiment.arms[0])
    assert (made.filter.name, made.filter.period, made.seed) == ("none", 2, 9)


def test_a_scale_changes_the_base() -> None:
    experiment = Experiment.from_table({"rounds": 3, "scale": {"paper": {"rounds": 500, "filter": {"period": 7}}}})
    assert experiment.at_scale(None).config({}).rounds == 3
    paper = experiment.at_scale("paper").config({})
    assert (paper.rounds, paper.filter.period) == (500, 7)
    with pytest.raises(ConfigError, match=r'--scale must be one of paper \(got "papre"\); did you mean "paper"'):
        experiment.at_scale("papre")
    both = {"paper": {"rounds": 9, "seed": 4}, "authors": {"from": "paper", "rounds": 7}}
    authors = Experiment.from_table({"rounds": 3, "scale": both}).at_scale("authors").config({})
    assert (authors.rounds, authors.seed) == (7, 4), "the changes of paper, then its own"
    for start in ("papre", "authors"):
        with pytest.raises(ConfigError, match=r"scale.authors.from must be one of paper"):
            Experiment.from_table({"scale": {**both, "authors": {"from": start}}}).at_scale("authors")
    with pytest.raises(ConfigError, match=r"scale.x is a section"):
        Experiment.from_table({"scale": {"x": 3}})


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_experiments_are_valid_in_every_arm_and_scale(name: str) -> None:
    experiment = Experiment.load(name)
    for scaled in map(experiment.at_scale, (None, *experiment.scales)):
        for arm in scaled.checked_arms():
            scaled.config({}, arm)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("site-00,site-01", ("site-00", "site-01")),
        ("[site-00, site-01]", ("site-00", "site-01")),
        ('["site-00","site-01"]', ("site-00", "site-01")),
        ("'site-00', 'site-01'", ("site-00", "site-01")),
        ("site-00", ("site-00",)),
        ("3", ("3",)),
        ("[3, 11]", ("3", "11")),
    ],
)
def test_a_list_of_names_on_the_command_line(text: str, names: tuple[str, ...]) -> None:
    assert Config.read({}).with_changes(parse_changes([f"data.trusted={text}"])).data.trusted == names
