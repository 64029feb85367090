"""What the shell completes: experiments, plug-ins, keys and values.

This does not import torch, which would take seconds per key press. The names of plug-ins and keys are in names.json,
which `make reference` writes.
"""

import io
import json
import os
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
NAMES = Path(__file__).with_name("names.json")
BASH_WORDS, BASH_PLACE = "COMP_WORDS", "COMP_CWORD"
"""The variables in which bash hands over the words, and the number of the one to complete."""


def experiments(incomplete: str) -> list[str]:
    """Experiments that come with filfl, TOML files, and run directories."""
    own = [path.as_posix() for path in _beginning_with(incomplete) if path.suffix == ".toml"]
    runs = [path.as_posix() for path in _beginning_with(incomplete) if (path / "config.toml").is_file()]
    return _starting(incomplete, [*_experiment_names(), *own, *runs])


def figures(incomplete: str) -> list[str]:
    """The figures that `filfl reproduce` knows."""
    return _starting(incomplete, ["all", *(name for name in _experiment_names() if "figure" in _experiment(name))])


def scales(incomplete: str) -> list[str]:
    """The scales of the experiments that come with filfl."""
    known = [scale for name in _experiment_names() for scale in _experiment(name).get("scale", {})]
    return _starting(incomplete, dict.fromkeys(["laptop", *known]))


def sections_and_plugins(incomplete: str) -> list[str]:
    """What `filfl list` can show."""
    names = _names()
    sections = dict.fromkeys(key.partition(".")[0] for key in names if "." in key)
    plugins = [name for key, values in names.items() if key.endswith(".name") for name in values]
    return _starting(incomplete, dict.fromkeys([*sections, *plugins]))


def datasets(incomplete: str) -> list[str]:
    return _starting(incomplete, _names()["data.name"])


def trackers(incomplete: str) -> list[str]:
    return _starting(incomplete, ["tensorboard", "mlflow", "wandb"])


def changes(incomplete: str) -> list[str]:
    """The keys of a config, and after the = the values of those that have a fixed set of them."""
    key, equals, _ = incomplete.partition("=")
    named = [f"{key}={value}" for value in _names().get(key, [])] if equals else [f"{each}=" for each in _names()]
    return _starting(incomplete, named)


def key_of(option: str) -> str | None:
    """The key of the config that a word such as --rounds or --lr means; None if it is none, or could be several."""
    word = option.lstrip("-").replace("-", "_")
    keys = [key for key in _names() if word in (key, key.rpartition(".")[2])]
    return word if word in keys else keys[0] if len(keys) == 1 else None


@contextmanager
def words_of_bash() -> Iterator[None]:
    """Put together what bash splits at =, and print only what it wants instead of the last word.

    For `--set filter.name=dg`, it hands over `filter.name`, `=` and `dg`, and replaces `dg`.
    """
    words, place = os.environ.get(BASH_WORDS, "").split("\n"), int(os.environ.get(BASH_PLACE, "0"))
    if "_FILFL_COMPLETE" not in os.environ or "=" not in words[: place + 1]:
        yield
        return
    joined: list[str] = []
    for before, word in pairwise(["", *words[:place], *(words[place : place + 1] or [""])]):
        if joined and "=" in (before, word):
            joined[-1] += word
        else:
            joined.append(word)
    os.environ[BASH_WORDS], os.environ[BASH_PLACE] = "\n".join(joined), str(len(joined) - 1)
    answer = io.StringIO()
    try:
        with redirect_stdout(answer):
            yield
    finally:
        given = joined[-1].rpartition("=")[0]
        for line in answer.getvalue().splitlines():
            print(line.removeprefix(f"{given}=") if given else line)


@cache
def _names() -> dict[str, list[str]]:
    names: dict[str, list[str]] = json.loads(NAMES.read_text(encoding="utf-8"))
    return names


def _experiment_names() -> list[str]:
    return sorted(path.stem for path in EXPERIMENTS.glob("*.toml"))


def _experiment(name: str) -> dict[str, Any]:
    return tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text(encoding="utf-8"))


def _beginning_with(incomplete: str) -> Iterator[Path]:
    """The files and folders whose path starts like this."""
    folder, _, _ = incomplete.rpartition("/")
    where = Path(folder or ("/" if incomplete.startswith("/") else "."))
    try:
        yield from sorted(path for path in where.iterdir() if not path.name.startswith("."))
    except OSError:
        return


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
