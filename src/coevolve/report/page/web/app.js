// The page: its parts, its data, and, where it is served, the next data.

const PARTS = ["overview", "findings", "curves", "dialogues", "recipes"];
const POLL = 2000; // milliseconds

let overview = null;

/** Show the part that the address names. */
function showPart() {
  const wanted = PARTS.find((part) => `#${part}` === location.hash) ?? PARTS[0];
  for (const part of PARTS) byId(`${part}-part`).hidden = part !== wanted;
  for (const link of document.querySelectorAll("header nav a")) {
    link.toggleAttribute("aria-current", link.hash === `#${wanted}`);
  }
  if (wanted === "dialogues") byId("dialogues-part").focus({ preventScroll: true });
  dispatchEvent(new Event("resize")); // plots measure themselves
}

function redrawAll() {
  if (!overview) return;
  drawCurves();
  document.querySelectorAll("#findings-part .plot, #overview-part .plot").forEach(redraw);
}

/** New data: what is drawn changes, where the reader is does not. */
async function show(data) {
  overview = data;
  overview.runs.forEach((run, i) => { run.dialogues = data.dialogues[i]; });
  document.title = `${overview.runs.map((run) => run.name).join(", ")}: report`;
  drawRunPicker(byId("runs"), redrawAll);
  drawSections(byId("findings-part"), overview.sections);
  drawRecipes(byId("recipes-part"));
  drawCurves();
  await drawOverview();
  await go();
}

const summary = () => {
  const steps = Math.max(...overview.runs.map((run) => run.written));
  return overview.runs.length === 1 ? `${overview.runs[0].name}, ${count(steps, "step")}` : `${overview.runs.length} runs, up to ${count(steps, "step")}`;
};

let version = "";

/** Ask the server for what is new, for as long as the page is open. */
async function poll() {
  try {
    const news = JSON.parse(await fetched(`/data?seen=${version}`));
    if (news.overview) {
      await show(JSON.parse(await unpacked(news.overview)));
      version = news.version;
    }
    byId("status").textContent = [overview ? `${summary()}, live` : "", ...news.waiting].filter(Boolean).join(". ");
  } catch (error) {
    byId("status").textContent = `The server does not answer; this is the last that it said. (${error.message})`;
  }
  setTimeout(poll, POLL);
}

async function start() {
  addEventListener("hashchange", showPart);
  buildOverview(byId("overview-part"));
  buildSections(byId("findings-part"));
  buildCurves(byId("curves-part"));
  buildViewer(byId("dialogues-part"));
  showPart();
  followTheme(redrawAll);
  if (live) {
    byId("status").textContent = "Asking for the first step.";
    await poll();
  } else {
    await show(JSON.parse(await unpacked(byId("data").textContent)));
    byId("status").textContent = summary();
  }
  await new Promise((resolve) => setTimeout(resolve)); // what can be read is there before what is drawn
  await loadPlotly();
  redrawAll();
  document.documentElement.dataset.ready = "yes";
}

start();
