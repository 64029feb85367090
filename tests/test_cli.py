"""The command line, with real processes and files."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path

import pytest

from filfl.system import num_cores

CONFIG = """
name = "tiny"
rounds = 6
[data]
clients = 12
[model]
hidden = [8]
[availability]
name = "redraw"
n = 8
[filter]
size = 40
[selection]
k = 3
[arms.none]
"filter.name" = "none"
[arms.dgf]
[arms.rgf]
"filter.name" = "rgf"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def filfl(folder: Path, cli):
    """The command in this process, in the folder with tiny.toml."""
    return cli


@pytest.fixture
def filfl_process(folder: Path, environment: dict[str, str]):
    """Call the command in a new process."""

    def call(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "filfl.cli", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return call


def test_version_and_help(filfl) -> None:
    assert re.fullmatch(r"filfl \d+\.\d+\.\d+\n", filfl("--version"))
    assert all(command in filfl("--help") for command in ("demo", "run", "compare", "report", "watch", "list"))


def test_help_does_not_import_torch(environment: dict[str, str]) -> None:
    code = "import sys; sys.argv = ['filfl', '--help']; import filfl.cli, atexit; "
    code += "atexit.register(lambda: print('torch' in sys.modules, 'numpy' in sys.modules)); filfl.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False False\n")


def test_list_shows_every_plugin(filfl) -> None:
    from filfl.config.plugins import KINDS

    shown = filfl("list")
    assert "filfl[hub]" in shown, "brackets are not markup"
    for section in KINDS:
        for name in KINDS[section].registry:
            assert re.search(rf"^ *{re.escape(name)} +\S+", shown, re.MULTILINE), name


def test_run_prints_plain_lines_and_stores_the_run(filfl_process, filfl, folder: Path) -> None:
    shown = filfl_process("run", "tiny.toml", "--set", "rounds=4")
    assert len(re.findall(r"^round +\d/4  accuracy +0\.\d{3}  \|S\^f\| +\d+", shown, re.MULTILINE)) == 4
    assert re.search(r"^results +runs/tiny$", shown, re.MULTILINE)
    assert len((folder / "runs" / "tiny" / "rounds.jsonl").read_text().splitlines()) == 4
    assert "runs/tiny-2" in filfl("run", "tiny.toml"), "a second run gets its own directory"


def test_run_shows_a_progress_bar_in_a_terminal(folder: Path, environment: dict[str, str]) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "filfl.cli", "run", "tiny.toml"],
        cwd=folder,
        env={**environment, "TERM": "xterm", "COLUMNS": "100"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # reading at the end of a terminal raises an error
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    assert process.wait() == 0, shown.decode()
    assert re.search(r"round .*━.*6/6.*accuracy .*0\.\d{3}.*\|S\^f\|", shown.decode())


def test_resume_of_a_finished_run_runs_no_round(filfl) -> None:
    filfl("run", "tiny.toml", "--out", "here")
    assert "already finished" in filfl("run", "tiny.toml", "--out", "here", "--resume")
    assert "error: here already contains a run; add --resume" in filfl("run", "tiny.toml", "--out", "here", code=1)
    assert "error: here contains a run with another config (seed" in filfl(
        "run", "tiny.toml", "--out", "here", "--resume", "--set", "seed=3", code=1
    )


def test_a_narrow_terminal_shows_fewer_columns_with_whole_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console
    from rich.table import Table

    from filfl.commands import terminal

    def shown(width: int, expendable: tuple[str, ...] = ()) -> str:
        monkeypatch.setattr(terminal, "console", Console(width=width))
        table = Table("arm", *(f"column-{i}" for i in range(5)), title="title", caption="caption")
        table.add_row("dgf", *(f"value-{i}" for i in range(5)))
        terminal.print_table(table, expendable, " (in all.csv)")
        printed = capsys.readouterr().out
        assert max(map(len, printed.splitlines())) <= width and "…" not in printed
        assert printed.startswith("title") and printed.rstrip().endswith("caption")
        return " ".join(printed.split())

    assert all(f"value-{i}" in shown(100) for i in range(5)) and "Not shown" not in shown(100)
    assert "Not shown at this width: column-4, column-3, column-2 (in all.csv)." in shown(32)
    assert "value-0" in shown(32) and "value-1" in shown(32) and "value-2" not in shown(32)
    assert "Not shown at this width: column-0, column-4, column-3 (in all.csv)." in shown(32, ("column-0",))


def test_data_shows_numbers_and_a_picture(filfl, folder: Path) -> None:
    shown = filfl("data", "digits", "--set", "data.clients=12", "--set", "data.noisy=0.25", "--picture", "p.png")
    assert re.search(r"clients +12 \(3 with random labels\)", shown)
    assert re.search(r"filtering set +143 samples", shown) and re.search(r"test set +359 samples", shown)
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "error: data.path: nowhere does not exist" in filfl("data", "femnist", "--path", "nowhere", code=1)
    assert "error: data.name must be one of" in filfl("data", "nothing", code=2)


def test_user_mistakes_end_in_an_error_message(filfl, folder: Path) -> None:
    (folder / "typo.toml").write_text("[filter]\nperoid = 3\n")
    assert "error: unknown key filter.peroid; did you mean filter.period?" in filfl("run", "typo.toml", code=2)
    assert "error: there is no file absent.toml" in filfl("run", "absent.toml", code=2)
    assert "error: selection.k must be" in filfl("run", "tiny.toml", "--set", "selection.k=9", code=2)
    assert "error: a change must be key=value" in filfl("run", "tiny.toml", "--set", "oops", code=2)
    assert "error: unknown key filter.peroid" in filfl("compare", "typo.toml", "--arm", "x:filter.name=dgf", code=2)
    assert "error: two arms have the name" in filfl("compare", "tiny.toml", "-a", "x:", "-a", "x:", code=2)
    (folder / "alone.toml").write_text("rounds = 3")
    assert "error: there is nothing to compare" in filfl("compare", "alone.toml", code=2)
    assert "error: arms.x: filter.name must be one of" in filfl(
        "compare", "alone.toml", "--arm", "x:filter.name=best", code=2
    )
    assert not (folder / "runs").exists()


def test_compare_writes_a_table_and_pictures(filfl_process, filfl, folder: Path) -> None:
    shown = filfl_process("compare", "tiny.toml", "--seeds", "2", "--target", "0.2", "--out", "c", "--jobs", "2")
    for arm in ("none", "dgf", "rgf"):
        assert re.search(rf"^ *{arm} +0\.\d+±0\.\d+", shown, re.MULTILINE)
    assert "filfl report c" in shown
    for name in ("comparison", "accuracy", "test-loss", "selected-train-loss", "filtered"):
        assert (folder / "c" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    shared = tomllib.loads((folder / "c/dgf/seed-1/config.toml").read_text())["execution"]["workers"]
    assert shared == max(1, num_cores() // 2), "two parallel runs share the cores"
    facts = json.loads((folder / "c" / "summary.json").read_text())
    assert [arm["arm"] for arm in facts["arms"]] == ["none", "dgf", "rgf"]
    assert facts["target"] == 0.2 and facts["arms"][0]["tests"] == {}
    assert facts["arms"][2]["config"] == {"filter.name": "rgf"} and facts["config"]["selection.k"] == 3
    again = filfl_process("compare", "tiny.toml", "--seeds", "2", "--target", "0.2", "--out", "c", "--resume")
    assert json.loads((folder / "c" / "summary.json").read_text()) == facts
    plan = tomllib.loads((folder / "c" / "comparison.toml").read_text())
    assert plan["runs"]["dgf"] == ["dgf/seed-0", "dgf/seed-1"] and plan["arms"]["dgf"]["against"] == "none"
    assert "6/6" in again
    assert "error: c already contains a comparison; add --resume" in filfl("compare", "tiny.toml", "--out", "c", code=1)
    (folder / "thesis").mkdir()
    (folder / "thesis" / "thesis.txt").write_text("mine")
    assert "contains no comparison" in filfl("compare", "tiny.toml", "--out", "thesis", "--resume", code=1)
    (folder / "c" / "comparison.toml").write_text("seeds = ")
    assert "comparison.toml is damaged" in filfl("compare", "tiny.toml", "--out", "c", "--resume", code=1)
    (folder / "c" / "comparison.toml").write_text("seeds = [0]")
    assert "contains another comparison" in filfl(
        "compare", "tiny.toml", "--out", "c", "--resume", "--seeds", "3", code=1
    )


def test_compare_and_run_give_the_same_records(filfl_process, filfl, folder: Path) -> None:
    filfl_process("compare", "tiny.toml", "--seeds", "1", "--out", "c", "--arm", "a:filter.name=rgf", "--jobs", "1")
    filfl("run", "tiny.toml", "--set", "filter.name=rgf", "--out", "r")
    assert (folder / "c/a/seed-0/rounds.jsonl").read_bytes() == (folder / "r/rounds.jsonl").read_bytes()


@pytest.mark.parametrize("command", ["run", "compare"])
def test_ctrl_c_stops_cleanly_and_shows_how_to_resume(command: str, folder: Path, environment: dict[str, str]) -> None:
    where = folder / "out"
    arguments = [sys.executable, "-m", "filfl.cli", command, "tiny.toml", "--set", "rounds=100000"]
    arguments += ["--set", "model.hidden=[8, 8]", "--out", "out"]
    process = subprocess.Popen(
        arguments,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not any(path.stat().st_size for path in where.rglob("rounds.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        for _ in range(1 if command == "run" else 4):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the command and its workers
            time.sleep(0.05)
        shown, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130, shown
    assert "Traceback" not in shown
    assert f"filfl {command} tiny.toml --set rounds=100000" in shown and "--out out --resume" in shown
    assert "'model.hidden=[8, 8]'" in shown, "the command is quoted for the shell"


def test_ctrl_c_during_the_import_ends_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1] / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "filfl", "list"], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 130 and done.stderr == "" and done.stdout == ""


def test_run_takes_a_seed(filfl, folder: Path) -> None:
    assert "seed 5" in filfl("run", "tiny.toml", "--seed", "5", "--set", "rounds=1", "--out", "five")
    assert tomllib.loads((folder / "five" / "config.toml").read_text())["seed"] == 5
    filfl("run", "tiny.toml", "--set", "seed=5", "--set", "rounds=1", "--out", "same")
    assert (folder / "five/rounds.jsonl").read_bytes() == (folder / "same/rounds.jsonl").read_bytes()


def test_run_of_a_run_directory_repeats_it_in_a_new_one(filfl, folder: Path) -> None:
    filfl("run", "tiny.toml", "--set", "rounds=2", "--set", "filter.name=rgf")
    shown = filfl("run", "runs/tiny")
    assert re.search(r"^results +runs/tiny-2$", shown, re.MULTILINE)
    first, second = folder / "runs" / "tiny", folder / "runs" / "tiny-2"
    assert (first / "rounds.jsonl").read_bytes() == (second / "rounds.jsonl").read_bytes()
    assert "seed 9" in filfl("run", "runs/tiny", "--seed", "9", "--out", "nine")
    (folder / "c/arm/seed-0").mkdir(parents=True)
    (folder / "c/arm/seed-0/config.toml").touch()
    assert (
        "error: c is a folder, not a TOML file or the directory of a run; give one of its runs, such as c/arm/seed-0"
        in (filfl("run", "c", code=2))
    )


def test_run_ends_with_the_command_for_a_report(filfl) -> None:
    shown = filfl("run", "tiny.toml", "--set", "rounds=1", "--out", "my run")
    assert shown.splitlines()[-1] == "For an HTML report: filfl report 'my run'"


def test_a_mistyped_experiment_gets_a_hint(filfl) -> None:
    shown = filfl("run", "dmeo", code=2)
    assert shown.startswith("error: there is no file dmeo and no experiment of that name; did you mean demo? (known: ")
    assert "did you mean" not in filfl("run", "nothing-like-it-at-all", code=2)


@pytest.mark.parametrize(
    ("option", "key"), [("--rounds", "rounds"), ("--lr", "training.lr"), ("--filter.name", "filter.name")]
)
def test_a_key_given_as_an_option_gets_a_hint(filfl, option: str, key: str) -> None:
    assert f"No such option: {option}. To set this key of the config: --set {key}=VALUE" in words_of(
        filfl("run", "demo", option, "3", code=2)
    )
    assert "--set" not in filfl("run", "demo", "--every", "3", code=2), "several keys end in this word"
    assert "--set" not in filfl("report", "--rounds", "3", code=2)


def words_of(shown: str) -> str:
    """The text of a box, on one line."""
    return " ".join(word for word in shown.split() if word != "│")


def json_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """What a command writes to stdout, which must be one JSON document."""
    from filfl.cli import main

    monkeypatch.setattr(sys, "argv", ["filfl", *arguments, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert not ended.value.code, shown.err
    return json.loads(shown.out)


def test_json_of_every_command(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    ask = partial(json_of, capsys, monkeypatch)
    listed = ask("list")
    assert listed["filter"]["none"] == "No filtering: plain federated learning." and "iid" in listed["data.partition"]
    (shown,) = ask("list", "redraw")
    assert shown["title"] == 'availability.name = "redraw"'
    assert [option["key"] for option in shown["options"]] == ["availability.n", "availability.every"]
    described = ask("data", "digits", "--set", "data.clients=12", "--set", "data.noisy=0.25")
    assert described["clients"] == 12 and described["clients_with_random_labels"] == 3
    assert described["classes"] == 10 and described["test_set"]["samples"] == 359
    assert described["picture"] == "labels.png" and 0 <= described["label_skew"] <= 1
    ran = ask("run", "tiny.toml", "--set", "rounds=2", "--out", "r")
    assert ran["directory"] == "r" and ran["already_finished"] is False and ran["summary"]["rounds"] == 2
    assert ask("run", "tiny.toml", "--set", "rounds=2", "--out", "r", "--resume")["already_finished"] is True
    clients = ask("clients", "r")
    assert len(clients) == 8 and {"name", "value", "verdict"} <= clients[0].keys(), "those that were available"
    assert ask("verify", "r")["ok"] is True
    compared = ask("compare", "tiny.toml", "--set", "rounds=2", "--seeds", "1", "--jobs", "1", "--out", "c")
    assert [arm["arm"] for arm in compared["summary"]["arms"]] == ["none", "dgf", "rgf"]
    assert compared["directory"] == "c" and compared["pictures"][0] == "c/comparison.png"
    figures = {figure["name"]: figure for figure in ask("reproduce", "--list")}
    assert "poc-femnist" in figures and figures["convergence"]["minutes"] > 0


def test_json_of_a_reproduction(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    figure = '[figure]\npaper = "Figure 0"\nclaim = "None."\nshrunk = "All."\nminutes = 1\n'
    figure += 'expect = ["dgf accuracy > none"]\n'
    (folder / "fig.toml").write_text(CONFIG.replace("rounds = 6", "rounds = 2") + figure)
    (reproduced,) = json_of(capsys, monkeypatch, "reproduce", "fig.toml", "--seeds", "1", "--jobs", "1", "--out", "o")
    assert reproduced["name"] == "fig" and reproduced["directory"] == "o/fig"
    (expectation,) = reproduced["expectations"]
    assert expectation["expectation"] == "dgf accuracy > none" and expectation["decision"] == "open"
    assert reproduced["summary"]["scale"] == "laptop"
