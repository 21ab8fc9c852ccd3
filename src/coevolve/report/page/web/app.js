// The page: its parts and its data and, on a live page, polling for new data.

const PARTS = ["overview", "findings", "curves", "dialogues", "recipes"];
const POLL = 2000; // milliseconds

let overview = null;

/** Show the part of the page that the address names. */
function showPart() {
  const wanted = PARTS.find((part) => `#${part}` === location.hash) ?? PARTS[0];
  for (const part of PARTS) byId(`${part}-part`).hidden = part !== wanted;
  for (const link of document.querySelectorAll("header nav a")) {
    link.toggleAttribute("aria-current", link.hash === `#${wanted}`);
  }
  if (wanted === "dialogues") byId("dialogues-part").focus({ preventScroll: true });
  dispatchEvent(new Event("resize")); // makes plots fit the part that is visible now
}

function redrawAll() {
  if (!overview) return;
  drawCurves();
  document.querySelectorAll("#findings-part .plot, #overview-part .plot").forEach(redraw);
}

/** Draw new data; the reader's place on the page stays. */
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

/** Poll the server for new data, for as long as the page is open. */
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
  await new Promise((resolve) => setTimeout(resolve)); // lets the browser show the text before it draws the plots
  await loadPlotly();
  redrawAll();
  document.documentElement.dataset.ready = "yes";
}

start();
