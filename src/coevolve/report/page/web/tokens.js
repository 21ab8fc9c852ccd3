// The tokens of a turn, coloured by one of their numbers; all numbers of a token are shown on hover.

/** Name of a measure, as in the index of a run -> its look. of: the number shown. signed: two colours, else one. */
const MEASURES = {
  adv: { title: "advantage", of: (v) => v, signed: true, low: "less likely", high: "likelier" },
  kl: { title: "KL to the reference, nats", of: (v) => v, signed: false, low: "as the reference", high: "far from it" },
  logps: { title: "surprise, −log p, nats", of: (v) => -v, signed: false, low: "certain", high: "surprising" },
};

/** Return the number of token i of a turn; null if there is none. */
function tokenNumber(turn, measure, i, about) {
  const value = turn[measure]?.[i];
  return value == null ? null : MEASURES[measure].of(value * (about.grid[measure] || 1));
}

/** Return the background colour for a number; it is strongest at `full`. */
function shade(measure, value, full) {
  if (value == null || !full) return "";
  const strength = (0.7 * Math.min(1, Math.abs(value) / full)).toFixed(3);
  const ink = !MEASURES[measure].signed ? "high" : value < 0 ? "minus" : "plus";
  return `rgb(var(--${ink}) / ${strength})`;
}

/** Draw a turn's tokens in a row; those of marked words (tag, positions in the text) are `ins` or `del`. */
function tokenLine(turn, measure, about, marks) {
  let end = 0;
  return el("p", { class: "tokens" }, ...turn.pieces.map((piece, i) => {
    const last = turn.finished && i === turn.pieces.length - 1;
    const start = end;
    end += piece.length;
    const marked = !last && marks?.places.some(([from, to]) => from < end && to > start);
    const span = el(marked ? marks.tag : "span", { class: `token${last ? " end" : ""}${piece.trim() ? "" : " blank"}` }, piece);
    if (measure) span.style.backgroundColor = shade(measure, tokenNumber(turn, measure, i, about), about.full[measure]);
    span.numbers = () => [JSON.stringify(piece), ...measuresOf(turn).map((name) => `${MEASURES[name].title}: ${number(tokenNumber(turn, name, i, about))}`)];
    return span;
  }));
}

const measuresOf = (turn) => Object.keys(MEASURES).filter((name) => turn[name]);

/** Make a table of a turn's tokens and their numbers. */
function tokenTable(turn, about) {
  const names = measuresOf(turn);
  return table({
    title: `tokens of ${turn.role}`,
    columns: ["token", ...names.map((name) => MEASURES[name].title)],
    rows: turn.pieces.map((piece, i) => [JSON.stringify(piece), ...names.map((name) => tokenNumber(turn, name, i, about))]),
  });
}

/** Draw the legend of the colours, with their range. */
function tokenLegend(measure, about) {
  if (!measure) return el("p", { class: "legend" });
  const { title, signed, low, high } = MEASURES[measure];
  const full = about.full[measure];
  const exact = about.grid[measure] ? ` (numbers to within ${number(about.grid[measure] / 2)})` : "";
  return el("p", { class: "legend" },
    el("span", {}, `${title}${exact}:`),
    el("span", { class: "range" }, el("span", {}, `${signed ? number(-full) : 0}, ${low}`),
      el("span", { class: `bar ${signed ? "signed" : "rising"}` }), el("span", {}, `${number(full)}, ${high}`)));
}

/** Show the numbers of the token under the pointer, or of the one that was tapped. */
function followTokens(root) {
  const tip = byId("tip");
  const show = (event) => {
    const token = event.target.closest?.(".token");
    tip.hidden = !token;
    if (!token) return;
    tip.replaceChildren(...token.numbers().map((text) => el("div", {}, text)));
    const box = token.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${box.bottom + tip.offsetHeight + 8 > innerHeight ? box.top - tip.offsetHeight - 4 : box.bottom + 4}px`;
  };
  root.addEventListener("pointerover", show);
  root.addEventListener("click", show);
  root.addEventListener("pointerleave", () => { tip.hidden = true; });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
}
