// A topic: the plots of the last hour, its policy, and why it waits.
import { aggregateTable } from "./aggregates.js";
import { el, fill, condition, value, json, table, meter, command, derived, opens, tile } from "./dom.js";
import { ofSubscription, ofTopic } from "./arithmetic.js";
import { overviewURL } from "./console.js";
import { Plots, limitColor } from "./plots.js";
import { changeTexts } from "./history.js";
import { behindText, drainedText, limitText, number, rateText, shell, short, timeText, waitText } from "./format.js";

const most = 100; // rows of a table

// further says how many of all have no row.
const further = (all, which) => all.length > most ? el("p", {}, "and " + number(all.length - most) + " more, " + which) : "";

export const topic = {
  page: "topic",
  key: q => q.get("topic"),
  open(q) {
    const name = q.get("topic") || "";
    const encoded = encodeURIComponent(name);
    const state = el("div"), subscriptions = el("div"), why = el("div"), policy = el("div"), replicas = el("div"), changes = el("div"), commands = el("div");
    const plots = new Plots([
      { title: "Dispatched against the limit, a second", stacked: true, lines: d => [...(d.rates || new Map()), ["limit", d.limit, limitColor]] },
      { title: "Backlog, messages", lines: d => [["backlog", d.backlog]] },
      { title: "Wait of 99 %, seconds", lines: d => [["wait", d.waitP99]] },
      { title: "Requests to the permit store, a second", lines: d => [["requests", d.requests]] },
    ]);
    let fields = {}, isTopic = false, cluster = "";
    return {
      title: () => short(name, 100),
      close: () => plots.close(),
      element: el("section", { "aria-label": "Topic" },
        json("/api/topic?topic=" + encoded), el("p", {}, el("a", { href: overviewURL() }, "All topics")), el("h1", {}, short(name, 500)), state,
        json("/api/points?topic=" + encoded), el("h2", {}, "The last hour"), plots.element,
        el("h2", {}, "Why"), why, el("h2", {}, "Subscriptions"), subscriptions, el("h2", {}, "Replicas"), replicas,
        json("/api/explain?topic=" + encoded), el("h2", {}, "Policy"), policy,
        json("/api/history?limit=50&topic=" + encoded), el("h2", {}, "Changes"), changes,
        el("h2", {}, "Commands"), commands),
      params: () => "limit=50&topic=" + encoded,
      panels: { topic: showTopic, points: p => plots.add(p), explain: showExplanation, history: showChanges },
    };

    function showTopic(a) {
      const r = a.row, now = Date.parse(a.time), of = ofSubscription;
      isTopic = a.isTopic;
      cluster = a.cluster;
      showCommands();
      if (!r) {
        fill(state, [el("p", {}, a.status.unread ? "unknown" : "No replica has published this topic in the last hour: it is idle, or its consumers have ended.")]);
        fill(subscriptions, []);
        return;
      }
      fill(state, [el("ul", { class: "tiles" },
        tile(condition(r.condition, r.condition === "stale" ? "stale since " + timeText(r.since) : ""), "condition"),
        derived(value(rateText(r)), "rate", () => ofTopic.rate(r)),
        derived(value(limitText(r)), r.limit ? r.limit.limit : "limit", () => ofTopic.limit(r)),
        derived(value(number(r.waiting)), "waiting calls", () => ofTopic.waiting(r)),
        derived(value(waitText(r)), "wait, 99 %", () => ofTopic.wait(r)),
        derived(value(number(r.backlog)), "backlog", () => ofTopic.backlog(r)),
        derived(value(behindText(r, now)), "behind for", () => ofTopic.behind(r, now)),
        derived(value(drainedText(r)), "drained in", () => ofTopic.drained(r)),
        tile(number(r.replicas), "replicas"))]);
      fill(subscriptions, [table([["Subscription"], ["Condition"], ["Rate", "number"], ["Limit", "number"], ["Share"], ["Waiting", "number"], ["Wait p99", "number"], ["Backlog", "number"], ["Drained in", "number"], ["Waits for"]],
        r.subscriptions.slice(0, most).map(s => [s.subscription + "\n" + (s.owner || ""), [
          short(s.subscription) + (s.owner ? " (" + short(s.owner) + ")" : ""), condition(s.condition),
          opens(value(rateText(s)), () => of.rate(s)), opens(value(limitText(s)), () => of.limit(s)),
          s.uncounted ? "-" : opens(meter(s.share, "share of " + short(s.subscription, 60)), () => of.share(s, r)),
          opens(value(number(s.waiting)), () => of.waiting(s)), opens(value(waitText(s)), () => of.wait(s)),
          opens(value(number(s.backlog)), () => of.backlog(s)), opens(value(drainedText(s)), () => of.drained(s)),
          short(s.reason || ""),
        ]]), "Subscriptions"), further(r.subscriptions, "which wait less hard"),
        r.aggregates ? aggregateTable(r.aggregates, r.aggregates.length) : ""]);
    }

    function showExplanation(x) {
      fields = Object.fromEntries((x.fields || []).map(f => [f.field, f]));
      fill(why, [el("ul", { class: "why" }, (x.why || []).map(text => el("li", {}, short(text, 500))))]);
      fill(policy, [table([["Field"], ["Value"], ["Mode"], ["From"]],
        Object.values(fields).map(f => [f.field, [f.field, short(f.value), f.mode || "", f.from ? short(f.from) + (f.expires ? " until " + timeText(f.expires) : "") : "default"]]), "Policy")]);
      fill(replicas, [table([["Replica"], ["Subscription"], ["State"]],
        (x.replicas || []).slice(0, most).map(r => [r.replica + "\n" + r.subscription + "\n" + (r.owner || ""), [short(r.replica), short(r.subscription), short(r.state || "")]]), "Replicas"), further(x.replicas || [], "which explain shows")]);
      showCommands();
    }

    function showCommands() {
      if (!isTopic) {
        fill(commands, [el("p", {}, "This is not the name of a topic: a command with it may concern many.")]);
        return;
      }
      // A rate with its period, such as 1000/s or 10000/1m, as the commands read it.
      const s = shell(name), rate = fields.messageRate && /^[0-9.]+\/[0-9a-zµ.]+$/.exec(fields.messageRate.value);
      const now = rate ? rate[0] : "", example = now || "500/s";
      fill(commands, [
        el("p", {}, "They need the stores of this cluster in --policies and --permits, or in the environment, and --cluster " + short(cluster) + "."),
        command("throttle-admin set-msg-rate " + s + " " + example + " --dry-run", "Preview"),
        command("throttle-admin set-msg-rate " + s + " " + example + " -m 'why'", "Change"),
        now ? command("throttle-admin set " + s + " messageRate=" + now + " -m 'keep the present limit, whatever applies above'", "Pin") : "",
        command("throttle-admin set " + s + " messageRate=" + example + " --for 1h -m 'why'", "For an hour"),
        fields.paused && fields.paused.value === "true" ? command("throttle-admin resume " + s, "Resume") : command("throttle-admin pause " + s + " --for 10m", "Pause"),
        command("throttle-admin explain " + s, "Explain"),
      ]);
    }

    function showChanges(h) {
      const records = h.records || [];
      plots.mark(records);
      fill(changes, [records.length === 0 ? el("p", {}, "none is recorded") : table([["Time"], ["Author"], ["Change"], ["Reason"]],
        records.map(c => [String(c.revision), [timeText(c.time), short(c.author || "unknown"), changeTexts(c), short(c.reason || "")]]), "Changes")]);
    }
  },
};
