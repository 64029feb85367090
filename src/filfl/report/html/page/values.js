"use strict";

// The verdicts of filfl.runs.clients, each with a symbol of its own, so that the chart can be read without colour.
const VERDICTS = {
  hurts: { sign: "▼", symbol: "triangle", rotate: 180, shade: "hurts" },
  "cannot tell": { sign: "○", symbol: "circle", rotate: 0, shade: "unclear" },
  helps: { sign: "▲", symbol: "triangle", rotate: 0, shade: "helps" },
  "not measured": { sign: "", symbol: "none", rotate: 0, shade: "unclear" },
};
const MANY = 30; // With more clients than this, the chart has a slider.
const MOST_LABELS = 150; // With more clients in its window, it shows no names.
const LONGEST = 16; // Characters of a name on the axis.
let valued = null; // The section and the rows in the chart.

/** The values of the clients of the chosen run: chart, table, and the history of one client. */
function drawValues(section) {
  drawNotes(byId("warnings"), section.warnings);
  const run = chosenRun(section);
  const rows = run ? run.values.rows : [];
  byId("valued").hidden = !rows.length;
  byId("hurting").textContent = run ? unbroken(run.values.sentence) : "No run has started.";
  byId("value-shown").textContent = "";
  if (run) drawRunChooser(section, run, byId("value-arm"), byId("value-seed"));
  if (!rows.length) return;
  const { of, detection } = run.values;
  const clearest = rows.length < of ? ` (showing the ${rows.length.toLocaleString("en")} with the clearest values)` : "";
  byId("value-shown").textContent = `${count(of, "client")} took part${clearest}, ${run.done} of ${count(run.rounds, "round")}`;
  byId("detection").textContent = detection;
  byId("meaning").textContent = data.meaning;
  byId("verdicts").replaceChildren(
    ...Object.keys(VERDICTS).flatMap((verdict) => {
      const count = rows.filter((row) => row.verdict === verdict).length;
      return count ? [element("span", {}, verdictWords(verdict), ` ${count.toLocaleString("en")}`)] : [];
    }),
    ...(rows.some((row) => row.fault) ? [stateKey("var(--arm-3)", "bad client: mark at the bottom")] : []),
  );
  drawValueChart(section, rows.filter((row) => row.value !== null));
  drawValueTable(section, run, rows);
  drawHistory(run);
}

function verdictWords(verdict) {
  return element("span", { class: verdict }, `${VERDICTS[verdict].sign} ${verdict}`.trim());
}

/** Choose a client by its name: its history is shown, and it is marked in the tables. */
function chooseClient(section, name) {
  choices.client = name;
  remember();
  const run = chosenRun(section);
  if (run.values.rows.length) {
    drawHistory(run);
    markChosen(run);
  }
  for (const line of byId("clients").querySelectorAll("tbody tr")) {
    line.classList.toggle("chosen-client", run.clients.names[line.dataset.row] === name);
  }
}

/** The client that the user chose; otherwise the one with the lowest value. */
function chosenClient(run) {
  return run.values.rows.find(({ name }) => name === choices.client) || run.values.rows[0];
}

function markChosen(run) {
  byId("values").querySelectorAll("tr.marked").forEach((line) => line.classList.remove("marked"));
  const line = byId("values").querySelector(`tr[data-client="${chosenClient(run).id}"]`);
  if (line) line.classList.add("marked");
}

function drawValueChart(section, rows) {
  valued = { section, rows };
  const chart = chartIn("chart-values", (made) => {
    made.on("datazoom", () => {
      const { start, end } = made.getOption().dataZoom[0];
      choices.valueZoom = [start, end];
      made.setOption(windowOption(valued.rows));
    });
    made.getZr().on("click", (event) => {
      const place = [event.offsetX, event.offsetY];
      if (!made.containPixel("grid", place)) return;
      const row = valued.rows[made.convertFromPixel("grid", place)[0]];
      if (row) chooseClient(valued.section, row.name);
    });
  });
  const axis = axisStyle();
  const many = rows.length > MANY;
  const zooms = many ? [...zoom(true, choices.valueZoom), ...zoom(false, choices.valueZoom)] : [];
  const option = {
    animation: false,
    textStyle: { fontFamily: "inherit" },
    grid: { left: 8, right: 16, top: 26, bottom: many ? 34 : 8, containLabel: true },
    xAxis: {
      ...axis,
      type: "category",
      data: rows.map(({ name }) => name),
      axisLine: { show: false },
      axisLabel: { ...axis.axisLabel, rotate: rows.length > 12 ? 90 : 0, formatter: shortName },
    },
    yAxis: [valueAxis(), { type: "value", show: false, min: 0, max: 1 }],
    // The vertical axis adapts to the clients in the window.
    dataZoom: zooms.map((each) => ({ ...each, filterMode: "filter" })),
    tooltip: { ...tooltipStyle((points) => valueTip(rows[points.find(({ seriesIndex }) => seriesIndex === 0).dataIndex])), axisPointer: { type: "shadow" } },
    series: [
      {
        type: "scatter",
        data: rows.map((row, i) => {
          const { symbol, rotate, shade } = VERDICTS[row.verdict];
          const itemStyle = { color: colour(symbol === "circle" ? "card" : shade), borderColor: colour(shade), borderWidth: 1.5, opacity: 1 };
          return { value: [i, row.value], symbol, symbolRotate: rotate, itemStyle };
        }),
        symbolSize: rows.length > 200 ? 6 : 9,
        cursor: "pointer",
        markLine: zeroLine(),
        z: 3,
      },
      ...Object.keys(VERDICTS).map((verdict) => {
        const points = rows.map((row, i) => [i, row.value, row.interval || 0]);
        return intervals(points.filter(([i]) => rows[i].verdict === verdict), VERDICTS[verdict].shade);
      }),
      badMarks(rows),
    ],
  };
  chart.setOption(option, { notMerge: true });
  chart.setOption(windowOption(rows));
  const plot = byId("chart-values");
  const legend = Object.entries(VERDICTS).filter(([, { sign }]) => sign);
  offer(plot, "the chart of values", {
    PNG: () => downloadPng("values", "Value of every client", legend.map(([name, { shade }]) => ({ name, shade: colour(shade) })), plot.querySelector("canvas")),
    CSV: () => downloadCsv("values", [["client", "value", "half of the 95 % interval", "verdict"], ...rows.map((row) => [row.name, row.value, row.interval, row.verdict])]),
  });
}

/** What depends on the number of clients in the window. */
function windowOption(rows) {
  const [start, end] = choices.valueZoom;
  const shown = (rows.length * (end - start)) / 100;
  const symbolSize = [Math.max(2, Math.min(12, 600 / shown)), 6];
  return { xAxis: { axisLabel: { show: shown <= MOST_LABELS } }, series: [{ id: "bad", symbolSize }] };
}

/** The beginning and the end of a long name: names often differ only at the end. */
function shortName(name) {
  const letters = [...name];
  return letters.length > LONGEST ? [...letters.slice(0, 5), "…", ...letters.slice(6 - LONGEST)].join("") : name;
}

function valueAxis() {
  const axis = axisStyle();
  const label = { ...axis.axisLabel, formatter: (value) => shortNumber(value).replace("-", "−") };
  const nameTextStyle = { ...axis.nameTextStyle, align: "left" };
  return { ...axis, type: "value", name: "value (below 0: higher loss)", nameTextStyle, axisLabel: label };
}

function zeroLine() {
  const lineStyle = { color: colour("ink"), width: 1.5, type: "solid" };
  return { silent: true, symbol: "none", animation: false, label: { show: false }, lineStyle, data: [{ yAxis: 0 }] };
}

/** Intervals as one line with gaps: points are [x, value, half the width of the interval]. */
function intervals(points, shade) {
  return {
    type: "line",
    data: points.flatMap(([x, value, half]) => [[x, value - half], [x, value + half], [x, null]]),
    symbol: "none",
    silent: true,
    color: colour(shade),
    lineStyle: { width: points.length > 200 ? 1 : 2, opacity: 0.55, type: "solid" },
    z: 2,
  };
}

/** A mark at the bottom of the chart, on a vertical axis of its own, for every client that is known to be bad. */
function badMarks(rows) {
  return {
    type: "scatter",
    id: "bad",
    yAxisIndex: 1,
    data: rows.flatMap((row, i) => (row.fault ? [[i, 0]] : [])),
    symbol: "rect",
    symbolOffset: [0, -3],
    silent: true,
    color: colour("arm-3"),
  };
}

function valueTip(row) {
  const about = [`selected in ${count(row.selected, "round")}`];
  if (row.considered) about.unshift(`kept in ${row.kept} of ${count(row.considered, "filtering")}`);
  if (row.trusted) about.push("trusted: its labels are known to be right");
  if (row.refused) about.push(`refused in ${count(row.refused, "round")}`);
  if (row.examples !== null) about.push(count(row.examples, "sample"));
  return element(
    "div",
    {},
    element("b", {}, `client ${row.name}`),
    element("div", {}, verdictWords(row.verdict), `: ${signed(row.value).show}${plusMinus(row.interval)}`),
    ...about.map((words) => element("div", {}, words)),
    row.fault ? element("div", {}, element("span", { class: "flag" }, row.fault)) : null,
  );
}

function drawValueTable(section, run, rows) {
  const faults = rows.some((row) => row.fault);
  const columns = [
    { label: "client", text: true },
    { label: "value", hint: `Running estimate at the end: ${data.meaning}`, up: true },
    { label: "± 95\u00a0%", hint: "Half the width of the 95 % interval" },
    { label: "verdict", hint: "Whether the value differs from 0, corrected for the number of clients", text: true },
    { label: "kept", hint: "Number of filterings that kept it, of those that considered it" },
    { label: "selected", hint: "Number of rounds in which it was selected" },
    { label: "samples", hint: "Number of training samples" },
    ...(faults ? [{ label: "fault", hint: "The fault that was added to its data or updates", text: true }] : []),
  ];
  const made = rows.map((row) => ({
    attributes: { "data-client": row.id, onclick: () => chooseClient(section, row.name) },
    cells: [
      { value: row.name, show: clientName(row.name, row.trusted) },
      signed(row.value),
      { value: row.interval, show: row.interval === null ? NONE : plusMinus(row.interval).slice(3) },
      { value: row.verdict, show: verdictWords(row.verdict) },
      { value: row.considered ? row.kept / row.considered : null, show: row.considered ? `${row.kept} of ${row.considered}` : NONE },
      number(row.selected),
      number(row.examples),
      ...(faults ? [{ value: row.fault || "", show: row.fault ? element("span", { class: "flag" }, row.fault) : "" }] : []),
    ],
  }));
  sortableTable(byId("values"), "values", columns, made, { column: 1, up: true }, () => markChosen(run));
}

/** The value of the chosen client at each filtering, and the running estimate with its interval. */
function drawHistory(run) {
  const client = chosenClient(run);
  const history = run.values.history[client.id];
  byId("history-of").textContent = `Client ${client.name}:`;
  const axis = axisStyle();
  const { shade } = VERDICTS[client.verdict];
  const measured = history.filter(([, value]) => value !== null);
  const running = history.filter(([, , , mean]) => mean !== null);
  const line = (times, style) => ({
    type: "line",
    data: running.map(([round, , , mean, half]) => [round, mean + times * (half || 0)]),
    symbol: "none",
    color: colour("ink"),
    lineStyle: style,
    silent: true,
  });
  const edge = { width: 1, type: "dashed", opacity: 0.6 };
  const option = {
    animation: false,
    textStyle: { fontFamily: "inherit" },
    grid: { left: 8, right: 16, top: 30, bottom: 30, containLabel: true },
    xAxis: {
      ...axis,
      type: "value",
      min: 1,
      max: Math.max(run.done, 2),
      minInterval: 1,
      name: "round",
      nameLocation: "middle",
      nameGap: 26,
      axisLine: { show: false },
      splitLine: { show: false },
    },
    yAxis: valueAxis(),
    tooltip: tooltipStyle((points) => historyTip(history, points[0].axisValue)),
    series: [
      intervals(measured.map(([round, value, half]) => [round, value, half || 0]), shade),
      { type: "scatter", data: measured.map(([round, value]) => [round, value]), symbolSize: 9, color: colour(shade), markLine: zeroLine(), z: 3 },
      line(0, { width: 2 }),
      line(1, edge),
      line(-1, edge),
    ],
  };
  chartIn("chart-history").setOption(option, { notMerge: true });
  const plot = byId("chart-history");
  offer(plot, "the history of the client", {
    PNG: () => downloadPng(`client ${client.name}`, `Client ${client.name}: value at each filtering, and running estimate`, [], plot.querySelector("canvas")),
    CSV: () => downloadCsv(`client ${client.name}`, [["round", "value", "half of its 95 % interval", "running estimate", "half of its 95 % interval"], ...history]),
  });
}

/** The filtering nearest to a round. */
function historyTip(history, x) {
  if (!history.length) return "";
  const nearest = history.reduce((best, one) => (Math.abs(one[0] - x) < Math.abs(best[0] - x) ? one : best));
  const [round, value, half, mean, meanHalf] = nearest;
  return element(
    "div",
    {},
    element("b", {}, `round ${round}`),
    element("div", {}, `value ${signed(value).show}${plusMinus(half)}`),
    element("div", {}, `running estimate ${signed(mean).show}${plusMinus(meanHalf)}`),
  );
}
