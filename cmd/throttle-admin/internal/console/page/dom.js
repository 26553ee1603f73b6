// Elements are made here, from texts, and brought up to date in place, so that what is open, focused
// or scrolled stays so.
import { short, visible } from "./format.js";

// el returns an element with attributes, handlers (onclick) and children. Of elements in a list whose
// order changes, the attribute data-key says which is which.
export function el(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  e.handlers = {};
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) e[key] = e.handlers[key] = value;
    else e.setAttribute(key, value === true ? "" : value);
  }
  e.append(...flat(children));
  return e;
}

const flat = children => children.flat(Infinity).filter(c => c !== null && c !== undefined && c !== "");

// fill brings the children of an element up to date.
export function fill(e, children) {
  const active = document.activeElement;
  morph(e, flat(children).map(c => c instanceof Node ? c : document.createTextNode(c)));
  if (active && active !== document.activeElement && active.isConnected) active.focus({ preventScroll: true });
  return e;
}

function morph(parent, wanted) {
  const keyed = new Map();
  for (const c of parent.children) if (c.dataset.key !== undefined) keyed.set(c.dataset.key, c);
  let at = parent.firstChild;
  for (const next of wanted) {
    const key = next.dataset && next.dataset.key;
    let old = key !== undefined ? keyed.get(key) : at && at.nodeName === next.nodeName && !(at.dataset && at.dataset.key) ? at : null;
    if (!old || old.nodeName !== next.nodeName) {
      parent.insertBefore(next, at);
      continue;
    }
    if (old === at) at = at.nextSibling;
    else parent.insertBefore(old, at);
    update(old, next);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function update(old, next) {
  if (old === next) return;
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const name of Object.keys(old.handlers || {})) if (!(name in next.handlers)) old[name] = null;
  Object.assign(old, next.handlers);
  old.handlers = next.handlers;
  if (!next.dataset.kept) morph(old, [...next.childNodes]);
  if (next.how) {
    old.how = next.how;
    compute(old);
  }
}

export function condition(name, text) {
  return el("span", { class: "condition " + name.replace(" ", "-") }, text || name);
}

// value is a text for a value, faint if it is unknown.
export function value(text) {
  return text === "unknown" ? el("span", { class: "unknown" }, text) : text;
}

// said is what the buttons of commands say for a while after a click; they are drawn again with
// each update meanwhile.
const said = new Map();

// command is a command line with a button that copies it, unless it has what cannot be seen.
export function command(text, label) {
  const copy = visible(text) === text && el("button", { type: "button", title: "Copy: " + label, "aria-live": "polite", onclick: async event => {
    const button = event.currentTarget;
    const say = what => {
      said.set(text, what);
      button.textContent = what;
      setTimeout(() => {
        said.delete(text);
        button.textContent = "Copy";
      }, 1500);
    };
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say("Not copied");
    }
  } }, said.get(text) || "Copy");
  return el("div", { class: "command" }, el("span", { class: "label" }, label), el("pre", { tabindex: "0" }, short(text, 1000)), copy || "");
}

// json links to the JSON behind a panel.
export function json(path) {
  return el("a", { class: "json", href: path, target: "_blank", rel: "noopener" }, "JSON");
}

// meter draws a part of 0 to 1.
export function meter(part, label) {
  if (part === null || part === undefined) return value("unknown");
  const percent = Math.round(100 * part) + " %";
  return el("span", {}, percent, el("progress", { class: "meter", max: 1, value: Math.min(1, part), "aria-label": label + ": " + percent }));
}

// table returns a table; each column is [title, class], each row [key, cells].
export function table(columns, rows, caption) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, el("table", {},
    el("thead", {}, el("tr", {}, columns.map(([title, c]) => el("th", { scope: "col", class: c }, title)))),
    el("tbody", {}, rows.map(([key, cells]) => el("tr", { "data-key": key }, cells.map((cell, i) => el("td", { class: columns[i][1] }, cell)))))));
}

// tile is a number with what it is.
export function tile(text, label) { return el("li", {}, el("b", {}, text), label); }

// derived is a tile whose label opens the arithmetic of its number.
export function derived(text, label, how) { return el("li", {}, el("b", {}, text), opens(label, how)); }

// opens is a text that opens arithmetic: how returns a rule, and what it is applied to. It is called
// while that is open only, since a topic may have thousands of numbers.
export function opens(text, how) {
  const e = el("details", { ontoggle: event => compute(event.currentTarget) }, el("summary", {}, text), el("small", { "data-kept": "true" }));
  e.how = how;
  return e;
}

function compute(e) {
  if (!e.open) return;
  const [rule, computed] = e.how();
  fill(e.querySelector("small"), [rule, computed && el("span", { class: "computed" }, computed)]);
}

// off says whether a button does nothing now. It keeps the focus.
export function off(button, is) { button.setAttribute("aria-disabled", String(is)); }

// text sets a text, if it is another one.
export function text(e, t) {
  if (e.textContent !== t) e.textContent = t;
}
