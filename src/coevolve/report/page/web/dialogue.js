// The drawing of an episode: its turns, what each role heard, the joints, and which joint continued which.

const SHORT = 300; // characters; shorter problems are unfolded from the start

const FEW_PARTS = 4; // most components of a reward that are shown beside the heading

/** Draw an episode. look: measure (null: no colours), numbers (true: with tables), about (the index of its file), brief
    (true: texts and rewards only), beside (true: the problem is shown above both episodes), marks (tag and positions of
    the words to mark, turn by turn: see `comparedTurns`). */
function drawEpisode(episode, heading, look) {
  const parts = look.brief ? [] : Object.entries(episode.parts).map(([name, value]) => chip(name.replace("parts/", ""), value));
  const many = parts.length > FEW_PARTS;
  return el("div", { class: "episode" },
    el("header", {}, el("h3", {}, heading), el("p", { class: "chips" }, chip("mean reward", episode.value), ...(many ? [] : parts))),
    many ? el("details", {}, el("summary", {}, `${parts.length} parts of the reward`), el("p", { class: "chips" }, ...parts)) : null,
    look.brief || look.beside ? null : drawProblem(episode), look.brief ? null : drawGraph(episode),
    ...drawJoints(episode, look));
}

/** Draw the columns of a problem, folded if they are long or if asked to; null if it has none. */
function drawProblem({ data }, folded = JSON.stringify(data).length >= SHORT) {
  const columns = Object.entries(data);
  return columns.length ? el("details", { class: "problem", open: !folded }, el("summary", {}, "the problem"),
    el("dl", {}, ...columns.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, written(value))]))) : null;
}

/** Return the colour of a turn's policy, which is that of its curves. */
const speaker = (turn) => `var(--line-${agentLook(agentsOf(overview.runs), turn.policy) % 8})`;

const written = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

/** Draw a name, with its number if it has one. */
const chip = (name, value) => el("span", { class: "chip" }, name, value === undefined ? null : el("b", {}, ` ${number(value)}`));

/** Draw the joints one after the other or, if there are several first ones or continuations of one, as a tree. */
function drawJoints(episode, look) {
  const below = new Map();
  episode.joints.forEach((joint, i) => below.set(joint.after, [...(below.get(joint.after) ?? []), i]));
  const branches = [...below.values()].some((siblings) => siblings.length > 1);
  const judged = new Set(episode.joints.flatMap((joint) => joint.turns));
  const waiting = episode.turns.map((_, i) => i).filter((i) => !judged.has(i));
  const drawn = new Set();
  const turnsBefore = (end) => waiting.splice(0, waiting.filter((i) => i < end).length).map((i) => drawTurn(episode, i, look));
  const folded = ([first, ...others]) => (look.brief && branches && others.length
    ? [first, el("details", { class: "others" }, el("summary", {}, count(others.length, "other joint response")), ...others)] : [first, ...others]);
  const grow = (after) => (below.has(after) ? folded(below.get(after).flatMap(branch)) : []);
  const branch = (i) => {
    const joint = episode.joints[i];
    const node = el("div", { class: "joint" }, ...turnsBefore(Math.min(...joint.turns)),
      ...joint.turns.map((turn) => (drawn.has(turn) ? again(episode, turn) : drawTurn(episode, turn, look))), look.brief ? null : verdict(episode, i));
    joint.turns.forEach((turn) => drawn.add(turn));
    const next = grow(i);
    if (!branches) return [node, ...next];
    if (next.length) node.append(el("div", { class: "continued" }, ...next));
    return [node];
  };
  return [...grow(null), ...turnsBefore(Infinity)];
}

/** Draw the rewards of a joint's turns; null if it is the only joint, since the turns show their rewards. */
function verdict(episode, i) {
  if (episode.joints.length === 1) return null;
  const { turns, rewards, after } = episode.joints[i];
  const paid = turns.map((turn, n) => `${episode.turns[turn].role} ${number(rewards[n])}`).join(", ");
  return el("p", { class: "verdict" }, `joint ${i + 1}${after == null ? "" : `, after joint ${after + 1}`}: reward ${paid}`);
}

const again = (episode, i) => el("p", { class: "again" }, `with ${called(episode, i)}, above`);

const called = (episode, i) => `turn ${i + 1} of ${episode.turns[i].role} (${episode.turns[i].policy})`;

function drawTurn(episode, i, look) {
  const turn = episode.turns[i];
  const ended = turn.finished ? "ended by itself" : "cut off";
  const how = { class: "turn", style: `--speaker: ${speaker(turn)}` };
  if (look.brief) {
    return el("article", how, el("header", {}, el("b", {}, turn.role), ` (${turn.policy}) `, el("span", { class: "chips" }, chip("reward", turn.reward))),
      el("p", { class: "said" }, turn.text));
  }
  return el("article", how,
    el("header", {},
      el("b", {}, turn.role), ` played by ${turn.policy} `,
      el("span", { class: "chips" }, chip("turn", i + 1), chip("reward", turn.reward),
        "credit" in turn ? chip("credit", turn.credit) : null, chip(`${count(turn.pieces.length, "token")}, ${ended}`))),
    ...turn.heard.map((part) => drawHeard(episode, i, part)),
    turn.prompt == null ? null : drawPrompt(turn.prompt),
    tokenLine(turn, look.measure, look.about, look.marks && { tag: look.marks.tag, places: look.marks.places[i] ?? [] }),
    turn.pieces.join("").startsWith(turn.text) ? null : el("p", { class: "note" }, `as text: ${turn.text}`),
    look.numbers ? tokenTable(turn, look.about) : null);
}

/** Draw the exact prompt of the model, in which mistakes of a chat template can be seen. */
const drawPrompt = (prompt) => el("details", { class: "heard prompt" },
  el("summary", {}, `the prompt as it was sent, ${count(prompt.length, "character")}`), el("blockquote", {}, prompt));

/** Draw what a turn heard: another turn, folded, or a note in full. */
function drawHeard(episode, i, part) {
  if (typeof part === "string") return part ? el("blockquote", { class: "told" }, el("span", { class: "note" }, "was told: "), part) : null;
  const other = episode.turns[part];
  const self = other.role === episode.turns[i].role ? "itself, " : "";
  return el("details", { class: "heard" }, el("summary", {}, `heard ${self}${called(episode, part)}`), el("blockquote", {}, other.text));
}
