"""The Python API: progress bars, short descriptions, frames, plots, and results that are loaded again."""

import json
import multiprocessing
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import filfl
from conftest import SMALL
from filfl.config.config import Config
from filfl.display import BLOCKS, LONGEST, WIDTH, as_html, as_text, some, sparkline
from filfl.errors import ConfigError, DataError, PluginError, RunError
from filfl.runs.progress import python_console

ROOT = Path(__file__).parent.parent
LINES = 20
"""The most lines of a description."""
NUMBERS = st.floats(-1e6, 1e6)
ANY_TEXT = st.text(st.characters())
"""Also halves of surrogate pairs, line ends and control characters."""


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> filfl.Result:
    """A finished run with values of its clients, in a directory."""
    config = {**SMALL, "rounds": 6, "filter.name": "prune", "data.noisy": 0.3, "evaluate.every": 2}
    return filfl.simulate(config, out=tmp_path_factory.mktemp("stored") / "run")


class Cells(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


# Descriptions.


def test_sparkline() -> None:
    assert sparkline([0, 7]) == "▁█"
    assert sparkline([0, None, 1, 2, 3, 4, 5, 6, 7]) == BLOCKS
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([]) == sparkline([None]) == ""


@given(st.lists(NUMBERS, min_size=1, max_size=80))
def test_a_sparkline_is_short_and_as_monotone_as_its_values(values: list[float]) -> None:
    line = sparkline(sorted(values))
    assert len(line) == min(len(values), WIDTH)
    assert list(line) == sorted(line) and set(line) <= set(BLOCKS)


@given(ANY_TEXT, st.dictionaries(st.sampled_from(["accuracy", "names"]), ANY_TEXT))
def test_any_name_can_be_printed_on_one_line_and_is_escaped(title: str, facts: dict[str, str]) -> None:
    text, page = as_text(title, facts), as_html(title, facts)
    assert len(text.encode("utf-8").splitlines() or [b""]) <= 1 + len(facts)
    assert all(len(line) <= LONGEST + 20 for line in text.splitlines())
    assert Cells(page).tags <= {"div", "b", "table", "tr", "th", "td"}


def test_some_of_a_list() -> None:
    assert some(["ann", "bob"]) == "ann, bob" and some([]) == ""
    assert some(["a", "b", "c", "d"], 3) == "a, b, c, ..." and some(np.array([1, 2]), 2) == "1, 2"


def test_description_of_a_result(stored: filfl.Result) -> None:
    lines = repr(stored).splitlines()
    assert lines[0] == "run: 6 rounds, seed 0, data digits, filter prune, selection random"
    assert f"  final accuracy  {stored.summary['final_accuracy']:.3f} {sparkline(stored.accuracy)}" in lines
    assert str(stored.directory) in lines[-1]
    assert Cells(stored._repr_html_()).text.startswith(lines[0])


def test_descriptions_of_many_clients_with_hostile_names_fit_a_screen() -> None:
    n = 3500
    x = np.zeros((2 * n, 1), dtype=np.float32)
    owners = [f"<script>alert({k // 2})</script>" for k in range(2 * n)]
    data = filfl.FederatedData.from_arrays(x, np.arange(2 * n) % 2, owners, test=(x[:4], [0, 1, 0, 1]))
    changes = {"rounds": 1, "selection.k": 2, "filter.name": "prune", "filter.cap": 3}
    V = filfl.FederatedData.from_arrays(
        x, np.arange(2 * n) % 2, owners, test=(x[:4], [0, 1, 0, 1]), filtering=(x[:4], [0, 1, 0, 1]), validation=0.0
    )
    result = filfl.simulate(changes, data=V, model=lambda: nn.Linear(1, 2))
    for described in (data, V, result, result.config):
        lines = repr(described).splitlines()
        assert 3 <= len(lines) <= LINES and max(map(len, lines)) <= 120
        assert "script" not in Cells(described._repr_html_()).tags
    assert "7,000 samples of 3,500 clients" in repr(data) and "  filtering set       4 samples of the server" in repr(V)
    assert "<script>alert(0)</script>, " in repr(data)


def test_description_of_a_config_has_every_plugin_and_only_the_changed_options() -> None:
    text = repr(Config().with_changes({"filter.name": "rgf", "filter.period": 3, "training.epochs": 7}))
    assert "  filter        rgf, period = 3\n" in text
    assert "epochs = 7" in text and "lr" not in text and "checkpoint" not in text
    assert "\n  data          digits\n" in text


@pytest.mark.parametrize("name", ["hub", "femnist", "shakespeare", "synthetic"])
def test_every_config_has_a_description(name: str) -> None:
    changes = {"data.dataset": "x/y", "data.client": "z"} if name == "hub" else {}
    assert f"  data          {name}" in repr(Config.read({"data.name": name, **changes}))


# Frames and plots.


def test_frame_has_one_row_per_round_and_the_numbers_of_the_records(stored: filfl.Result) -> None:
    frame = stored.to_frame()
    assert frame["round"].tolist() == frame.index.tolist() == [1, 2, 3, 4, 5, 6]
    for t, record in enumerate(stored.records, start=1):
        assert frame.loc[t, "num_selected"] == len(record["selected"]) == 3
        assert frame.loc[t, "num_considered"] == len(record["considered"])
        assert frame.loc[t, "uplink_bytes"] == record["uplink_bytes"]
        for key, value in {"test_loss": record["test_loss"], **record["metrics"]}.items():
            assert np.isnan(frame.loc[t, key]) if value is None else frame.loc[t, key] == value
    assert not {"available", "filtered", "trace", "values", "metrics"} & set(frame.columns)


def test_a_metric_named_like_a_key_of_the_record_gets_its_own_column(blobs: filfl.FederatedData) -> None:
    metrics = {"round": lambda outputs, targets: 0.5, "mine": lambda outputs, targets: 0.25}
    frame = filfl.simulate({"rounds": 2, "selection.k": 2}, blobs, metrics=metrics).to_frame()
    assert frame["metrics.round"].tolist() == [0.5, 0.5] and frame["mine"].tolist() == [0.25, 0.25]
    assert frame["round"].tolist() == [1, 2]


def test_plot_draws_accuracy_and_loss_of_the_tested_rounds(stored: filfl.Result) -> None:
    accuracy, loss = stored.plot()
    assert accuracy.get_title() == "Test accuracy" and loss.get_title() == "Test loss"
    assert accuracy.lines[0].get_xdata().tolist() == [2, 4, 6]
    assert accuracy.lines[0].get_ydata().tolist() == [a for a in stored.accuracy if a is not None]
    assert loss.lines[0].get_ydata()[-1] == stored.records[-1]["test_loss"]
    stored.plot([accuracy, loss], label="again", linestyle=":")
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == ["run", "again"]
    accuracy.figure.canvas.draw()
    with pytest.raises(ConfigError, match="plot needs one of the axes for each of Test accuracy, Test loss"):
        stored.plot([accuracy])


def test_plot_of_numeric_targets_has_the_loss_alone() -> None:
    (loss,) = filfl.simulate({"rounds": 2, "data.name": "ridge", "model.name": "linear"}).plot()
    assert loss.get_title() == "Test loss" and len(loss.lines[0].get_xdata()) == 2


# Loading.


@pytest.mark.parametrize(
    "changes",
    [
        {"model.name": "mlp", "model.hidden": [5]},
        {"model.name": "logistic"},
        {"data.name": "mnist5k", "model.name": "small-cnn"},
        {"data.name": "ridge", "model.name": "linear"},
    ],
    ids=lambda changes: changes["model.name"],
)
def test_loading_gives_the_same_result_with_its_model(changes: dict[str, Any], tmp_path: Path) -> None:
    base = {"rounds": 1, "data.clients": 12, "selection.k": 2, "filter.name": "none"}
    result = filfl.simulate({**base, **changes}, out=tmp_path / "run")
    loaded = filfl.load(tmp_path / "run")
    assert loaded == result
    assert loaded.clients.equals(result.clients) and loaded.to_frame().equals(result.to_frame())
    assert not loaded.model.training and not result.model.training
    for name, value in result.model.state_dict().items():
        assert loaded.model.state_dict()[name].equal(value)
    data = result.config.data.load(0)
    assert np.array_equal(loaded.predict(data.test_x), result.predict(data.test_x))
    if data.classes:
        assert np.mean(loaded.predict(data.test_x) == data.test_y) == pytest.approx(result.accuracy[-1])
    else:
        assert np.mean((loaded.predict(data.test_x) - data.test_y) ** 2) == pytest.approx(
            result.records[-1]["test_loss"], rel=1e-5
        )


def test_loading_in_another_process(stored: filfl.Result, tmp_path: Path) -> None:
    x = stored.config.data.load(0).test_x[:50]
    np.save(tmp_path / "x.npy", x)
    code = "import filfl, json, sys, numpy as np; r = filfl.load(sys.argv[1]); "
    code += "print(json.dumps([r.predict(np.load('x.npy')).tolist(), r.accuracy, repr(r)]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(stored.directory)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [stored.predict(x).tolist(), stored.accuracy, repr(stored)]


def test_a_model_from_python_is_needed_only_for_inference(blobs: filfl.FederatedData, tmp_path: Path) -> None:
    make = lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))  # noqa: E731
    result = filfl.simulate({"rounds": 2, "selection.k": 2}, blobs, make, out=tmp_path / "run")
    loaded = filfl.load(tmp_path / "run")
    assert loaded.records == result.records and loaded.summary == result.summary and len(loaded.clients) == 9
    with pytest.raises(
        PluginError, match=r"was given from Python; load the run with .* filfl.load\(\".*/run\", model="
    ):
        _ = loaded.model
    x = blobs.test_x
    assert np.array_equal(filfl.load(tmp_path / "run", model=make).predict(x), result.predict(x))
    with pytest.raises(PluginError, match=r"the model does not fit the weights of .*0\.weight"):
        _ = filfl.load(tmp_path / "run", model=lambda: nn.Linear(4, 3)).model


@pytest.mark.parametrize("x", [np.zeros((2, 3)), np.zeros(4), np.zeros((2, 4), dtype=np.uint8), [["a"] * 4]])
def test_predict_refuses_samples_of_another_form(x: Any, blobs: filfl.FederatedData) -> None:
    result = filfl.simulate({"rounds": 1, "selection.k": 2}, blobs)
    assert result.predict(np.zeros((2, 4))).shape == (2,)
    with pytest.raises(DataError, match=r"x must be (samples like those of the run, float32|numbers)"):
        result.predict(x)


def test_what_cannot_be_loaded(stored: filfl.Result, small: dict[str, Any], tmp_path: Path) -> None:
    for directory, message in (
        (tmp_path / "missing", "is not a run directory: it has no config.toml; give the directory"),
        (stored.directory.parent, f"it has no config.toml; did you mean {stored.directory}?"),
    ):
        with pytest.raises(RunError) as error:
            filfl.load(directory)
        assert message in str(error.value) and "\n" not in str(error.value)

    def stop(record: Any, state: object) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        filfl.simulate(small, out=run, callbacks=[stop])
    with pytest.raises(RunError, match=r"run is not finished \(2 of 4 rounds\); run again with --resume"):
        filfl.load(run)
    filfl.simulate(small, out=run, resume=True)
    whole = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    for name, damage in (
        ("model.safetensors", lambda content: content[:-1]),
        ("model.safetensors", None),
        ("rounds.jsonl", lambda content: content.replace(b'"selected"', b'"elected"')),
        ("rounds.jsonl", lambda content: content.replace(b'"evaluations":', b'"evaluations":1')),
        ("clients.csv", lambda content: content[5:]),
        ("config.toml", lambda content: b"[" + content),
        ("config.toml", lambda content: content.replace(b'"mlp"', b'"nowhere"')),
    ):
        path = run / name
        path.unlink() if damage is None else path.write_bytes(damage(whole[path]))
        with pytest.raises(RunError) as error:
            filfl.load(run)
        assert "run" in str(error.value) and "\n" not in str(error.value), name
        path.write_bytes(whole[path])
    assert len(filfl.load(run).records) == 4


# The progress bar.

SCRIPT = """
import sys, filfl
config = {"rounds": 3, "data.clients": 12, "selection.k": 2, "model.hidden": [4], "filter.name": "none"}
shout = lambda record, state: print("round", record["round"])
filfl.simulate(config, callbacks=[shout])
print("SECOND", file=sys.stderr)
filfl.simulate(config, callbacks=[shout], progress=False)
"""


def test_bar_is_on_the_terminal_and_leaves_a_pipe_alone(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, cwd=tmp_path) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += (part := os.read(ours, 4096))
            except OSError:  # the end of a terminal
                break
            if not part:
                break
        printed = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    assert printed == b"round 1\nround 2\nround 3\n" * 2
    first, second = shown.decode().split("SECOND")
    assert "3/3" in first and "accuracy" in first and "round" in first
    assert second.strip() == "", "progress=False shows nothing"


def test_no_bar_without_a_terminal(
    small: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    filfl.simulate(small)
    assert capsys.readouterr() == ("", "")


def test_no_bar_in_a_worker_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert python_console() is not None
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: "a parent")
    assert python_console() is None


def test_every_public_name_can_be_imported() -> None:
    assert len(set(filfl.__all__)) == len(filfl.__all__)
    assert all(getattr(filfl, name) is not None for name in filfl.__all__)


def test_predict_takes_grey_images_without_a_channel() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=200)
    x = (rng.integers(0, 120, size=(200, 4, 4)) + 100 * y[:, None, None]).astype(np.uint8)
    data = filfl.FederatedData.from_arrays(x[:, None], y, np.arange(200) % 5)
    result = filfl.simulate({"rounds": 3, "selection.k": 3}, data=data, progress=False)
    assert (result.predict(x) == result.predict(x[:, None])).all()
    assert result.predict(x[:1]).shape == (1,)
    with pytest.raises(DataError, match="x must be samples like those of the run"):
        result.predict(x[0])
