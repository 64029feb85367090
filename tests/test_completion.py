"""Shell completion: what bash offers, and that it does not wait for torch."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from filfl.commands import completion, names

EXECUTABLE = f"""#!{sys.executable}
import sys
from filfl.__main__ import main
sys.argv[0] = "filfl"
main()
"""

NAMED_SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
"""typer takes the name of the shell as a value, instead of looking which one started the tests."""


def test_names_are_those_of_the_config() -> None:
    assert completion.NAMES.read_text(encoding="utf-8") == names.render(), "run make reference"


def test_completion_does_not_import_torch(environment: dict[str, str]) -> None:
    code = "import sys; from filfl.commands import completion as c; import filfl.cli; "
    code += "c.experiments('d'), c.figures('p'), c.sections_and_plugins('f'), c.changes('filter.'); "
    code += "print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_experiments_files_and_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "delta.toml").touch()
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.toml").touch()
    assert completion.experiments("de") == ["demo", "delta.toml"]
    assert completion.experiments("runs/") == ["runs/one"]
    assert completion.figures("al") == ["all"] and "demo" not in completion.figures("")


def test_keys_and_values_are_completed() -> None:
    assert "filter.name=" in completion.changes("filter.n")
    assert completion.changes("filter.name=dg") == ["filter.name=dgf"]
    assert completion.changes("execution.tf32=") == ["execution.tf32=true", "execution.tf32=false"]
    assert completion.changes("rounds=") == []
    assert {"filter", "power-of-choice"} <= set(completion.sections_and_plugins(""))
    assert completion.datasets("mn") == ["mnist5k"]


@pytest.fixture
def bash(tmp_path: Path, environment: dict[str, str]):
    """What bash offers for a line, with the script of --show-completion."""
    if not shutil.which("bash"):
        pytest.skip("bash is not installed")
    executable = tmp_path / "filfl"
    executable.write_text(EXECUTABLE)
    executable.chmod(0o755)
    environment = {**environment, **NAMED_SHELL, "PATH": f"{tmp_path}:{environment['PATH']}"}
    shown = subprocess.run(
        [executable, "--show-completion", "bash"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr

    def offered(*words: str) -> list[str]:
        script = f"{shown.stdout}\nCOMP_WORDS=({' '.join(repr(word) for word in words)})\n"
        script += f"COMP_CWORD={len(words) - 1}\n_filfl_completion filfl\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(["bash", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout.split()

    return offered


def test_bash_completes_commands_names_and_changes(bash) -> None:
    assert "reproduce" in bash("filfl", "re")
    assert bash("filfl", "run", "dem") == ["demo"]
    assert bash("filfl", "list", "power") == ["power-of-choice"]
    assert bash("filfl", "run", "demo", "--scale", "l") == ["laptop", "long"]
    # bash splits at =, and replaces only what comes after it.
    assert bash("filfl", "run", "demo", "--set", "filter.name", "=", "dg") == ["dgf"]
    assert bash("filfl", "run", "demo", "--set", "filter.when", "=") == ["algorithm-1", "figure-2"]
    assert bash("filfl", "run", "demo", "--set", "filter.name", "=", "dgf", "--track", "w") == ["wandb"]


def test_install_completion_writes_to_the_home_folder(tmp_path: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "filfl", "--install-completion", "bash"]
    environment |= NAMED_SHELL
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ".bash_completions" in (tmp_path / ".bashrc").read_text()
    assert list((tmp_path / ".bash_completions").iterdir())
