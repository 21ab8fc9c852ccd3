// Panels from metrics, and plotly figures from panels. Nothing here touches the page.

const PANELS = {
  reward: ["Reward", "mean per turn"],
  "reward by role": ["Reward by role", "mean per turn"],
  turn: ["Reward by turn of the interaction", "mean per joint"],
  kl: ["KL to the reference", "nats per turn"],
  objective: ["Objective, reward − η·KL", "per turn"],
  entropy: ["Entropy", "nats per token"],
  length: ["Length", "tokens per turn"],
  eos_rate: ["Turns that end by themselves", "share"],
  distinct_1: ["Diversity, distinct tokens", "share of all"],
  distinct_2: ["Diversity, distinct pairs", "share of all"],
  grad_norm: ["Gradient norm", "before clipping"],
  tokens_per_second: ["Throughput", "tokens per second"],
  time: ["Seconds by phase", "seconds per step"],
};

const AXES = { steps: "step", turns: "turns sampled so far", updates: "gradient steps so far" };

const FEW_STEPS = 6; // with at most so many steps, each has a tick

const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];

/** Return the panel that a metric belongs to, and the name of its line there. */
function place(key) {
  const [first, ...rest] = key.split("/");
  if (first === "agents") return [rest.slice(1).join("/"), rest[0]];
  if (first === "reward" && rest.length) return ["reward by role", rest.join("/")];
  if (first === "turn") return ["turn", `turn ${rest[0]}`];
  if (first === "time") return ["time", rest.join("/")];
  return [key, "team"];
}

/** Return the runs that have any number for a line. */
const withData = (runs, line) => runs.filter((run) => run.columns[line.key]?.some((value) => value != null));

/** Return the policies that have metrics, in the order in which they appear. */
const agentsOf = (runs) =>
  [...new Set(runs.flatMap((run) => Object.keys(run.columns)).filter((key) => key.startsWith("agents/")).map((key) => place(key)[1]))];

/** Return the number of an agent's line colour in all panels and dialogues; 0 is the team's, other lines come after. */
const agentLook = (agents, name) => 1 + agents.indexOf(name);

/** Return the panels of these runs' metrics: those of PANELS in their order, then components of the reward, the rest. */
function panelsOf(runs) {
  const found = new Map();
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.columns)))].filter((key) => withData(runs, { key }).length);
  const agents = agentsOf(runs);
  for (const key of keys) {
    const [id, label] = place(key);
    if (!found.has(id)) found.set(id, []);
    const agent = key.startsWith("agents/");
    const other = label === "team" ? 0 : 1 + agents.length + found.get(id).length;
    found.get(id).push({ key, label, look: agent ? agentLook(agents, label) : other, wide: !agent });
  }
  const known = Object.keys(PANELS);
  const rank = (id) => (id in PANELS ? known.indexOf(id) : id.startsWith("parts/") ? known.length : known.length + 1);
  return [...found.keys()].sort((a, b) => rank(a) - rank(b)).map((id) => {
    const [title, unit] = PANELS[id] ?? [id.replace("parts/", "").replaceAll("_", " "), id.startsWith("parts/") ? "component" : ""];
    return { id, title, unit, lines: id === "time" ? found.get(id) : apart(runs, found.get(id)), main: rank(id) <= known.length };
  });
}

/** Merge lines with the same numbers, such as an agent's and its team's where all get the same reward. */
function apart(runs, lines) {
  const found = new Map();
  for (const line of lines) {
    const numbers = JSON.stringify(runs.map((run) => run.columns[line.key] ?? null));
    if (found.has(numbers)) found.get(numbers).label += `, ${line.label}`;
    else found.set(numbers, line);
  }
  return [...found.values()];
}

/** Return the exponential moving average; gaps stay gaps. weight 0: no smoothing. */
function smoothed(values, weight) {
  let mean = null;
  return values.map((value) => {
    if (value == null) return null;
    mean = mean == null ? value : weight * mean + (1 - weight) * value;
    return mean;
  });
}

/** Return the mean over runs at the steps that all of them have, at their mean position on the x axis, with the runs'
    values as text. */
function meanOver(runs, key, axis) {
  const at = runs.map((run) => new Map(run.steps.map((step, i) => [step, [run[axis][i], run.columns[key][i]]])));
  const steps = runs[0].steps.filter((step) => at.every((one) => one.get(step)?.[1] != null));
  const mean = (step, part) => at.reduce((sum, one) => sum + one.get(step)[part], 0) / at.length;
  const seeds = (step) => at.map((one) => number(one.get(step)[1])).join(", ");
  return { x: steps.map((step) => mean(step, 0)), y: steps.map((step) => mean(step, 1)), text: steps.map(seeds) };
}

/** Escape text of a run, since plotly interprets some HTML in names. */
const asText = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** Return group -> runs, in order. */
function byGroup(runs) {
  const groups = new Map(runs.map((run) => [run.group, []]));
  for (const run of runs) groups.get(run.group).push(run);
  return groups;
}

/** Return the traces of a panel. options: axis, smooth (0 to 1). */
function traces(panel, runs, options, allGroups) {
  if (panel.id === "time") return phases(panel, runs, options);
  const groups = byGroup(runs);
  const found = [];
  for (const [group, members] of groups) {
    for (const line of panel.lines) {
      const having = withData(members, line);
      const several = allGroups.length > 1;
      const look = {
        color: lineColour(several ? allGroups.indexOf(group) : line.look),
        dash: several ? DASHES[line.look % DASHES.length] : "solid",
        width: line.wide ? 2.6 : 1.5,
      };
      const name = [several ? group : null, panel.lines.length > 1 || !several ? line.label : null]
        .filter((part) => part != null).join(" ");
      found.push(...curvesOf(having, line, options, look, name));
    }
  }
  return found;
}

/** Return the curves of one line of a group: one per seed, thin if there are several, and then their mean. */
function curvesOf(runs, line, options, look, name) {
  const many = runs.length > 1;
  const drawn = runs.flatMap((run) => {
    const label = many ? `${name}, seed ${run.seed}` : name;
    return curve({ x: run[options.axis], y: run.columns[line.key] }, options, look, label, many ? "thin" : "main");
  });
  const mean = many ? curve(meanOver(runs, line.key, options.axis), options, look, name, "main") : [];
  return [...drawn, ...mean];
}

/** Return a curve; if it is smoothed, the original is drawn faintly behind it. */
function curve({ x, y, text }, options, look, name, weight) {
  const line = weight === "thin" ? { ...look, width: 0.8 } : look;
  const trace = {
    type: "scatter", mode: x.length > 1 ? "lines" : "markers", x, y: smoothed(y, options.smooth), text, name: asText(name), line,
    marker: { color: look.color }, connectgaps: false, legendgroup: asText(name),
  };
  const silent = { hoverinfo: "skip", showlegend: false };
  if (weight === "thin") return [{ ...trace, ...silent, opacity: 0.4 }];
  const strong = { ...trace, hovertemplate: text ? "%{y:.4g} (%{text})" : "%{y:.4g}" };
  return options.smooth ? [{ ...trace, ...silent, y, opacity: 0.22, line: { ...line, width: 1 } }, strong] : [strong];
}

/** Return the seconds of a step by phase: over the steps of one run, or in the mean step of each of several runs. */
function phases(panel, runs, options) {
  const lines = panel.lines.filter((line) => line.key !== "time/step");
  if (runs.length === 1) {
    return lines.filter((line) => runs[0].columns[line.key]).map((line, n) => ({
      type: "scatter", mode: "lines", stackgroup: "phases", name: asText(line.label), x: runs[0][options.axis],
      y: smoothed(runs[0].columns[line.key], options.smooth), line: { width: 0.5, color: lineColour(n) },
      hovertemplate: "%{y:.4g}",
    }));
  }
  const mean = (values) => (values?.length ? values.reduce((sum, value) => sum + (value ?? 0), 0) / values.length : null);
  return lines.map((line, n) => ({
    type: "bar", name: asText(line.label), x: runs.map((run) => asText(run.name)),
    y: runs.map((run) => mean(run.columns[line.key])), marker: { color: lineColour(n) }, hovertemplate: "%{y:.4g}",
  }));
}

/** Return dotted lines where a role changes hands, and hover texts with the cast of every step. */
function castMarks(runs, axis) {
  const different = new Map(runs.filter((run) => run.casts.length > 1).map((run) => [JSON.stringify(run.casts), run]));
  return [...different.values()].flatMap((run) => {
    const places = run.casts.slice(1).map((change) => change[axis]);
    const trace = { type: "scatter", mode: "lines", name: "roles", yaxis: "y2", showlegend: false };
    const line = { color: colour("faint"), width: 1, dash: "dot" };
    return [
      { ...trace, x: places.flatMap((x) => [x, x, null]), y: places.flatMap(() => [0, 1, null]), line, hoverinfo: "skip" },
      { ...trace, x: run[axis], y: run.steps.map(() => 0), text: castTexts(run), hovertemplate: "%{text}", line: { ...line, width: 0 } },
    ];
  });
}

/** Return the cast of each step as text. */
function castTexts(run) {
  let now = 0;
  return run.steps.map((step) => {
    while (run.casts[now + 1]?.steps <= step) now++;
    return asText(Object.entries(run.casts[now].cast).map(([role, policy]) => `${policy} plays ${role}`).join(", "));
  });
}

/** Return the figure of a panel. options: axis, smooth, log, roles. */
function figure(panel, runs, options, allGroups) {
  const data = traces(panel, runs, options, allGroups);
  const bars = data[0]?.type === "bar";
  const marks = options.roles && !bars ? castMarks(runs.filter((run) => panel.lines.some((line) => withData([run], line).length)), options.axis) : [];
  const layout = {
    ...baseLayout(),
    uirevision: `${options.axis} ${options.log} ${bars}`,
    barmode: "stack",
    hovermode: "x unified",
    showlegend: data.filter((trace) => trace.showlegend !== false).length > 1 || panel.lines.some((line) => line.label.includes(", ")),
  };
  layout.xaxis.title = { text: bars ? "" : AXES[options.axis] };
  if (!bars && runs.every((run) => run.steps.at(-1) < FEW_STEPS)) layout.xaxis.dtick = 1; // ticks at whole steps only
  layout.xaxis.type = bars ? "category" : "linear";
  layout.yaxis.type = options.log ? "log" : "linear";
  layout.yaxis2 = { overlaying: "y", range: [0, 1], fixedrange: true, visible: false };
  return { data: [...marks, ...data], layout };
}

/** Return the number of values that a logarithmic axis cannot show. */
const unloggable = (data) =>
  data.filter((trace) => trace.yaxis !== "y2" && trace.hoverinfo !== "skip")
    .reduce((sum, trace) => sum + trace.y.filter((value) => value != null && value <= 0).length, 0);

/** Return the layout that all figures share, in the colours of the theme. */
function baseLayout() {
  const axis = () => ({
    gridcolor: colour("line"), zerolinecolor: colour("faint"), linecolor: colour("line"),
  });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: colour("text") },
    hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line"), font: { color: colour("text"), size: 12 }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("faint"), activecolor: colour("accent") },
    margin: { l: 50, r: 10, t: 10, b: 40 }, // fixed: to find margins, plotly would draw twice
    legend: { orientation: "h", x: 0, y: 1, xanchor: "left", yanchor: "bottom", font: { size: 11 }, tracegroupgap: 0 },
    xaxis: axis(), yaxis: axis(),
  };
}
