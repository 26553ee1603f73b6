// How the numbers of a topic are computed, in sentences with what they are computed from: each
// function returns [rule, arithmetic].
import { bytes, duration, limitText, number, perSecond, short, timeText, waitText } from "./format.js";

// sum writes terms, of [name, text], and what they are together.
function sum(terms, total, sign = " + ") {
  return terms.length === 0 ? "" : terms.map(([name, text]) => short(name, 60) + " " + text).join(sign) + " = " + total;
}

const label = s => s.subscription + (s.owner ? " " + s.owner : "");
const live = row => row.subscriptions.filter(s => s.condition !== "stale");
const parts = s => s.operands ? s.operands.parts : [];
const replica = p => p.replica || p.replicas + " other replicas";

export const ofTopic = {
  rate(r) {
    const of = live(r).filter(s => s.share !== null), unit = r.limit || (of[0] || {}).limit;
    const terms = of.map(s => [label(s), perSecond(s.share * r.rate, unit)]);
    return ["What all subscriptions use of the limit, smoothed over 3 s. What is charged to no limit is not counted; a counter that is not known yet makes the sum unknown.",
      sum(terms, perSecond(r.rate, unit))];
  },
  limit(r) {
    const all = live(r).map(s => label(s) + ": " + candidates(s));
    return ["The lowest limit that all subscriptions have: of messages if there is one, not in shadow mode if there is one, and one to which something is charged.", all.join("; ")];
  },
  waiting: r => ["Calls of all subscriptions that wait now.", sum(live(r).map(s => [label(s), number(s.waiting)]), number(r.waiting))],
  backlog: r => ["Of all subscriptions, of which several owners share that of one; what has caught up and is unknown counts as none.",
    sum(live(r).map(s => [label(s), number(s.backlog)]), number(r.backlog))],
  behind: (r, now) => ["The time since the first of its subscriptions fell behind.",
    r.behindSince ? timeText(now) + " - " + timeText(r.behindSince) : live(r).map(s => label(s) + " " + (s.notBehind ? "is not behind" : "may be")).join(", ")],
  drained: r => ["The longest time of its subscriptions that are behind.",
    sum(live(r).map(s => [label(s), s.notBehind ? "0" : duration(s.drainedIn)]), r.notBehind ? "0" : duration(r.drainedIn), ", ")],
  wait: r => ["The longest of its subscriptions, of calls that had to wait. One that waits still has no time yet: see waiting.",
    sum(live(r).map(s => [label(s), waitText(s)]), waitText(r), ", ")],
};

export const ofSubscription = {
  rate(s) {
    const terms = parts(s).filter(p => p.counted).map(p => [replica(p),
      (p.permits === null ? "" : number(Math.round(p.permits)) + (bytes(s.limit) ? " bytes" : " permits") + " in " + duration(p.seconds) + ", smoothed ") + perSecond(p.rate, s.limit)]);
    return ["Of each replica, the difference of its counter of permits of this limit between its last two records, smoothed over 3 s.", sum(terms, perSecond(s.rate, s.limit))];
  },
  limit: s => ["The lowest: of messages if there is one, not in shadow mode if there is one, and one to which something is charged.", candidates(s)],
  share: (s, r) => ["Its part of the rate of the topic.", s.share === null ? "" :
    perSecond(s.share * r.rate, r.limit || s.limit) + " of " + perSecond(r.rate, r.limit || s.limit) + " = " + Math.round(100 * s.share) + " %"],
  waiting: s => ["Calls that wait now.", sum(parts(s).map(p => [replica(p), number(p.waiting)]), number(s.waiting))],
  backlog: s => s.operands && s.operands.summed ?
    ["Consumers report the backlogs of their own partitions.", sum(parts(s).map(p => [replica(p), number(p.backlog)]), number(s.backlog))] :
    ["The largest, since each consumer reports that of the whole subscription.", sum(parts(s).map(p => [replica(p), number(p.backlog)]), number(s.backlog), ", ")],
  drained(s) {
    const t = s.operands && s.operands.trend;
    return ["The backlog by how fast it shrinks, of the line through the backlogs of the last minute. Unknown if it does not shrink clearly, or before ten seconds.",
      s.notBehind ? "it is not behind" : t ? number(t.backlog) + " / " + number(t.perSecond) + " a second, of the last " + duration(t.seconds) + " = " + duration(s.drainedIn) : ""];
  },
  wait(s) {
    const waits = s.operands ? s.operands.waits : [], all = waits.reduce((n, w) => n + w.n, 0);
    return ["The bound of the bucket with the wait that 99 % do not exceed, of all that ended in the last minute.", all === 0 ? "" :
      waits.map(w => (w.most === null ? "longer " : "up to " + duration(w.most) + " ") + w.n).join(", ") + "; 99 % of " + all + " = " + number(0.99 * all) + ": " + waitText(s)];
  },
};

function candidates(s) {
  const all = s.operands ? s.operands.limits : [];
  return all.length === 0 ? (s.unlimited ? "no limit" : "unknown") : all.map(l => l.limit + " " + limitText({ limit: l }) + (l.bypassed ? " (nothing is charged to it now)" : "")).join(", ");
}
