// Light or dark: as the system says until the reader says otherwise.

const system = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;

const theme = () => chosenTheme ?? (system.matches ? "dark" : "light");

/** Sets the theme, and calls `changed` now and whenever it changes. */
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

/** The value of a colour of page.css. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The n-th of the colours that tell lines apart. */
const lineColour = (n) => colour(`line-${n % 8}`);
