"""From directories to the sections of a report: comparisons, reproductions, single runs, or folders of them."""

import contextlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filfl.compare import PLAN
from filfl.errors import RunError
from filfl.report.stored import StoredRun, is_run

DEEP = 4
"""How many folders below the given one are looked into."""
FACTS = "summary.json"
ASIDE = ("name", "seed", "execution", "checkpoint")
"""Keys in which runs of one arm may differ."""

Read = Callable[[Path], StoredRun]


@dataclass(frozen=True)
class ArmRuns:
    """One arm of a section: a run for every seed of the section, None where there is none."""

    name: str
    against: str
    runs: tuple[StoredRun | None, ...]

    @property
    def begun(self) -> list[StoredRun]:
        return [run for run in self.runs if run is not None]


@dataclass(frozen=True)
class Section:
    """Arms that belong together."""

    title: str
    place: Path
    seeds: tuple[int, ...]
    arms: tuple[ArmRuns, ...]
    target: float | None = None
    planned: bool = True
    """Whether every arm is meant to have a run of every seed."""
    problems: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        """How many runs have not begun."""
        return sum(run is None for arm in self.arms for run in arm.runs) if self.planned else 0

    @property
    def begun(self) -> list[StoredRun]:
        return [run for arm in self.arms for run in arm.begun]

    @property
    def finished(self) -> bool:
        return not self.missing and all(run.finished for run in self.begun)


def collect(directories: Sequence[Path], read: Read) -> list[Section]:
    """All that can be shown of these directories, comparisons first. Runs of a comparison are not shown twice."""
    comparisons: dict[Path, Path] = {}
    loose: dict[Path, Path] = {}
    for directory in directories:
        if not directory.is_dir():
            what = "is a file, not a directory" if directory.exists() else "does not exist"
            raise RunError(f"{directory} {what}: give the directory of a run or of a comparison, such as runs/demo")
        _walk(directory, DEEP, comparisons, loose)
    sections = [_comparison(place, read) for place in comparisons.values()]
    shown = {run.directory.resolve() for section in sections for run in section.begun}
    runs = [read(place) for resolved, place in loose.items() if resolved not in shown]
    return sections + _loose_sections(runs)


def _walk(directory: Path, deep: int, comparisons: dict[Path, Path], loose: dict[Path, Path]) -> None:
    resolved = directory.resolve()
    if (directory / PLAN).is_file():
        comparisons.setdefault(resolved, directory)
    elif is_run(directory):
        loose.setdefault(resolved, directory)
    elif deep:
        with contextlib.suppress(OSError):  # a folder that may not be read has nothing to show
            for inner in sorted(directory.iterdir()):
                if inner.is_dir() and not inner.name.startswith("."):
                    _walk(inner, deep - 1, comparisons, loose)


def _comparison(place: Path, read: Read) -> Section:
    facts = _facts(place / FACTS)
    try:
        plan = tomllib.loads((place / PLAN).read_text(encoding="utf-8"))
        seeds = tuple(int(seed) for seed in plan["seeds"])
        names = {str(name): dict(changes).get("against") for name, changes in plan["arms"].items()}
        places = {name: _places(place, name, seeds, plan.get("runs")) for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _without_plan(place, read)
    first = next(iter(names), "")
    arms = tuple(
        ArmRuns(
            name,
            against if against in names else first,
            tuple(read(path) if is_run(path) else None for path in places[name]),
        )
        for name, against in names.items()
    )
    title = plan.get("title", facts.get("title")) or place.resolve().name
    return Section(str(title), place, seeds, arms, _fraction(plan.get("target", facts.get("target"))))


def _places(place: Path, arm: str, seeds: Sequence[int], runs: Mapping[str, Sequence[str]] | None) -> list[Path]:
    """Where the runs of an arm are: as the plan says, or one folder an arm and seed."""
    if runs is None:
        return [place / arm / f"seed-{seed}" for seed in seeds]
    paths = [place / path for path in runs[arm]]
    if len(paths) != len(seeds):
        raise ValueError("as many runs as seeds")
    return paths


def _without_plan(place: Path, read: Read) -> Section:
    """A comparison whose plan cannot be read: its arms are those of the runs that lie in it."""
    loose: dict[Path, Path] = {}
    for inner in sorted(place.iterdir()):
        if inner.is_dir():
            _walk(inner, DEEP, {}, loose)
    problem = f"{PLAN} is damaged: the arms are those of the runs found, each tested against the one without a filter"
    arms, seeds = _grouped([read(path) for path in loose.values()])
    return Section(place.resolve().name, place, seeds, arms, planned=False, problems=(problem,))


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _fraction(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None


def _loose_sections(runs: Sequence[StoredRun]) -> list[Section]:
    """Single runs: those on one dataset are compared with each other."""
    by_data: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_data.setdefault(str(_section_of(run, "data").get("name", "data unknown")), []).append(run)
    sections = []
    for data, members in by_data.items():
        arms, seeds = _grouped(members)
        title = arms[0].name if len(arms) == 1 else f"{len(members)} runs on {data}"
        place = members[0].directory if len(members) == 1 else members[0].directory.parent
        sections.append(Section(title, place, seeds, arms, planned=False))
    return sections


def _grouped(runs: Sequence[StoredRun]) -> tuple[tuple[ArmRuns, ...], tuple[int, ...]]:
    """Runs that differ in nothing but the seed are one arm, named by its config, or else by where it lies."""
    groups: dict[str, list[StoredRun]] = {}
    for run in runs:
        same = {key: value for key, value in run.table.items() if key not in ASIDE}
        key = json.dumps([run.name, same], sort_keys=True, default=str)
        alike = groups.setdefault(key, [])
        if not run.table or any(run.seed == other.seed for other in alike):
            groups[f"{key} {run.directory}"] = [run]
        else:
            alike.append(run)
    members = [group for group in groups.values() if group]
    names = [group[0].name for group in members]
    labels = names if len(set(names)) == len(names) else _told_apart([group[0].directory for group in members])
    seeds = tuple(sorted({run.seed for run in runs}))
    arms = []
    for label, group in zip(labels, members, strict=True):
        by_seed = {run.seed: run for run in group}
        arms.append(ArmRuns(label, labels[_baseline(group[0], members)], tuple(map(by_seed.get, seeds))))
    return tuple(arms), seeds


def _told_apart(directories: Sequence[Path]) -> list[str]:
    """The part of each path in which they differ: rgf and dgf of q/rgf/seed-0 and q/dgf/seed-0."""
    parts = [directory.resolve().parts for directory in directories]
    first = next((i for i, column in enumerate(zip(*parts, strict=False)) if len(set(column)) > 1), 0)
    ends = zip(*(reversed(part[first:]) for part in parts), strict=False)
    last = next((i for i, column in enumerate(ends) if len(set(column)) > 1), 0)
    return ["/".join(part[first : len(part) - last]) for part in parts]


def _baseline(run: StoredRun, groups: Sequence[Sequence[StoredRun]]) -> int:
    """The arm that is the same but for having no filter; else the first."""

    def bare(other: StoredRun) -> dict[str, Any]:
        return {key: value for key, value in other.table.items() if key not in (*ASIDE, "filter")}

    for i, group in enumerate(groups):
        if _section_of(group[0], "filter").get("name") == "none" and bare(group[0]) == bare(run):
            return i
    return 0


def _section_of(run: StoredRun, name: str) -> Mapping[str, Any]:
    found = run.table.get(name)
    return found if isinstance(found, Mapping) else {}
