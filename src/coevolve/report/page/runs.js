// Which runs are drawn, and what they are.

const hidden = new Set();

const shownRuns = () => overview.runs.filter((run) => !hidden.has(run.name));

/** All groups, so that a group keeps its colour when others are hidden. */
const groupNames = () => [...byGroup(overview.runs).keys()];

function drawRunPicker(root, changed) {
  root.hidden = overview.runs.length < 2;
  const boxes = overview.runs.map((run) => {
    const box = el("input", {
      type: "checkbox", checked: !hidden.has(run.name), value: run.name,
      onchange: () => {
        if (box.checked) hidden.delete(run.name); else hidden.add(run.name);
        changed();
      },
    });
    const several = groupNames().length > 1;
    return el("label", {}, box, several ? el("span", { class: "swatch", style: `--swatch: var(--line-${groupNames().indexOf(run.group) % 8})` }) : null, el("span", {}, run.name));
  });
  root.replaceChildren(root.querySelector("legend"), ...boxes);
}

function drawRecipes(root) {
  const folded = (title, text) => el("details", {}, el("summary", {}, title), el("pre", { class: "scroll", tabindex: 0 }, text));
  root.replaceChildren(el("h2", {}, "Recipes"),
    ...overview.runs.map((run) => el("article", { class: "card" }, el("h3", {}, run.name),
      el("p", { class: "note" }, `${run.group}, seed ${run.seed}, ${count(run.written, "step")}`),
      folded("recipe", run.recipe), folded("environment", run.environment))));
}
