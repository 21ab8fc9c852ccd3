// Figures on the page: drawn when they come near the window, and again when what they show has changed.

const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };

const near = new IntersectionObserver(
  (entries) => entries.forEach(({ target, isIntersecting }) => {
    target.near = isIntersecting;
    drawIfDue(target);
  }),
  { rootMargin: "100px" },
);

/** An empty place for a figure; its `make` is to return { data, layout } when it is drawn. Its label says in words what
    the drawing shows, which is hidden from screen readers; its buttons are not. */
function plotPlace(label) {
  const node = el("div", { class: "plot", role: "group", "aria-label": label });
  node.due = true;
  near.observe(node);
  return node;
}

/** Draw this one again: now if it can be seen, else when it can. */
function redraw(node) {
  node.due = true;
  drawIfDue(node);
}

/** What is printed was not scrolled to. */
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
