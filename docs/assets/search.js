// The search takes a hyphen before a word as "without this word". Options such as --seed are searched without hyphens.
document.addEventListener(
  "input",
  ({ target }) => {
    if (target.matches(".md-search__input")) target.value = target.value.replace(/(^|\s)-+/g, "$1");
  },
  true,
);
