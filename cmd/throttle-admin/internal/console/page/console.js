// The console: a view for each path, whose whole state is in the URL. Texts from stores are put into
// the page as texts, never as HTML.
import { overview } from "./overview.js";
import { topic } from "./topic.js";
import { history } from "./history.js";
import { quotas } from "./quotas.js";
import { health } from "./health.js";
import { el, fill, text } from "./dom.js";
import { short, timeText } from "./format.js";

const views = { "/": overview, "/topic": topic, "/history": history, "/quotas": quotas, "/health": health };
const main = document.getElementById("main");
const cluster = document.getElementById("cluster");
const live = document.getElementById("live");
const faults = document.getElementById("faults");

let view;                   // what is shown now
let source;                 // of its events
let starting;               // a timer
let heard = Date.now();     // when the last event came, or the stream was started
let back = sessionStorage.getItem("overview") || "/"; // the overview as it was last, for Esc
const problems = new Map(); // texts, by panel and by what is wrong

// query is the state of the view, as in the URL.
export const query = () => new URLSearchParams(location.search);

// overviewURL is the overview as it was last.
export const overviewURL = () => back;

// go shows another view, or another state of this one.
export function go(url, replace = false) {
  window.history[replace ? "replaceState" : "pushState"](null, "", url);
  show();
}

// set changes a part of the state.
export function set(changes, replace = false) {
  const q = query();
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined) q.delete(name);
    else q.set(name, value);
  }
  const rest = q.toString();
  go(location.pathname + (rest ? "?" + rest : ""), replace);
}

function show() {
  const open = views[location.pathname] || overview;
  if (open === overview) {
    back = location.pathname + location.search;
    document.querySelector("nav a").href = back;
    sessionStorage.setItem("overview", back);
  }
  for (const a of document.querySelectorAll("nav a")) {
    if (a.pathname === location.pathname) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  const key = open.key(query());
  if (!view || view.open !== open || view.key !== key) {
    const shown = Boolean(view);
    if (view && view.close) view.close();
    problems.clear(); // they were of the other view
    text(live, "");
    report();
    view = { ...open.open(query()), open, key };
    main.replaceChildren(view.element);
    if (shown) main.focus();
  }
  start(150); // while somebody types a filter, not each time
}

// start receives the panels of the view, after so many milliseconds.
function start(after = 0) {
  stop();
  const params = view.params(query());
  starting = setTimeout(() => {
    heard = Date.now();
    source = new EventSource("/events/" + view.open.page + "?" + params);
    for (const [name, receive] of Object.entries({ ...view.panels, status })) source.addEventListener(name, event => take(name, receive, event));
    source.addEventListener("fault", event => {
      const fault = JSON.parse(event.data);
      problems.set(fault.panel, fault.panel + ": " + fault.error + (fault.last ? "; what is shown is of " + timeText(fault.last) : ""));
      report();
    });
    source.onerror = () => {
      const refused = source.readyState === EventSource.CLOSED; // else the browser tries again
      silent(refused ? "refuses this page" : "does not answer", Date.now());
      if (refused) start(10_000);
    };
  }, after);
}

// A console that hangs, or a tunnel to it, closes no stream. The panel status comes each second.
const patience = 10_000;
setInterval(() => {
  if (!source || source.readyState === EventSource.CLOSED || Date.now() - heard < patience) return;
  silent("does not answer", heard);
  start();
}, 1000);

function silent(what, since) {
  if (!problems.has("console")) problems.set("console", "the console " + what + " since " + timeText(since) + "; what is shown is as old");
  report();
}

function stop() {
  clearTimeout(starting);
  if (source) source.close();
  source = null;
}

// take shows a panel.
function take(name, receive, event) {
  heard = Date.now();
  problems.delete("console");
  problems.delete(name);
  const answer = JSON.parse(event.data);
  receive(answer, query());
  report();
}

// status shows the panel that each page has: of which cluster, and how old, what is shown is.
function status({ cluster: name, status: s, time }) {
  text(cluster, short(name));
  const title = [view.title && view.title(), short(name), "throttle"].filter(Boolean).join(" · ");
  if (document.title !== title) document.title = title;
  const say = (key, t) => t ? problems.set(key, t) : problems.delete(key);
  say("store", s.error && (s.unread ? "the permit store could not be read yet: " + s.error :
    "the permit store cannot be read since " + timeText(s.since) + "; the values are as old: " + s.error));
  say("policies", s.policies && "the policy store cannot be read since " + timeText(s.policies.since) + ": " + s.policies.error);
  say("unread", s.unread && !s.error && "nothing has been read yet");
  say("records", s.unreadable);
  text(live, "as of " + timeText(s.error && s.since ? s.since : time));
}

function report() {
  fill(faults, [...new Set(problems.values())].map(t => el("p", {}, short(t, 500))));
}

document.addEventListener("click", event => {
  const a = event.target.closest("a[href]");
  if (!a || a.target || a.origin !== location.origin || !(a.pathname in views) || a.hash || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(a.pathname + a.search);
});
document.addEventListener("keydown", event => {
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "Escape" && typing) {
    event.preventDefault(); // it would empty the field
    typing.blur();
  } else if (event.key === "Escape") {
    if (location.pathname !== "/") go(back);
    else if (query().get("filter")) set({ filter: "", page: "" });
  } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const filter = document.querySelector("input[type=search]");
    if (filter) {
      event.preventDefault();
      filter.focus();
    }
  }
});
document.addEventListener("visibilitychange", () => document.hidden ? stop() : start());
window.addEventListener("popstate", () => {
  document.activeElement.blur(); // fields have what the URL says
  show();
});
document.querySelector("nav a").href = back;
show();
if (document.hidden) stop();
