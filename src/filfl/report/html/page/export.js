"use strict";

// CSV of every table, PNG and CSV of every chart.

/** Buttons above a box that download what it shows. formats: by name, what makes it, called at the click. */
function offer(box, what, formats) {
  let bar = box.previousElementSibling;
  if (!bar || !bar.classList.contains("exports")) {
    bar = element("div", { class: "exports" });
    for (const format of Object.keys(formats)) {
      const label = `Download ${what} as ${format}`;
      bar.append(element("button", { type: "button", "aria-label": label, title: label, onclick: () => bar.formats[format]() }, format));
    }
    box.before(bar);
  }
  bar.formats = formats;
}

/** The name of a downloaded file: the title of the section, and what it shows. */
function fileName(what, ending) {
  const section = currentSection();
  const plain = (text) => text.replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^-+|-+$/g, "");
  return `${plain(section ? section.title : "filfl").slice(0, 60)}-${plain(what)}.${ending}`;
}

function download(name, blob) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** rows: lists of texts, numbers and nulls, the headings first. */
function downloadCsv(what, rows) {
  const text = rows.map((row) => row.map(csvCell).join(",")).join("\r\n");
  download(fileName(what, "csv"), new Blob([`\ufeff${text}\r\n`], { type: "text/csv" }));
}

function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+@\t\r-]/.test(value) ? `'${value}` : value; // A name must not become a formula of a spreadsheet.
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A canvas with a title and a legend above it, which on the page are text. legend: {name, shade} */
function downloadPng(what, title, legend, canvas) {
  const ratio = canvas.width / canvas.clientWidth || 1;
  const width = canvas.width / ratio;
  const made = element("canvas");
  const pen = made.getContext("2d");
  const font = getComputedStyle(document.body).fontFamily;
  pen.font = `13px ${font}`;
  const places = [];
  let x = 10;
  let y = 46;
  for (const entry of legend) {
    const wide = 26 + pen.measureText(entry.name).width + 16;
    if (x > 10 && x + wide > width) [x, y] = [10, y + 20];
    places.push({ ...entry, x, y });
    x += wide;
  }
  const top = legend.length ? y + 16 : 36;
  Object.assign(made, { width: canvas.width, height: canvas.height + top * ratio });
  pen.scale(ratio, ratio);
  pen.fillStyle = colour("card");
  pen.fillRect(0, 0, width, made.height / ratio);
  pen.fillStyle = colour("ink");
  pen.font = `600 15px ${font}`;
  pen.fillText(title, 10, 22, width - 20);
  pen.font = `13px ${font}`;
  for (const place of places) {
    pen.fillStyle = place.shade;
    pen.fillRect(place.x, place.y - 7, 20, 6);
    pen.fillStyle = colour("ink");
    pen.fillText(place.name, place.x + 26, place.y);
  }
  pen.drawImage(canvas, 0, top, width, canvas.height / ratio);
  made.toBlob((blob) => download(fileName(what, "png"), blob));
}
