"use strict";

// The states of a client in a round, by their digit in the map: see report/html/clients.py.
const STATES = [
  "not available",
  "available, not considered by the filter",
  "filtered out",
  "may be selected",
  "selected: trains and is averaged",
  "refused: its update could not be averaged",
];
const SHORT_STATES = ["not available", "not considered", "filtered out", "may be selected", "selected", "refused"];
const MAP = { height: 600, least: 3, most: 18, axis: 26, top: 10, flag: 8, labels: 11, bars: 84 };
let mapped = null; // The run in the map, its rows in the order of the table, and the layout.

function drawClients(section) {
  const run = chosenRun(section);
  if (!run) {
    byId("shown").textContent = "No run has started.";
    for (const id of ["map", "clients", "states", "events"]) byId(id).replaceChildren();
    byId("happened").hidden = true;
    return;
  }
  drawRunChooser(section, run, byId("arm"), byId("seed"));
  const { of, ids } = run.clients;
  const some = ids.length < of ? ` (showing the ${ids.length.toLocaleString("en")} most active)` : "";
  byId("shown").textContent = `${count(of, "client")}${some}, ${run.done} of ${count(run.rounds, "round")}`;
  const clients = run.clients;
  const used = new Set(clients.map.join(""));
  const legend = STATES.map((words, i) => (used.has(String(i)) ? stateKey(`var(--state-${i})`, words) : null));
  if (clients.fault && clients.fault.some(Boolean)) legend.push(stateKey("var(--arm-3)", "bad client: mark on the left"));
  if (clients.trusted && clients.trusted.some(Boolean)) legend.push(element("span", {}, "trusted: its labels are known to be right"));
  if (clients.considered.some(Boolean)) legend.push(stateKey("var(--muted)", "tick on top: filter round"));
  byId("states").replaceChildren(...legend.filter(Boolean));
  drawClientTable(section, run);
  drawEvents(run);
}

function stateKey(background, words) {
  return element("span", {}, element("i", { style: { background } }), words);
}

/** The run that the user chose; otherwise the one of the headline, or one that filters, of the best method if it can. */
function chosenRun(section) {
  const wanted = choices.run || section.headline.run;
  const its = wanted ? section.runs.filter((run) => section.arms[run.arm].name === wanted.arm) : [];
  const same = its.find((run) => run.seed === wanted.seed) || its[0];
  if (same) return same;
  const best = section.headline.tiles.length ? section.headline.tiles[0].arm : null;
  const filtering = section.runs.filter((run) => run.traces.length);
  return filtering.find((run) => section.arms[run.arm].name === best) || filtering[0] || section.runs[0];
}

/** The selects of a run. All views of clients show the same run. */
function drawRunChooser(section, run, armSelect, seedSelect) {
  const arm = section.arms[run.arm].name;
  const arms = section.arms.filter((_, i) => section.runs.some((other) => other.arm === i)).map(({ name }) => [name, name]);
  const seeds = section.runs.filter((other) => other.arm === run.arm).map(({ seed }) => [String(seed), String(seed)]);
  fillSelect(armSelect, arms, arm);
  fillSelect(seedSelect, seeds, String(run.seed));
  const choose = () => {
    const chosen = armSelect.value;
    const its = section.runs.filter((other) => section.arms[other.arm].name === chosen);
    const seed = Number(seedSelect.value);
    choices.run = { arm: chosen, seed: its.some((other) => other.seed === seed) ? seed : its[0].seed };
    remember();
    drawValues(section);
    drawClients(section);
    drawFiltering(section);
  };
  armSelect.onchange = choose;
  seedSelect.onchange = choose;
}

function drawClientTable(section, run) {
  const c = run.clients;
  const filters = c.considered.some(Boolean);
  const faults = c.fault && c.fault.some(Boolean);
  const shown = [true, faults, filters, filters, filters, true, true, true, true, c.accuracy !== null];
  const columns = [
    { label: "client", text: true },
    { label: "fault", hint: "The fault that was added to its data or updates", text: true },
    { label: "share kept", hint: "Kept / considered. Clients that harm the model have a low share", up: true },
    { label: "kept", hint: "Number of filter rounds that kept it" },
    { label: "considered", hint: "Number of filter rounds that considered it" },
    { label: "selected", hint: "Number of rounds in which it was selected" },
    { label: "refused", hint: "Number of its updates that were refused" },
    { label: "available", hint: "Number of rounds in which it was available" },
    { label: "samples", hint: "Number of training samples" },
    { label: "own test", hint: "Accuracy of the final model on the client's own test samples" },
  ].filter((_, i) => shown[i]);
  const rows = c.ids.map((id, i) => {
    const share = c.considered[i] ? c.kept[i] / c.considered[i] : null;
    const fault = (c.fault && c.fault[i]) || "";
    return {
      index: i,
      share,
      considered: c.considered[i],
      attributes: {
        "data-row": i,
        class: c.names[i] === choices.client ? "chosen-client" : null,
        onclick: () => chooseClient(section, c.names[i]),
        onmouseenter: () => markRow(i),
        onmouseleave: unmark,
      },
      cells: [
        { value: c.names[i], show: clientName(c.names[i], c.trusted && c.trusted[i]) },
        { value: fault, show: fault ? element("span", { class: "flag" }, fault) : "" },
        { value: share, show: shareBar(share) },
        number(filters ? c.kept[i] : null),
        number(c.considered[i]),
        number(c.selected[i]),
        { ...number(c.refused[i]), show: refusedCell(run, id, i) },
        number(c.available ? c.available[i] : null),
        number(c.sizes ? c.sizes[i] : null),
        ownTest(c, i),
      ].filter((_, column) => shown[column]),
    };
  });
  // First those kept least (of equals, those considered most often); without a filter, those selected most often.
  rows.sort((one, other) => other.considered - one.considered);
  const start = { column: columns.findIndex(({ label }) => label === (filters ? "share kept" : "selected")), up: filters };
  sortableTable(byId("clients"), "clients", columns, rows, start, (order) => drawMap(section, run, order));
}

/** A button with the name of a client, which chooses it; trusted clients are marked. */
function clientName(name, trusted) {
  return element("span", {}, element("button", { type: "button" }, name), trusted ? " (trusted)" : "");
}

function ownTest(c, i) {
  if (!c.accuracy || c.accuracy[i] === null) return { value: null, show: NONE };
  return { value: c.accuracy[i], show: `${(100 * c.accuracy[i]).toFixed(0)} % of ${c.tests[i].toLocaleString("en")}` };
}

function number(value) {
  return { value, show: value === null ? NONE : value.toLocaleString("en") };
}

function shareBar(share) {
  if (share === null) return NONE;
  const bar = element("span", { class: "bar" }, element("i", { style: { width: `${100 * share}%` } }));
  return element("span", {}, `${Math.round(100 * share)} %`, bar);
}

function refusedCell(run, id, i) {
  const reasons = run.events.filter(([client]) => client === id).map(([, , text]) => text);
  return run.clients.refused[i] ? element("span", { title: reasons.join("\n") }, String(run.clients.refused[i])) : "0";
}

/** Every reason for which replies were refused, and every note. */
function drawEvents(run) {
  byId("happened").hidden = !run.events.length;
  const columns = [
    { label: "client", hint: "The client whose reply was refused; notes have none", text: true },
    { label: "reason or note", hint: "With the numbers of the last of these rounds", text: true },
    { label: "rounds", hint: "In how many rounds" },
    { label: "first", hint: "The first of these rounds" },
    { label: "last", hint: "The last of these rounds" },
  ];
  const rows = run.events.map(([, name, text, ...numbers]) => ({
    cells: [{ value: name, show: name }, { value: text, show: text, class: "wrap" }, ...numbers.map(number)],
  }));
  sortableTable(byId("events"), "events", columns, rows, { column: 3, up: true });
}

/** The map: one row per client in the order of the table, one column per round. */
function drawMap(section, run, order) {
  const box = byId("map");
  let canvas = box.querySelector("canvas");
  if (!canvas) {
    canvas = element("canvas", {
      role: "img",
      "aria-label": "State of every client in every round",
      onmousemove: pointAtMap,
      onmouseleave: () => (hideTip(), unmark()),
      onclick: clickMap,
    });
    box.replaceChildren(canvas, element("div", { class: "marker", hidden: "" }));
    new ResizeObserver(() => mapped && box.clientWidth !== mapped.width && paintMap()).observe(box);
  }
  mapped = { section, run, order };
  paintMap();
  const names = order.map(({ index }) => run.clients.names[index]);
  const legend = STATES.map((name, i) => ({ name, shade: colour(`state-${i}`) }));
  const rounds = [...(run.clients.map[0] || "")].map((_, i) => `round ${i + 1}`);
  offer(box, "the map", {
    PNG: () => downloadPng("map", `${section.arms[run.arm].name}, seed ${run.seed}: state of every client in every round`, legend, canvas),
    CSV: () => downloadCsv("map", [["client", ...rounds], ...order.map(({ index }, i) => [names[i], ...[...run.clients.map[index]].map((state) => SHORT_STATES[state])])]),
  });
}

function paintMap() {
  const { run, order } = mapped;
  const box = byId("map");
  const canvas = box.querySelector("canvas");
  const rounds = run.clients.map.length ? run.clients.map[0].length : 0;
  const rowHeight = Math.max(MAP.least, Math.min(MAP.most, Math.floor(MAP.height / Math.max(order.length, 1))));
  const height = MAP.top + order.length * rowHeight + MAP.axis;
  const ratio = window.devicePixelRatio || 1;
  const pen = canvas.getContext("2d");
  canvas.style.height = `${height}px`;
  const width = box.clientWidth;
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  canvas.style.width = `${width}px`;
  pen.scale(ratio, ratio);
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const named = rowHeight >= MAP.labels;
  const names = run.clients.names;
  const labels = named ? Math.min(width / 4, Math.max(...order.map(({ index }) => pen.measureText(names[index]).width)) + 8) : 0;
  const considered = run.clients.considered.some(Boolean);
  const bars = considered ? Math.min(MAP.bars, width / 5) : 0;
  const left = labels + MAP.flag + 2;
  const plot = Math.max(1, width - left - bars - 4);
  Object.assign(mapped, { width, rowHeight, left, plot, rounds, cell: rounds ? plot / rounds : plot });
  if (rounds) paintCells(pen, ratio);
  paintSides(pen, { named, labels, bars });
  paintRounds(pen, considered);
}

/** One pixel per cell on a separate canvas, which is then stretched: fast even with 100,000 cells. */
function paintCells(pen, ratio) {
  const { run, order, rounds, rowHeight, left, plot, cell } = mapped;
  const shades = STATES.map((_, i) => rgb(colour(`state-${i}`)));
  const small = element("canvas", { width: rounds, height: order.length });
  const picture = new ImageData(rounds, order.length);
  const pixels = picture.data;
  order.forEach(({ index }, row) => {
    const states = run.clients.map[index];
    for (let column = 0, at = 4 * row * rounds; column < rounds; column += 1, at += 4) {
      const [red, green, blue] = shades[states.charCodeAt(column) - 48];
      pixels[at] = red;
      pixels[at + 1] = green;
      pixels[at + 2] = blue;
      pixels[at + 3] = 255;
    }
  });
  small.getContext("2d").putImageData(picture, 0, 0);
  pen.imageSmoothingEnabled = cell * ratio < 1;
  pen.drawImage(small, left, MAP.top, plot, order.length * rowHeight);
  pen.fillStyle = colour("card");
  if (rowHeight >= 5) for (let row = 1; row < order.length; row += 1) pen.fillRect(left, MAP.top + row * rowHeight - 1, plot, 1);
  if (cell >= 6) for (let column = 1; column < rounds; column += 1) pen.fillRect(left + column * cell - 0.5, MAP.top, 1, order.length * rowHeight);
}

function rgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

/** On the left the names, if there is space, and a mark for bad clients; on the right the share kept. */
function paintSides(pen, { named, labels, bars }) {
  const { run, order, rowHeight, left, plot } = mapped;
  const gap = rowHeight >= 5 ? 1 : 0;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  order.forEach(({ index, share }, row) => {
    const y = MAP.top + row * rowHeight;
    if (run.clients.fault && run.clients.fault[index]) {
      pen.fillStyle = colour("arm-3");
      pen.fillRect(left - MAP.flag - 2, y, MAP.flag - 1, rowHeight - gap);
    }
    if (named) {
      pen.fillStyle = colour("muted");
      pen.fillText(run.clients.names[index], labels - 4, y + rowHeight / 2, labels - 4);
    }
    if (bars && share !== null) {
      pen.fillStyle = colour("faint");
      pen.fillRect(left + plot + 8, y, bars - 8, rowHeight - gap);
      pen.fillStyle = colour("muted");
      pen.fillRect(left + plot + 8, y, (bars - 8) * share, rowHeight - gap);
    }
  });
  if (bars) {
    pen.fillStyle = colour("muted");
    pen.textAlign = "left";
    pen.fillText("share kept", left + plot + 8, MAP.top + order.length * rowHeight + 15, bars - 6);
  }
}

/** Round numbers below, and a tick above every filter round. */
function paintRounds(pen, considered) {
  const { run, order, rounds, rowHeight, left, plot, cell } = mapped;
  pen.fillStyle = colour("muted");
  if (considered) for (const [round] of run.traces) pen.fillRect(left + (round - 0.5) * cell - 0.75, 1, 1.5, 6);
  const bottom = MAP.top + order.length * rowHeight;
  const apart = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((n) => n * cell >= 44) || rounds;
  const named = plot > 200 && apart > 1;
  if (named) pen.fillText("round", left, bottom + 15);
  const free = named ? left + pen.measureText("round").width + 16 : left; // Numbers begin right of the word.
  for (let column = 0; column < rounds; column += 1) {
    const round = column + 1;
    const x = left + (column + 0.5) * cell;
    const atTheEnd = x + 14 > left + plot; // It would overlap the text beside the map.
    pen.textAlign = atTheEnd ? "right" : "center";
    if (round % apart === 0 && x >= free) pen.fillText(round.toLocaleString("en"), atTheEnd ? left + plot : x, bottom + 15);
  }
  pen.textAlign = "left";
}

/** The client and the round at the pointer; null outside the map. */
function underPointer(event) {
  const bounds = event.currentTarget.getBoundingClientRect();
  const row = Math.floor((event.clientY - bounds.top - MAP.top) / mapped.rowHeight);
  const column = Math.floor((event.clientX - bounds.left - mapped.left) / mapped.cell);
  if (row < 0 || row >= mapped.order.length) return null;
  return { index: mapped.order[row].index, row, column: column >= 0 && column < mapped.rounds ? column : null };
}

function pointAtMap(event) {
  const at = underPointer(event);
  unmark();
  if (!at) return hideTip();
  const c = mapped.run.clients;
  markRow(at.index);
  const about = [c.sizes ? `${c.sizes[at.index]} samples` : null, c.fault ? c.fault[at.index] : null].filter(Boolean);
  const considered = c.considered[at.index] ? `kept in ${c.kept[at.index]} of ${c.considered[at.index]} filter rounds` : "never considered";
  const state = at.column === null ? null : SHORT_STATES[c.map[at.index][at.column]];
  const now = state ? [`round ${at.column + 1}: ${state}`] : [];
  showTip(event, `client ${c.names[at.index]}${about.length ? ` (${about.join(", ")})` : ""}`, ...now, considered);
}

/** A click shows the latest filter round up to that round. */
function clickMap(event) {
  const at = underPointer(event);
  if (!at || at.column === null) return;
  const round = at.column + 1;
  const before = mapped.run.traces.map(([t]) => t).filter((t) => t <= round);
  if (before.length) {
    choices.round = before[before.length - 1];
    remember();
    drawFiltering(mapped.section);
  }
}

function markRow(index) {
  const row = mapped.order.findIndex((one) => one.index === index);
  const marker = byId("map").querySelector(".marker");
  marker.hidden = false;
  marker.style.top = `${MAP.top + row * mapped.rowHeight - 1}px`;
  marker.style.height = `${mapped.rowHeight + 1}px`;
  const line = byId("clients").querySelector(`tr[data-row="${index}"]`);
  if (line) line.classList.add("marked");
}

function unmark() {
  const marker = byId("map").querySelector(".marker");
  if (marker) marker.hidden = true;
  byId("clients").querySelectorAll("tr.marked").forEach((line) => line.classList.remove("marked"));
}
