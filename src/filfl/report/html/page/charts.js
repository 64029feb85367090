"use strict";

const SHARE = { unit: " %", times: 100, digits: 1 };
const NUMBER = { unit: "", times: 1, digits: 3 };
const CHARTS = [
  { key: "selected-train-loss", title: "Train loss of the selected clients", unit: "", times: 1, digits: 3 },
  { key: "global-train-loss", title: "Train loss over all clients", ...NUMBER },
  { key: "filtered", title: "Clients that may be selected, |Sᶠ|", unit: "", times: 1, digits: 1, zero: true, step: true },
  { key: "noisy", title: "Bad clients among them", unit: " %", times: 1, digits: 0, zero: true, step: true },
];
const MOST_TIMES = 4; // Uplinks that differ by more than this are drawn on a logarithmic axis.
const charts = new Map();

/** The charts of a section: that of the primary metric first, and large. */
function chartSpecs({ primary, own, where }) {
  const named = (name) => (where ? `${name[0].toUpperCase()}${name.slice(1)}${where}` : `Test ${name}`);
  const title = named(primary.name.replace(/^test /, "").replaceAll("_", " "));
  const scale = primary.share ? SHARE : NUMBER;
  const others = [
    { key: "accuracy", title: named("accuracy"), ...SHARE },
    ...own.map(({ key, name }) => ({ key, title: named(name), ...NUMBER })),
    { key: "test-loss", title: named("loss"), ...NUMBER },
    ...CHARTS,
  ].filter(({ key }) => key !== primary.key);
  return [
    { key: primary.key, title, ...scale, size: "large", target: true },
    { key: "uplink", title: `${title} against upload`, ...scale, size: "medium", target: true },
    ...others,
  ];
}

/** The legend, and the charts that this section has data for. */
function drawCharts(section) {
  drawLegend(section);
  const there = chartSpecs(section).filter(({ key }) => (section.curves[key] || []).some((line) => line.x.length));
  const small = there.filter(({ size }) => !size).length;
  const keys = there.map(({ key }) => key).join(" ");
  const box = byId("charts");
  if (box.dataset.keys !== keys) {
    charts.forEach((chart) => chart.dispose());
    charts.clear();
    box.replaceChildren(...there.map((spec) => chartBox(spec, small)));
    box.dataset.keys = keys;
    for (const { key } of there) charts.set(key, newChart(key));
  }
  for (const spec of there) {
    const chosen = section.automatic ? " (automatic)" : "";
    const words = hasTarget(spec, section) ? `dotted: target ${shortNumber(spec.times * section.target)}${spec.unit}${chosen}` : "";
    const plot = byId(`chart-${spec.key}`);
    plot.parentElement.querySelector("h3 .muted").textContent = words;
    offer(plot, `the chart ${spec.title}`, {
      PNG: () => downloadPng(spec.key, spec.title, armLegend(section), plot.querySelector("canvas")),
      CSV: () => downloadCsv(spec.key, curveRows(spec, section)),
    });
    charts.get(spec.key).setOption(chartOption(spec, section), { replaceMerge: ["series"] });
  }
}

/** The arms that are shown, for the legend of a picture. */
function armLegend(section) {
  return section.arms.filter(({ name }) => !choices.hidden.has(name)).map((arm) => ({ name: arm.name, shade: armColour(arm) }));
}

/** The points of every arm, hidden ones included. */
function curveRows(spec, section) {
  const first = spec.key === "uplink" ? "megabytes sent" : "round";
  const points = section.curves[spec.key].flatMap((line, i) =>
    line.x.map((x, at) => [section.arms[i].name, x, line.mean[at], line.std[at]]),
  );
  return [["method", first, "mean", "standard deviation over seeds"], ...points];
}

function chartBox(spec, small) {
  const size = spec.size || (small === 4 ? "quarter" : "");
  const plot = element("div", { class: "plot", id: `chart-${spec.key}`, role: "img", "aria-label": spec.title });
  const title = element("h3", {}, `${spec.title} `, element("span", { class: "muted" }));
  return element("div", { class: `chart ${size}` }, title, plot);
}

/** The chart in an element. `prepare` is called with a new one. */
function chartIn(id, prepare = () => {}) {
  const plot = byId(id);
  const old = echarts.getInstanceByDom(plot);
  if (old) return old;
  const chart = echarts.init(plot, null, { renderer: "canvas" });
  new ResizeObserver(() => chart.isDisposed() || !plot.clientWidth || chart.resize()).observe(plot);
  prepare(chart);
  return chart;
}

function newChart(key) {
  const chart = chartIn(`chart-${key}`);
  chart.on("datazoom", () => {
    const { start, end } = chart.getOption().dataZoom[0];
    if (choices.zoom[0] === start && choices.zoom[1] === end) return;
    choices.zoom = [start, end];
    for (const [other, its] of charts) {
      if (other !== key && other !== "uplink") its.dispatchAction({ type: "dataZoom", start, end });
    }
  });
  return chart;
}

function drawLegend(section) {
  const lines = section.seeds.length > 1 ? "Lines are means over seeds, bands are one standard deviation." : "Lines are single runs.";
  const hide = section.arms.length > 1 ? " Click a name to hide or show it in all charts." : "";
  byId("lines").replaceChildren(lines, element("span", { class: "screen" }, hide));
  const buttons = section.arms.map((arm) =>
    element(
      "button",
      {
        type: "button",
        "aria-pressed": String(!choices.hidden.has(arm.name)),
        "data-arm": arm.name,
        onclick: () => toggleArm(section, arm.name),
        onmouseenter: () => emphasize(arm.name, "highlight"),
        onmouseleave: () => emphasize(arm.name, "downplay"),
      },
      swatch(arm),
      arm.name,
    ),
  );
  byId("legend").replaceChildren(...buttons);
}

function toggleArm(section, name) {
  if (!choices.hidden.delete(name)) choices.hidden.add(name);
  remember();
  drawCharts(section);
  byId("legend").querySelector(`[data-arm="${CSS.escape(name)}"]`).focus();
}

function emphasize(seriesName, type) {
  for (const chart of charts.values()) chart.dispatchAction({ type, seriesName });
}

function chartOption(spec, section) {
  const uplink = spec.key === "uplink";
  const lines = section.curves[spec.key]
    .map((line, i) => ({ arm: section.arms[i], line }))
    .filter(({ arm, line }) => line.x.length && !choices.hidden.has(arm.name));
  const ends = section.curves[spec.key].filter((line) => line.x.length).map((line) => line.x[line.x.length - 1]);
  const starts = section.curves[spec.key].filter((line) => line.x.length).map((line) => line.x[0]);
  const logarithmic = uplink && Math.min(...starts) > 0 && Math.max(...ends) > MOST_TIMES * Math.min(...ends);
  const axis = axisStyle();
  const slider = spec.size === "large";
  return {
    animation: false,
    textStyle: { fontFamily: "inherit" },
    grid: { left: 8, right: 16, top: 14, bottom: slider ? 66 : 30, containLabel: true },
    xAxis: {
      ...axis,
      type: logarithmic ? "log" : "value",
      min: uplink ? (logarithmic ? Math.min(...starts) : 0) : Math.min(...starts),
      max: uplink ? Math.max(...ends) : Math.max(...ends) + (spec.step ? 1 : 0),
      minInterval: uplink ? undefined : 1,
      name: uplink ? `megabytes sent by the clients${logarithmic ? ", logarithmic" : ""}` : "round",
      nameLocation: "middle",
      nameGap: 26,
      splitLine: { show: false },
      axisLabel: { ...axis.axisLabel, formatter: shortNumber, showMinLabel: true, showMaxLabel: !uplink && !spec.step },
    },
    yAxis: {
      ...axis,
      type: "value",
      scale: !spec.zero,
      min: spec.zero ? 0 : undefined,
      boundaryGap: [0, "5%"],
      axisLabel: { ...axis.axisLabel, formatter: (value) => shortNumber(value) + spec.unit },
    },
    dataZoom: uplink ? [] : zoom(slider),
    tooltip: tooltipStyle((points) => chartTip(spec, lines, points[0].axisValue)),
    series: [...lines.flatMap(({ arm, line }) => seriesOf(spec, arm, line)), ...targetLine(spec, section, starts, ends)],
  };
}

function axisStyle() {
  const muted = colour("muted");
  return {
    axisLine: { lineStyle: { color: colour("line") } },
    axisTick: { show: false },
    axisLabel: { color: muted, hideOverlap: true },
    nameTextStyle: { color: muted },
    splitLine: { lineStyle: { color: colour("line"), opacity: 0.7 } },
  };
}

function tooltipStyle(formatter) {
  return {
    trigger: "axis",
    confine: true,
    backgroundColor: colour("card"),
    borderColor: colour("line"),
    textStyle: { color: colour("ink"), fontSize: 13 },
    axisPointer: { lineStyle: { color: colour("muted") }, snap: false },
    formatter,
  };
}

function zoom(slider, [start, end] = choices.zoom) {
  const inside = { type: "inside", start, end, zoomOnMouseWheel: "ctrl", moveOnMouseMove: false, preventDefaultMouseMove: false };
  if (!slider) return [{ ...inside, filterMode: "none" }];
  const line = colour("line");
  const shown = {
    type: "slider",
    show: !document.documentElement.classList.contains("printing"),
    start,
    end,
    filterMode: "none",
    height: 16,
    bottom: 8,
    showDetail: false,
    brushSelect: false,
    showDataShadow: false,
    borderColor: line,
    backgroundColor: "transparent",
    fillerColor: "rgba(86, 180, 233, 0.18)",
    handleStyle: { color: colour("card"), borderColor: colour("muted") },
    moveHandleSize: 0,
  };
  return [shown];
}

function hasTarget(spec, section) {
  return spec.target === true && section.measures.some((row) => row["rounds-to-target"][0] !== null);
}

/** The target, in charts of the primary metric. */
function targetLine(spec, section, starts, ends) {
  if (!hasTarget(spec, section)) return [];
  const height = spec.times * section.target;
  return [
    {
      type: "line",
      id: "target",
      data: [Math.min(...starts), Math.max(...ends)].map((x) => [x, height]),
      symbol: "none",
      silent: true,
      color: colour("muted"),
      lineStyle: { width: 1.5, type: "dotted" },
      z: 2,
    },
  ];
}

/** A line with its band: an invisible lower edge, and the width of the band stacked on it. */
function seriesOf(spec, arm, line) {
  const shade = armColour(arm);
  const points = line.x.map((x, i) => [x, line.mean[i] * spec.times]);
  const low = line.x.map((x, i) => {
    const edge = (line.mean[i] - line.std[i]) * spec.times;
    return [x, line.mean[i] >= 0 ? Math.max(0, edge) : edge]; // A value that is never negative has no negative band.
  });
  const wide = line.x.map((x, i) => [x, (line.mean[i] + line.std[i]) * spec.times - low[i][1]]);
  const step = spec.step ? "end" : false;
  if (spec.step) for (const some of [points, low, wide]) some.push([some[some.length - 1][0] + 1, some[some.length - 1][1]]);
  const edge = { type: "line", stack: arm.name, stackStrategy: "all", symbol: "none", silent: true, step, lineStyle: { opacity: 0 } };
  const drawn = [
    {
      type: "line",
      id: `${arm.name} mean`,
      name: arm.name,
      data: points,
      showSymbol: points.length === 1,
      symbolSize: 7,
      step,
      color: shade,
      lineStyle: { width: 2, type: DASHES[arm.line % DASHES.length] },
      emphasis: { lineStyle: { width: 3 } },
      z: 3,
    },
  ];
  if (line.std.some((std) => std > 0)) {
    drawn.push(
      { ...edge, id: `${arm.name} low`, data: low },
      { ...edge, id: `${arm.name} band`, data: wide, areaStyle: { color: shade, opacity: 0.13 } },
    );
  }
  return drawn;
}

/** The value of every arm at a round, or at so much upload, in descending order. */
function chartTip(spec, lines, x) {
  const uplink = spec.key === "uplink";
  const found = [];
  for (const { arm, line } of lines) {
    let i = -1;
    while (i + 1 < line.x.length && line.x[i + 1] <= x + (uplink ? 0 : 0.5)) i += 1;
    if (i >= 0) found.push({ arm, mean: line.mean[i] * spec.times, std: line.std[i] * spec.times });
  }
  found.sort((one, other) => other.mean - one.mean);
  const box = element("div", {}, element("b", {}, uplink ? `${shortNumber(x)} MB sent` : `round ${Math.round(x)}`));
  for (const { arm, mean, std } of found) {
    const text = mean.toFixed(spec.digits) + (std > 0 ? ` ± ${std.toFixed(spec.digits)}` : "") + spec.unit;
    const style = { display: "flex", justifyContent: "space-between", gap: "18px" };
    box.append(element("div", { style }, element("span", {}, swatch(arm), arm.name), element("b", {}, text)));
  }
  return box;
}

function shortNumber(value) {
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}
