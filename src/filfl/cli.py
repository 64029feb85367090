"""The command line. Each command imports what it needs, so that `filfl --help` does not wait for torch."""

import math
import shlex
import sys
import textwrap
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import filfl
from filfl.commands.interrupt import INTERRUPTED, ending_once
from filfl.commands.terminal import (
    console,
    default_directory,
    missing_words,
    printable,
    resumable,
    say,
    show_comparison,
)
from filfl.errors import ConfigError, FilflError, RunError

app = typer.Typer(
    name="filfl",
    help="Client filtering for federated learning: find the combination of clients that improves the model, "
    "then select the clients that train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a key of the config, e.g. filter.name=rgf. Repeatable."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="Directory for the results.  (default: runs/NAME, or NAME-2, ...)"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")]
ResumeAll = Annotated[bool, typer.Option("--resume", help="Resume an interrupted comparison.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="Also log to tensorboard, mlflow or wandb (offline). Repeatable."),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, metavar="N", help="Number of seeds per arm.  (default: as configured)")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, metavar="N", help="Number of parallel runs.  (default: one per core)"),
]
Target = Annotated[
    float | None,
    typer.Option("--target", metavar="VALUE", help='Accuracy, or primary metric, for the columns "to target".'),
]
Scale = Annotated[
    str | None, typer.Option("--scale", metavar="NAME", help="One of the scales in the config, e.g. paper.")
]
ConfigFile = Annotated[
    str, typer.Argument(metavar="CONFIG.toml", help="A TOML file, or an experiment that comes with filfl, e.g. demo.")
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"filfl {filfl.__version__}")
        raise typer.Exit


@app.command()
def demo(out: Out = None, seeds: Seeds = None, jobs: Jobs = None, resume: ResumeAll = False) -> None:
    """Compare training with and without filtering in two minutes: eight arms, a table and a picture."""
    directory = compare("demo", seeds=seeds, jobs=jobs, out=out, resume=resume)
    say(
        f"Per-round records: {directory}/ARM/SEED/rounds.jsonl\n\n"
        "What to try next:\n"
        "  filfl run demo --set filter.name=rgf       # a single run\n"
        "  filfl compare demo --set data.noisy=0      # no client has random labels\n"
        "  filfl compare demo --set filter.period=1   # filter in every round\n"
        "  filfl list                                 # filters, selections, datasets, ..."
    )


@app.command()
def run(
    source: ConfigFile,
    set_: Set = None,
    scale: Scale = None,
    out: Out = None,
    resume: Resume = False,
    track: Track = None,
) -> None:
    """Run one config."""
    from filfl.comparison.progress import RunDisplay
    from filfl.config.experiment import Experiment, parse_changes
    from filfl.config.plugins import name_of
    from filfl.display import count
    from filfl.runs.seal import CONFIG
    from filfl.runs.summary import LAST
    from filfl.simulation import simulate
    from filfl.trackers import make_trackers

    config = Experiment.load(source).at_scale(scale).config(parse_changes(set_ or []))
    trackers = make_trackers(track or [])
    directory = out or default_directory(config.name, resume, CONFIG)
    say(f"{config.name}: {count(config.rounds, 'round')}, seed {config.seed}", style="bold")
    say(
        f"data {name_of('data', config.data)}, filter {config.filter.name}, "
        f"selection {name_of('selection', config.selection)} (k = {config.selection.k})"
    )
    with resumable(*missing_words(directory, out, resume)), RunDisplay(console, config.rounds) as display:
        result = simulate(config, callbacks=[display, *trackers], out=directory, resume=resume, progress=False, say=say)
    if result.already_finished:
        say("This run was already finished; no round was run.")
    summary = result.summary
    accuracy = "-" if summary["final_accuracy"] is None else f"{summary['final_accuracy']:.3f}"
    say(f"final accuracy      {accuracy} (mean of the last {LAST} tested rounds)")
    for name, value in summary["final_metrics"].items():
        say(f"{f'final {name}':19s} {'-' if value is None else f'{value:.4g}'}")
    say(f"tested on           {summary['test_set']}")
    if "filtering_set" in summary:
        say(f"filtered with       {summary['filtering_set']}")
    say(f"mean |S^f|          {summary['mean_filtered']:.1f}")
    say(f"uplink              {summary['uplink_bytes'] / 1e6:.1f} MB")
    say(f"reward evaluations  {summary['evaluations']}")
    say(f"refused updates     {summary['refused']}")
    say(f"results             {directory}")


@app.command()
def compare(
    source: ConfigFile,
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", "-a", metavar="ARM", help="NAME:KEY=VALUE,... Replaces the config's arms. Repeatable."),
    ] = None,
    set_: Set = None,
    scale: Scale = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    target: Target = None,
    out: Out = None,
    resume: ResumeAll = False,
    track: Track = None,
) -> Path:
    """Run every arm of a config with several seeds, and compare them in a table and pictures."""
    from filfl.comparison.plan import PLAN, plan_arms, run_plans, runs_of
    from filfl.comparison.pool import Given
    from filfl.comparison.progress import ComparisonDisplay
    from filfl.config.experiment import Experiment, parse_arm, parse_changes
    from filfl.report.comparison import report_comparison
    from filfl.system import num_cores
    from filfl.trackers import make_trackers

    experiment = Experiment.load(source).at_scale(scale)
    if arm:
        experiment = replace(experiment, arms=tuple(map(parse_arm, arm)))
    if target is not None and math.isfinite(target):
        experiment = replace(experiment, compare=replace(experiment.compare, target=target))
    changes = parse_changes(set_ or [])
    name = experiment.config(changes).name
    directory = out or default_directory(name, resume, PLAN)
    changed = [*(set_ or []), *([f"scale {scale}"] if scale else [])]
    title = f"{name} with {', '.join(changed)}" if changed else experiment.compare.title or name
    given = Given(callbacks=make_trackers(track or [], directory))
    plan = plan_arms(experiment, directory, title, seeds or experiment.compare.seeds, changes, given)
    runs = runs_of([plan])
    jobs = min(jobs or num_cores(), len(runs))
    say(title, style="bold")
    say(f"arms: {len(plan.arms)}, seeds: {len(plan.seeds)}, runs: {len(runs)} ({jobs} in parallel)", style="bold")
    with resumable(*missing_words(directory, out, resume)), ComparisonDisplay(console, runs) as display:
        run_plans([plan], jobs, resume, display, say)
    show_comparison(report_comparison(plan))
    say(f"For an HTML report: {shlex.join(['filfl', 'report', str(directory)])}")
    return directory


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help='Figures (see --list), "all" of the paper, or TOML files.'),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the figures: claim, arms, expected time.")] = False,
    scale: Annotated[str, typer.Option("--scale", metavar="NAME", help="laptop, or paper (for a GPU).")] = "laptop",
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Number of seeds per arm.")] = 3,
    set_: Set = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Directory for the results.")] = Path(
        "reproduction"
    ),
) -> None:
    """Reproduce figures of the paper and check its claims. The same command resumes an interrupted reproduction."""
    from filfl.commands.reproduce import list_figures, reproduce_command

    if list_:
        list_figures()
    else:
        reproduce_command(names or [], set_ or [], scale, seeds, jobs, out)


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs, comparisons, or folders of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file.")] = Path("report.html"),
) -> None:
    """Write an HTML report of runs and comparisons: verdict, measures, charts, clients, filtering, configuration."""
    from filfl.report.html.collect import collect
    from filfl.report.html.render import render, report_data
    from filfl.runs.files import write_atomic

    sections = collect(directories)
    if not sections:
        raise RunError(
            f"no run found in {', '.join(map(str, directories))}; give the directory of a run (it has a config.toml), "
            "of a comparison (it has a comparison.toml), or a folder of them"
        )
    data = report_data(sections)
    page = render(data).encode("utf-8")
    write_atomic(out, page)
    for section in data["sections"]:
        say(section["title"], style="bold")
        say(f"  {section['headline']['sentence']}")
        for problem in section["problems"]:
            say(f"  {problem}", style="yellow")
    say(f"Open the report in a browser: {out} ({len(page) / 1e6:.1f} MB)")


@app.command()
def clients(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    json_: Annotated[bool, typer.Option("--json", help="A JSON list of objects, one per client.")] = False,
    csv_: Annotated[bool, typer.Option("--csv", help="A CSV table.")] = False,
) -> None:
    """Show which clients of a run help and which hurt, by how much, and how sure that is."""
    from filfl.commands.clients import clients_command

    clients_command(directory, json_, csv_)


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=0, metavar="N", help="Rounds to recompute.  (default: a tenth of the run's time)"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Another seed draws other rounds.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="A JSON object.")] = False,
) -> None:
    """Check the hashes of all files of a run, and recompute some of its rounds to the byte. Exit code 1 if it fails."""
    from filfl.commands.verify import verify_command

    verify_command(directory, rounds, seed, json_)


@app.command()
def watch(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run, a comparison, or a folder of them.")],
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, metavar="PORT", help="A port on this machine.  (default: a free one from 8000)"
        ),
    ] = None,
) -> None:
    """Serve a report that is updated while the runs are running, for a browser on this machine."""
    from filfl.report.html.server import LOOPBACK, LiveReport, open_server

    live = LiveReport([directory])
    live.now()  # so that a missing directory is an error here, not in the browser
    with open_server(live, port) as server, suppress(KeyboardInterrupt):
        say(f"Report of {directory}: http://{LOOPBACK}:{server.server_port}/ (Ctrl-C to stop)")
        server.serve_forever()
    say("")


@app.command("data")
def data_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset, e.g. femnist (see filfl list).")],
    path: Annotated[str | None, typer.Option("--path", metavar="PATH", help="The dataset's file or folder.")] = None,
    set_: Set = None,
    picture: Annotated[Path, typer.Option("--picture", metavar="FILE", help="Plot of the labels per client.")] = Path(
        "labels.png"
    ),
) -> None:
    """Describe a dataset: clients, sizes, classes, label skew, and a plot of the labels per client."""
    from filfl.config.experiment import Experiment, parse_changes
    from filfl.report.dataset import draw_labels, facts
    from filfl.runs.files import cannot_write

    changes = {"data.name": name, **({"data.path": path} if path else {}), **parse_changes(set_ or [])}
    # The smallest k: the default one may be larger than the number of clients of a small dataset.
    config = Experiment({"selection": {"k": 1}}).config(changes)
    config.require_objects()
    dataset = config.data.load(config.seed)
    described = facts(dataset)
    width = max(map(len, described))
    say(name, style="bold")
    for fact, value in described.items():
        hanging = " " * (width + 4)
        say(textwrap.fill(f"  {fact:{width}s}  {value}", console.width, subsequent_indent=hanging))
    if dataset.classes:
        try:
            draw_labels(dataset, f"{name}: samples of every label on every client", picture)
        except OSError as error:
            raise cannot_write(picture, error) from None
        say(f"picture  {picture}")


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="A section, plug-in or import path: show its options.")] = None,
) -> None:
    """Show all plug-ins, or the options of one of them."""
    from filfl.commands.catalogue import list_command

    list_command(name)


def main() -> None:
    """The entry point. A user's mistake ends in an error message, not in a traceback."""
    sys.path.append(str(Path.cwd()))  # for plug-ins by import path; at the end, so that no file here hides a package
    with ending_once() as interrupts:
        try:
            app()
        except (FilflError, OSError) as error:
            for line in str(error).splitlines():
                print(f"error: {printable(line)}", file=sys.stderr)
            sys.exit(2 if isinstance(error, ConfigError) else 1)
        except MemoryError as error:
            reason = str(error) or "use fewer clients, a smaller model or less data"
            print(f"error: out of memory: {reason}", file=sys.stderr)
            sys.exit(1)
        except Exception:
            if interrupts.first is None:
                raise
            sys.exit(INTERRUPTED)  # an import that is interrupted can raise any exception


if __name__ == "__main__":
    main()
