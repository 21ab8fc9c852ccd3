// The findings: each has a title, a sentence on what may be concluded, and optionally a table and a plot.

function buildSections(root) {
  root.replaceChildren(el("h2", {}, "Findings"), el("nav", { class: "contents", "aria-label": "Findings" }), el("div", { id: "articles" }));
}

/** Draw the sections. Unchanged ones are kept; where numbers have changed, the plot keeps its zoom. */
function drawSections(root, sections) {
  const before = new Map([...byId("articles").children].map((node) => [node.id, node]));
  keep(root.querySelector(".contents"), sections.map(({ id, title }) => [id, title]), () => sections.map(({ id, title }) =>
    el("a", { href: `#${id}`, onclick: (event) => jump(event, id) }, title)));
  arrange(byId("articles"), sections.map((section) => {
    const said = JSON.stringify(section);
    const old = before.get(section.id);
    return old?.said === said ? old : Object.assign(drawSection(section, old?.querySelector(".plot")), { said });
  }));
}

/** Scroll to a section without changing the address, in which an id would be taken for a part's name. */
function jump(event, id) {
  event.preventDefault();
  byId(id).scrollIntoView();
  byId(id).focus();
}

function drawSection(section, oldPlot) {
  const { id, title, sentence, rows, plot } = section;
  return el("article", { id, class: "card", tabindex: -1 }, el("h3", {}, title), el("p", { class: "sentence" }, ...prose(sentence)),
    plot ? sectionPlot(title, plot, oldPlot) : null, plot ? plotNumbers(title, plot) : null, rows.length ? table(section) : null);
}

/** Make a table of a plot's points, for readers who cannot see or hover over it; filled when it is unfolded. */
function plotNumbers(title, plot) {
  const points = () => plot.series.flatMap(({ name, x, y, low, high }) => y.map((value, i) => [name, x[i], value, low?.[i] ?? null, high?.[i] ?? null]));
  const columns = ["of", plot.x || "at", plot.y, "low", "high"];
  const root = el("details", { class: "numbers", ontoggle: () => {
    if (root.children.length < 2) root.append(table({ title: `the points of ${title}`, columns, rows: points() }));
  } }, el("summary", {}, "numbers of the figure"));
  return root;
}

/** Return nodes for a text in which `this` is code. */
const prose = (text) => text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));

function sectionPlot(title, plot, old) {
  const node = old ?? plotPlace(`${title}: ${plot.y}${plot.x ? ` over ${plot.x}` : ""}`);
  node.make = () => sectionFigure(plot);
  redraw(node);
  return node;
}

const SHORT_NAME = 24; // shorter cells are not wrapped: a run's name has hyphens

/** Make a table. Wide ones scroll in their own box; on a phone every row is a list of names and values. ARIA roles are
    explicit because screen readers ignore tables with another layout. Columns without any value are left out. */
function table({ title, columns, rows }) {
  const told = columns.map((_, i) => i).filter((i) => rows.some((row) => row[i] != null));
  const kind = (value) => (typeof value !== "string" ? "number" : value.length < SHORT_NAME ? "short" : null);
  const cell = (row) => (i) => el("td", { role: "cell", class: kind(row[i]), "data-column": columns[i] }, typeof row[i] === "string" ? row[i] : number(row[i]));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${title}` },
    el("table", { role: "table" },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...told.map((i) => el("th", { scope: "col", role: "columnheader" }, columns[i])))),
      el("tbody", { role: "rowgroup" }, ...rows.map((row) => el("tr", { role: "row" }, ...told.map(cell(row)))))));
}

function sectionFigure(plot) {
  const layout = { ...baseLayout(), uirevision: "kept", showlegend: plot.series.length > 1, hovermode: "closest" };
  layout.xaxis.automargin = layout.yaxis.automargin = true;
  layout.xaxis.title = { text: asText(plot.x) };
  layout.xaxis.type = typeof plot.series[0]?.x[0] === "string" ? "category" : "linear";
  layout.yaxis.title = { text: asText(plot.y) };
  if (plot.x === "step" && plot.series.every(({ x }) => x.at(-1) < FEW_STEPS)) layout.xaxis.dtick = 1;
  return { data: plot.series.flatMap(seriesTraces), layout };
}

/** Return the traces of a series: points with error bars, or a line over its band. */
function seriesTraces(series, n) {
  const agents = agentsOf(overview.runs);
  const color = lineColour(agents.includes(series.name) ? agentLook(agents, series.name) : n);
  const name = asText(series.name);
  const between = series.low && series.high;
  const x = series.x.map((one) => (typeof one === "string" ? asText(one) : one));
  const trace = {
    type: "scatter", mode: series.points ? "markers" : "lines", x, y: series.y, name, legendgroup: name,
    line: { color, width: 2.2 }, marker: { color, size: 9 }, text: series.labels?.map(asText),
    hovertemplate: `${series.labels ? "%{text}<br>" : ""}${typeof x[0] === "string" ? "%{x}" : "%{x:.4g}"}, %{y:.4g}`,
  };
  if (!between) return [trace];
  if (series.points) {
    const off = (bounds, sign) => series.y.map((y, i) => (y == null || bounds[i] == null ? 0 : sign * (bounds[i] - y)));
    return [{ ...trace, error_y: { type: "data", symmetric: false, array: off(series.high, 1), arrayminus: off(series.low, -1), color } }];
  }
  const edge = { type: "scatter", mode: "lines", x, line: { width: 0, color }, hoverinfo: "skip", showlegend: false, legendgroup: name };
  return [{ ...edge, y: series.low }, { ...edge, y: series.high, fill: "tonexty", fillcolor: `${color}33` }, trace];
}
