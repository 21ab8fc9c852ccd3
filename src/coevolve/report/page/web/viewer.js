// The dialogue viewer, in which readers choose a run, its file, a step, a problem, and the colours of the tokens.

const SOURCES = {
  training: { title: "training episodes", at: (step) => `step ${step}` },
  held_out: { title: "held-out problems", at: (step) => (step ? `after ${count(step, "step")}` : "at the start") },
};

/** The episodes that one may be shown beside; from: the position of the step that the other is taken from. */
const BESIDE = {
  start: { title: "the start", from: () => 0 },
  before: { title: "the step before", from: (step) => step - 1 },
  "": { title: "nothing" },
};

const LAST = Infinity;

const LEFT_OUT = "The dialogues are left out: with them the page would be too large. Make a page of fewer runs.";

/** The reader's choice. step: position among the shown steps. want: "first", "worst", "best" or { problem, member }. */
const at = { run: null, source: "held_out", step: LAST, want: "first", measure: "adv", beside: "start", numbers: false };

const viewer = {};

function buildViewer(root) {
  const select = (id, change) => el("select", { id, onchange: (event) => go(change(event.target.value)) });
  const box = (id, text) => labelled(text, el("input", { id, type: "checkbox", checked: at[id], onchange: (event) => go({ [id]: event.target.checked }) }));
  const button = (text, label, change) => el("button", { type: "button", "aria-label": label, onclick: () => go(change()) }, text);
  Object.assign(viewer, {
    root,
    run: select("dialogue-run", (run) => ({ run, step: LAST, want: "first" })),
    source: select("source", (source) => ({ source, step: LAST, want: "first" })),
    problem: select("problem", (i) => ({ want: identity(viewer.episodes[Number(i)]) })),
    measure: select("measure", (measure) => ({ measure })),
    beside: select("beside", (beside) => ({ beside })),
    step: el("input", { id: "step", type: "range", "aria-label": "Step", min: 0, value: 0, oninput: (event) => go({ step: Number(event.target.value) }) }),
    where: el("output", { for: "step" }), shown: el("p", { class: "note", id: "shown" }), none: el("p", { class: "note" }), legend: el("div"), asked: el("div"),
    episode: el("div", { id: "episode", "aria-live": "polite" }), episodes: [],
  });
  viewer.run.label = labelled("run", viewer.run);
  viewer.options = el("details", { class: "options" }, el("summary", {}, "Search and options"),
    el("div", { class: "controls" }, labelled("tokens by", viewer.measure), labelled("beside", viewer.beside), box("numbers", "numbers as tables")),
    el("div", { class: "controls" }, button("worst", "Worst of this step", () => ({ want: "worst" })),
      button("best", "Best of this step", () => ({ want: "best" })), button("random", "Any of this step", anyOne)),
    searchBox((hit) => open(hit)), viewer.shown,
    el("p", { class: "note keys" }, "Keys: ← → step, ↑ ↓ problem, w worst, b best, r random, / search"));
  viewer.bar = el("div", { class: "controls bar-of-controls" }, viewer.run.label, labelled("of", viewer.source), labelled("problem", viewer.problem),
    el("div", { class: "steps" }, button("←", "Step before", () => byStep(-1)), viewer.step, button("→", "Next step", () => byStep(1)), viewer.where),
    viewer.options);
  root.replaceChildren(el("h2", { class: "spoken" }, "Dialogues"), viewer.bar, viewer.none, viewer.legend, viewer.asked, viewer.episode);
  root.addEventListener("keydown", onKey);
  followTokens(viewer.episode);
}

const identity = (episode) => ({ problem: episode.problem, member: episode.member });

const byStep = (by) => ({ step: at.step + by });

const anyOne = () => ({ want: identity(viewer.episodes[Math.floor(Math.random() * viewer.episodes.length)]) });

const besideIn = (by) => ({ want: identity(viewer.episodes[(viewer.chosen + by + viewer.episodes.length) % viewer.episodes.length]) });

const KEYS = {
  ArrowLeft: () => byStep(-1), ArrowRight: () => byStep(1), ArrowUp: () => besideIn(-1), ArrowDown: () => besideIn(1),
  w: () => ({ want: "worst" }), b: () => ({ want: "best" }), r: anyOne,
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, .scroll")) return;
  if (event.key === "/") {
    viewer.options.open = true;
    viewer.root.querySelector("#search").focus();
  }
  else if (KEYS[event.key] && viewer.episodes.length) go(KEYS[event.key]());
  else return;
  event.preventDefault();
}

/** Show the episode of a search hit. */
async function open(hit) {
  const run = overview.runs.find((one) => one.name === hit.run);
  await go({ run: hit.run, source: hit.source, step: run.dialogues[hit.source].steps.indexOf(hit.step), want: identity(hit.episode) });
  viewer.root.focus();
}

/** Change the reader's choice, and show the chosen episode. */
async function go(change = {}) {
  Object.assign(at, change);
  const having = overview.runs.filter((run) => Object.keys(SOURCES).some((source) => run.dialogues[source].shown));
  viewer.bar.hidden = viewer.episode.hidden = !having.length;
  const written = overview.runs.some((run) => Object.keys(SOURCES).some((source) => run.dialogues[source].written));
  viewer.none.textContent = having.length ? "" : written ? LEFT_OUT : "These runs have written no dialogues.";
  if (!having.length) return;
  const run = having.find((one) => one.name === at.run) ?? having[0];
  at.run = run.name;
  if (!run.dialogues[at.source].shown) at.source = Object.keys(SOURCES).find((source) => run.dialogues[source].shown);
  const about = run.dialogues[at.source];
  at.step = Math.max(0, Math.min(at.step, about.steps.length - 1));
  drawControls(having, run, about);
  await drawStep(about);
}

function drawControls(having, run, about) {
  fill(viewer.run, having.map((one) => [one.name, one.name]), run.name);
  viewer.run.label.hidden = having.length < 2;
  fill(viewer.beside, Object.entries(BESIDE).map(([name, { title }]) => [name, title]), at.beside);
  const without = ({ shown, written }) => (shown ? "" : written ? "left out for size" : "none written");
  fill(viewer.source, Object.entries(SOURCES).map(([name, { title }]) => [name, title, without(run.dialogues[name])]), at.source);
  const missing = (name) => (name in about.full ? "" : at.source === "held_out" && name === "adv" ? "nothing is learnt from these" : "this run has none");
  fill(viewer.measure, [...Object.entries(MEASURES).map(([name, { title }]) => [name, title, missing(name)]), ["", "nothing"]], measureOf(about));
  viewer.step.max = about.steps.length - 1;
  viewer.step.value = at.step;
  viewer.where.textContent = `${SOURCES[at.source].at(about.steps[at.step])}, ${at.step + 1} of ${about.steps.length}`;
  viewer.step.setAttribute("aria-valuetext", viewer.where.textContent);
  viewer.beside.disabled = at.source !== "held_out"; // each training step has other problems
  const some = at.source === "held_out" ? "" : "of every shown step the worst, the best and some at random: ";
  const all = about.shown === about.written ? "all " : some;
  viewer.shown.textContent = `Shown: ${all}${about.shown} of ${about.written} episodes that the run wrote, at ${about.steps.length} of ${about.all_steps} steps.`;
}

/** Return the measure to colour by: the chosen one, or the first that the run has. */
const measureOf = (about) => (at.measure in about.full || at.measure === "" ? at.measure : Object.keys(MEASURES).find((name) => name in about.full));

let drawing = 0;

async function drawStep(about) {
  const mine = ++drawing;
  const load = async (i) => (await chunk(about.chunk_of[i])).filter((episode) => episode.step === about.steps[i]);
  const compared = at.source === "held_out" && at.beside && at.step > 0;
  const earlier = compared ? BESIDE[at.beside].from(at.step) : null;
  const [episodes, before] = await Promise.all([load(at.step), compared ? load(earlier) : []]);
  if (mine !== drawing) return; // the reader has chosen another episode meanwhile
  const built = JSON.stringify([at, episodes, before]);
  if (viewer.built === built) return; // nothing changed: keeps what is unfolded
  Object.assign(viewer, { episodes, built });
  viewer.chosen = choose(episodes, at.want);
  fill(viewer.problem, episodes.map((one, i) => [i, `${one.problem}${one.member ? `, member ${one.member + 1}` : ""} (${number(one.value)})`]), viewer.chosen);
  const episode = episodes[viewer.chosen];
  const same = before.find((one) => one.problem === episode.problem && one.member === episode.member);
  const look = { measure: measureOf(about), numbers: at.numbers, about, beside: Boolean(same) };
  const when = (step) => SOURCES[at.source].at(about.steps[step]);
  viewer.legend.replaceChildren(tokenLegend(measureOf(about), about), ...(same ? [wordLegend(when(earlier), when(at.step))] : []));
  viewer.asked.replaceChildren(...[same && asked(episode)].filter(Boolean));
  viewer.episode.className = same ? "pair" : "";
  const changed = same ? comparedTurns(same, episode) : null;
  const marked = (tag, places) => (changed ? { ...look, marks: { tag, places } } : look);
  viewer.episode.replaceChildren(...(same ? [drawEpisode(same, when(earlier), marked("del", changed.gone))] : []),
    drawEpisode(episode, same ? when(at.step) : `${episode.problem}, ${when(at.step)}`, marked("ins", changed?.fresh)));
  viewer.root.dataset.shows = JSON.stringify([at.run, at.source, about.steps[at.step], episode.problem, episode.member]);
}

/** Draw the legend of the marked words. */
const wordLegend = (earlier, now) => el("p", { class: "legend" }, el("span", {}, "words: "), el("del", {}, `only ${earlier}`), el("ins", {}, `only ${now}`));

/** Return the position of the wanted episode; of the first if this step does not have it. */
function choose(episodes, want) {
  const values = episodes.map((episode) => episode.value);
  if (want === "worst") return values.indexOf(Math.min(...values));
  if (want === "best") return values.indexOf(Math.max(...values));
  return Math.max(0, episodes.findIndex((one) => one.problem === want.problem && one.member === want.member));
}
