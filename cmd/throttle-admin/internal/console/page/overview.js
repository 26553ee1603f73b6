// The overview: topics by how hard they are throttled.
import { aggregateTable } from "./aggregates.js";
import { el, fill, condition, off, value, json, table, text, tile } from "./dom.js";
import { set } from "./console.js";
import { behindText, drainedText, limitText, number, rateText, short, timeText, waitText } from "./format.js";

const columns = [
  ["Topic", "topic"], ["Condition", "throttled"], ["Rate", "rate", "number"], ["Limit", "limit", "number"], ["Waiting", "waiting", "number"],
  ["Wait p99", "wait", "number wide"], ["Backlog", "backlog", "number"], ["Behind for", "behind", "number wide"],
  ["Drained in", "drained", "number"], ["Subscriptions", "", "wide"], ["Replicas", "replicas", "number wide"],
];
const mostAggregates = 5;
const conditions = ["unavailable", "throttled", "paused", "stale", "flowing", "not published", "caught up", "idle"];

export const overview = {
  page: "overview",
  key: () => "",
  open(query) {
    const tiles = el("ul", { class: "tiles", "aria-label": "The whole cluster" });
    const strip = el("div", { class: "strip" });
    const search = el("input", {
      type: "search", maxlength: 200, placeholder: "Filter: topic, subscription, condition", "aria-label": "Filter",
      oninput: () => set({ filter: search.value, page: "" }, true),
    });
    const sort = el("select", { onchange: () => set({ sort: sort.value, page: "" }) },
      columns.filter(c => c[1]).map(([title, name]) => el("option", { value: name }, name === "throttled" ? "How hard it is throttled" : title)));
    const reverse = el("input", { type: "checkbox", onchange: () => set({ reverse: reverse.checked ? "true" : "", page: "" }) });
    const matching = el("span", { role: "status" });
    const together = el("div"), body = el("div");
    let page = 0;
    const turn = by => set({ page: Math.max(0, page + by) || "" });
    const earlier = el("button", { type: "button", onclick: () => page > 0 && turn(-1) }, "Previous");
    const later = el("button", { type: "button", onclick: () => later.getAttribute("aria-disabled") !== "true" && turn(1) }, "Next");
    const link = json("/api/overview");
    return {
      element: el("section", { "aria-label": "Overview" }, link, el("h1", {}, "Topics"), strip, tiles,
        el("form", { class: "filter", onsubmit: event => event.preventDefault() },
          search, el("label", {}, "Sort by ", sort), el("label", {}, reverse, " reversed"), earlier, later, matching),
        together, body),
      params(q) {
        if (document.activeElement !== search) search.value = q.get("filter") || "";
        sort.value = q.get("sort") || "throttled";
        reverse.checked = q.get("reverse") === "true";
        link.href = "/api/overview?" + q;
        return q.toString();
      },
      panels: { overview: show, health: showFaults },
    };

    function showFaults(r) {
      const found = (r.findings || []).filter(f => f.severity === "fault");
      fill(strip, found.length === 0 ? [] : [el("p", {}, condition("throttled", number(found.length) + (found.length === 1 ? " fault: " : " faults: ")),
        short(found[0].subject, 80), ": ", short(found[0].seen, 200), " ", el("a", { href: "/health" }, "See Health"))]);
    }

    function show(o, q) {
      const t = o.totals, unread = o.status.unread, count = x => unread ? value("unknown") : number(x);
      fill(tiles, [
        tile(count(t.topics), "topics"),
        ...conditions.filter(c => t.conditions[c]).map(c => tile(number(t.conditions[c]), condition(c))),
        tile(count(t.waiting), "waiting calls"), tile(value(number(t.backlog)), "messages of backlog, where it is known"), tile(count(t.replicas), "replicas"),
        t.more ? tile(number(t.more), "more subscriptions, not published") : "",
      ]);
      page = o.page;
      const size = Number(q.get("size")) || 50, pages = Math.max(1, Math.ceil(o.matching / size));
      off(earlier, o.page === 0);
      off(later, o.page + 1 >= pages);
      text(matching, unread ? "" : o.matching === 0 ? (t.topics === 0 ? "no replica publishes a topic" : "no topic matches") :
        (o.page * size + 1) + " to " + (o.page * size + o.rows.length) + " of " + o.matching);
      const now = Date.parse(o.time);
      fill(together, o.aggregates.length === 0 ? [] : [aggregateTable(o.aggregates.slice(0, mostAggregates), o.matchingAggregates)]);
      fill(body, [table(columns.map(([title, , c]) => [title, c]), o.rows.map(r => [r.topic, [
        el("a", { href: "/topic?topic=" + encodeURIComponent(r.topic) }, short(r.topic)),
        condition(r.condition, r.condition === "stale" ? "stale since " + timeText(r.since) : ""),
        value(rateText(r)),
        value(limitText(r)), value(number(r.waiting)), value(waitText(r)), value(number(r.backlog)),
        value(behindText(r, now)), value(drainedText(r)),
        r.subscriptions.map(s => el("div", {}, short(s.subscription, 60) + " ", s.uncounted ? condition(s.condition, "not counted") : s.share === null ? value("unknown") : Math.round(100 * s.share) + " %"))
          .concat(r.more ? el("div", {}, "and " + number(r.more) + " more") : []),
        number(r.replicas),
      ]]), "Topics")]);
    }
  },
};
