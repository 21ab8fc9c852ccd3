// The part of the page with the curves: the controls, and a card for every panel.

const options = { axis: "steps", smooth: 0, log: false, roles: true };
const cards = new Map();

function buildCurves(root) {
  const axis = el("select", { id: "axis", onchange: () => set({ axis: axis.value }) });
  fill(axis, [["steps", "steps"], ["turns", "samples (turns)"], ["updates", "gradient steps"]], "steps");
  const smooth = el("input", {
    id: "smooth", type: "range", min: 0, max: 0.98, step: 0.02, value: 0, oninput: () => set({ smooth: Number(smooth.value) }),
  });
  const toggle = (id, text, start) => {
    const box = el("input", { id, type: "checkbox", checked: start, onchange: () => set({ [id]: box.checked }) });
    return labelled(text, box);
  };
  root.replaceChildren(
    el("h2", {}, "Curves"),
    el("fieldset", { id: "runs" }),
    el("div", { class: "controls" }, labelled("x axis", axis), labelled("smoothing", smooth),
      toggle("log", "log scale", false), toggle("roles", "role exchanges", true)),
    el("p", { id: "thinned", class: "note" }),
    el("div", { id: "panels", class: "grid" }),
    el("details", { id: "more" }, el("summary", {}, "More metrics"), el("div", { id: "more-panels", class: "grid" })),
  );
}

/** Return whether the cast changed in any of the runs. */
const exchanged = (runs) => runs.some((run) => run.casts.length > 1);

function set(change) {
  Object.assign(options, change);
  drawCurves();
}

/** Update the cards to the panels of the shown runs, and draw them. */
function drawCurves() {
  const runs = shownRuns();
  const panels = panelsOf(runs);
  const counts = (run) => run.updates.at(-1) > 0;
  byId("axis").querySelector("[value=updates]").disabled = !runs.every(counts);
  byId("roles").closest("label").hidden = !exchanged(runs);
  for (const panel of panels) {
    if (!cards.has(panel.id)) cards.set(panel.id, card(panel, () => options));
    const { node, plot } = cards.get(panel.id);
    Object.assign(node, { panel });
    redraw(plot);
  }
  for (const [id, main] of [["panels", true], ["more-panels", false]]) {
    arrange(byId(id), panels.filter((panel) => panel.main === main).map((panel) => cards.get(panel.id).node));
  }
  byId("more").hidden = panels.every((panel) => panel.main);
  byId("thinned").textContent = runs.filter((run) => run.every > 1)
    .map((run) => `${run.name}: ${run.steps.length} of ${run.written} steps are drawn, one in ${run.every}.`).join(" ");
}

/** Make the card of a panel. how: a function that returns the options of `figure`, called at every drawing. */
function card(panel, how, id = panel.id) {
  const node = el("figure", { class: "card", "data-panel": id });
  const missing = el("span", { class: "note lost" });
  const plot = plotPlace(panel.title);
  const numbers = el("details", { class: "numbers", ontoggle: () => fillNumbers(node, numbers, how()) }, el("summary", {}, "numbers"));
  plot.make = () => {
    const drawn = figure(node.panel, shownRuns(), how(), groupNames());
    const lost = how().log ? unloggable(drawn.data) : 0;
    missing.textContent = lost ? `${count(lost, "value")} of zero or less cannot be drawn on a log scale` : "";
    plot.setAttribute("aria-label", spoken(node.panel, drawn.data));
    fillNumbers(node, numbers, how());
    return drawn;
  };
  node.append(el("figcaption", {}, el("h3", {}, panel.title), el("span", { class: "note" }, panel.unit), missing), plot, numbers);
  return { node, plot };
}

/** Write all numbers of a panel as a table, if it is unfolded: a row for each step, a column for each run and line. */
function fillNumbers({ panel }, root, { axis }) {
  if (!root.open) return;
  const runs = shownRuns();
  const lines = runs.flatMap((run) => panel.lines.filter((line) => withData([run], line).length)
    .map((line) => ({ run, key: line.key, name: runs.length > 1 ? `${run.name} ${line.label}` : line.label })));
  const places = new Map(runs.map((run) => [run, numbered(run[axis])]));
  const at = [...new Set([...places.values()].flat())].map((name) => name.split(" ").map(Number)).sort(([a, i], [b, j]) => a - b || i - j);
  const rows = at.map(([x, i]) => [x, ...lines.map(({ run, key }) => run.columns[key][places.get(run).indexOf(`${x} ${i}`)] ?? null)]);
  root.querySelector(".scroll")?.remove();
  root.append(table({ title: panel.title, columns: [AXES[axis], ...lines.map((line) => line.name)], rows }));
}

/** Return "x i" for each x, the i-th of its value: steps without an update share their place on the axis of updates. */
function numbered(values) {
  const seen = new Map();
  return values.map((x) => `${x} ${seen.set(x, (seen.get(x) ?? -1) + 1).get(x)}`);
}

/** Return a panel in words: the first and the last point of each line. */
function spoken(panel, data) {
  const ends = data.filter((trace) => trace.yaxis !== "y2" && trace.showlegend !== false && trace.type !== "bar").map((trace) => {
    const values = trace.y.filter((value) => value != null);
    return `${trace.name} ${number(values[0])} at the first step, ${number(values.at(-1))} at the last`;
  });
  return [panel.title, ...ends].join("; ");
}
