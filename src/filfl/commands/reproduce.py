"""`filfl reproduce`: the figures of the paper."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from filfl.commands.terminal import console, resumable, say, show_comparison
from filfl.comparison.figures import figure_names, plan_figures
from filfl.comparison.plan import Plan, run_plans, runs_of
from filfl.comparison.pool import RunProgress
from filfl.comparison.progress import ComparisonDisplay
from filfl.config.experiment import Experiment, parse_changes
from filfl.config.figure import Figure
from filfl.errors import ConfigError
from filfl.report.claims import check_figure, measured_text, outcomes, second_outcome, values_in
from filfl.report.comparison import report_comparison
from filfl.system import num_cores


def list_figures() -> None:
    """The figures that can be reproduced."""
    width = min(console.width, 110)
    for name in figure_names():
        experiment = Experiment.load(name)
        assert experiment.figure is not None
        arms = [arm.name for arm in experiment.checked_arms()]
        shown = arms if len(arms) <= 12 else [*arms[:6], f"... ({len(arms)} arms)"]
        minutes = f"about {experiment.figure.minutes:g} min on 2 cores"
        say(f"{name}   {experiment.figure.paper}   {minutes}", style="bold")
        for text in (experiment.figure.claim, "arms: " + ", ".join(shown)):
            say(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))


def reproduce_command(
    sources: Sequence[str], pairs: Sequence[str], scale: str, seeds: int, jobs: int | None, out: Path
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
    finished: set[Path] = set()

    def show(progress: RunProgress) -> None:
        display(progress)
        if progress.finished:
            finished.add(progress.directory)
            for plan, figure in figures:
                needed = {run.directory for run in runs_of([plan])}
                if progress.directory in needed and needed <= finished:
                    _report(plan, figure)

    with resumable(), ComparisonDisplay(console, runs) as display:
        run_plans(plans, jobs, True, show, say)


def _report(plan: Plan, figure: Figure) -> None:
    """The table and the pictures of a figure whose runs are finished, and whether the paper's claim holds."""
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
