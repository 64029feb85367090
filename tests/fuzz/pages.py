"""Report pages with hostile texts: names of clients and reasons of failures with markup, scripts and control
characters. A page has the same elements as one with harmless names, and in a browser no script of theirs runs."""

import random
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

import filfl
from filfl.core.clients import Failure
from filfl.report.html.collect import collect
from filfl.report.html.render import render, report_data

from .campaign import Part, Wrong, command, has_control_characters
from .messages import lying

CONFIG: dict[str, Any] = {
    "rounds": 2,
    "filter.name": "prune",
    "filter.period": 1,
    "selection.k": 2,
    "model.hidden": [4],
    "execution.mode": "serial",
}
PIECES = (
    *("<script>window.hacked=1</script>", "</script><script>window.hacked=1</script>", "<!--<script>", "-->", "]]>"),
    *('"><img src=x onerror=window.hacked=1>', "'", '"', "&lt;", "<svg/onload=window.hacked=1>", "{{7*7}}", "${7*7}"),
    *(
        "\x00",
        "\x1b[31m",
        "\x1b]0;title\x07",
        "\r",
        "\n",
        "\u2028",
        "\u202e",
        "\x9b31m",
        "é",
        "\ud800",
        "=1+1",
        "\ufeff",
    ),
    *("javascript:window.hacked=1", "`", "\\", "\\u003c", "%3Cscript%3E", " " * 50, "name"),
)


class _Tags(HTMLParser):
    """Counts the elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(sorted(name for name, _ in attributes))))


class Pages(Part):
    name = "pages"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.expected = self._tags(self._page(random.Random(0), [f"client {k}" for k in range(6)]))

    def case(self, rng: random.Random) -> None:
        names = [f"{k}{''.join(rng.choices(PIECES, k=rng.randint(1, 4)))}" for k in range(6)]
        try:
            page = self._page(rng, names)
            if self._tags(page) != self.expected:
                raise Wrong("a name became an element of the page")
            if browser := _chromium():
                self._look(page, browser)
        except Exception as error:
            error.add_note(f"names: {names!a}")
            raise

    def _page(self, rng: random.Random, names: list[str]) -> str:
        x = np.random.default_rng(0).normal(size=(120, 3))
        data = filfl.FederatedData.from_arrays(x, np.arange(120) % 2, np.array(names)[np.arange(120) % 6])
        run = self.folder / "run"
        failing = lambda rng, update, w_t: Failure("".join(rng.choices(PIECES, k=2)))  # noqa: E731
        try:
            with lying(rng, 0.2, [failing]):
                filfl.simulate(CONFIG, data=data, out=run, progress=False, say=lambda text: None)
            code, shown = command("clients", str(run))
            if code or has_control_characters(shown):
                raise Wrong(f"filfl clients ends with {code} and shows {shown!a}")
            page = render(report_data(collect([run])))
            page.encode("utf-8")
            return page
        finally:
            shutil.rmtree(run, ignore_errors=True)

    def _tags(self, page: str) -> list[tuple[str, tuple[str, ...]]]:
        parser = _Tags()
        parser.feed(page)
        return parser.found

    def _look(self, page: str, chromium: str) -> None:
        from playwright.sync_api import sync_playwright

        path = self.folder / "page.html"
        path.write_text(page, encoding="utf-8")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            try:
                shown, errors = browser.new_page(), []
                shown.on("pageerror", lambda error: errors.append(str(error)))
                shown.goto(path.as_uri())
                if shown.evaluate("window.hacked") or errors:
                    raise Wrong(f"a script of a name ran, or the page failed: {errors}")
            finally:
                browser.close()


def _chromium() -> str | None:
    try:
        import playwright  # noqa: F401
    except ImportError:
        return None
    return shutil.which("chromium")
