"""A short slice of the fuzz campaign: the corpus of every part, and a few random cases. `make fuzz` runs more of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.campaign import Part, run_part
from fuzz.parts import PARTS

ROOT = Path(__file__).parents[1]
CASES = {"configs": 150, "data": 60, "directories": 4, "combinations": 3, "messages": 4, "pages": 1}
"""Random cases per part; those that start processes are left to `make fuzz` and to the tests of kills and signals."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_the_corpus_and_some_random_cases_pass(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzz.pages._chromium", lambda: None)  # tests/test_report_page.py has a browser
    failed = run_part(PARTS[name], seconds=60, seed=0, most=CASES[name])
    assert not failed, capsys.readouterr().out


def test_a_failure_prints_the_command_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Part):
        name = "broken"
        tried: list[float] = []  # noqa: RUF012

        def case(self, rng) -> None:
            self.tried.append(rng.random())
            assert len(self.tried) % 3, "the third case"

    assert run_part(Broken, seconds=60, seed=7, most=5) == 1
    assert "to repeat it: python -m tests.fuzz broken --seed 7 --case 2" in capsys.readouterr().out
    third, first_five = Broken.tried[2], len(Broken.tried)
    run_part(Broken, seconds=60, seed=7, only=2)
    assert Broken.tried[first_five:] == [third], "the same case, alone"


def test_the_command_runs_a_part_within_its_budget() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "tests.fuzz", "configs", "--seconds", "0.1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "configs" in done.stdout and "0 failed" in done.stdout
