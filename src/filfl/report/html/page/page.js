"use strict";

const EVERY = 2000; // Milliseconds between requests to `filfl watch`.
let data = JSON.parse(byId("data").textContent);

function currentSection() {
  return data.sections.find((section) => sectionKey(section) === choices.section) || data.sections[0];
}

/** The address of what is shown, from the choices of the user: it restores them. */
function remember() {
  const { run, client, round, hidden } = choices;
  const section = currentSection();
  const parts = {
    section: choices.section && section ? section.title : null,
    arm: run && run.arm,
    seed: run && run.seed,
    client,
    round,
  };
  const chosen = Object.entries(parts).filter(([, value]) => value !== null && value !== undefined);
  const link = new URLSearchParams([...chosen.map(([key, value]) => [key, String(value)]), ...[...hidden].map((arm) => ["hide", arm])]);
  history.replaceState(null, "", `#${link}`);
}

/** Take the choices from the address: #arm=...&seed=...&client=...&round=...&hide=...&section=... */
function restore() {
  const link = new URLSearchParams(location.hash.slice(1));
  const numberOf = (key) => (link.has(key) && link.get(key) !== "" && Number.isFinite(Number(link.get(key))) ? Number(link.get(key)) : null);
  const section = data.sections.find(({ title }) => title === link.get("section"));
  Object.assign(choices, {
    section: section ? sectionKey(section) : null,
    run: link.has("arm") ? { arm: link.get("arm"), seed: numberOf("seed") } : null,
    client: link.get("client"),
    round: numberOf("round"),
    hidden: new Set(link.getAll("hide")),
  });
}

function sectionKey({ place, title }) {
  return `${place} ${title}`;
}

function draw() {
  byId("made").textContent = data.made;
  byId("version").textContent = data.filfl;
  drawChooser();
  const section = currentSection();
  document.querySelector("main").classList.toggle("empty", !section);
  if (!section) {
    byId("title").textContent = "Nothing to show yet";
    byId("sentence").textContent = "Results appear here as soon as a run has started.";
    return;
  }
  document.title = section.title;
  drawLead(section);
  drawValues(section);
  drawMeasures(section);
  drawCharts(section);
  drawClients(section);
  drawFiltering(section);
  drawSettings(section);
  drawRuns(section);
}

/** One card per section with its headline, to choose the section that is shown. */
function drawChooser() {
  const chooser = byId("chooser");
  const shown = currentSection();
  chooser.hidden = data.sections.length < 2;
  chooser.replaceChildren(
    ...data.sections.map((section) =>
      element(
        "button",
        {
          type: "button",
          "aria-current": String(section === shown),
          onclick: () => {
            const first = { run: null, round: null, client: null, zoom: [0, 100], valueZoom: [0, 100] };
            Object.assign(choices, { section: sectionKey(section), ...first });
            remember();
            draw();
          },
        },
        element("b", {}, section.title),
        element("span", { class: "muted" }, section.headline.sentence),
      ),
    ),
  );
}

function drawLead(section) {
  byId("title").textContent = section.title;
  byId("sentence").textContent = unbroken(section.headline.sentence);
  byId("more").replaceChildren(...section.headline.more.map((words) => element("li", {}, unbroken(words))));
  byId("tiles").replaceChildren(
    ...section.headline.tiles.map(({ label, value, detail, arm }) => {
      const its = section.arms.find(({ name }) => name === arm);
      return element(
        "div",
        { class: "tile", style: its ? { borderColor: `var(--arm-${its.colour % 8})` } : {} },
        element("div", { class: "label" }, label),
        element("div", { class: "value" }, unbroken(value)),
        element("div", { class: "detail" }, unbroken(detail)),
      );
    }),
  );
  drawNotes(byId("problems"), section.problems);
}

function drawTheme() {
  byId("theme").textContent = `theme: ${theme}`;
}

/** Poll the server, and redraw only if the data has changed. */
async function follow(mark) {
  const sign = byId("live");
  sign.hidden = false;
  const asked = performance.now();
  try {
    const answer = await fetch("data.json", { headers: { "If-None-Match": mark }, cache: "no-store" });
    if (answer.status === 200) {
      data = await answer.json();
      mark = answer.headers.get("ETag");
      draw();
    } else if (answer.status !== 304) {
      throw new Error(await answer.text());
    }
    sign.textContent = "live";
    sign.classList.remove("stopped");
  } catch (error) {
    sign.textContent = error instanceof TypeError ? "filfl watch has ended; showing its last data" : error.message;
    sign.classList.add("stopped");
  }
  const took = performance.now() - asked;
  setTimeout(() => follow(mark), Math.max(EVERY, 5 * took)); // A slow answer means a busy machine: poll less often.
}

byId("theme").addEventListener("click", () => {
  nextTheme();
  drawTheme();
  draw();
});
systemIsDark.addEventListener("change", () => {
  applyTheme();
  draw();
});
/** On paper: light colours, and charts as wide as the paper. */
function forPrinting(printing) {
  const root = document.documentElement;
  if (printing) root.dataset.theme = "light";
  else applyTheme();
  root.classList.toggle("printing", printing);
  draw();
  for (const plot of document.querySelectorAll(".plot")) {
    const chart = echarts.getInstanceByDom(plot);
    if (!chart || !plot.clientWidth) continue;
    chart.resize();
    chart.getZr().flush(); // No frame is drawn before the page is printed.
  }
}

addEventListener("beforeprint", () => forPrinting(true));
addEventListener("afterprint", () => forPrinting(false));
addEventListener("hashchange", () => {
  restore();
  draw();
});
restore();
drawTheme();
draw();
if (data.live) follow(data.mark);
