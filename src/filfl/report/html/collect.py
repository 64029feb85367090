"""From directories to the sections of a report: comparisons, reproductions, single runs, or folders of them."""

import contextlib
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filfl.comparison.plan import PLAN
from filfl.errors import RunError
from filfl.runs.files import regular
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
    """The target that was given; None if there is none."""
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
    places: dict[Path, Path] = {}
    for directory in directories:
        if not directory.is_dir():
            what = "is a file, not a directory" if directory.exists() else "does not exist"
            raise RunError(f"{directory} {what}: give the directory of a run or of a comparison, such as runs/demo")
        for place in _search(directory, DEPTH):
            places.setdefault(place.resolve(), place)
    sections = [_comparison(place, read) for place in places.values() if _is_comparison(place)]
    shown = {run.directory.resolve() for section in sections for run in section.started}
    by_data: dict[str, list[Run]] = {}
    for resolved, place in places.items():
        if resolved not in shown and not _is_comparison(place):
            run = read(place)
            by_data.setdefault(_name_in(run, "data") or "unknown data", []).append(run)
    for data, runs in by_data.items():
        arms, seeds = _grouped(runs)
        title = arms[0].name if len(arms) == 1 else f"{len(runs)} runs on {data}"
        place = runs[0].directory if len(runs) == 1 else runs[0].directory.parent
        sections.append(Section(title, place, seeds, arms, planned=False))
    return sections


def _is_comparison(directory: Path) -> bool:
    return (directory / PLAN).is_file()


def _search(directory: Path, depth: int) -> Iterator[Path]:
    """The comparisons and runs in a directory."""
    if _is_comparison(directory) or is_run(directory):
        yield directory
    elif depth:
        inside = []
        with contextlib.suppress(OSError):  # a folder without read permission is skipped
            inside = sorted(directory.iterdir())
        for inner in inside:
            with contextlib.suppress(OSError):
                if inner.is_dir() and not inner.name.startswith("."):
                    yield from _search(inner, depth - 1)


def _comparison(place: Path, read: Read) -> Section:
    try:
        plan = tomllib.loads(regular(place / PLAN).read_text(encoding="utf-8"))
        seeds = tuple(int(seed) for seed in plan["seeds"])
        arms = []
        for name, changes in plan["arms"].items():
            runs = [read(run) if is_run(run := place / path) else None for path in plan["runs"][name]]
            if len(runs) != len(seeds) or changes["against"] not in plan["arms"]:
                raise ValueError("not one run per seed, or tested against an arm that does not exist")
            arms.append(ArmRuns(name, changes["against"], tuple(runs)))
        return Section(str(plan["title"]), place, seeds, tuple(arms), _target(plan))
    except Exception:  # of any parser, for any content
        problem = f"{PLAN} is damaged: showing the runs that were found, tested against the one without a filter"
        inside = [run for inner in sorted(place.iterdir()) if inner.is_dir() for run in _search(inner, DEPTH)]
        found, seeds = _grouped([read(run) for run in inside if not _is_comparison(run)])
        return Section(place.resolve().name, place, seeds, found, planned=False, problems=(problem,))


def _target(plan: Mapping[str, Any]) -> float | None:
    """The target that the comparison was given; None if it has none."""
    target = plan.get("target")
    return float(target) if isinstance(target, int | float) and math.isfinite(target) else None


def _grouped(runs: Sequence[Run]) -> tuple[tuple[ArmRuns, ...], tuple[int, ...]]:
    """Runs that differ only in the seed form one arm. It is named after the run, or after its directory if two arms
    have the same name."""
    groups: list[list[Run]] = []
    for run in runs:
        for group in groups:
            same = run.table and run.name == group[0].name and _config(run) == _config(group[0])
            if same and all(run.seed != other.seed for other in group):
                group.append(run)
                break
        else:
            groups.append([run])
    labels = [group[0].name for group in groups]
    if len(set(labels)) < len(labels):
        labels = _distinct_parts([group[0].directory for group in groups])
    seeds = tuple(sorted({run.seed for run in runs}))
    arms = []
    for label, group in zip(labels, groups, strict=True):
        by_seed = {run.seed: run for run in group}
        arms.append(ArmRuns(label, labels[_baseline(group[0], groups)], tuple(map(by_seed.get, seeds))))
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
    for i, (other, *_) in enumerate(groups):
        if _name_in(other, "filter") == "none" and _config(other, "filter") == _config(run, "filter"):
            return i
    return 0


def _config(run: Run, *without: str) -> dict[str, Any]:
    return {key: value for key, value in run.table.items() if key not in (*NOT_COMPARED, *without)}


def _name_in(run: Run, section: str) -> str | None:
    """The name of a plug-in in the config of a run."""
    found = run.table.get(section)
    return str(found["name"]) if isinstance(found, Mapping) and "name" in found else None
