// Limits of several topics together: of a namespace, a tenant or the cluster.
import { el, condition, meter, table, value } from "./dom.js";
import { limitText, number, perSecond, short } from "./format.js";

// aggregateTable is a table of limits, of which there are so many in all.
export function aggregateTable(aggregates, all) {
  return el("div", { class: "together" }, table(
    [["Limit of several topics"], ["Condition"], ["Rate", "number"], ["Limit", "number"], ["Used"], ["Waiting", "number"], ["Topics that wait", "number"]],
    aggregates.map(a => [a.scope + "\n" + a.limit.limit, [
      el("a", { href: a.filter ? "/?filter=" + encodeURIComponent(a.filter) : "/" }, short(a.scope)), condition(a.condition),
      rate(a), value(limitText(a)), meter(a.rate !== null && a.limit.rate > 0 ? a.rate / a.limit.rate : null, "used of " + short(a.scope, 60)),
      number(a.waiting), number(a.throttled) + " of " + number(a.topics),
    ]]), "Limits of several topics"),
  all > aggregates.length ? el("p", {}, "and " + number(all - aggregates.length) + " more, which fewer calls wait for: filter by a tenant or a namespace") : "");
}

// rate is at least as large, if the rates of some topics are unknown.
function rate(a) {
  const text = perSecond(a.rate, a.limit);
  return a.unknown && a.rate !== null ? "at least " + text : value(text);
}
