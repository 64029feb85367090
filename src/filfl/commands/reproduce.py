"""`filfl reproduce`: the figures of the paper."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from filfl.commands.compare import show_comparison
from filfl.commands.terminal import console, interrupted, say
from filfl.comparison.figures import Reproduction, figure_names, plan_figures
from filfl.comparison.plan import run_plans, runs_of
from filfl.comparison.pool import RunProgress
from filfl.comparison.progress import ComparisonDisplay
from filfl.config.experiment import Experiment, parse_changes
from filfl.errors import ConfigError
from filfl.report.claims import check_figure, outcomes, verdict
from filfl.report.comparison import report_comparison
from filfl.report.formatting import p_value
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
    for each in figures:
        check_figure(each.figure)
    plans = [each.plan for each in figures]
    runs = runs_of(plans)
    jobs = min(jobs or num_cores(), len(runs))
    say(", ".join(each.name for each in figures), style="bold")
    say(f"{len(runs)} runs at {scale} scale, {jobs} in parallel, results in {out}", style="bold")
    missing = {each.name: {run.directory for run in runs_of([each.plan])} for each in figures}
    try:
        with ComparisonDisplay(console, runs) as display:

            def show(progress: RunProgress) -> None:
                display(progress)
                for each in figures:
                    if progress.finished and progress.directory in missing[each.name]:
                        missing[each.name].remove(progress.directory)
                        if not missing[each.name]:
                            _report(each)

            run_plans(plans, jobs, True, show, say)
    except KeyboardInterrupt:
        interrupted()


def _report(each: Reproduction) -> None:
    """The table and the pictures of a figure whose runs are finished, and whether the paper's claim holds."""
    compare = each.experiment.compare
    comparison = report_comparison(each.plan, compare.target, compare.at, each.figure)
    say("")
    show_comparison(comparison, each.figure.measure)
    values = {arm.arm: {name: spread.values for name, spread in arm.measures.items()} for arm in comparison.statistics}
    say(f"{each.figure.paper}: {each.figure.claim}")
    results = outcomes(each.figure.expect, values)
    for outcome in results:
        p = f", p = {p_value(outcome.tested.welch_p)}" if outcome.tested else ""
        measured = outcome.tested.difference if outcome.tested else outcome.mean
        value = "-" if measured is None else f"{measured:+.4g}" if outcome.tested else f"{measured:.4g}"
        say(f"  {outcome.expectation}: {value}{p}: {outcome.holds}")
    if results:
        say(f"Holds at {each.plan.facts['scale']} scale: {verdict(results)}\n", style="bold")
