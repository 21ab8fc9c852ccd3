// The findings: each a title, the sentence that says what may be concluded, a table, perhaps a plot.

function buildSections(root) {
  root.replaceChildren(el("h2", {}, "Findings"), el("nav", { class: "contents", "aria-label": "Findings" }), el("div", { id: "articles" }));
}

/** A section that says the same as before stays as it is; where its numbers have changed, the zoom of its plot does. */
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

/** The address stays that of the part: an id in it would be taken for a part's name. */
function jump(event, id) {
  event.preventDefault();
  byId(id).scrollIntoView();
  byId(id).focus();
}

function drawSection(section, oldPlot) {
  const { id, title, sentence, rows, plot } = section;
  return el("article", { id, class: "card", tabindex: -1 }, el("h3", {}, title), el("p", { class: "sentence" }, sentence),
    rows.length ? table(section) : null, plot ? sectionPlot(title, plot, oldPlot) : null);
}

function sectionPlot(title, plot, old) {
  const node = old ?? plotPlace(`${title}: ${plot.y} over ${plot.x}`);
  node.make = () => sectionFigure(plot);
  redraw(node);
  return node;
}

/** Wide tables scroll in their own box. */
function table({ title, columns, rows }) {
  const cell = (value) => el("td", { class: typeof value === "number" ? "number" : null }, typeof value === "string" ? value : number(value));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${title}` },
    el("table", {},
      el("thead", {}, el("tr", {}, ...columns.map((column) => el("th", { scope: "col" }, column)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell))))));
}

function sectionFigure(plot) {
  const layout = { ...baseLayout(), uirevision: "kept", showlegend: plot.series.length > 1, hovermode: "closest" };
  layout.xaxis.automargin = layout.yaxis.automargin = true;
  layout.xaxis.title = { text: asText(plot.x) };
  layout.yaxis.title = { text: asText(plot.y) };
  return { data: plot.series.flatMap(seriesTraces), layout };
}

/** Points with error bars, or a line over its band. */
function seriesTraces(series, n) {
  const color = lineColour(n);
  const name = asText(series.name);
  const between = series.low && series.high;
  const trace = {
    type: "scatter", mode: series.points ? "markers" : "lines", x: series.x, y: series.y, name, legendgroup: name,
    line: { color, width: 2.2 }, marker: { color, size: 9 }, text: series.labels?.map(asText),
    hovertemplate: `${series.labels ? "%{text}<br>" : ""}%{x:.4g}, %{y:.4g}`,
  };
  if (!between) return [trace];
  if (series.points) {
    const off = (bounds, sign) => series.y.map((y, i) => (y == null || bounds[i] == null ? 0 : sign * (bounds[i] - y)));
    return [{ ...trace, error_y: { type: "data", symmetric: false, array: off(series.high, 1), arrayminus: off(series.low, -1), color } }];
  }
  const edge = { type: "scatter", mode: "lines", x: series.x, line: { width: 0, color }, hoverinfo: "skip", showlegend: false, legendgroup: name };
  return [{ ...edge, y: series.low }, { ...edge, y: series.high, fill: "tonexty", fillcolor: `${color}33` }, trace];
}
