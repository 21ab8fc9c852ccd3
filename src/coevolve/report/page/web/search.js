// The search in all dialogues of the page.

const SHOWN_HITS = 100;

/** Return all turns whose text or problem id contains these words: { run, source, step, episode, role, text }. */
async function hits(words) {
  const wanted = words.toLowerCase();
  const found = [];
  for (const run of overview.runs) {
    for (const source of Object.keys(SOURCES)) {
      for (const id of new Set(run.dialogues[source].chunk_of)) {
        for (const episode of await chunk(id)) {
          for (const turn of episode.turns) {
            const text = [turn.text, episode.problem].find((one) => one.toLowerCase().includes(wanted));
            if (text) found.push({ run: run.name, source, step: episode.step, episode, role: turn.role, text });
          }
        }
      }
    }
  }
  return found;
}

/** Draw the words, marked, with the text around them. */
function snippet(text, words) {
  const start = text.toLowerCase().indexOf(words.toLowerCase());
  const end = start + words.length;
  return el("span", {}, start > 40 ? "…" : "", text.slice(Math.max(0, start - 40), start), el("mark", {}, text.slice(start, end)),
    text.slice(end, end + 60), text.length > end + 60 ? "…" : "");
}

/** Make the search field and its list; `open` is called with the hit that was chosen. */
function searchBox(open) {
  const list = el("ol", { class: "hits", id: "hits" });
  const said = el("span", { class: "note", role: "status" });
  let found = [];
  let asked = 0;
  const input = el("input", {
    id: "search", type: "search", placeholder: "words that were said",
    oninput: async () => {
      const mine = ++asked;
      const words = input.value.trim();
      said.textContent = words ? "Reading." : "";
      const now = words ? await hits(words) : [];
      if (mine !== asked) return;
      found = now;
      said.textContent = !words ? "" : found.length > SHOWN_HITS ? `${found.length} hits, the first ${SHOWN_HITS} are listed` : count(found.length, "hit");
      list.replaceChildren(...found.slice(0, SHOWN_HITS).map((hit) => el("li", {}, el("button", { type: "button", onclick: () => open(hit) },
        `${hit.run}, ${SOURCES[hit.source].at(hit.step)}, ${hit.role}: `, snippet(hit.text, words)))));
    },
    onkeydown: (event) => { if (event.key === "Enter" && found.length) open(found[0]); },
  });
  return el("div", { class: "search" }, labelled("search", input), said, list);
}
