// Elements and numbers. Text that comes from a run becomes text nodes, never HTML.

/** An element: attributes by name, `onclick` and the like as listeners; children are nodes or text. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

const byId = (id) => document.getElementById(id);

/** A control with its name in front of it. */
const labelled = (text, control) => el("label", {}, el("span", {}, text), control);

/** Build what is in a place anew, unless it was built from the same content: what is open or in focus stays so. */
function keep(root, content, build) {
  const now = JSON.stringify(content);
  if (root.builtFrom === now) return;
  root.builtFrom = now;
  root.replaceChildren(...build());
}

/** Let a place hold these nodes in this order; those that are there already are not touched. */
function arrange(root, nodes) {
  for (const node of [...root.children]) if (!nodes.includes(node)) node.remove();
  nodes.forEach((node, i) => { if (root.children[i] !== node) root.insertBefore(node, root.children[i] ?? null); });
}

/** What stands in a select: [value, text, why it cannot be chosen]. */
function fill(select, options, chosen) {
  keep(select, options, () => options.map(([value, text, missing]) =>
    el("option", { value, disabled: Boolean(missing) }, missing ? `${text} (${missing})` : text)));
  select.value = chosen;
}

/** Four significant digits; a dash for what is not there. */
function number(value) {
  if (value == null) return "–";
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(4)));
}

const count = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;
