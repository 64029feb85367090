"""The command line: parse, call, show. Everything heavy is imported by the command that needs it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import filfl
from filfl.errors import ConfigError, FilflError

app = typer.Typer(
    name="filfl",
    help="Client filtering for federated learning: find the combination of clients that helps, then choose who trains.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change one key of the config, e.g. filter.name=rgf."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="The directory for the results.  (default: runs/NAME, or NAME-2, ...)"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where it was stopped or killed.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="Also write to a tracker: tensorboard, mlflow or wandb (offline)."),
]
Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="Runs of every arm.  (default: the config's)")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time.  (default: the number of cores)")
]
Target = Annotated[
    float | None, typer.Option("--target", min=0, max=1, help='The accuracy of the columns "to target".')
]
Scale = Annotated[str | None, typer.Option("--scale", help="One of the scales in the config.")]
ConfigFile = Annotated[str, typer.Argument(metavar="CONFIG.toml", help="A TOML file, or a name such as demo.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"filfl {filfl.__version__}")
        raise typer.Exit


@app.command()
def demo(out: Out = None, seeds: Seeds = None, jobs: Jobs = None, resume: Resume = False) -> None:
    """See in a minute or two what client filtering does: six ways of training, a table and a picture."""
    from filfl.commands.compare import compare_command
    from filfl.commands.terminal import say

    directory = compare_command("demo", None, out, [], None, seeds, jobs, None, resume)
    say(
        "\nWhat to try next:\n"
        "  filfl run demo --set filter.name=rgf       # a single run, with a bar\n"
        "  filfl compare demo --set data.noisy=0      # the same, nobody is noisy\n"
        "  filfl compare demo --set filter.period=1   # filter in every round\n"
        "  filfl list                                 # all that can be plugged in\n"
        f"Every round of every run is told in {directory}/ARM/SEED/rounds.jsonl"
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
    """Make one run of a config."""
    from filfl.commands.run import run_command

    run_command(config, set_ or [], scale, out, resume, track or [])


@app.command()
def compare(
    config: ConfigFile,
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", "-a", metavar="NAME:KEY=VALUE,...", help="An arm, instead of those in the config."),
    ] = None,
    set_: Set = None,
    scale: Scale = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    target: Target = None,
    out: Out = None,
    resume: Resume = False,
    track: Track = None,
) -> None:
    """Run the arms of a config with several seeds each, and compare them in a table and pictures."""
    from filfl.commands.compare import compare_command

    compare_command(config, arm, out, set_ or [], scale, seeds, jobs, target, resume, track or [])


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Figures of the paper (see --list), all of them, or TOML files."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the names, with claim, arms and expected time.")] = False,
    scale: Annotated[str, typer.Option("--scale", help="laptop, or paper for a GPU.")] = "laptop",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of every arm.")] = 3,
    set_: Set = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The directory for the results.")] = Path("reproduction"),
) -> None:
    """Reproduce figures of the paper: tables, pictures, and whether its claims hold. Started again, it goes on."""
    from filfl.commands.reproduce import list_figures, reproduce_command

    if list_:
        list_figures()
    else:
        reproduce_command(names or [], set_ or [], scale, seeds, jobs, out)


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs, comparisons, or folders of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file.")] = Path("report.html"),
) -> None:
    """Put runs and comparisons into one HTML file: verdict, measures, charts, clients, filterings, configuration."""
    from filfl.commands.report import report_command

    report_command(directories, out)


@app.command()
def watch(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run, a comparison, or a folder of them.")],
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="On this machine.  (default: a free one from 8000)")
    ] = None,
) -> None:
    """Show the report in a browser while the runs are going; it refreshes by itself."""
    from filfl.commands.watch import watch_command

    watch_command(directory, port)


@app.command("data")
def data_(
    name: Annotated[str, typer.Argument(help="A dataset, such as femnist; see filfl list.")],
    path: Annotated[str | None, typer.Option("--path", help="Its files, where it is read from files.")] = None,
    set_: Set = None,
    picture: Annotated[Path, typer.Option("--picture", help="Where the picture goes.")] = Path("labels.png"),
) -> None:
    """Show a dataset: clients, sizes, classes, label skew, and a picture of the labels over the clients."""
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
    """The entry point: mistakes of a user end in a sentence, not in a traceback."""
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
