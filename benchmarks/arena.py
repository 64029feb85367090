"""docs/robustness.md from the runs of `filfl reproduce arena`.

    python benchmarks/arena.py [DIR ...]

The directories are those of `filfl reproduce NAME --out DIR`. Without any, the page is written again. The numbers of
every name whose runs are all finished are stored in benchmarks/results/NAME.json.
"""

import json
import statistics
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from filfl.config.experiment import Experiment
from filfl.display import count
from filfl.report.measures import measure_named
from filfl.report.plots import heat_map
from filfl.report.series import rounded
from filfl.runs import Run, read_run
from markdown_page import markdown_page

DOCS = Path(__file__).parent.parent / "docs"
RESULTS = Path(__file__).parent / "results"
TEMPLATE = Path(__file__).parent / "templates" / "robustness.md.j2"
WRITTEN = Path(__file__).parent / "templates" / "robustness-written.md"
"""The part of the page that is written by hand."""
NAMES = ("arena", "arena-shares", "arena-filtering-set", "arena-femnist")
CLEAN, ORACLE, BACKDOOR = "none", "oracle", "backdoor"
USES_V = ("fltrust", "zeno", "dgf", "rgf", "local", "prune")
"""Defences that use the filtering set begin with one of these."""
RECOMMENDED = "prune-median"
PANELS = {
    "all": "All of 20 clients take part",
    "some": "5 of 50 of 100 clients take part",
    "m-100": "V of 100 samples",
    "m-20": "V of 20 samples",
    "half-of-the-classes": "V with half of the classes",
    "10 %": "10 % of the clients attack",
    "50 %": "50 % of the clients attack",
}
HEADINGS = ("defence", "worst case", "under", "no attack", "cost", "backdoor success", "AUC", "server ms", "MB")
MEASURES = {"success": "metrics.attack_success", "auc": "auc", "uplink": "uplink"}

Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""The numbers of one panel: defence, then attack, then measure -> the values of the seeds."""


def measured(run: Run) -> dict[str, float | None]:
    """The numbers of one run: the accuracy of the last round, and the server's seconds per round, for filtering and
    aggregation."""
    found = {"accuracy": run.records[-1]["test_accuracy"]}
    found |= {name: measure_named(key).of(run.records) for name, key in MEASURES.items()}
    server = [sum(phases.get(phase, 0.0) for phase in ("filter", "aggregate")) for phases in run.times.values()]
    uplink = found["uplink"]
    found["uplink"] = uplink / len(run.records) if uplink is not None else None
    found["seconds"] = statistics.fmean(server) if server else None
    return {name: value if value is None else rounded(value, 5) for name, value in found.items()}


def collect(directory: Path) -> dict[str, Any]:
    """All numbers of a finished comparison whose arms are defence-...-attack."""
    plan = tomllib.loads((directory / "comparison.toml").read_text(encoding="utf-8"))
    levels = {arm.name: arm.levels for arm in Experiment.load(plan["name"]).checked_arms()}
    panels: dict[str, dict[str, dict[str, dict[str, list[float | None]]]]] = {}
    rounds: dict[str, int] = {}
    for arm, folders in plan["runs"].items():
        defence, panel, attack = placed(levels[arm])
        runs = [read_run(directory / folder) for folder in folders]
        numbers = [measured(run) for run in runs]
        cell = {name: [number[name] for number in numbers] for name in numbers[0]}
        kept = {name: values for name, values in cell.items() if any(value is not None for value in values)}
        panels.setdefault(panel, {}).setdefault(defence, {})[attack] = kept
        rounds[panel] = len(runs[0].records)
    versions = runs[0].summary["versions"] if runs[0].summary else {}
    return {"seeds": plan["seeds"], "rounds": rounds, "versions": versions, "panels": panels}


def placed(levels: Sequence[str]) -> tuple[str, str, str]:
    """Defence, panel and attack of an arm. The share of attackers at the end of an attack's name is a panel."""
    defence, *panel, attack = levels
    name, _, share = attack.rpartition("-")
    return (defence, f"{share} %", name) if share.isdigit() else (defence, " ".join(panel), attack)


def finished(directory: Path) -> bool:
    return (directory / "summary.json").exists()


# What the page shows.


def mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else float("nan")


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of the width of its 95 % interval, by Student's t."""
    n = len(values)
    half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else float("nan")
    return statistics.fmean(values), half


def attacks_of(cells: Cells) -> list[str]:
    return list(dict.fromkeys(attack for row in cells.values() for attack in row))


def harmful(cells: Cells) -> list[str]:
    """The attacks that count for the worst case: a backdoor is measured by its success."""
    return [attack for attack in attacks_of(cells) if attack not in (CLEAN, BACKDOOR)]


def worst_case(cells: Cells, defence: str) -> tuple[str, float, float]:
    """The attack under which the mean accuracy is lowest, this accuracy, and half of the width of its interval."""
    row = cells[defence]
    worst = min(harmful(cells), key=lambda attack: mean(row[attack]["accuracy"]))
    return worst, *interval(row[worst]["accuracy"])


def percent(value: float, digits: int = 1) -> str:
    return "" if np.isnan(value) else f"{100 * value:.{digits}f}"


def marked(defence: str) -> str:
    return f"{defence} (V)" if defence.startswith(USES_V) else defence


def table(cells: Cells) -> list[list[str]]:
    """A row for every defence, those with the best worst case first, the oracle at the top."""
    order = sorted(cells, key=lambda defence: (defence != ORACLE, -worst_case(cells, defence)[1]))
    base = mean(cells["mean"][CLEAN]["accuracy"])
    rows = []
    for defence in order:
        row, (worst, accuracy, half) = cells[defence], worst_case(cells, defence)
        seconds = mean(value for cell in row.values() for value in cell.get("seconds", ()))
        uplink = mean(value for cell in row.values() for value in cell.get("uplink", ()))
        auc = mean(value for attack in harmful(cells) for value in row[attack].get("auc", ()))
        success = mean(row[BACKDOOR].get("success", ())) if BACKDOOR in row else float("nan")
        cost = 100 * (mean(row[CLEAN]["accuracy"]) - base)
        rows.append(
            [
                marked(defence),
                percent(accuracy) if np.isnan(half) else f"{percent(accuracy)} ± {percent(half)}",
                worst,
                percent(mean(row[CLEAN]["accuracy"])),
                f"{cost:+.1f}",
                percent(success, 0),
                "" if np.isnan(auc) else f"{auc:.2f}",
                f"{1000 * seconds:.0f}",
                f"{uplink:.2f}",
            ]
        )
    return rows


def failing(cells: Cells, defence: str) -> list[str]:
    """Where another defence is better than this one by more than the intervals of both, by attack."""
    found = []
    for attack in harmful(cells):
        ours, our_half = interval(cells[defence][attack]["accuracy"])
        others = {d: interval(row[attack]["accuracy"]) for d, row in cells.items() if d not in (defence, ORACLE)}
        best = max(others, key=lambda d: others[d][0])
        if others[best][0] - others[best][1] > ours + our_half:
            found.append(f"{attack}: {percent(ours)}, {marked(best)} {percent(others[best][0])}")
    return found


def render(stored: Mapping[str, Any], pictures: Path | None = None) -> str:
    """The page. With a directory, the heat maps are drawn as well."""
    experiments = {name: Experiment.load(name) for name in stored}
    titles = {name: experiment.compare.title or name for name, experiment in experiments.items()}
    for name, study in stored.items() if pictures else ():
        values: dict[tuple[str, ...], float] = {
            (marked(defence), PANELS.get(panel, panel), attack): mean(cell["accuracy"])
            for panel, cells in study["panels"].items()
            for defence, row in cells.items()
            for attack, cell in row.items()
        }
        title = f"{titles[name]}: accuracy in %, {count(len(study['seeds']), 'seed')}. (V): uses the filtering set"
        assert pictures is not None
        heat_map(values, title).savefig(pictures / f"{name}.png", dpi=130)
    page = markdown_page(
        TEMPLATE,
        stored=stored,
        titles=titles,
        shrunk={name: e.figure.shrunk if e.figure else "" for name, e in experiments.items()},
        panels=PANELS,
        headings=HEADINGS,
        recommended=RECOMMENDED,
        written=WRITTEN.read_text(encoding="utf-8").strip(),
        make_table=table,
        make_failing=failing,
    )
    return page.rstrip() + "\n"


def stored_studies() -> dict[str, Any]:
    return {name: json.loads(p.read_text()) for name in NAMES if (p := RESULTS / f"{name}.json").exists()}


def main(directories: Sequence[str]) -> None:
    for name in NAMES:
        for directory in (Path(given) / name for given in directories):
            if finished(directory):
                text = json.dumps(collect(directory), separators=(",", ":"))
                (RESULTS / f"{name}.json").write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
    page = render(stored_studies(), DOCS / "images")
    (DOCS / "robustness.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
