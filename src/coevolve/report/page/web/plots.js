// Figures on the page: drawn when they come near the visible area, and again when their data has changed.

const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };

const near = new IntersectionObserver(
  (entries) => entries.forEach(({ target, isIntersecting }) => {
    target.near = isIntersecting;
    drawIfDue(target);
  }),
  { rootMargin: "100px" },
);

/** Make an empty element for a figure; its `make` must return { data, layout } when it is drawn. Its label describes
    the drawing, which is hidden from screen readers; the buttons are not. */
function plotPlace(label) {
  const node = el("div", { class: "plot", role: "group", "aria-label": label });
  node.due = true;
  near.observe(node);
  return node;
}

/** Draw a figure again: now if it is near the visible area, else when it comes near. */
function redraw(node) {
  node.due = true;
  drawIfDue(node);
}

/** Draw all figures before printing, those that were never scrolled to as well. */
addEventListener("beforeprint", () => document.querySelectorAll(".plot").forEach((node) => {
  node.near ||= node.offsetParent !== null;
  drawIfDue(node);
}));

function drawIfDue(node) {
  if (!node.due || !node.near || !node.isConnected || !window.Plotly) return;
  node.due = false;
  const { data, layout } = node.make();
  Plotly.react(node, data, layout, CONFIG);
  node.querySelectorAll(".main-svg").forEach((drawing) => drawing.setAttribute("aria-hidden", "true"));
}
