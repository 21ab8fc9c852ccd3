// The findings: each a title, the sentence that says what may be concluded, a table, perhaps a plot.

function drawSections(root, sections) {
  const list = sections.length > 3
    ? el("nav", { class: "contents", "aria-label": "Findings" },
      ...sections.map((section) => el("a", { href: `#${section.id}`, onclick: (event) => jump(event, section.id) }, section.title)))
    : null;
  root.replaceChildren(el("h2", {}, "Findings"), ...[list].filter(Boolean), ...sections.map(drawSection));
}

/** The address stays that of the part: an id in it would be taken for a part's name. */
function jump(event, id) {
  event.preventDefault();
  byId(id).scrollIntoView();
  byId(id).focus();
}

function drawSection(section) {
  return el("article", { id: section.id, class: "card", tabindex: -1 },
    el("h3", {}, section.title),
    el("p", { class: "sentence" }, section.sentence),
    section.rows.length ? table(section) : null,
    section.plot ? plotPlace(`${section.title}: ${section.plot.y} over ${section.plot.x}`, () => sectionFigure(section.plot)) : null);
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
