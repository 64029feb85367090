"""Run every benchmark (`make bench`): training against the bare loop and the peers, filters, limits, scaling.

It writes benchmarks/results/bench.json, docs/images/performance.png and docs/performance.md. --quick runs everything in
small and writes to benchmarks/results/quick; it checks that everything works, and its times mean nothing. --only runs
some sections and keeps the stored figures of the others; --only none renders the page and the picture again. Everything
takes about half an hour on 2 idle cores. The first time takes a few minutes more, to create the environments of peers.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import page
import picture
import workloads
from bars import IN_HALF, Results, bars, baseline, cpu_seconds, in_order, seconds
from filfl.filtering.half_precision import computes_fast
from peers import HERE, PEERS
from race import Contender, Result, race, training_contenders

TRAINING = ("W1", "W2", "W2-6", "W3")
ROUNDS = {"W1": 60, "W2": 9, "W2-6": 7, "W3": 30}
FILTERINGS = {"cnn-2000": 1, "cnn-500": 1, "mlp-100": 9, "lstm-34": 7}
ALONE = ("limits", "gaps", "anatomy", "scaling")
SECTIONS = (*TRAINING, "filters", *FILTERINGS, *ALONE, "million")
RESULTS = HERE / "results"
DOCS = HERE.parent / "docs"
console = Console()


def main() -> None:
    given = _arguments()
    folder = RESULTS / "quick" if given.quick else RESULTS
    stored = folder / "bench.json"
    results: Results = json.loads(stored.read_text()) if stored.exists() else {}
    results |= {"machine": machine(), "quick": given.quick}
    cores = results["machine"]["cores"]

    def keep(section: str, part: dict[str, Any], name: str | None = None) -> None:
        if name:
            results.setdefault(section, {})[name] = part
        else:
            results[section] = part
        folder.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps(results, indent=1) + "\n")

    for name in TRAINING:
        if name in given.only:
            keep("training", _train(name, given, cores), name)
    for name in FILTERINGS:
        if "filters" in given.only or name in given.only:
            keep("filters", _filter(name, given.quick), name)
    for name in ALONE:
        if name in given.only:
            console.rule(name)
            keep(name, alone(f"{name}.measure({given.quick})", name))
    if "million" in given.only and find_spec("scale"):
        console.rule("a million clients")
        keep("million", alone(f"scale.measure({3 if given.quick else 30})", "scale"))

    docs = folder if given.quick else DOCS
    image = docs / "images" / "performance.png"
    picture.draw(results, image)
    (docs / "performance.md").write_text(page.performance(results, "images/performance.png"))
    show(results)
    console.print(f"written: {stored}, {docs / 'performance.md'}, {image}", soft_wrap=True)


def _arguments() -> argparse.Namespace:
    def listed(allowed: Sequence[str]) -> Callable[[str], list[str]]:
        def read(text: str) -> list[str]:
            names = {"all": list(allowed), "none": []}.get(text, text.split(","))
            if unknown := [name for name in names if name not in allowed]:
                raise argparse.ArgumentTypeError(f"must be among {', '.join(allowed)} (got {unknown[0]})")
            return names

        return read

    modes = ("auto", "serial", "vectorized", "processes")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few rounds of everything, to check that it works")
    parser.add_argument("--only", type=listed(SECTIONS), default=SECTIONS, help=f"some of {','.join(SECTIONS)}")
    parser.add_argument("--peers", type=listed(tuple(PEERS)), default=tuple(PEERS), help="all, none, or names")
    parser.add_argument("--modes", type=listed(modes), default=("auto", "serial"), help=f"some of {','.join(modes)}")
    return parser.parse_args()


def _train(name: str, given: argparse.Namespace, cores: int) -> dict[str, Result]:
    console.rule(workloads.TITLES["training"][name])
    rounds, warm_up = (2, 1) if given.quick else (ROUNDS[name], 3)
    contenders = training_contenders(name, given.modes, given.peers, cores)
    if name == "W2-6":
        # This workload measures how busy the cores are. Other contenders in the background would use part of them, and
        # their memory would push out that of this one.
        contenders = {"filfl": contenders["filfl"]}
    found = race(contenders, rounds, warm_up, say)
    workload = workloads.WORKLOADS[name]
    for who, result in found.items():
        work = [result.get("steps"), result.get("seen")]
        expected = [workload.steps * (rounds + warm_up), workload.seen * (rounds + warm_up)]
        if "skipped" not in result and work != expected:
            found[who] = {"skipped": f"{work} steps and samples instead of {expected}"}
    return found


def _filter(name: str, quick: bool) -> dict[str, Result]:
    console.rule(workloads.TITLES["filters"][name])
    contenders = {
        "naive": ["naive"],
        "naive, 1 loader worker": ["naive", "--loader-workers", "1"],
        "exact DGF": ["dgf"],
        IN_HALF: ["dgf", "--precision", "bfloat16"],
        "ensemble local search": ["local-search"],
    }
    if name != "mlp-100":
        del contenders["naive, 1 loader worker"]
    if not computes_fast(torch.device("cpu")):
        del contenders[IN_HALF]

    def of(*arguments: str) -> Callable[[], Contender]:
        flags = ["--quick"] if quick else []
        return lambda: Contender(sys.executable, "filters.py", name, *arguments, *flags)

    starts = {who: of(*arguments) for who, arguments in contenders.items()}
    rounds = 1 if quick else FILTERINGS[name]
    if name.startswith("cnn"):  # one at a time, since each needs gigabytes
        return {who: race({who: start}, rounds, 0, say)[who] for who, start in starts.items()}
    return race(starts, rounds, 1, say)


def alone(call: str, module: str) -> dict[str, Any]:
    """Run a measurement in a process of its own."""
    code = f"import json, {module}; print(json.dumps({call}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.getenv("PYTHONPATH")]))}
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=environment)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in cpuinfo if line.startswith("model name")), platform.processor())
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }


def show(results: Results) -> None:
    """Print the ratios and the targets."""
    for section in ("training", "filters"):
        for name, part in in_order(results, section).items():
            table = Table(title=workloads.TITLES[section][name], title_justify="left")
            for column in ("contender", "seconds", "speed", "CPU seconds", "peak MB"):
                table.add_column(column, justify="left" if column == "contender" else "right")
            base = baseline(part)
            for who, result in part.items():
                if "skipped" in result:
                    table.add_row(who, escape(result["skipped"]), "", "", "")
                    continue
                took, speed, peak = seconds(result), base / seconds(result), result["peak_bytes"] / 1e6
                table.add_row(who, f"{took:.4f}", f"{speed:.2f} x", f"{cpu_seconds(result):.4f}", f"{peak:.0f}")
            console.print(table)
    table = Table("", "asked for", "measured", "", title="Targets", title_justify="left")
    for bar in bars(results):
        word = {True: "[green]met", False: "[red]not met", None: "not measured"}[bar.met]
        table.add_row(bar.what, bar.asked, "" if bar.measured is None else f"{bar.measured:.3g}", word)
    console.print(table)


def say(text: str) -> None:
    console.print(f"  {escape(text)}", soft_wrap=True)


if __name__ == "__main__":
    main()
