"""Run the `python` and `bash` blocks of one page of the documentation, in order, in the current folder.

    python -m tests.documentation PAGE

The blocks of a page are one session in one process: a command may read what an example above it wrote. Python blocks
run as they are, each with new names. Commands run with smaller settings, by these rules:

- `filfl run` and `filfl compare`: two rounds, and eight available clients of the demo. `filfl compare`: one seed, one
  run at a time, and two arms if the command names none.
- `filfl watch` serves until it is stopped: only its options are checked.
- Commands that read FEMNIST, Shakespeare or CIFAR-10, which are not part of the project, must come as far as reading
  the data: they may end with the error that names `data.path`.
- `make TARGET`: the target must exist. `pip install`: the extras must exist. Other programs (`git`, `curl`, ...) need a
  network or the environment of a developer, and are not run.
"""

import io
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_RUN = ("git", "curl", "tar", "cd", ".venv/bin/pytest", ".venv/bin/ruff")
NEEDS_DATA = ("femnist", "shakespeare", "cifar10", "reproduce")


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """The code blocks of a page in these languages, in order: (language, code)."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```({'|'.join(languages)})\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(code: str) -> list[str]:
    """The commands of a bash block: lines, with those that end in a backslash joined, without comments."""
    return [line for line in code.replace("\\\n", " ").splitlines() if shlex.split(line, comments=True)]


def shortened(words: list[str]) -> list[str]:
    """A `filfl` command with smaller settings."""
    command, *rest = words
    if command not in ("run", "compare"):
        return words
    small = ["--set", "rounds=2", *(["--set", "availability.n=8"] if rest[0] == "demo" else [])]
    if command == "compare":
        small += ["--seeds", "1", "--jobs", "1"]
        small += [] if "--arm" in rest else ["--arm", "a:filter.name=none", "--arm", "b:filter.name=dgf"]
    return [*words, *small]


def run_filfl(words: list[str]) -> None:
    from typer.main import get_command

    from filfl.cli import app, main

    if words[0] == "watch":
        get_command(app).commands["watch"].make_context("watch", words[1:])
        return
    sys.argv = ["filfl", *shortened(words)]
    errors = io.StringIO()
    try:
        with redirect_stderr(errors):
            main()
    except SystemExit as ended:
        missing = errors.getvalue().startswith("error: data.path") and any(name in words for name in NEEDS_DATA)
        if ended.code and not missing:
            raise SystemExit(f"{shlex.join(words)} failed: {errors.getvalue()}") from None


def run_command(line: str) -> None:
    program, *words = shlex.split(line, comments=True)
    if program == "filfl":
        run_filfl(words)
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = {name for word in words for found in re.findall(r"\[(.*)\]", word) for name in found.split(",")}
        assert words[0] == "install" and asked <= extras.keys(), line
    elif program == "echo":
        subprocess.run(line, shell=True, check=True)
    else:
        assert program in NOT_RUN, f"say in {__file__} how to test {program}"


def main() -> None:
    page = ROOT / sys.argv[1]
    for language, code in blocks(page, "python", "bash"):
        if language == "python":
            exec(compile(code, page.name, "exec"), {"__name__": "__main__"})
        else:
            for line in commands(code):
                print("$", line)
                run_command(line)


if __name__ == "__main__":
    main()
