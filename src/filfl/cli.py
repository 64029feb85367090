"""The command line. Each command imports its own module, so that `filfl --help` does not wait for torch."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import filfl
from filfl.errors import ConfigError, FilflError

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
    typer.Option("--target", min=0, max=1, metavar="ACCURACY", help='Test accuracy for the columns "to target".'),
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
    """Compare training with and without filtering in a minute or two: six arms, a table and a picture."""
    from filfl.commands.compare import compare_command
    from filfl.commands.terminal import say

    directory = compare_command("demo", None, out, [], None, seeds, jobs, None, resume)
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
    config: ConfigFile,
    set_: Set = None,
    scale: Scale = None,
    out: Out = None,
    resume: Resume = False,
    track: Track = None,
) -> None:
    """Run one config."""
    from filfl.commands.run import run_command

    run_command(config, set_ or [], scale, out, resume, track or [])


@app.command()
def compare(
    config: ConfigFile,
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
) -> None:
    """Run every arm of a config with several seeds, and compare them in a table and pictures."""
    from filfl.commands.compare import compare_command

    compare_command(config, arm, out, set_ or [], scale, seeds, jobs, target, resume, track or [])


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help='Figures of the paper (see --list), "all", or TOML files.'),
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
    from filfl.commands.report import report_command

    report_command(directories, out)


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
    from filfl.commands.watch import watch_command

    watch_command(directory, port)


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
    from filfl.commands.data import data_command

    data_command(name, path, set_ or [], picture)


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
    try:
        app()
    except FilflError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
