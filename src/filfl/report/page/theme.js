"use strict";

// Light, dark, or as the system is. Read before anything is drawn, so that a dark page does not begin with a flash.
const THEMES = ["auto", "light", "dark"];
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
try {
  theme = localStorage.getItem("filfl-theme") || "auto";
} catch {
  // A browser may keep a page from storing anything; then the choice lasts as long as the page.
}

function applyTheme() {
  document.documentElement.dataset.theme = theme === "auto" ? (systemIsDark.matches ? "dark" : "light") : theme;
}

function nextTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try {
    localStorage.setItem("filfl-theme", theme);
  } catch {
    // As above.
  }
  applyTheme();
}

applyTheme();
