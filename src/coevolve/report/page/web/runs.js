// The choice of the runs that are drawn, and their recipes.

const hidden = new Set();

const shownRuns = () => overview.runs.filter((run) => !hidden.has(run.name));

/** Return the names of all groups, not only the shown ones, so that a group keeps its colour when others are hidden. */
const groupNames = () => [...byGroup(overview.runs).keys()];

function drawRunPicker(root, changed) {
  root.hidden = overview.runs.length < 2;
  const groups = groupNames();
  const swatch = (run) => (groups.length < 2 ? null : el("span", { class: "swatch", style: `--swatch: var(--line-${groups.indexOf(run.group) % 8})` }));
  const toggle = (event) => {
    if (event.target.checked) hidden.delete(event.target.value); else hidden.add(event.target.value);
    changed();
  };
  const box = (run) => el("input", { type: "checkbox", checked: !hidden.has(run.name), value: run.name, onchange: toggle });
  keep(root, overview.runs.map((run) => [run.name, run.group]), () => [
    el("legend", {}, "Runs"), ...overview.runs.map((run) => el("label", {}, box(run), swatch(run), el("span", {}, run.name)))]);
}

function drawRecipes(root) {
  const folded = (title, text) => el("details", {}, el("summary", {}, title), el("pre", { class: "scroll", tabindex: 0 }, text));
  keep(root, overview.runs.map((run) => [run.name, run.recipe, run.environment]), () => [
    el("h2", {}, "Recipes"), ...overview.runs.map((run) => el("article", { class: "card" }, el("h3", {}, run.name),
      el("p", { class: "note" }, `${run.group}, seed ${run.seed}`), folded("recipe", run.recipe), folded("environment", run.environment)))]);
}
