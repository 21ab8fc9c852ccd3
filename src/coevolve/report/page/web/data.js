// Access to the data: packed in the page, or on the server that a live page came from.

const live = !byId("data");

/** Return the text of a blob: gzip in base64. */
async function unpacked(base64) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const chunks = new Map();

/** Return a chunk of dialogues, unpacked on first use, with its texts filled in. */
function chunk(id) {
  if (!chunks.has(id)) {
    chunks.set(id, read(id));
    chunks.get(id).catch(() => chunks.delete(id));
  }
  return chunks.get(id);
}

async function read(id) {
  const found = JSON.parse(await unpacked(live ? await fetched(`/chunk/${id}`) : byId(id).textContent));
  for (const episode of found.episodes) {
    episode.data = found.problems[episode.problem];
    for (const turn of episode.turns) {
      turn.pieces = turn.pieces.map((place) => found.strings[place]);
      turn.heard = turn.heard.map((part) => (Array.isArray(part) ? found.strings[part[0]] : part));
      if ("prompt" in turn) turn.prompt = found.strings[turn.prompt];
      turn.text ??= (turn.finished ? turn.pieces.slice(0, -1) : turn.pieces).join("");
    }
  }
  return found.episodes;
}

async function fetched(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer.text();
}

/** Load Plotly, which is packed like the data. */
async function loadPlotly() {
  document.head.append(el("script", {}, await unpacked(byId("plotly").textContent)));
}
