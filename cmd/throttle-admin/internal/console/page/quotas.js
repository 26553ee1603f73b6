// Throughput quotas: what the ratekeeper was told, and what it decided in the last hour.
import { el, fill, json, table, value } from "./dom.js";
import { Plots } from "./plots.js";
import { duration, number, perSecond, short, size } from "./format.js";

const idText = id => typeof id === "string" ? id : (id.tag ? "tag:" + id.tag : "tenant:" + (id.tenantGroup || id.tenant || ""));
const rate = x => x === null || x === undefined ? "not limited" : perSecond(x);

export const quotas = {
  page: "quotas",
  key: () => "",
  open() {
    const body = el("div"), more = el("div");
    const plots = new Plots([
      { title: "Rates in force, messages a second", lines: d => [...(d.inForce || [])] },
      { title: "Costs, bytes a second", lines: d => [...(d.costs || [])] },
      { title: "Backends: load, of the target of each", lines: d => [...(d.backends || [])] },
    ]);
    return {
      title: () => "Quotas",
      close: () => plots.close(),
      element: el("section", { "aria-label": "Quotas" }, json("/api/quotas"), el("h1", {}, "Quotas"), body,
        json("/api/decisions"), el("h2", {}, "The last hour"), plots.element, more),
      params: () => "",
      panels: { quotas: show, decisions: showPoints },
    };

    function showPoints(p) {
      plots.add(p);
      fill(more, p.more > 0 ? [el("p", {}, number(p.more) + " more ids and backends have no line.")] : []);
    }

    function show(s) {
      if (!s.leads) {
        const ids = s.ids || [];
        fill(body, [el("p", {}, "No ratekeeper leads. " + (s.hold ? "The rates of the last one are in force, " + duration(s.age) + " old." : "The quotas themselves are in force.")),
          ids.length === 0 ? el("p", {}, "No quota is set.") : table([["Id"], ["Reserved", "number"], ["Total", "number"], ["In force", "number"], ["By"]],
            ids.map(i => [idText(i.id), [short(idText(i.id)), size(i.reserved) + "/s", size(i.total) + "/s", rate(i.inForce), i.by]]), "Rates in force")]);
        return;
      }
      const decisions = s.decisions || [], readers = s.readers || [], backends = s.backends || [], most = 100, listed = decisions.slice(0, 500);
      fill(body, [
        el("p", {}, "The ratekeeper " + short(s.keeper) + " leads, in term " + s.term + "; " + number(s.replicas) + " replicas report."),
        decisions.length === 0 ? el("p", {}, "No quota is set.") : table(
          [["Id"], ["Rate", "number"], ["Cost", "number"], ["Reserved", "number"], ["Total as a rate", "number"], ["Backends bear", "number"], ["Target", "number"], ["In force", "number"], ["Busy"]],
          listed.map(d => [idText(d.id), [short(idText(d.id)), perSecond(d.rate), size(d.cost) + "/s", perSecond(d.reserved), perSecond(d.desired), d.limiting === null ? "no limit" : perSecond(d.limiting), perSecond(d.target), perSecond(d.smoothed) + (d.shadow ? " (shadow)" : ""), d.busy ? "yes" : ""]]), "Decisions"),
        s.tracked > listed.length ? el("p", {}, "and " + number(s.tracked - listed.length) + " more ids that are tracked") : "",
        el("h2", {}, "Backends"),
        backends.length === 0 ? el("p", {}, "none reports") : table([["Backend"], ["Zone"], ["Queue", "number"], ["Target", "number"], ["Load, of its target", "number"], ["Cost", "number"], ["It bears", "number"], ["Reported", "number"]],
          backends.slice(0, most).map(b => [b.backend, [short(b.backend), short(b.zone), ...(b.load.target > 0 ? [number(b.load.queue), number(b.load.target), Math.round(100 * b.load.queue / b.load.target) + " %"] : [value("unknown"), value("unknown"), value("unknown")]),
            size(b.cost) + "/s", b.ratio ? number(b.ratio) + " times its load" : "more", duration(b.age) + " ago"]]), "Backends"),
        backends.length > most ? el("p", {}, "and " + number(backends.length - most) + " that are less loaded") : "",
        el("h2", {}, "Ids that load backends near their targets"),
        readers.length === 0 ? el("p", {}, "none") : table([["Backend"], ["Zone"], ["Id"], ["Cost", "number"], ["Part of its load", "number"], ["It bears", "number"]],
          readers.map(r => [r.backend + "\n" + idText(r.id), [short(r.backend), short(r.zone), short(idText(r.id)), size(r.cost) + "/s", Math.round(100 * r.busyness) + " %", number(r.ratio) + " times its load"]]), "Ids that load backends"),
      ]);
    }
  },
};
