// The part with the curves: the controls, and a card for every panel.

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

function set(change) {
  Object.assign(options, change);
  drawCurves();
}

/** Bring the cards up to what the shown runs have, and draw them. */
function drawCurves() {
  const runs = shownRuns();
  const panels = panelsOf(runs);
  const counts = (run) => run.updates.at(-1) > 0;
  byId("axis").querySelector("[value=updates]").disabled = !runs.every(counts);
  for (const panel of panels) {
    if (!cards.has(panel.id)) cards.set(panel.id, card(panel));
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

function card(panel) {
  const node = el("figure", { class: "card", "data-panel": panel.id });
  const missing = el("span", { class: "note lost" });
  const plot = plotPlace(panel.title);
  plot.make = () => {
    const runs = shownRuns();
    const drawn = figure(node.panel, runs, options, groupNames());
    const lost = options.log ? unloggable(drawn.data) : 0;
    missing.textContent = lost ? `${count(lost, "value")} of zero or less cannot be drawn on a log scale` : "";
    plot.setAttribute("aria-label", spoken(node.panel, drawn.data));
    return drawn;
  };
  node.append(el("figcaption", {}, el("h3", {}, panel.title), el("span", { class: "note" }, panel.unit), missing), plot);
  return { node, plot };
}

/** A panel in words: where each line begins and ends. */
function spoken(panel, data) {
  const ends = data.filter((trace) => trace.yaxis !== "y2" && trace.showlegend !== false && trace.type !== "bar").map((trace) => {
    const values = trace.y.filter((value) => value != null);
    return `${trace.name} from ${number(values[0])} to ${number(values.at(-1))}`;
  });
  return [panel.title, ...ends].join("; ");
}
