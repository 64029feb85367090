"""Size and speed of the report of a large comparison: 500 rounds x 200 clients x 9 runs.

It measures the seconds to render the report and its size. If chromium and Playwright are installed, it also measures
the seconds until the page is drawn, to hide an arm, to sort the clients (which redraws their map), and to show another
run.

The picture of the report in the README is that of the demo:

    filfl demo --out runs/demo
    python benchmarks/report.py --picture docs/images/report.png --of runs/demo
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

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


def take_picture(comparison: Path, out: Path) -> None:
    """A picture of the report of a comparison, from its top to the curves."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        page_file = Path(temporary) / "report.html"
        page_file.write_text(render(report_data(collect([comparison]))), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(page_file.as_uri())
        end = page.evaluate("document.getElementById('charts').closest('.card').getBoundingClientRect().bottom")
        page.screenshot(path=out, full_page=True, clip={"x": 0, "y": 0, "width": 1280, "height": end + 16})
        browser.close()
    Image.open(out).convert("RGB").quantize(128).save(out, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--period", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="write to this folder and keep it")
    parser.add_argument("--picture", type=Path, help="write a picture of the report of --of instead")
    parser.add_argument("--of", type=Path, default=Path("runs/demo"), help="a comparison")
    given = parser.parse_args()
    if given.picture:
        take_picture(given.of, given.picture)
        return
    size = Size(rounds=given.rounds, clients=given.clients, available=given.clients // 2, period=given.period)
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(given.keep or Path(temporary), size)
    for what, value in found.items():
        print(f"  {what:28s} {value:8.2f}")


if __name__ == "__main__":
    main()
