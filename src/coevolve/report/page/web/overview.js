// The overview: what was trained, the result, two curves, and the dialogue on one problem before and after.

const FIRST = ["reward", "objective"]; // the panels shown
const PLAIN = { axis: "steps", smooth: 0, log: false, roles: true };
const FEW = 5; // most alarms that are listed

/** The page's parts. place: the position of the problem that the reader has chosen. */
const front = { cards: new Map(), place: null };

function buildOverview(root) {
  Object.assign(front, {
    title: el("h2"), trained: el("p", { class: "sentence" }), came: el("p", { class: "sentence came" }), footnote: el("p", { class: "note" }),
    alarms: el("div", { id: "alarm-box" }), curves: el("div", { class: "grid", id: "front-curves" }),
    marks: el("p", { class: "note" }, "Dotted lines: the agents exchange their roles."),
    run: el("select", { id: "front-run", onchange: () => turnTo(null) }), problem: el("select", { id: "front-problem", onchange: () => turnTo(Number(front.problem.value)) }),
    asked: el("div"), pair: el("div", { id: "before-after", class: "pair" }), none: el("p", { class: "note" }),
  });
  front.run.label = labelled("run", front.run);
  front.pick = el("div", { class: "controls" }, front.run.label, labelled("problem", front.problem),
    el("span", { class: "note" }, "first: the median change of reward"), el("a", { href: "#dialogues" }, "every dialogue, token by token"));
  root.replaceChildren(front.title, front.trained, front.came, front.footnote, front.alarms, front.curves, front.marks,
    el("h3", { class: "part" }, "The same problem, before and after"), front.none, front.pick, front.asked, front.pair);
}

function drawOverview() {
  const { trained, came, footnote } = overview.opening;
  front.title.textContent = overview.runs.length === 1 ? overview.runs[0].name : count(overview.runs.length, "run");
  front.trained.textContent = trained;
  front.came.textContent = came;
  front.footnote.textContent = footnote;
  drawAlarms(overview.opening);
  const several = groupNames().length > 1; // then only teams are drawn: each team's agents would be too many lines
  const panels = panelsOf(overview.runs).filter((panel) => FIRST.includes(panel.id))
    .map((panel) => ({ ...panel, lines: panel.lines.filter((line) => line.wide || !several) }));
  for (const panel of panels) {
    if (!front.cards.has(panel.id)) front.cards.set(panel.id, card(panel, () => PLAIN, `front-${panel.id}`));
    const { node, plot } = front.cards.get(panel.id);
    Object.assign(node, { panel });
    redraw(plot);
  }
  arrange(front.curves, panels.map((panel) => front.cards.get(panel.id).node));
  front.marks.hidden = !exchanged(overview.runs);
  return drawBeforeAfter();
}

/** List the alarms, or say that there are none or that the runs are too short for any. */
function drawAlarms({ alarms, judged }) {
  const more = alarms.length - FEW;
  keep(front.alarms, [alarms, judged], () => {
    if (!alarms.length) return [el("p", { class: "note" }, judged ? "No alarm: nothing that was watched left its limits." : "Too short to be watched for alarms.")];
    return [el("p", {}, el("b", {}, count(alarms.length, "alarm")), ", places to look:"),
      el("ul", {}, ...alarms.slice(0, FEW).map((text) => el("li", {}, text)), more > 0 ? el("li", {}, `${more} more in the findings`) : null)];
  });
  front.alarms.className = alarms.length ? "alarms" : "";
}

function turnTo(place) {
  front.place = place;
  return drawBeforeAfter();
}

/** Return the position of the median: readers should see neither the best nor the worst first. */
const middle = (values) => values.map((value, i) => [value, i]).sort(([a], [b]) => a - b)[Math.floor(values.length / 2)][1];

/** Draw a problem: in a line if it is short, else as in the dialogues, folded if asked to. */
function asked(episode, folded) {
  const said = Object.entries(episode.data).map(([key, value]) => `${key}: ${written(value)}`).join("; ");
  return said && said.length < SHORT && !said.includes("\n") ? el("p", { class: "said" }, said) : drawProblem(episode, folded);
}

/** Draw the first and the last dialogue on a held-out problem, which were sampled with the same noise. */
async function drawBeforeAfter() {
  const having = overview.runs.filter((run) => run.dialogues.held_out.shown);
  front.pick.hidden = front.asked.hidden = front.pair.hidden = !having.length;
  const written = overview.runs.some((run) => run.dialogues.held_out.written);
  front.none.textContent = having.length ? "" : written ? LEFT_OUT : "No held-out problem was played in training (samples: 0).";
  if (!having.length) return;
  fill(front.run, having.map((run) => [run.name, run.name]), having.find((run) => run.name === front.run.value)?.name ?? having[0].name);
  front.run.label.hidden = having.length < 2;
  const about = having.find((run) => run.name === front.run.value).dialogues.held_out;
  const at = async (i) => (await chunk(about.chunk_of[i])).filter((episode) => episode.step === about.steps[i]);
  const last = about.steps.length - 1;
  const [before, after] = await Promise.all([at(0), at(last)]);
  const same = (one) => after.find((other) => other.problem === one.problem && other.member === one.member);
  const chosen = front.place !== null && front.place < before.length; // by the reader; else the median of what there is now
  const place = chosen ? front.place : middle(before.map((one) => (same(one)?.value ?? 0) - one.value));
  fill(front.problem, before.map((one, i) => [i, one.problem]), place);
  const first = before[place];
  const then = last ? same(first) : null;
  const look = { measure: null, about, brief: true };
  const shown = [[first, SOURCES.held_out.at(about.steps[0])], [then, SOURCES.held_out.at(about.steps[last])]].filter(([one]) => one);
  keep(front.asked, first.data, () => [asked(first, true)].filter(Boolean)); // folded, so that the answers are on the first screen
  keep(front.pair, shown, () => shown.map(([episode, when]) => drawEpisode(episode, when, look)));
}
