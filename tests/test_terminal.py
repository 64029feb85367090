"""The command line where its output is closed, full, or not able to show a text, and where memory runs out."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import filfl
from filfl.commands import interrupt, terminal
from filfl.commands.interrupt import ending_once
from filfl.commands.terminal import printable
from filfl.data import synthetic
from filfl.data.limits import max_bytes, refuse_bomb
from filfl.errors import ConfigError, DataError


@pytest.mark.skipif(os.name != "posix", reason="the shell is POSIX")
@pytest.mark.parametrize(("redirect", "code"), [(">&-", 0), (">/dev/full", 1), ("| true", 0), ("2>&- >&-", 0)])
def test_closed_and_full_outputs_give_no_traceback(redirect: str, code: int, environment: dict[str, str]) -> None:
    line = f'"{sys.executable}" -m filfl.cli list {redirect}'
    done = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_names_cannot_control_the_terminal(cli, tmp_path: Path) -> None:
    names = np.array(["\x1b[31mred", "a\x07b", "\x9b2J", "\u202eevil", "\ud800", "Zoë"])
    x = np.random.default_rng(0).normal(size=(120, 3))
    data = filfl.FederatedData.from_arrays(x, np.arange(120) % 2, names[np.arange(120) % 6])
    config = {"rounds": 2, "filter.name": "prune", "selection.k": 2, "model.hidden": [4], "execution.mode": "serial"}
    filfl.simulate(config, data=data, out=tmp_path / "run", progress=False)
    shown = cli("clients", "run")
    assert all(line.isprintable() for line in shown.splitlines())
    assert r"\x1b[31mred" in shown and r"a\x07b" in shown and r"\x9b2J" in shown and "Zoë" in shown
    assert printable("two\nlines \u202e") == "two\nlines \\u202e"


def test_memory_that_runs_out_is_an_error_message(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: object, seed: int) -> None:
        raise MemoryError("Unable to allocate 728. TiB for an array")

    monkeypatch.setattr(synthetic.Synthetic, "read", read)
    assert cli("data", "synthetic", code=1) == "error: out of memory: Unable to allocate 728. TiB for an array\n"


def test_only_the_first_ctrl_c_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    cleaned = []
    try:
        with pytest.raises(KeyboardInterrupt), ending_once() as interrupts:
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                assert interrupts.first is not None
                for _ in range(3):
                    signal.raise_signal(signal.SIGINT)
                cleaned.append("all of it")
        assert cleaned == ["all of it"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "the end of Python is not disturbed either"
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_late_ctrl_c_ends_a_command_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(interrupt, "GRACE", 0.0)
    interrupts = interrupt.Interrupts()
    with pytest.raises(KeyboardInterrupt):
        interrupts.handle(signal.SIGINT, None)
    time.sleep(0.01)
    interrupts.handle(signal.SIGINT, None)
    assert ended == [130]


def test_an_ignored_ctrl_c_stays_ignored_and_other_threads_set_no_handler() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ending_once():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

    def use() -> None:
        with ending_once():
            pass

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_limit_of_decompression_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FILFL_MAX_GB", raising=False)
    assert max_bytes() == 4e9
    with pytest.raises(
        DataError, match=r"a.npz has 1.0 MB on the disk and decompresses to more than 4 GB; .*FILFL_MAX_GB"
    ):
        refuse_bomb("a.npz", 5e9, 10**6)
    refuse_bomb("a.npz", 5e9, 5 * 10**9)  # as large on the disk: nothing is hidden
    monkeypatch.setenv("FILFL_MAX_GB", "6")
    refuse_bomb("a.npz", 5e9, 10**6)
    for wrong in ("0", "-1", "many", "nan"):
        monkeypatch.setenv("FILFL_MAX_GB", wrong)
        with pytest.raises(DataError, match="must be a number of GB above 0"):
            max_bytes()


def test_messages_are_cut_in_the_middle() -> None:
    message = str(ConfigError(f"seed must be small (got {'9' * 10**6}); write 1"))
    assert len(message) <= 2000 and message.startswith("seed must") and message.endswith("; write 1")


def test_a_list_of_file_names_breaks_between_names(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(terminal, "console", Console(width=30))
    terminal.say("curves accuracy.png, test-loss.png, filtered.png", wrap=True)
    assert capsys.readouterr().out.split("\n") == ["curves accuracy.png, ", "test-loss.png, filtered.png", ""]
    terminal.say("a/path/that/is/longer/than/the/terminal/is/wide")
    assert capsys.readouterr().out == "a/path/that/is/longer/than/the/terminal/is/wide\n"
