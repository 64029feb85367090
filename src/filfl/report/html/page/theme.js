"use strict";

// Light, dark, or the theme of the system. Set before anything is drawn, so that a dark page does not flash white.
const THEMES = ["auto", "light", "dark"];
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
try {
  theme = localStorage.getItem("filfl-theme") || "auto";
} catch {
  // The browser may not allow storage; then the choice lasts until the page is closed.
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
