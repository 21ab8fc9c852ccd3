// The graph of who heard whom: a dot for every turn, right of all turns that it heard, and a line for each of these.

const COLUMN = 180; // pixels
const ROW = 40;
const DOT = 7;
const NAME = 80; // width of a dot's name, after which its lines begin

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Return edges [earlier turn, later turn, kind]: "heard", or "continued" from the same role's turn in the joint before. */
function threads(episode) {
  const heard = episode.turns.flatMap((turn, i) => turn.heard.filter(Number.isInteger).map((from) => [from, i, "heard"]));
  const role = (i) => episode.turns[i].role;
  const continued = episode.joints.filter((joint) => joint.after != null).flatMap((joint) => joint.turns.flatMap((i) =>
    episode.joints[joint.after].turns.filter((from) => from !== i && role(from) === role(i)).map((from) => [from, i, "continued"])));
  const known = new Set(heard.map(([from, i]) => `${from} ${i}`));
  return [...heard, ...continued.filter(([from, i]) => !known.has(`${from} ${i}`))];
}

/** Return [column, row] of each turn: the column is the length of the longest path to it. */
function places(episode, edges) {
  const column = episode.turns.map(() => 0);
  episode.turns.forEach((_, i) => edges.filter((edge) => edge[1] === i).forEach(([from]) => { column[i] = Math.max(column[i], column[from] + 1); }));
  const filled = new Map();
  return column.map((x) => {
    const y = filled.get(x) ?? 0;
    filled.set(x, y + 1);
    return [x, y];
  });
}

const FEWEST = 3; // fewest turns that are drawn

/** Draw the graph of an episode; null if it is too simple to need one. */
function drawGraph(episode) {
  const edges = threads(episode);
  if (!edges.length || episode.turns.length < FEWEST) return null;
  const at = places(episode, edges);
  const x = (i) => DOT + 4 + at[i][0] * COLUMN;
  const y = (i) => DOT + 6 + at[i][1] * ROW;
  const lines = edges.map(([from, to, kind]) => svg("path", { class: kind, d: `M${x(from) + NAME} ${y(from)} C${x(to) - DOT} ${y(from)} ${x(from) + NAME} ${y(to)} ${x(to)} ${y(to)}` }));
  const dots = episode.turns.flatMap((turn, i) => [
    svg("circle", { cx: x(i), cy: y(i), r: DOT, fill: speaker(turn) }),
    svg("text", { x: x(i) + DOT + 4, y: y(i) + 4 }, turn.role),
    svg("text", { x: x(i) + DOT + 4, y: y(i) + 18, class: "paid" }, `${i + 1}: ${number(turn.reward)}`),
  ]);
  const size = [0, 1].map((axis) => Math.max(...at.map((place) => place[axis])) + 1);
  const [width, height] = [size[0] * COLUMN, size[1] * ROW + 4];
  const spoken = edges.map(([from, to, kind]) => `turn ${to + 1} of ${episode.turns[to].role} ${kind} turn ${from + 1} of ${episode.turns[from].role}`);
  return el("div", { class: "scroll graph", tabindex: 0, role: "group", "aria-label": "Who heard whom" },
    svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spoken.join("; ") }, ...lines, ...dots));
}
