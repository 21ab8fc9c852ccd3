// Elements and numbers. Text that comes from a run becomes text nodes, never HTML.

/** Make an element: attributes by name, `onclick` and the like as listeners; children are nodes or text. */
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

/** Make a label with a text and its control. */
const labelled = (text, control) => el("label", {}, el("span", {}, text), control);

/** Rebuild the children of an element, unless they were built from the same content: they keep focus and open state. */
function keep(root, content, build) {
  const now = JSON.stringify(content);
  if (root.builtFrom === now) return;
  root.builtFrom = now;
  root.replaceChildren(...build());
}

/** Make these nodes, in this order, the children of an element; nodes in their place already are not touched. */
function arrange(root, nodes) {
  for (const node of [...root.children]) if (!nodes.includes(node)) node.remove();
  nodes.forEach((node, i) => { if (root.children[i] !== node) root.insertBefore(node, root.children[i] ?? null); });
}

/** Fill a select with options [value, text, why it cannot be chosen]. */
function fill(select, options, chosen) {
  keep(select, options, () => options.map(([value, text, missing]) =>
    el("option", { value, disabled: Boolean(missing) }, missing ? `${text} (${missing})` : text)));
  select.value = chosen;
}

/** Return a number with four significant digits; a dash if it is missing. */
function number(value) {
  if (value == null) return "–";
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(4)));
}

const count = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;
