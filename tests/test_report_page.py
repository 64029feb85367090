"""The HTML report in a real browser: chromium, driven by Playwright. Screenshots are written to artefacts/."""

import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import tomli_w

from filfl.comparison.plan import PLAN, plan_comparison, runs_of
from filfl.comparison.pool import PlannedRun
from filfl.config.config import Config
from filfl.config.experiment import Arm, Experiment
from filfl.report.formatting import MINUS, NONE
from filfl.report.html.collect import collect
from filfl.report.html.render import render, report_data
from filfl.report.html.server import LiveReport, open_server
from filfl.report.values import NOT_MEASURED, hurting_sentence
from filfl.runs.clients import client_rows
from filfl.runs.reader import read_run
from filfl.simulation import simulate
from sealed import reseal

ROOT = Path(__file__).parents[1]
ARTEFACTS = ROOT / "artefacts"
CHROMIUM = shutil.which("chromium")
WIDE, PHONE = {"width": 1400, "height": 1000}, {"width": 390, "height": 844}

playwright_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install '.[dev]'")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path: apt-get install chromium")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real comparison: two arms, two seeds, some clients with random labels."""
    from conftest import SMALL

    place = tmp_path_factory.mktemp("comparison")
    base = {"rounds": 12, "data.noisy": 0.25, "filter.period": 3, "execution.mode": "serial"}
    arms = (Arm("plain", {"filter.name": "none"}), Arm("filtered", {"filter.name": "dgf"}))

    def planned(arm: str, config: Config) -> PlannedRun:
        return PlannedRun(replace(config, name=arm), place / arm / f"seed-{config.seed}", arm)

    plan = plan_comparison(Experiment({}, arms), place, "small", 2, {**SMALL, **base}, planned)
    for run in runs_of([plan]):
        simulate(run.config, out=run.directory)
    (place / PLAN).write_text(tomli_w.dumps(plan.table()))
    return place


@pytest.fixture(scope="module")
def report(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(report_data(collect([comparison]))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run that measures values: 12 clients, three of them with random labels."""
    from conftest import SMALL

    place = tmp_path_factory.mktemp("pruned") / "run"
    more = {"rounds": 12, "data.noisy": 0.25, "filter.period": 3, "filter.size": 140, "training.lr": 0.3}
    simulate({**SMALL, **more, "filter.name": "prune", "execution.mode": "serial"}, out=place)
    return place


def page_of(place: Path, folder: Path) -> str:
    """The address of the report of a directory."""
    path = folder / "report.html"
    path.write_text(render(report_data(collect([place]))), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        # Root, as in a container, has no sandbox to offer.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """An open page, with its console messages, its errors and its network requests."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def network_requests(self) -> list[str]:
        return [url for url in self.requests if not url.startswith("data:")]

    def series(self, chart: str) -> list[str]:
        script = "key => echarts.getInstanceByDom(document.getElementById(`chart-${key}`)).getOption().series"
        names = [series and series.get("name") for series in self.page.evaluate(script, chart)]
        return [name for name in names if name in ARMS]

    def text(self, place: str) -> str:
        return self.page.inner_text(place).replace("\u00a0", " ")

    def column(self, table: str, i: int) -> list[str]:
        return self.page.locator(f"#{table} tbody tr td:nth-child({i})").all_inner_texts()

    def keep_picture(self, name: str) -> None:
        ARTEFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)


ARMS = ("plain", "filtered")


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_loads_without_errors_or_requests_and_fits(browser, report, viewport, scheme) -> None:
    visit = Visit(browser, report.as_uri(), viewport=viewport, color_scheme=scheme)
    page = visit.page

    assert visit.messages == []
    assert visit.network_requests() == [report.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"], "nothing is wider than the page"
    for chart in ("accuracy", "uplink", "test-loss", "selected-train-loss", "filtered", "noisy"):
        assert visit.series(chart) == list(ARMS)
        assert page.locator(f"#chart-{chart} canvas").count() == 1
    assert " has the highest final accuracy: " in page.inner_text("#sentence")
    headings = [" ".join(text.split()) for text in page.locator("#measures th").all_inner_texts()]
    assert headings[:6] == ["method", "final accuracy", "difference", "Welch p", "paired p", "final test loss"]
    assert "worst tenth" not in headings, "no column without values"
    brightness = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert brightness > 200 if scheme == "light" else brightness < 50
    visit.keep_picture(f"report-{'phone' if viewport is PHONE else 'wide'}-{scheme}")
    page.context.close()


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_values_are_shown_for_every_client(browser, pruned, tmp_path, viewport, scheme) -> None:
    visit = Visit(browser, page_of(pruned, tmp_path), viewport=viewport, color_scheme=scheme)
    page = visit.page
    run = read_run(pruned)
    rows = client_rows(run.records, run.clients)

    assert visit.messages == []
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    assert page.locator(".card h2").first.inner_text() == "Who helps, who hurts", "directly after the headline"
    dots = page.evaluate(f"{CHART}.getOption().series[0].data.map(({{value}}) => value[1])")
    assert dots == pytest.approx([row.value for row in rows], rel=1e-3) and len(dots) == 12
    assert visit.column("values", 1) == [row.name for row in rows]
    assert [text.split(" ", 1)[-1] for text in visit.column("values", 4)] == [row.verdict for row in rows]
    sentence = hurting_sentence(rows)
    assert f"{rows[0].name} ({MINUS}" in sentence and rows[0].verdict == "hurts"
    for place in ("#sentence", "#hurting"):
        assert sentence in visit.text(place)
    assert page.inner_text("#detection").startswith("Against the known faults: AUC ")
    page.locator("#chart-values").scroll_into_view_if_needed()
    visit.keep_picture(f"values-{'phone' if viewport is PHONE else 'wide'}-{scheme}")
    page.context.close()


CHART = "echarts.getInstanceByDom(document.getElementById('chart-values'))"
PIXEL = "([i, value]) => " + CHART + ".convertToPixel('grid', [i, value])"


def test_click_on_a_client_shows_the_history_of_its_value(browser, pruned, tmp_path) -> None:
    visit = Visit(browser, page_of(pruned, tmp_path), viewport=WIDE)
    page = visit.page
    run = read_run(pruned)
    rows = client_rows(run.records, run.clients)
    history = "echarts.getInstanceByDom(document.getElementById('chart-history')).getOption().series"
    assert page.inner_text("#history-of") == f"Client {rows[0].name}:", "at first the lowest value"

    page.locator("#chart-values").scroll_into_view_if_needed()
    x, y = page.evaluate(PIXEL, [7, rows[7].value])
    page.locator("#chart-values").hover(position={"x": x, "y": y})
    tip = page.inner_text("#chart-values")
    page.locator("#chart-values").click(position={"x": x, "y": y})

    assert f"client {rows[7].name}" in tip and f"kept in {rows[7].kept} of {rows[7].considered} filterings" in tip
    assert page.inner_text("#history-of") == f"Client {rows[7].name}:"
    assert page.locator("#values tr.marked td").first.inner_text() == rows[7].name
    measured = [
        (record["round"], value["value"], value["mean"])
        for record in run.records
        for value in record["values"]
        if value["client"] == rows[7].id
    ]
    found = page.evaluate(f"{history}.map(({{data}}) => data)")
    assert [t for t, _ in found[1]] == [t for t, _, _ in measured]
    assert [value for _, value in found[1]] == pytest.approx([value for _, value, _ in measured], rel=1e-3)
    assert [mean for _, mean in found[2]] == pytest.approx([mean for _, _, mean in measured], rel=1e-3)
    page.click("#values tbody tr:nth-child(3) button")
    assert page.inner_text("#history-of") == f"Client {rows[2].name}:"
    page.click("#values th:nth-child(7) button")
    sizes = [int(text) for text in visit.column("values", 7)]
    assert sizes == sorted(sizes, reverse=True)
    assert visit.messages == []
    page.context.close()


def test_hostile_client_names_are_text(browser, pruned, tmp_path) -> None:
    name = "<img src=x onerror=alert(1)>{a|b}"
    place = tmp_path / "run"
    shutil.copytree(pruned, place)
    run = read_run(place)
    lowest = client_rows(run.records, run.clients)[0].id
    with (place / "clients.csv").open(newline="") as file:
        lines = [[k, name if k == str(lowest) else old, *rest] for k, old, *rest in csv.reader(file)]
    with (place / "clients.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    reseal(place)

    visit = Visit(browser, page_of(place, tmp_path), viewport=WIDE)
    page = visit.page
    page.locator("#chart-values").scroll_into_view_if_needed()
    x, y = page.evaluate(PIXEL, [0, 0])
    page.locator("#chart-values").hover(position={"x": x, "y": y})

    assert visit.column("values", 1)[0] == name
    assert f"client {name}" in page.inner_text("#chart-values"), "in the tooltip"
    assert page.inner_text("#history-of") == f"Client {name}:"
    assert name in page.inner_text("#sentence")
    assert page.locator("img").count() == 0 and visit.messages == []
    page.context.close()


def test_runs_without_values_and_warnings_about_the_filtering_set(browser, comparison, tmp_path) -> None:
    place = tmp_path / "c"
    shutil.copytree(comparison, place)
    path = place / "filtered" / "seed-1" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["notes"] = ["filtering set: <b>too small</b>", "another note"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    reseal(path.parent)

    visit = Visit(browser, page_of(place, tmp_path), viewport=WIDE)

    assert visit.text("#hurting") == NOT_MEASURED
    assert not visit.page.is_visible("#valued")
    assert "Filtering set (filtered, seed 1): <b>too small</b>." in visit.text("#warnings")
    assert "another note" not in visit.text("#warnings")
    assert "on samples not used to choose them: " in visit.text("#rewards")
    assert visit.messages == []
    visit.page.context.close()


def test_runs_with_and_without_values_are_chosen_in_all_views(browser, comparison, pruned, tmp_path) -> None:
    for name, place in (("pruned", pruned), ("plain", comparison / "plain" / "seed-0")):
        shutil.copytree(place, tmp_path / "all" / name)
        config = (place / "config.toml").read_text().splitlines()
        (tmp_path / "all" / name / "config.toml").write_text("\n".join([f'name = "{name}"', *config[1:]]))
        reseal(tmp_path / "all" / name)

    visit = Visit(browser, page_of(tmp_path / "all", tmp_path), viewport=WIDE)
    page = visit.page

    assert page.input_value("#value-arm") == page.input_value("#arm") == "pruned", "the run that the headline names"
    assert "(pruned, seed 0): " in visit.text("#sentence")
    page.select_option("#value-arm", "plain")
    assert page.input_value("#arm") == "plain" and visit.text("#hurting") == NOT_MEASURED
    page.select_option("#arm", "pruned")
    assert page.input_value("#value-arm") == "pruned" and page.is_visible("#chart-values canvas")
    assert visit.messages == []
    page.context.close()


WIDTHS = (390, 768, 1280, 1920)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["comparison", "pruned"])
def test_page_has_no_accessibility_violation_and_no_cut_column(browser, which, scheme, request, tmp_path) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe is not installed: pip install '.[dev]'")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    visit = Visit(browser, page_of(request.getfixturevalue(which), tmp_path), viewport=WIDE, color_scheme=scheme)
    page = visit.page
    page.evaluate(script)
    page.evaluate("for (const box of document.querySelectorAll('details')) box.open = true")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        found = page.evaluate("axe.run()")
        problems = [(each["id"], each["nodes"][0]["target"]) for each in found["violations"]]
        assert problems == [] and found["passes"], width
        cut = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth)"
        if width >= 1280:
            assert page.evaluate(f"{cut}.map(({{id}}) => id)") == [], width
    page.context.close()


def downloaded(page: Any, button: str) -> tuple[str, bytes]:
    """The name and the content of the file that a button downloads."""
    with page.expect_download() as started:
        page.click(button)
    return started.value.suggested_filename, Path(started.value.path()).read_bytes()


def test_every_table_and_chart_can_be_downloaded(browser, pruned, tmp_path) -> None:
    visit = Visit(browser, page_of(pruned, tmp_path), viewport=WIDE)
    page = visit.page
    page.evaluate("for (const box of document.querySelectorAll('details')) box.open = true")
    tables = page.locator("table").evaluate_all("tables => tables.map((table) => table.closest('.scroll').id)")
    charts = page.locator(".plot, .map").evaluate_all("plots => plots.map(({id}) => id)")
    assert {"measures", "values", "clients", "trace", "runs"} <= set(tables) and "chart-accuracy" in charts
    for box, formats in [*((box, ["CSV"]) for box in tables), *((box, ["PNG", "CSV"]) for box in charts)]:
        bar = page.locator(f".exports:has(+ [id='{box}'])")
        assert bar.locator("button").all_inner_texts() == formats, box
    name, content = downloaded(page, ".exports:has(+ #clients) button")
    rows = list(csv.reader(content.decode("utf-8-sig").splitlines()))
    assert name.endswith("-clients.csv") and [row[0] for row in rows[1:]] == visit.column("clients", 1)
    assert rows[0][:3] == ["client", "fault", "share kept"]
    name, content = downloaded(page, ".exports:has(+ #chart-accuracy) button:last-child")
    records = read_run(pruned).records
    points = list(csv.reader(content.decode("utf-8-sig").splitlines()))[1:]
    assert [int(row[1]) for row in points] == [record["round"] for record in records]
    assert [float(row[2]) for row in points] == pytest.approx([r["test_accuracy"] for r in records], rel=1e-4)
    for box in ("chart-accuracy", "chart-values", "map"):
        name, content = downloaded(page, f".exports:has(+ #{box}) button:first-child")
        assert name.endswith(".png") and content.startswith(b"\x89PNG") and len(content) > 3000
    assert page.evaluate("['=1+1', 'a,b', null, -2, '-x'].map(csvCell)") == ["'=1+1", '"a,b"', "", "-2", "'-x"]
    assert visit.messages == []
    page.context.close()


def test_the_address_restores_a_selection(browser, comparison, pruned, report, tmp_path) -> None:
    visit = Visit(browser, report.as_uri(), viewport=WIDE)
    page = visit.page
    page.select_option("#arm", "filtered")
    page.select_option("#seed", "1")
    page.select_option("#round", "6")
    page.click("#clients tbody tr:nth-child(4) button")
    page.click("#legend button[data-arm=plain]")
    chosen = visit.column("clients", 1)[3]
    address = page.url
    assert "arm=filtered&seed=1" in address and f"client={chosen}" in address and "hide=plain" in address
    page.context.close()

    visit = Visit(browser, address, viewport=WIDE)
    page = visit.page
    assert [page.input_value(f"#{key}") for key in ("arm", "seed", "round")] == ["filtered", "1", "6"]
    assert page.locator("#clients tr.chosen-client button").all_inner_texts() == [chosen]
    assert visit.series("accuracy") == ["filtered"]
    page.context.close()

    lowest = client_rows(read_run(pruned).records, read_run(pruned).clients)
    visit = Visit(browser, f"{page_of(pruned, tmp_path)}#client={lowest[5].name}", viewport=WIDE)
    assert visit.page.inner_text("#history-of") == f"Client {lowest[5].name}:"
    strange = Visit(browser, f"{page_of(comparison, tmp_path)}#arm=unknown&seed=x&round=&client=%", viewport=WIDE)
    assert strange.messages == [] and strange.page.inner_text("#title") == "small"
    for opened in (visit, strange):
        opened.page.context.close()


def test_no_column_is_cut_with_many_own_metrics(browser, tmp_path) -> None:
    from conftest import SMALL

    names = ("f1", "precision_macro", "recall_macro", "calibration_error")
    metrics = {name: lambda outputs, targets: (outputs.argmax(1) == targets).float().mean().item() for name in names}
    for name in ("none", "dgf"):
        for seed in range(2):
            config = {**SMALL, "name": f"filfl-{name}", "rounds": 2, "seed": seed, "filter.name": name}
            simulate(config, metrics=metrics, out=tmp_path / f"filfl-{name}" / f"seed-{seed}")
    visit = Visit(browser, page_of(tmp_path, tmp_path), viewport={"width": 1280, "height": 900})
    assert set(names) <= {name.removeprefix("final ") for name in visit.page.locator("#measures th").all_inner_texts()}
    assert visit.page.evaluate("byId('measures').scrollWidth - byId('measures').clientWidth") == 0
    visit.page.context.close()


def test_the_page_says_why_an_interval_without_0_can_have_no_verdict(browser, pruned, tmp_path) -> None:
    visit = Visit(browser, page_of(pruned, tmp_path), viewport=WIDE)
    assert "“cannot tell” although the interval excludes 0" in " ".join(visit.text("#valued").split())
    visit.page.context.close()


def test_the_word_round_below_the_map_overlaps_no_number(browser, pruned, tmp_path) -> None:
    visit = Visit(browser, page_of(pruned, tmp_path), viewport={"width": 1280, "height": 900})
    painted = visit.page.evaluate("""() => {
        const painted = [];
        const { fillText } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
            const width = this.measureText(text).width;
            painted.push({ text, y, left: this.textAlign === "center" ? x - width / 2 : x, width });
            fillText.call(this, text, x, y);
        };
        drawClients(currentSection());
        return painted;
    }""")
    (word,) = (each for each in painted if each["text"] == "round")
    numbers = [each for each in painted if each["y"] == word["y"] and each["text"].isdigit()]
    assert numbers and min(each["left"] for each in numbers) > word["left"] + word["width"] + 3
    visit.page.context.close()


def test_printed_page_is_light_and_has_whole_tables_and_no_buttons(browser, report) -> None:
    visit = Visit(browser, report.as_uri(), viewport=WIDE, color_scheme="dark")
    page = visit.page
    zooms = "[...charts.values()].flatMap((chart) => chart.getOption().dataZoom)"
    sliders = f"{zooms}.filter(({{type, show}}) => type === 'slider' && show)"
    assert page.evaluate(f"{sliders}.length") == 1
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate(f"{sliders}.length") == 0
    assert not page.is_visible(".exports") and not page.is_visible("#theme")
    width = page.evaluate("document.body.getBoundingClientRect().width")
    wide = "[...document.querySelectorAll('table, canvas')].filter((box) => box.getBoundingClientRect().width > %f)"
    assert page.evaluate(f"{wide % (width + 1)}.length") == 0, "nothing is wider than the paper"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF") and visit.messages == []
    page.context.close()


def test_legend_click_hides_an_arm_in_all_charts(browser, report) -> None:
    visit = Visit(browser, report.as_uri(), viewport=WIDE)
    picture = "document.querySelector('#chart-accuracy canvas').toDataURL()"
    before = visit.page.evaluate(picture)

    visit.page.click("#legend button[data-arm=plain]")

    assert visit.series("accuracy") == visit.series("filtered") == ["filtered"]
    assert visit.page.evaluate(picture) != before
    visit.page.click("#legend button[data-arm=plain]")
    visit.page.mouse.move(0, 0)
    visit.page.click("body", position={"x": 1, "y": 1})
    assert visit.series("accuracy") == list(ARMS)
    assert visit.messages == []
    visit.page.context.close()


def test_client_table_sorts_and_map_follows(browser, report, comparison) -> None:
    visit = Visit(browser, report.as_uri(), viewport=WIDE)
    page = visit.page
    shares = [int(text.split()[0]) for text in visit.column("clients", 3) if text != NONE]
    assert shares == sorted(shares), "those kept least come first"
    rows = "mapped.order.map(({index}) => mapped.run.clients.names[index])"
    assert page.evaluate(rows) == visit.column("clients", 1)
    picture = "document.querySelector('#map canvas').toDataURL()"
    before = page.evaluate(picture)

    page.click("#clients th:nth-child(9) button")

    sizes = [int(text) for text in visit.column("clients", 9)]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) > 1
    assert page.locator("#clients th:nth-child(9)").get_attribute("aria-sort") == "descending"
    assert page.evaluate(rows) == visit.column("clients", 1)
    assert page.evaluate(picture) != before
    page.click("#clients th:nth-child(9) button")
    assert [int(text) for text in visit.column("clients", 9)] == sorted(sizes)
    names = [line.split(",")[1] for line in (comparison / "plain/seed-0/clients.csv").read_text().splitlines()[1:]]
    assert sorted(visit.column("clients", 1)) == sorted(names)
    page.context.close()


def test_decisions_are_those_of_the_record(browser, report, comparison) -> None:
    visit = Visit(browser, report.as_uri(), viewport=WIDE)
    visit.page.select_option("#arm", "filtered")
    visit.page.select_option("#seed", "1")
    visit.page.select_option("#round", "3")
    lines = (comparison / "filtered/seed-1/rounds.jsonl").read_text().splitlines()
    trace = json.loads(lines[2])["trace"]
    names = [line.split(",")[1] for line in (comparison / "filtered/seed-1/clients.csv").read_text().splitlines()[1:]]
    assert visit.column("trace", 2) == [names[step["client"]] for step in trace]
    assert visit.column("trace", 7) == ["kept" if step["kept"] else "filtered out" for step in trace]
    shown = [float(text.replace(MINUS, "-")) for text in visit.column("trace", 4)]
    assert shown == pytest.approx([step["a"] for step in trace], rel=1e-3, abs=6e-5)
    assert visit.messages == []
    visit.page.context.close()


def test_map_tooltip_describes_the_cell(browser, report) -> None:
    visit = Visit(browser, report.as_uri(), viewport=WIDE)
    page = visit.page
    page.locator("#map").scroll_into_view_if_needed()
    place = page.evaluate("({x: mapped.left + 0.5 * mapped.cell, y: MAP.top + 0.5 * mapped.rowHeight})")
    page.hover("#map canvas", position=place)
    first = page.evaluate("mapped.run.clients.names[mapped.order[0].index]")
    assert f"client {first}" in page.inner_text("#tip") and "round 1:" in page.inner_text("#tip")
    assert page.locator("#clients tr.marked td").first.inner_text() == first
    page.context.close()


def test_theme_button_switches_themes(browser, report) -> None:
    visit = Visit(browser, report.as_uri(), viewport=WIDE, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = visit.page.evaluate(background)
    visit.page.click("#theme")
    assert visit.page.inner_text("#theme") == "theme: light" and visit.page.evaluate(background) != dark
    visit.page.click("#theme")
    assert visit.page.inner_text("#theme") == "theme: dark" and visit.page.evaluate(background) == dark
    visit.page.context.close()


def test_sections_can_be_chosen(browser, comparison, tmp_path) -> None:
    shutil.copytree(comparison, tmp_path / "all" / "one")
    shutil.copytree(comparison, tmp_path / "all" / "two")
    plan = (comparison / PLAN).read_text()
    for name in ("one", "two"):
        (tmp_path / "all" / name / PLAN).write_text(plan.replace('title = "small"', f'title = "{name}"'))
    shutil.rmtree(tmp_path / "all" / "two" / "plain" / "seed-1")
    path = tmp_path / "report.html"
    path.write_text(render(report_data(collect([tmp_path / "all"]))), encoding="utf-8")
    visit = Visit(browser, path.as_uri(), viewport=WIDE)
    assert visit.page.inner_text("#title") == "one"
    visit.page.click("#chooser button:nth-child(2)")
    assert visit.page.inner_text("#title") == "two" and "1 run not started" in visit.page.inner_text("#problems")
    assert visit.messages == []
    visit.page.context.close()


def test_watched_page_updates_and_keeps_the_choices(browser, comparison, tmp_path) -> None:
    place = tmp_path / "c"
    shutil.copytree(comparison, place)
    run = place / "filtered" / "seed-1"
    lines = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (run / "summary.json").unlink()
    (run / "rounds.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][:40])
    with open_server(LiveReport([place]), 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        visit = Visit(browser, f"http://127.0.0.1:{server.server_port}/", viewport=WIDE)
        page = visit.page
        page.select_option("#arm", "filtered")
        page.select_option("#seed", "1")
        page.click("#clients th:nth-child(9) button")
        page.click("#legend button[data-arm=plain]")
        assert "5 of 12 rounds" in page.inner_text("#shown")

        (run / "rounds.jsonl").write_bytes(b"".join(lines))
        playwright_api.expect(page.locator("#shown")).to_contain_text("12 of 12 rounds", timeout=60_000)

        assert page.input_value("#seed") == "1"
        assert page.locator("#clients th:nth-child(9)").get_attribute("aria-sort") == "descending"
        assert visit.series("accuracy") == ["filtered"]
        assert page.inner_text("#live") == "live"
        server.shutdown()
        server.server_close()
        playwright_api.expect(page.locator("#live")).to_contain_text("has ended", timeout=60_000)
        page.context.close()
    assert all("127.0.0.1" in url for url in visit.network_requests())


def test_watched_page_updates_values_and_keeps_the_client(browser, pruned, tmp_path) -> None:
    place = tmp_path / "run"
    shutil.copytree(pruned, place)
    lines = (place / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (place / "summary.json").unlink()
    (place / "rounds.jsonl").write_bytes(b"")
    with open_server(LiveReport([place]), 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        visit = Visit(browser, f"http://127.0.0.1:{server.server_port}/", viewport=WIDE)
        page = visit.page
        assert visit.text("#hurting") == NOT_MEASURED
        (place / "rounds.jsonl").write_bytes(b"".join(lines[:6]))
        playwright_api.expect(page.locator("#value-shown")).to_contain_text("6 of 12 rounds", timeout=60_000)
        page.click("#values tbody tr:nth-child(3) button")
        chosen = page.inner_text("#history-of")

        (place / "rounds.jsonl").write_bytes(b"".join(lines))
        playwright_api.expect(page.locator("#value-shown")).to_contain_text("12 of 12 rounds", timeout=60_000)

        assert page.inner_text("#history-of") == chosen
        assert chosen == f"Client {page.locator('#values tr.marked td').first.inner_text()}:"
        assert visit.messages == []
        server.shutdown()
        page.context.close()
