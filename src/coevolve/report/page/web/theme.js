// The theme, light or dark: the system's until the reader chooses another.

const system = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;

const theme = () => chosenTheme ?? (system.matches ? "dark" : "light");

/** Set the theme, and call `changed` now and whenever the theme changes. */
function followTheme(changed) {
  const apply = () => {
    document.documentElement.dataset.theme = theme();
    byId("theme").textContent = theme() === "dark" ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", `Switch to ${theme() === "dark" ? "light" : "dark"} colours`);
    changed();
  };
  system.addEventListener("change", apply);
  byId("theme").addEventListener("click", () => {
    chosenTheme = theme() === "dark" ? "light" : "dark";
    apply();
  });
  apply();
}

/** Return the value of a colour of page.css. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Return the n-th of the colours of lines. */
const lineColour = (n) => colour(`line-${n % 8}`);
