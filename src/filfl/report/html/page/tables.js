"use strict";

// Measures of which the largest, or the smallest, value is the best, by the start of their headings.
const LARGEST = ["final accuracy", "mean over clients", "worst tenth"];
const CLEAR = 0.05; // A p below this is bold.
const SMALLEST = ["test loss", "train loss", "rounds to", "upload", "total upload"];

function drawMeasures(section) {
  const { headings, rows } = section.measures;
  const best = headings.map(([label], i) => {
    const values = rows.map((row) => row[i][0]).filter((value) => value !== null);
    if (values.length < 2) return null;
    if (LARGEST.some((start) => label.startsWith(start))) return Math.max(...values);
    return SMALLEST.some((start) => label.startsWith(start)) ? Math.min(...values) : null;
  });
  const columns = [{ label: "method", text: true }, ...headings.map(([label, hint]) => ({ label, hint }))];
  const made = rows.map((row, i) => {
    const arm = section.arms[i];
    const cells = row.map(([value, show], j) => {
      const clear = headings[j][0].endsWith(" p") && value !== null && value < CLEAR;
      return { value, show, class: clear || (value !== null && value === best[j]) ? "best" : null };
    });
    return { cells: [{ value: arm.name, show: element("span", {}, swatch(arm), arm.name) }, ...cells] };
  });
  sortableTable(byId("measures"), "measures", columns, made, null);
}

function drawSettings(section) {
  const { shared, differing } = section.settings;
  const head = ["key", ...section.arms.map(({ name }) => name)].map((text) => element("th", { class: "text", scope: "col" }, text));
  const rows = differing.map(([key, values]) =>
    element(
      "tr",
      {},
      element("td", { class: "code" }, key),
      ...values.map((value) => element("td", { class: "text code" }, value === null ? NONE : value)),
    ),
  );
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
  const alone = section.arms.length > 1 ? "All methods have the same configuration." : "There is only one method.";
  refill(byId("differing"), differing.length ? table : element("p", { class: "muted" }, alone));
  byId("shared").replaceChildren(
    ...shared.map(([key, value]) =>
      element("div", {}, element("b", { class: "code" }, key), element("span", { class: "code" }, value)),
    ),
  );
}

function drawRuns(section) {
  const total = (run) => Object.values(run.seconds).reduce((sum, seconds) => sum + seconds, 0);
  const sums = {};
  for (const run of section.runs) for (const [phase, seconds] of Object.entries(run.seconds)) sums[phase] = (sums[phase] || 0) + seconds;
  const phases = Object.keys(sums).sort((one, other) => sums[other] - sums[one]);
  const everything = phases.reduce((sum, phase) => sum + sums[phase], 0);
  const shade = (phase) => `var(--arm-${phases.indexOf(phase) % 8})`;
  byId("phases").replaceChildren(
    ...phases.map((phase) => stateKey(shade(phase), `${phase} ${Math.round((100 * sums[phase]) / everything)} %`)),
  );
  const longest = Math.max(...section.runs.map(total), 1e-9);
  const columns = [
    { label: "method", text: true },
    { label: "seed", up: true },
    { label: "rounds" },
    { label: "state", text: true },
    { label: "seconds", hint: "Total over all rounds and phases" },
    { label: "by phase", text: true },
    { label: "seconds per round" },
    { label: "made with", text: true },
    { label: "directory", text: true },
  ];
  const rows = section.runs.map((run) => {
    const seconds = total(run);
    const made = Object.entries(run.versions).map(([what, version]) => (what === "machine" ? version : `${what} ${version}`));
    const each = run.done ? seconds / run.done : null;
    return {
      cells: [
        { value: section.arms[run.arm].name, show: element("span", {}, swatch(section.arms[run.arm]), section.arms[run.arm].name) },
        { value: run.seed, show: String(run.seed) },
        { value: run.done, show: run.finished ? String(run.done) : `${run.done} of ${run.rounds}` },
        { value: run.finished ? "finished" : "unfinished", show: run.finished ? "finished" : element("span", { class: "flag" }, "unfinished") },
        { value: seconds, show: duration(seconds) },
        { value: seconds, show: phaseBar(run, phases, shade, longest) },
        { value: each, show: each === null ? NONE : duration(each) },
        { value: made.join(", "), show: made.join(", ") || NONE },
        { value: run.place, show: element("span", { class: "code" }, run.place) },
      ],
    };
  });
  sortableTable(byId("runs"), "runs", columns, rows, null);
}

function phaseBar(run, phases, shade, longest) {
  const words = phases.map((phase) => `${phase} ${duration(run.seconds[phase] || 0)}`).join(", ");
  const parts = phases.map((phase) => {
    const width = `${(100 * (run.seconds[phase] || 0)) / longest}%`;
    return element("i", { style: { width, background: shade(phase) } });
  });
  return element("span", { class: "stack", title: words }, ...parts);
}

function duration(seconds) {
  if (seconds >= 7200) return `${(seconds / 3600).toFixed(1)} h`;
  if (seconds >= 120) return `${(seconds / 60).toFixed(1)} min`;
  return seconds >= 1 ? `${seconds.toFixed(1)} s` : `${(1000 * seconds).toFixed(0)} ms`;
}
