"""`filfl reproduce`: the figures of the paper."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filfl.commands.compare import comparison_table
from filfl.commands.scale import say_expected_time
from filfl.commands.terminal import console, print_json, resumable, say, show_comparison
from filfl.comparison.figures import ALL, figure_names, paper_names, plan_figures, total_minutes
from filfl.comparison.plan import Plan, run_plans, runs_of
from filfl.comparison.pool import RunProgress
from filfl.comparison.progress import ComparisonDisplay
from filfl.config.experiment import Experiment, parse_changes
from filfl.config.figure import Figure
from filfl.errors import ConfigError
from filfl.report.claims import Outcome, check_figure, measured_text, outcomes, second_outcome, values_in
from filfl.report.comparison import report_comparison
from filfl.system import num_cores


def list_figures(as_json: bool = False) -> None:
    """The figures that can be reproduced."""
    if as_json:
        print_json([_listed(name) for name in figure_names()])
        return
    width = min(console.width, 110)
    for name in figure_names():
        experiment = Experiment.load(name)
        assert experiment.figure is not None
        arms = [arm.name for arm in experiment.checked_arms()]
        shown = arms if len(arms) <= 12 else [*arms[:6], f"... ({len(arms)} arms)"]
        minutes = f"about {experiment.figure.minutes:g} min on 2 cores"
        minutes += " (estimated, not measured)" if experiment.figure.estimated else ""
        say(f"{name}   {experiment.figure.paper}   {minutes}", style="bold")
        for text in (experiment.figure.claim, "arms: " + ", ".join(shown)):
            say(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))
    total = total_minutes(paper_names())
    say(f"{ALL}   the {len(paper_names())} figures of the paper   about {total:.0f} min on 2 cores", style="bold")
    say("    A run that several figures have in common is made once.")


def _listed(name: str) -> dict[str, Any]:
    """A figure in the JSON list."""
    experiment = Experiment.load(name)
    figure = experiment.figure
    assert figure is not None
    facts = {"paper": figure.paper, "claim": figure.claim, "expect": list(figure.expect), "minutes": figure.minutes}
    return {"name": name, **facts, "arms": [arm.name for arm in experiment.checked_arms()]}


def reproduce_command(
    sources: Sequence[str],
    pairs: Sequence[str],
    scale: str,
    seeds: int,
    jobs: int | None,
    out: Path,
    as_json: bool = False,
) -> None:
    if not sources:
        raise ConfigError("name the figures to reproduce (see filfl reproduce --list), or write all")
    figures = plan_figures(sources, scale, seeds, parse_changes(pairs), out)
    for _, figure in figures:
        check_figure(figure)
    plans = [plan for plan, _ in figures]
    runs = runs_of(plans)
    jobs = min(jobs or num_cores(), len(runs))
    say(", ".join(plan.directory.name for plan in plans), style="bold")
    say(f"{len(runs)} runs at {scale} scale, {jobs} in parallel, results in {out}", style="bold")
    say_expected_time(scale, [run.config for run in runs])
    finished: set[Path] = set()
    reported: list[dict[str, Any]] = []

    def show(progress: RunProgress) -> None:
        display(progress)
        if progress.finished:
            finished.add(progress.directory)
            for plan, figure in figures:
                needed = {run.directory for run in runs_of([plan])}
                if progress.directory in needed and needed <= finished:
                    reported.append(_report(plan, figure))

    with resumable(), ComparisonDisplay(console, runs) as display:
        run_plans(plans, jobs, True, show, say)
    if as_json:
        print_json(reported)


def _report(plan: Plan, figure: Figure) -> dict[str, Any]:
    """Show a figure whose runs are finished, and whether the paper's claim holds. Returns its JSON object."""
    comparison = report_comparison(plan, figure)
    say("")
    show_comparison(comparison)
    values = values_in(comparison.statistics, comparison.rounds, comparison.target)
    say(f"{figure.paper}: {figure.claim}")
    results = outcomes(figure.expect, values)
    for outcome in results:
        say(f"  {outcome.expectation}: {measured_text(outcome)}: {outcome.decision}")
        if second := second_outcome(outcome.expectation, values):
            say(f"    in the mean over all rounds: {measured_text(second)}: {second.decision}")
    if results:
        decided = sum(outcome.decided for outcome in results)
        say(f"Decided at {plan.facts['scale']} scale: {decided} of {len(results)}\n", style="bold")
    return {
        "name": plan.directory.name,
        "paper": figure.paper,
        "claim": figure.claim,
        "expectations": [_checked(outcome) for outcome in results],
        **comparison_table(comparison),
    }


def _checked(outcome: Outcome) -> dict[str, Any]:
    estimate = outcome.estimate
    low, high = estimate.interval if estimate else (None, None)
    return {
        "expectation": str(outcome.expectation),
        "decision": outcome.decision,
        "difference": estimate.mean if estimate else None,
        "low": low,
        "high": high,
        "p": outcome.tests.get(outcome.deciding) if outcome.deciding else None,
    }
