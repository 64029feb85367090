"use strict";

const CLEAR = 0.05; // A p below this is bold.

/** The columns of the table of measures. The best value of a column with `best` is bold. */
function measureColumns({ primary, own, finished, where, automatic }) {
  const { goal, name } = primary;
  const final = `mean of the last ${data.last} tested rounds${finished ? "" : " so far"}`;
  const spread = `${final}; ± is the standard deviation over seeds`;
  const named = (what) => (finished ? `final ${what}` : `${what} so far`);
  const tested = where || " on the test set";
  const chosen = automatic ? ", set automatically: a tenth worse than the best final value" : "";
  const points = primary.share ? ", in percentage points" : "";
  const better = primary.lower ? Math.min : Math.max;
  const columns = [
    { key: primary.key, label: named(name), hint: `${name}${tested}, ${spread}`, best: better },
    { key: "difference", label: "difference", hint: `Final ${name} minus that of the method it is tested against${points}` },
    { key: "welch-p", label: "Welch p", hint: `Two-sided Welch's t-test on the final ${name}` },
    {
      key: "paired-p",
      label: "paired p",
      hint: "Two-sided paired t-test over seeds; with the same seed, methods share data split, availability and initial weights",
    },
    { key: "accuracy", label: named("accuracy"), hint: `Accuracy${tested}, ${spread}`, best: Math.max },
    ...own.map((metric) => ({ key: metric.key, label: named(metric.name), hint: `Your metric ${metric.name}${tested}, ${spread}` })),
    { key: "test-loss", label: named(where ? "loss" : "test loss"), hint: `Loss${tested}, ${final}`, best: Math.min },
    { key: "selected-train-loss", label: "train loss, selected", hint: `Mean over the selected clients of their loss during local training, which differ between methods; ${final.replace("tested ", "")}` },
    {
      key: "rounds-to-target",
      label: `rounds to ${goal}`,
      hint: `First round in which the test reaches this target${chosen}. Mean over the seeds that reached it; (2/3) means 2 of 3 seeds`,
      best: Math.min,
    },
    { key: "uplink-to-target", label: `upload to ${goal}`, hint: "Data sent by the clients up to that round", best: Math.min },
    { key: "uplink", label: finished ? "total upload" : "upload so far", hint: "Data sent by the clients", best: Math.min },
    { key: "filtered", label: "clients in Sᶠ", hint: "Number of clients that may be selected, mean over the rounds" },
    { key: "client-accuracy", label: "mean over clients", hint: "Mean of the clients' own test accuracies", best: Math.max },
    { key: "worst-tenth", label: "worst tenth", hint: "Mean test accuracy of the tenth of the clients with the lowest accuracy", best: Math.max },
  ];
  return columns.filter(({ key }, i) => i === 0 || key !== primary.key);
}

/** The table of measures, without columns in which no method has a value. */
function drawMeasures(section) {
  const valuesOf = ({ key }) => section.measures.map((row) => row[key][0]).filter((value) => value !== null);
  const columns = measureColumns(section).filter((column) => valuesOf(column).length);
  const rows = section.measures.map((row, i) => {
    const arm = section.arms[i];
    const cells = columns.map((column) => {
      const [value, show] = row[column.key];
      const clear = column.key.endsWith("-p") && value !== null && value < CLEAR;
      const best = section.ranked && column.best && isBest(column, valuesOf(column), section.measures.map((other) => other[column.key]), show);
      return { value, show: inTwoLines(show), class: clear || best ? "best" : null };
    });
    return { cells: [{ value: arm.name, show: element("span", {}, swatch(arm), arm.name) }, ...cells] };
  });
  sortableTable(byId("measures"), "measures", [{ label: "method", text: true }, ...columns], rows, null);
  byId("measures-note").replaceChildren(measureNote(section), element("span", { class: "screen" }, " Hover over a heading for its meaning; click it to sort."));
}

/** A number that, in a narrow column, breaks only before its standard deviation: 21.0 / ± 3.8 % */
function inTwoLines(show) {
  return show.replace(/ (%|[kMG]B)/g, "\u00a0$1").replaceAll("± ", "±\u00a0");
}

/** Whether a cell shows the best value. Equal numbers on the page are equally good; if all are equal, none is best. */
function isBest({ best }, values, cells, show) {
  const number = (text) => text.split(" ±")[0].replace(" %", "");
  const winner = cells.find(([value]) => value === best(...values));
  return number(show) === number(winner[1]) && cells.some(([value, text]) => value !== null && number(text) !== number(winner[1]));
}

function measureNote({ seeds, ranked, finished }) {
  const which = finished ? "Final values are means" : "Values so far are means";
  const apart = finished ? "" : " Runs that are not finished may be at different rounds, so their values are not compared.";
  const spread = seeds.length > 1 ? " ± is the standard deviation over seeds." : "";
  const bold = ranked ? ` The best values are bold${seeds.length > 1 ? `, and so is a p below ${CLEAR}` : ""}.` : "";
  return `${which} of the last ${data.last} tested rounds of each run, or of all if there are fewer.${apart}${spread}${bold}`;
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
  const heads = ["key", ...section.arms.map(({ name }) => name)];
  offer(byId("differing"), "the configuration", {
    CSV: () => downloadCsv("configuration", [heads, ...differing.map(([key, values]) => [key, ...values]), ...shared.map(([key, value]) => [key, ...section.arms.map(() => value)])]),
  });
  byId("shared").previousElementSibling.textContent = section.arms.length > 1 ? "Settings that all methods share" : "All settings";
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
    { label: "versions", text: true },
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
        { value: run.done, show: run.done === run.rounds ? String(run.done) : `${run.done} of ${run.rounds}` },
        { value: stateOf(run), show: element("span", { class: run.finished ? null : "flag", title: run.stopped || null }, stateOf(run)) },
        { value: seconds, show: duration(seconds) },
        { value: phases.map((phase) => `${phase} ${run.seconds[phase] || 0} s`).join(", "), show: phaseBar(run, phases, shade, longest) },
        { value: each, show: each === null ? NONE : duration(each) },
        { value: made.join(", "), show: made.join(", ") || NONE, class: "wrap" },
        { value: run.place, show: element("span", { class: "code" }, run.place), class: "wrap" },
      ],
    };
  });
  sortableTable(byId("runs"), "runs", columns, rows, null);
}

function stateOf(run) {
  if (run.stopped) return "stopped early";
  return run.finished ? "finished" : "unfinished";
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
