"""The command line. Each command imports what it needs, so that `filfl --help` does not wait for torch."""

import math
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import filfl
from filfl.commands import completion
from filfl.commands.interrupt import INTERRUPTED, ending_once
from filfl.commands.terminal import for_a_program, print_json, printable, say
from filfl.errors import ConfigError, FilflError, RunError


class SetsKeys(TyperCommand):
    """A command with --set. An unknown option that is a key of the config is answered with the way to set this key."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = {option for parameter in self.params for option in parameter.opts}
        for option in (word.partition("=")[0] for word in args if word.startswith("--")):
            key = completion.key_of(option) if option not in options else None
            if key is not None:
                ctx.fail(f"No such option: {option}. To set this key of the config: --set {key}=VALUE")
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="filfl",
    help="Client filtering for federated learning: find the combination of clients that improves the model, "
    "then select the clients that train.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Set a key of the config, e.g. filter.name=rgf. Repeatable.",
        autocompletion=completion.changes,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="Directory for the results.  (default: runs/NAME, or NAME-2, ...)"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")]
ResumeAll = Annotated[bool, typer.Option("--resume", help="Resume an interrupted comparison.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME",
        help="Also log to tensorboard, mlflow or wandb (offline). Repeatable.",
        autocompletion=completion.trackers,
    ),
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
    str | None,
    typer.Option(
        "--scale",
        metavar="NAME",
        help="One of the scales in the config, e.g. paper. Says what it will take.",
        autocompletion=completion.scales,
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A TOML file, an experiment that comes with filfl, e.g. demo, or the directory of a run.",
        autocompletion=completion.experiments,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document; everything else goes to stderr. See docs/json.md.")
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
    from filfl.commands.compare import compare_command
    from filfl.config.experiment import Experiment

    comparison = compare_command(Experiment.load("demo"), [], None, seeds, jobs, out, resume, [])
    say(
        f"Per-round records: {comparison.directory}/ARM/SEED/rounds.jsonl\n\n"
        "What to try next:\n"
        "  filfl run demo --set filter.name=rgf       # a single run\n"
        "  filfl compare demo --set data.noisy=0      # no client has random labels\n"
        "  filfl compare demo --set filter.period=1   # filter in every round\n"
        "  filfl list                                 # filters, datasets and more"
    )


@app.command(cls=SetsKeys)
def run(
    source: Source,
    set_: Set = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, metavar="N", help="The same as --set seed=N.")] = None,
    scale: Scale = None,
    out: Out = None,
    resume: Resume = False,
    track: Track = None,
    json_: Json = False,
) -> None:
    """Run one config. With the directory of a run: run its config again, in a new directory."""
    from filfl.commands.run import run_command
    from filfl.config.experiment import parse_changes

    changes = parse_changes(set_ or []) | ({} if seed is None else {"seed": seed})
    with for_a_program(json_):
        run_command(source, changes, scale, out, resume, track or [], json_)


@app.command(cls=SetsKeys)
def compare(
    source: Source,
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
    json_: Json = False,
) -> None:
    """Run every arm of a config with several seeds, and compare them in a table and pictures."""
    from filfl.commands.compare import compare_command, comparison_table
    from filfl.config.experiment import Experiment, parse_arm

    experiment = Experiment.load(source).at_scale(scale)
    if arm:
        experiment = replace(experiment, arms=tuple(map(parse_arm, arm)))
    if target is not None and math.isfinite(target):
        experiment = replace(experiment, compare=replace(experiment.compare, target=target))
    with for_a_program(json_):
        comparison = compare_command(experiment, set_ or [], scale, seeds, jobs, out, resume, track or [])
    if json_:
        print_json(comparison_table(comparison))


@app.command(cls=SetsKeys)
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...",
            help='Figures (see --list), "all" of the paper, or TOML files.',
            autocompletion=completion.figures,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the figures: claim, arms, expected time.")] = False,
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar="NAME",
            help="laptop, or paper (for a GPU; says what it will take).",
            autocompletion=completion.scales,
        ),
    ] = "laptop",
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Number of seeds per arm.")] = 3,
    set_: Set = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Directory for the results.")] = Path(
        "reproduction"
    ),
    json_: Json = False,
) -> None:
    """Reproduce figures of the paper and check its claims. The same command resumes an interrupted reproduction."""
    from filfl.commands.reproduce import list_figures, reproduce_command

    if list_:
        list_figures(json_)
        return
    with for_a_program(json_):
        reproduce_command(names or [], set_ or [], scale, seeds, jobs, out, json_)


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
    json_: Json = False,
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
    json_: Json = False,
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
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A dataset, e.g. femnist (see filfl list).", autocompletion=completion.datasets
        ),
    ],
    path: Annotated[str | None, typer.Option("--path", metavar="PATH", help="The dataset's file or folder.")] = None,
    set_: Set = None,
    picture: Annotated[Path, typer.Option("--picture", metavar="FILE", help="Plot of the labels per client.")] = Path(
        "labels.png"
    ),
    json_: Json = False,
) -> None:
    """Describe a dataset: clients, sizes, classes, label skew, and a plot of the labels per client."""
    from filfl.commands.data import data_command
    from filfl.config.experiment import parse_changes

    changes = {**({"data.path": path} if path else {}), **parse_changes(set_ or [])}
    with for_a_program(json_):
        data_command(name, changes, picture, json_)


@app.command("list")
def list_(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A section, plug-in or import path: show its options.", autocompletion=completion.sections_and_plugins
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Show all plug-ins, or the options of one of them."""
    from filfl.commands.catalogue import list_command

    list_command(name, json_)


def main() -> None:
    """The entry point. A user's mistake ends in an error message, not in a traceback."""
    sys.path.append(str(Path.cwd()))  # for plug-ins by import path; at the end, so that no file here hides a package
    with completion.words_of_bash(), ending_once() as interrupts:
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
