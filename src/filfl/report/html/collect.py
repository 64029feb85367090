"""From directories to the sections of a report: comparisons, reproductions, single runs, or folders of them."""

import contextlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filfl.comparison.plan import PLAN
from filfl.errors import RunError
from filfl.runs.reader import Run, is_run, scan_run

DEPTH = 4
"""How many levels of folders below the given one are searched."""
NOT_COMPARED = ("name", "seed", "execution", "checkpoint")
"""Config keys in which runs of one arm may differ."""

Read = Callable[[Path], Run]


@dataclass(frozen=True)
class ArmRuns:
    """One arm of a section: one run per seed of the section, None for a run that was not started."""

    name: str
    against: str
    """The arm it is tested against."""
    runs: tuple[Run | None, ...]

    @property
    def started(self) -> list[Run]:
        return [run for run in self.runs if run is not None]


@dataclass(frozen=True)
class Section:
    """Arms that are compared with each other."""

    title: str
    place: Path
    seeds: tuple[int, ...]
    arms: tuple[ArmRuns, ...]
    target: float | None = None
    planned: bool = True
    """Whether every arm should have a run for every seed."""
    problems: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        """The number of runs that were not started."""
        return sum(run is None for arm in self.arms for run in arm.runs) if self.planned else 0

    @property
    def started(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.started]

    @property
    def finished(self) -> bool:
        return not self.missing and all(run.finished for run in self.started)


def collect(directories: Sequence[Path], read: Read = scan_run) -> list[Section]:
    """All sections of these directories, comparisons first. A run of a comparison is not shown again by itself."""
    comparisons: dict[Path, Path] = {}
    single: dict[Path, Path] = {}
    for directory in directories:
        if not directory.is_dir():
            what = "is a file, not a directory" if directory.exists() else "does not exist"
            raise RunError(f"{directory} {what}: give the directory of a run or of a comparison, such as runs/demo")
        _search(directory, DEPTH, comparisons, single)
    sections = [_comparison(place, read) for place in comparisons.values()]
    shown = {run.directory.resolve() for section in sections for run in section.started}
    return sections + _single_runs([read(place) for resolved, place in single.items() if resolved not in shown])


def _search(directory: Path, depth: int, comparisons: dict[Path, Path], single: dict[Path, Path]) -> None:
    resolved = directory.resolve()
    if (directory / PLAN).is_file():
        comparisons.setdefault(resolved, directory)
    elif is_run(directory):
        single.setdefault(resolved, directory)
    elif depth:
        with contextlib.suppress(OSError):  # a folder without read permission is skipped
            for inner in sorted(directory.iterdir()):
                if inner.is_dir() and not inner.name.startswith("."):
                    _search(inner, depth - 1, comparisons, single)


def _comparison(place: Path, read: Read) -> Section:
    try:
        plan = tomllib.loads((place / PLAN).read_text(encoding="utf-8"))
        seeds = tuple(int(seed) for seed in plan["seeds"])
        arms = tuple(
            ArmRuns(str(name), str(changes["against"]), _runs(place, plan["runs"][name], seeds, read))
            for name, changes in plan["arms"].items()
        )
        if {arm.against for arm in arms} - {arm.name for arm in arms}:
            raise ValueError("an arm is tested against one that does not exist")
        title = str(plan["title"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _damaged_comparison(place, read)
    return Section(title, place, seeds, arms, _target(plan, place / "summary.json"))


def _runs(place: Path, paths: Sequence[str], seeds: Sequence[int], read: Read) -> tuple[Run | None, ...]:
    if len(paths) != len(seeds):
        raise ValueError("there must be one run per seed")
    return tuple(read(place / path) if is_run(place / path) else None for path in paths)


def _damaged_comparison(place: Path, read: Read) -> Section:
    """A comparison whose plan cannot be read: the arms are derived from the runs in its directory."""
    single: dict[Path, Path] = {}
    for inner in sorted(place.iterdir()):
        if inner.is_dir():
            _search(inner, DEPTH, {}, single)
    problem = f"{PLAN} is damaged: showing the runs that were found, tested against the one without a filter"
    arms, seeds = _grouped([read(path) for path in single.values()])
    return Section(place.resolve().name, place, seeds, arms, planned=False, problems=(problem,))


def _target(plan: Mapping[str, Any], summary: Path) -> float | None:
    """The target accuracy in the plan, or else the one that the finished comparison used."""
    found = plan.get("target")
    if found is None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(summary.read_bytes())["target"]
    return float(found) if isinstance(found, int | float) and 0 <= found <= 1 else None


def _single_runs(runs: Sequence[Run]) -> list[Section]:
    """One section per dataset, in which its runs are compared with each other."""
    by_data: dict[str, list[Run]] = {}
    for run in runs:
        by_data.setdefault(str(_section_of(run, "data").get("name", "unknown data")), []).append(run)
    sections = []
    for data, members in by_data.items():
        arms, seeds = _grouped(members)
        title = arms[0].name if len(arms) == 1 else f"{len(members)} runs on {data}"
        place = members[0].directory if len(members) == 1 else members[0].directory.parent
        sections.append(Section(title, place, seeds, arms, planned=False))
    return sections


def _grouped(runs: Sequence[Run]) -> tuple[tuple[ArmRuns, ...], tuple[int, ...]]:
    """Runs that differ only in the seed form one arm. It is named after the run, or after its directory if two arms
    have the same name."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        same = {key: value for key, value in run.table.items() if key not in NOT_COMPARED}
        key = json.dumps([run.name, same], sort_keys=True, default=str)
        group = groups.setdefault(key, [])
        if not run.table or any(run.seed == other.seed for other in group):
            groups[f"{key} {run.directory}"] = [run]
        else:
            group.append(run)
    members = [group for group in groups.values() if group]
    names = [group[0].name for group in members]
    labels = names if len(set(names)) == len(names) else _distinct_parts([group[0].directory for group in members])
    seeds = tuple(sorted({run.seed for run in runs}))
    arms = []
    for label, group in zip(labels, members, strict=True):
        by_seed = {run.seed: run for run in group}
        arms.append(ArmRuns(label, labels[_baseline(group[0], members)], tuple(map(by_seed.get, seeds))))
    return tuple(arms), seeds


def _distinct_parts(directories: Sequence[Path]) -> list[str]:
    """The part of each path that differs: rgf and dgf for q/rgf/seed-0 and q/dgf/seed-0."""
    parts = [directory.resolve().parts for directory in directories]
    first = next((i for i, column in enumerate(zip(*parts, strict=False)) if len(set(column)) > 1), 0)
    ends = zip(*(reversed(part[first:]) for part in parts), strict=False)
    last = next((i for i, column in enumerate(ends) if len(set(column)) > 1), 0)
    return ["/".join(part[first : len(part) - last]) for part in parts]


def _baseline(run: Run, groups: Sequence[Sequence[Run]]) -> int:
    """The arm with the same config but without a filter, or else the first arm."""

    def without_filter(other: Run) -> dict[str, Any]:
        return {key: value for key, value in other.table.items() if key not in (*NOT_COMPARED, "filter")}

    unfiltered = (
        i
        for i, (other, *_) in enumerate(groups)
        if _section_of(other, "filter").get("name") == "none" and without_filter(other) == without_filter(run)
    )
    return next(unfiltered, 0)


def _section_of(run: Run, name: str) -> Mapping[str, Any]:
    found = run.table.get(name)
    return found if isinstance(found, Mapping) else {}
