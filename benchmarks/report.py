"""Size and speed of the report of a large comparison: 500 rounds x 200 clients x 9 runs.

It measures the seconds to render the report and its size. If chromium and Playwright are installed, it also measures
the seconds until the page is drawn, to hide an arm, to sort the clients (which redraws their map), and to show another
run.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from filfl.report.html.collect import collect
from filfl.report.html.render import render, report_data
from report_store import Size, write_comparison

CLICKS = {
    "hide an arm": "document.querySelector('#legend button').click()",
    "sort the clients": "document.querySelector('#clients th button').click()",
    "show another run": "{const arm = document.querySelector('#arm'); arm.selectedIndex = 0; arm.onchange()}",
}


def measure(folder: Path, size: Size) -> dict[str, Any]:
    """Write the comparison and its report into a folder, and measure it."""
    write_comparison(folder / "comparison", size)
    began = time.perf_counter()
    page = render(report_data(collect([folder / "comparison"])))
    seconds = time.perf_counter() - began
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return {"seconds to render": seconds, "megabytes": path.stat().st_size / 1e6, **in_browser(path)}


def in_browser(path: Path) -> dict[str, float]:
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        return {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        began = time.perf_counter()
        page.goto(path.resolve().as_uri())
        found = {"seconds until drawn": time.perf_counter() - began}
        for what, script in CLICKS.items():
            spent = page.evaluate(
                f"() => new Promise(done => {{ const t = performance.now(); {script}; "
                "requestAnimationFrame(() => setTimeout(() => done((performance.now() - t) / 1000))) })"
            )
            found[f"seconds to {what}"] = spent
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--period", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="write to this folder and keep it")
    given = parser.parse_args()
    size = Size(rounds=given.rounds, clients=given.clients, available=given.clients // 2, period=given.period)
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(given.keep or Path(temporary), size)
    for what, value in found.items():
        print(f"  {what:28s} {value:8.2f}")


if __name__ == "__main__":
    main()
