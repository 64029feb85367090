"""Configs: what is right is kept to the letter, what is wrong is named with its key."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import filfl
from filfl.config import FILTER_NAMES, REGISTRIES, Config
from filfl.errors import ConfigError
from filfl.experiment import Experiment, override, parse_arm, parse_changes, shipped_names

NEEDED = {"redraw": {"n": 5}, "sign-flip": {"share": 0.3}, "scaled": {"share": 0.3}}


def config(changes: dict[str, Any]) -> Config:
    return Experiment({}).config(changes)


@pytest.mark.parametrize(
    ("section", "name"), [(section, name) for section, registry in REGISTRIES.items() for name in registry]
)
def test_every_plugin_survives_the_way_to_toml_and_back(section: str, name: str) -> None:
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
            "filter.name": st.sampled_from(FILTER_NAMES),
            "selection.name": st.sampled_from(sorted(REGISTRIES["selection"])),
            "algorithm.name": st.just("fedprox"),
            "algorithm.mu": st.floats(0, 3),
            "training.steps": st.integers(1, 9),
        }
    )
)
def test_a_complete_table_gives_the_config_back(changes: dict[str, Any]) -> None:
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
            'filter.name must be one of none, keep-all, dgf, rgf, opt, local-search, own (got "dfg")',
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
        ({"availability.name": "redraw"}, "availability.n is missing: it must be a whole number of at least 1"),
        ({"filter.reward": "ensembel"}, 'filter.reward must be one of average, ensemble (got "ensembel")'),
        (
            {"filter.reward": "ensemble", "filter.data": "variable"},
            'filter.reward = "ensemble" needs samples that the server holds, and with filter.data = "variable" it',
        ),
        ({"filter.verify": 3}, 'set filter.verify to 0, or filter.reward to "ensemble"'),
        ({"attack.share": 0.3}, "attack.share belongs to sign-flip and scaled, not to none: remove it"),
        ({"attack.name": "sign-flip"}, "attack.share is missing: it must be a number between 0 and 1"),
        ({"attack.name": "signflip"}, 'did you mean "sign-flip"?'),
        ({"attack.name": "scaled", "attack.share": 1.5}, "attack.share must be a number between 0 and 1 (got 1.5)"),
        (
            {"attack.name": "scaled", "attack.share": 0.5, "attack.factor": 0},
            "attack.factor must be a number above 0 (got 0)",
        ),
        (
            {"attack.name": "sign-flip", "attack.share": 0.5, "attack.factor": 2.0},
            "attack.factor belongs to scaled, not to sign-flip: remove it",
        ),
        ({"filter.optimum": 1}, "filter.optimum must be true or false (got 1)"),
        (
            {"filter.optimum": True, "filter.data": "federated"},
            'with filter.data = "federated" clients would be asked about every subset',
        ),
        ({"filter.cap": 3}, "selection.k must be between 1 and filter.cap = 3 (got 5)"),
        ({"selection.name": "power-of-choice", "selection.d": 3}, "selection.d must be at least selection.k = 5"),
        ({"selection.d": 9}, "selection.d belongs to power-of-choice, not to random: remove it"),
        ({"training.epochs": 2, "training.steps": 3}, "training.epochs = 2 and training.steps = 3: set only one"),
        ({"training.schedule": "step"}, "needs training.factor and training.every"),
        ({"training.schedule": "inverse"}, "needs training.beta"),
        ({"model.hidden": [8, 0]}, "model.hidden must be a list, each item a whole number of at least 1"),
        ({"name": "../up"}, "name must be letters, digits"),
        ({"data": [{"name": "digits"}]}, "data is a section: write [data]"),
        ({"data.name": ["digits"]}, "data.name must be one of digits"),
        ({"training.lr": 10**400}, "training.lr must be a number above 0 (got a huge number)"),
        ({"filter.name": "RGF"}, 'did you mean "rgf"?'),
        ({"filter": "dgf"}, 'filter is a section: write filter.name = "dgf"'),
        ({"execution": "serial"}, 'execution is a section: write execution.mode = "serial"'),
        ({"execution.device": 3}, "execution.device must be a text (got 3)"),
    ],
)
def test_mistakes_are_named_with_key_value_and_what_is_allowed(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(changes)
    assert sentence in str(error.value)


def test_every_mistake_is_told_at_once() -> None:
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
            "filter.optimum = true tries all subsets of at most 20 clients, and 21 may be available",
        ),
        ({"data.clients": 9000}, "cannot have data.min_size = 10 samples each"),
        ({"execution.device": "cuda:99"}, 'execution.device = "cuda:99" cannot be used here'),
        ({"execution.device": "meta"}, "execution.device must be auto, cpu, cuda or cuda:N"),
        ({"execution.device": "gpu"}, 'execution.device = "gpu" cannot be used here'),
        ({"data.name": "arrays"}, "stands for your own, given from Python"),
        ({"model.name": "own"}, "stands for your own, given from Python"),
        ({"filter.name": "own"}, "stands for your own, given from Python"),
        ({"selection.name": "own"}, "stands for your own, given from Python"),
    ],
)
def test_what_only_the_data_or_the_machine_can_tell_is_refused_before_any_round(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(filfl.FilflError) as error:
        filfl.simulate(changes, out=tmp_path / "run")
    assert sentence in str(error.value)
    assert not (tmp_path / "run").exists(), "nothing was written"


def test_own_data_has_its_own_size(blobs: filfl.FederatedData) -> None:
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


def test_a_client_without_samples_is_refused(blobs: filfl.FederatedData) -> None:
    empty = replace(blobs, train_ends=np.where(np.arange(9) == 4, blobs.offsets[:-1], blobs.train_ends))
    with pytest.raises(ConfigError, match=r"client 4 has no training samples \(1 of 9 have none\)"):
        filfl.simulate({"selection.k": 2}, empty)


def test_own_data_is_checked_too(blobs: filfl.FederatedData) -> None:
    with pytest.raises(ConfigError, match=r"selection.k must be between 1 and the 9 clients of the data"):
        filfl.simulate({"selection.k": 10}, data=blobs)
    with pytest.raises(ConfigError, match=r"availability.n must be between 1 and the 9 clients"):
        filfl.simulate({"availability.name": "redraw", "availability.n": 15}, data=blobs)


def test_changing_a_plugin_drops_the_options_of_the_old_one() -> None:
    base = {"selection": {"name": "power-of-choice", "k": 3, "d": 9}, "training": {"epochs": 2}}
    assert override(base, {"selection.name": "random"})["selection"] == {"name": "random", "k": 3}
    with pytest.raises(ConfigError, match=r"selection.d belongs to power-of-choice"):
        Experiment(base).config({"selection.d": 5, "selection.name": "random"})
    assert "d" not in override(base, {"selection.d": "unset"})["selection"]
    assert override(base, {"training.steps": 7})["training"] == {"steps": 7}
    assert base["selection"]["d"] == 9, "the base is left alone"


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
        with pytest.raises(ConfigError, match="write key=value"):
            parse_changes([wrong])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rounds = ", "is not valid TOML"),
        ("[arms]\nx = 3", "arms.x is a section"),
        ("arms = 3", "arms is a section"),
        ('[arms.x]\n"filter.nam" = "dgf"', "arms.x: unknown key filter.nam; did you mean filter.name?"),
        ("[arms.x]\nseed = 3", "arms.x: seed is the comparison's own"),
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


def test_what_lies_in_the_current_folder_does_not_change_what_comes_with_filfl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Experiment.load("poc-femnist").config({})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "femnist").write_text("rounds = 7")
    (tmp_path / "poc-femnist").mkdir()
    assert Experiment.load("poc-femnist").config({}) == expected
    assert Experiment.load("femnist").config({}).rounds == 7


def test_a_missing_file_is_said_with_the_names_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*nothing.toml.*known: .*demo"):
        Experiment.load(tmp_path / "nothing.toml")
    with pytest.raises(ConfigError, match="is a folder"):
        Experiment.load(tmp_path)
    (tmp_path / "bom.toml").write_text("rounds = 7", encoding="utf-8-sig")
    assert Experiment.load(tmp_path / "bom.toml").config({}).rounds == 7
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        Experiment.load(tmp_path / "binary.toml")


def test_an_arm_wins_over_the_command_line_which_wins_over_the_base() -> None:
    arms = {"none": {"filter.name": "none"}}
    experiment = Experiment.from_table({"filter": {"name": "dgf", "period": 5}, "arms": arms})
    made = experiment.config({"filter.name": "rgf", "filter.period": 2}, experiment.arms[0], seed=9)
    assert (made.filter.name, made.filter.period, made.seed) == ("none", 2, 9)


def test_a_scale_changes_the_base() -> None:
    experiment = Experiment.from_table({"rounds": 3, "scale": {"paper": {"rounds": 500, "filter": {"period": 7}}}})
    assert experiment.at_scale(None).config({}).rounds == 3
    paper = experiment.at_scale("paper").config({})
    assert (paper.rounds, paper.filter.period) == (500, 7)
    with pytest.raises(ConfigError, match=r'--scale must be one of paper \(got "papre"\); did you mean "paper"'):
        experiment.at_scale("papre")
    with pytest.raises(ConfigError, match=r"scale.x is a section"):
        Experiment.from_table({"scale": {"x": 3}})


@pytest.mark.parametrize("name", shipped_names())
def test_what_is_shipped_is_valid_in_every_arm(name: str) -> None:
    experiment = Experiment.load(name)
    for scaled in map(experiment.at_scale, (None, *experiment.scales)):
        for arm in scaled.checked_arms():
            scaled.config({}, arm)
