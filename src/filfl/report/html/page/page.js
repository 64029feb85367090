"use strict";

const EVERY = 2000; // Milliseconds between requests to `filfl watch`.
let data = JSON.parse(byId("data").textContent);

function currentSection() {
  return data.sections.find(({ place, title }) => `${place} ${title}` === choices.section) || data.sections[0];
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
            Object.assign(choices, { section: `${section.place} ${section.title}`, ...first });
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
drawTheme();
draw();
if (data.live) follow(data.mark);
