// What doctor finds, and what the console itself costs.
import { el, fill, json, table, command } from "./dom.js";
import { duration, number, short, size } from "./format.js";

export const health = {
  page: "health",
  key: () => "",
  open() {
    const findings = el("div"), stores = el("div"), cost = el("div");
    return {
      title: () => "Health",
      element: el("section", { "aria-label": "Health" }, json("/api/health"), el("h1", {}, "Health"), findings,
        el("h2", {}, "Stores"), stores, json("/api/console"), el("h2", {}, "This console"), cost),
      params: () => "",
      panels: { health: show, console: showCost },
    };

    function show(r) {
      const all = r.findings || [];
      fill(findings, all.length === 0 ? [el("p", {}, "doctor has found nothing. Policies: " + number(r.policies) + ", replicas: " + number(r.replicas) + ".")] :
        all.map(f => el("article", { class: "finding " + f.severity },
          el("p", {}, el("b", {}, f.severity), " ", short(f.subject), ": ", short(f.seen, 500)), el("p", {}, short(f.why, 500)),
          /^(throttle-admin|redis-cli|etcdctl) /.test(f.mend) ? command(f.mend, "Mend") : el("p", {}, short(f.mend, 500)))));
      fill(stores, [table([["Store"], ["Requests", "number"], ["Half within", "number"], ["99 % within", "number"]],
        (r.stores || []).map(s => [s.store, [s.store, number(s.requests), duration(s.p50), duration(s.p99)]]), "Stores")]);
    }

    function showCost(c) {
      fill(cost, [table([["Figure"], ["Value", "number"]], [
        ["runs for", duration(c.uptime)], ["CPU, of one core", Math.round(1000 * c.cpu) / 10 + " %"], ["memory", size(c.memory)],
        ["of it, plots (at most 64 MiB)", size(c.plots)], ["pages that browsers look at", number(c.browsers)],
        ["status records read in the last second", number(c.records)],
      ].map(cells => [cells[0], cells]), "Cost")]);
    }
  },
};
