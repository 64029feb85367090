"use strict";

// What the user has chosen. It is kept when the page redraws.
const choices = { section: null, hidden: new Set(), run: null, round: null, client: null, sorts: {}, zoom: [0, 100], valueZoom: [0, 100] };
const NONE = "–";

function byId(id) {
  return document.getElementById(id);
}

/** A new element: attributes by name, `on...` as listeners, `style` as a table; then its children. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** The value of a colour of the style sheet in the current theme. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const DASHES = ["solid", "dashed", "dotted", [10, 4, 2, 4]];

function armColour(arm) {
  return colour(`arm-${arm.colour % 8}`);
}

function swatch(arm) {
  const dash = DASHES[arm.line % DASHES.length];
  return element("span", {
    class: "swatch",
    style: { borderColor: `var(--arm-${arm.colour % 8})`, borderTopStyle: Array.isArray(dash) ? "double" : dash },
  });
}

/** Text with non-breaking spaces between numbers and units. */
function unbroken(words) {
  return words.replace(/ ([%±=<]|[MG]B\b)/g, "\u00a0$1").replace(/([±=<]) /g, "$1\u00a0");
}

/** One paragraph per note; without notes the box is hidden. */
function drawNotes(box, notes) {
  box.hidden = !notes.length;
  box.replaceChildren(...notes.map((words) => element("p", {}, words)));
}

/** Fill a select, unless it already has these options: it may be open. */
function fillSelect(select, options, value) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options !== wanted) {
    select.replaceChildren(...options.map(([key, text]) => element("option", { value: key }, text)));
    select.dataset.options = wanted;
  }
  select.value = value;
}

/** Replace the content of a scrolled box and keep its scroll position. */
function refill(box, ...children) {
  const { scrollTop, scrollLeft } = box;
  box.replaceChildren(...children);
  Object.assign(box, { scrollTop, scrollLeft });
}

/** 1 round, 3 rounds */
function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

const PRINTED = 40; // The most rows of a table on paper: see page.css.

/**
 * A table that is sorted by a click on a heading.
 * columns: {label, hint, text: true for text}; rows: {cells: [{value, show}], ...}, where a null value sorts last;
 * start: {column, up}, the order before the first click; drawn: called with the rows in their order.
 * Its CSV has the values of the cells in this order.
 */
function sortableTable(box, key, columns, rows, start, drawn = () => {}) {
  const sort = choices.sorts[key] || start;
  const order = sort ? rows.slice().sort((one, other) => compareCells(one.cells, other.cells, sort)) : rows;
  const head = columns.map((column, i) => {
    const sorted = sort && sort.column === i ? (sort.up ? "ascending" : "descending") : "none";
    const click = () => {
      const first = Boolean(column.text || column.up);
      choices.sorts[key] = { column: i, up: sort && sort.column === i ? !sort.up : first };
      sortableTable(box, key, columns, rows, start, drawn);
      box.querySelectorAll("th button")[i].focus();
    };
    const button = element("button", { type: "button", title: column.hint, onclick: click }, ...column.label.split(/(?<=_)/).flatMap((part) => [part, element("wbr")]));
    return element("th", { "aria-sort": sorted, class: column.text ? "text" : null, scope: "col" }, button);
  });
  const body = order.map((row) => {
    const cells = row.cells.map((cell, i) =>
      element("td", { class: cell.class || (columns[i].text ? "text" : null) }, cell.show),
    );
    return element("tr", row.attributes || {}, ...cells);
  });
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  const more = rows.length > PRINTED ? [element("p", { class: "printed muted" }, `The first ${PRINTED} of ${count(rows.length, "row")}.`)] : [];
  refill(box, table, ...more);
  offer(box, `the table of ${key}`, {
    CSV: () => downloadCsv(key, [columns.map(({ label }) => label), ...order.map(({ cells }) => cells.map(({ value }) => value))]),
  });
  drawn(order);
}

function compareCells(one, other, sort) {
  const a = one[sort.column].value;
  const b = other[sort.column].value;
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
  return sort.up ? order : -order;
}

/** Show a tooltip beside the pointer. */
function showTip(event, ...lines) {
  const tip = byId("tip");
  tip.replaceChildren(...lines.map((line) => element("div", {}, line)));
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 16 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 10}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}
