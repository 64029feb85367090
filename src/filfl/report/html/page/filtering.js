"use strict";

/** The decisions of one filter round of the chosen run. */
function drawFiltering(section) {
  const run = chosenRun(section);
  const traces = run ? run.traces : [];
  byId("filtering").hidden = !traces.length;
  if (!traces.length) return;
  const wanted = traces.findIndex(([round]) => round === choices.round);
  const place = wanted >= 0 ? wanted : traces.length - 1;
  const [round, rewards, clients, a, b, p, kept] = traces[place];
  fillSelect(byId("round"), traces.map(([t]) => [String(t), String(t)]), String(round));
  const go = (to) => {
    choices.round = traces[to][0];
    remember();
    drawFiltering(section);
  };
  byId("round").onchange = () => go(traces.findIndex(([t]) => String(t) === byId("round").value));
  byId("earlier").disabled = place === 0;
  byId("later").disabled = place === traces.length - 1;
  byId("earlier").onclick = () => go(place - 1);
  byId("later").onclick = () => go(place + 1);
  const size = [...kept].filter((one) => one === "1").length;
  byId("rewards").textContent = unbroken(`${size} of ${clients.length} kept.${rewardWords(rewards)}`);
  const about = new Map(run.clients.ids.map((id, i) => [id, i]));
  const nameOf = (id) => (about.has(id) ? run.clients.names[about.get(id)] : String(id));
  const faultOf = (id) => (run.clients.fault && about.has(id) && run.clients.fault[about.get(id)]) || "";
  byId("decisions").replaceChildren(
    ...clients.map((id, i) => {
      const words = `${i + 1}. ${nameOf(id)}: ${kept[i] === "1" ? "kept" : "filtered out"}${faultOf(id) ? `, ${faultOf(id)}` : ""}`;
      const background = `var(--state-${kept[i] === "1" ? 3 : 2})`;
      return element("i", { class: faultOf(id) ? "bad" : null, title: words, style: { background } });
    }),
    element(
      "span",
      { class: "states", style: { margin: "0 0 0 10px" } },
      stateKey("var(--state-3)", "kept"),
      stateKey("var(--state-2)", "filtered out"),
      ...(clients.some(faultOf) ? [element("span", {}, "with a ring: bad client")] : []),
    ),
  );
  const changes = [...a, ...b].some((value) => value !== null); // Not every filter measures them.
  byId("changes").hidden = !changes;
  const shown = [true, true, true, changes, changes, true, true];
  const columns = [
    { label: "order", up: true },
    { label: "client", text: true },
    { label: "fault", text: true },
    { label: "a", hint: "Change of the reward when it is added to those kept so far" },
    { label: "b", hint: "Change of the reward when it is removed from those not yet filtered out" },
    { label: "p", hint: "Probability of keeping it" },
    { label: "decision", text: true },
  ].filter((_, i) => shown[i]);
  const rows = clients.map((id, i) => ({
    cells: [
      { value: i + 1, show: String(i + 1) },
      { value: nameOf(id), show: nameOf(id) },
      { value: faultOf(id), show: faultOf(id) ? element("span", { class: "flag" }, faultOf(id)) : "" },
      signed(a[i]),
      signed(b[i]),
      { value: p[i], show: p[i] === null ? NONE : String(Number(p[i].toFixed(3))) },
      {
        value: kept[i] === "1" ? "kept" : "filtered out",
        show: element("span", { class: kept[i] === "1" ? "kept" : "out" }, kept[i] === "1" ? "kept" : "filtered out"),
      },
    ].filter((_, column) => shown[column]),
  }));
  sortableTable(byId("trace"), "trace", columns, rows, null);
}

/** The rewards, and how much lower the loss is with those kept. The gain on V itself is that of the samples they were chosen on. */
function rewardWords([all, filtered, onV, gain, interval]) {
  const known = all !== null && filtered !== null;
  const rewards = known ? ` Reward of all clients: ${all}; of those kept: ${filtered} (gain on V itself: ${signed(onV).show}).` : "";
  const honest = gain === null ? "" : ` Gain on samples not used to choose them: ${signed(gain).show}${plusMinus(interval)}.`;
  return rewards + honest;
}

function plusMinus(interval) {
  return interval === null ? "" : ` ± ${signed(interval).show.replace("+", "")}`;
}

function signed(value) {
  if (value === null) return { value, show: NONE };
  const text = Math.abs(value) > 0 && Math.abs(value) < 1e-4 ? value.toExponential(1) : value.toFixed(4);
  return { value, show: (value > 0 ? "+" : "") + text.replaceAll("-", "−") };
}
