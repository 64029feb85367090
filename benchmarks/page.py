"""docs/performance.md from the stored measurements: `python benchmarks/page.py` writes it again."""

import json
from pathlib import Path
from typing import Any

import workloads
from bars import Part, Results, bars, baseline, cpu_seconds, in_order, seconds
from markdown_page import markdown_page

FOLDER = Path(__file__).parent
TEMPLATE = FOLDER / "templates" / "performance.md.j2"


def performance(results: Results, picture: str) -> str:
    """The whole page, as Markdown."""
    machine = results["machine"]
    words = {True: "met", False: "**not met**", None: "not measured"}
    page = markdown_page(
        TEMPLATE,
        quick=results["quick"],
        machine=(
            f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:.0f} GB; "
            f"{machine['system']}, Python {machine['python']}, torch {machine['torch']}; {machine['date']}."
        ),
        picture=picture,
        bars=[
            [bar.what, bar.asked, "" if bar.measured is None else f"{bar.measured:.3g}", words[bar.met]]
            for bar in bars(results)
        ],
        training=[
            {"title": workloads.TITLES["training"][name], "rows": _training(part), "skipped": _skipped(part)}
            for name, part in in_order(results, "training").items()
        ],
        filters=[
            {"title": workloads.TITLES["filters"][name], "rows": _filters(part), "skipped": _skipped(part)}
            for name, part in in_order(results, "filters").items()
        ],
        gaps=_gaps(results.get("gaps")),
        anatomy=_anatomy(results.get("anatomy")),
        limits=_limits(results.get("limits")),
        million=_million(results.get("million")),
        scaling=[
            [name, curve["x"], ", ".join(f"{size:,}: {value:.3g}" for size, value in curve["points"])]
            for name, curve in results.get("scaling", {}).items()
        ],
    )
    return page.rstrip("\n") + "\n"


def _training(part: Part) -> list[list[str]]:
    present = [who for who in part if "seconds" in part[who]]
    base = baseline(part)
    return [
        [
            who + (f" ({part[who]['executor']})" if "executor" in part[who] else ""),
            f"{seconds(part[who]):.4f}",
            f"{base / seconds(part[who]):.2f} x",
            f"{cpu_seconds(part[who]):.4f}",
            f"{part[who]['start_up']:.1f}",
            f"{part[who]['first_round']:.2f}",
            f"{part[who]['peak_bytes'] / 1e6:.0f}",
            f"{part[who]['loss']:.3f}",
        ]
        for who in sorted(present, key=lambda who: seconds(part[who]))
    ]


def _filters(part: Part) -> list[list[str]]:
    rows, base = [], baseline(part)
    for who in part:
        if "seconds" not in part[who]:
            continue
        passes = str(part[who]["evaluations"])
        if "verifications" in part[who]:
            passes += f" + {part[who]['verifications']} to verify"
        rows.append(
            [
                who,
                f"{seconds(part[who]):.3f}",
                f"{base / seconds(part[who]):.1f} x",
                f"{cpu_seconds(part[who]):.3f}",
                passes,
                str(len(part[who]["kept"])),
                f"{part[who]['peak_bytes'] / 1e6:.0f}",
            ]
        )
    return rows


def _gaps(gaps: Part | None) -> dict[str, Any] | None:
    return gaps and {
        "groups": gaps["groups"],
        "rows": [[who, f"{gap:.4f}"] for who, gap in gaps["mean_gap"].items()],
    }


def _anatomy(anatomy: Part | None) -> dict[str, Any] | None:
    if not anatomy:
        return None
    layers = anatomy["layers"]
    took, least = (sum(layer[key] for layer in layers) for key in ("ms", "at_peak_ms"))
    rows = [[f"`{layer['layer']}`", f"{layer['ms']:.2f}", f"{layer['at_peak_ms']:.2f}"] for layer in layers]
    return {
        "evaluations": anatomy["evaluations"],
        "small": [[what, f"{ms:.1f}"] for what, ms in anatomy["milliseconds"].items()],
        "layers": [*rows, ["all", f"{took:.1f}", f"{least:.1f} ({100 * least / took:.0f} %)"]],
    }


def _limits(limits: Part | None) -> dict[str, Any] | None:
    if not limits:
        return None
    matrix = [f"{limits[f'gflops_{how}']:.0f}" for how in ("1_thread", "all_threads", "all_processes")]
    copy = [f"{limits[f'gigabytes_a_second_{how}']:.1f}" for how in ("1_thread", "all_threads")]
    return {
        "cores": limits["cores"],
        "rows": [["matrix multiplication, GFLOPS", *matrix], ["copy of 256 MB, GB/s read and written", *copy, ""]],
    }


def _million(million: Part | None) -> list[list[str]]:
    if not million:
        return []
    rows = zip(million["clients"], million["seconds"], million["megabytes"], strict=True)
    return [[f"{n:,}", f"{s:.4f}", f"{m:.0f}"] for n, s, m in rows]


def _skipped(part: Part) -> list[str]:
    return [f"{who} took no part: {result['skipped']}" for who, result in part.items() if "skipped" in result]


if __name__ == "__main__":
    stored = json.loads((FOLDER / "results" / "bench.json").read_text(encoding="utf-8"))
    text = performance(stored, "images/performance.png")
    (FOLDER.parent / "docs" / "performance.md").write_text(text, encoding="utf-8")
