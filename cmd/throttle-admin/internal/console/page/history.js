// Every change of policies and quotas, the newest first.
import { el, fill, json, command, off, text } from "./dom.js";
import { set } from "./console.js";
import { short, timeText } from "./format.js";

export const history = {
  page: "history",
  key: () => "",
  open() {
    const scope = el("input", { type: "search", placeholder: "Scope: a topic, a namespace, cluster", "aria-label": "Scope" });
    const body = el("div"), link = json("/api/history");
    const older = el("button", { type: "button", onclick: () => next && set({ before: next }) }, "Older changes");
    const newest = el("button", { type: "button", onclick: () => set({ before: "" }) }, "Newest");
    let next, newestSeen, highest;
    return {
      title: () => "History",
      element: el("section", { "aria-label": "History" }, link, el("h1", {}, "History"),
        el("form", { class: "filter", onsubmit: event => { event.preventDefault(); set({ scope: scope.value.trim(), before: "" }); } },
          scope, el("button", {}, "Show"), newest, older), body),
      params(q) {
        const params = new URLSearchParams({ limit: "30" });
        for (const name of ["scope", "before"]) if (q.get(name)) params.set(name, q.get(name));
        if (document.activeElement !== scope) scope.value = q.get("scope") || "";
        link.href = "/api/history?" + params;
        off(newest, !q.get("before"));
        return params.toString();
      },
      panels: { history: show },
    };

    function show(h) {
      next = h.next;
      off(older, !next);
      const records = h.records || [];
      fill(body, records.length === 0 ? [el("p", {}, "no changes are recorded")] : records.map(r => el("article", { class: "finding", "data-key": String(r.revision) + " " + (r.time || "") },
        el("p", {}, el("b", {}, short(r.author || "unknown")), " ", el("time", { datetime: r.time || "" }, timeText(r.time)),
          " · revision " + r.revision, r.found ? " · made past the tools, at some time before" : ""),
        r.reason ? el("p", {}, short(r.reason, 1000)) : "",
        changeTexts(r),
        el("details", { "data-revision": r.revision, ontoggle: event => { if (event.currentTarget.open) showDifference(event.currentTarget, r.revision, highest); } }, el("summary", {}, "Since then, and commands"),
          el("div", { class: "difference", "data-kept": "true" }),
          command("throttle-admin rollback " + r.revision + " --dry-run", "Preview the rollback"),
          command("throttle-admin rollback " + r.revision, "Roll back"),
          command("throttle-admin history show " + r.revision, "Show")))));
      highest = Math.max(0, ...records.map(r => r.revision));
      const seen = JSON.stringify(records.map(r => r.revision));
      if (seen !== newestSeen) { // the differences from now are others
        newestSeen = seen;
        for (const d of body.querySelectorAll("details[open]")) showDifference(d, d.dataset.revision, highest);
      }
    }
  },
};

// showDifference shows what differs between what was stored after a change and now, at the newest
// revision or later.
async function showDifference(details, revision, newest) {
  const place = details.querySelector(".difference");
  text(place, "Comparing with now");
  try {
    const answer = await (await fetch("/api/diff?revision=" + revision + "&newest=" + newest)).json();
    if (answer.error) throw new Error(answer.error);
    const changes = answer.changes || [];
    fill(place, changes.length === 0 ? ["Nothing differs now from what was stored after this change."] :
      ["Now, against what was stored after this change:", changeTexts({ changes })]);
  } catch (err) {
    fill(place, ["The difference from now is unknown: " + short(err.message, 300)]);
  }
}

// changeTexts says what a record changed.
export function changeTexts(record) {
  if (record.error) return [el("div", {}, "unreadable: " + short(record.error))];
  const all = record.changes || [];
  return all.slice(0, 20).map(c => el("div", {}, short((c.section ? c.section + " " : "") + c.scope + (c.field ? " " + c.field : "")) + ": " +
    valueText(c, c.before, c.beforeExpires) + " → " + valueText(c, c.after, c.expires, c.then)))
    .concat(all.length > 20 ? el("div", {}, "and " + (all.length - 20) + " more") : []);
}

// valueText says what a value is, and until when. The history has permanent and temporary values
// apart; a difference has what is in force, and then what comes after it.
function valueText(c, value, expires, then) {
  const text = short(value || (c.temporary ? "not pinned" : "inherited"));
  if (!expires) return text;
  return text + (c.temporary ? ", pinned until " : " until ") + timeText(expires) + (then ? ", then " + short(then) : "");
}
