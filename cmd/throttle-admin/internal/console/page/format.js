// Texts for values. What is not known is "unknown", and never 0.

export function number(x) {
  if (x === null || x === undefined) return "unknown";
  const abs = Math.abs(x);
  for (const [from, by, sign] of [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
    if (abs >= from) return significant(x / by) + sign;
  }
  return significant(x);
}

function significant(x) {
  return Math.abs(x) >= 100 ? String(Math.round(x)) : String(Number(x.toPrecision(3)));
}

// size is a number of bytes.
export function size(x) {
  return x === null || x === undefined ? "unknown" : number(x).replace(/([kMGT]?)$/, " $1B");
}

export function perSecond(x, limit) {
  if (x === null || x === undefined) return "unknown";
  return (bytes(limit) ? size(x) : number(x)) + "/s";
}

// rateText is the rate of a topic or a subscription. What is charged to no limit is not counted.
export function rateText(row) {
  return row.uncounted ? "not counted" : perSecond(row.rate, row.limit);
}

export function bytes(limit) {
  return Boolean(limit && limit.limit.endsWith("byte rate"));
}

// limitText is the limit of a topic or a subscription.
export function limitText(row) {
  if (row.limit) return perSecond(row.limit.rate, row.limit) + (row.limit.shadow ? " (shadow)" : "");
  return row.several ? "several" : row.unlimited ? "none" : "unknown";
}

// behindText is for how long a topic or a subscription is behind.
export function behindText(row, now) {
  return row.behindSince ? since(row.behindSince, now) : row.notBehind ? "not behind" : "unknown";
}

// drainedText is when it will not be behind.
export function drainedText(row) {
  return row.notBehind ? "not behind" : duration(row.drainedIn);
}

// waitText is the wait that 99 % of the calls of a topic or a subscription do not exceed.
export function waitText(row) {
  return (row.waitLonger ? "over " : "") + duration(row.waitP99);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  if (seconds === 0) return "none";
  if (seconds < 0.001) return Math.round(seconds * 1e6) + " µs";
  if (seconds < 1) return Math.round(seconds * 1000) + " ms";
  if (seconds < 60) return significant(seconds) + " s";
  const s = Math.round(seconds);
  if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
  if (s < 48 * 3600) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d";
}

export function since(time, now) {
  return time ? duration(Math.max(1, (now - Date.parse(time)) / 1000)) : "";
}

export function clock(time) {
  return new Date(time).toLocaleTimeString([], { hourCycle: "h23" });
}

// visible writes what is not printable as \u{...}: control characters, marks of direction, and
// others that have no width.
export function visible(text) {
  return String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, c => "\\u{" + c.codePointAt(0).toString(16) + "}");
}

// short cuts a text that would fill the page.
export function short(text, most = 200) {
  const shown = visible(text);
  return shown.length > most ? shown.slice(0, most) + "…" : shown;
}

// shell quotes an argument.
export function shell(text) {
  return /^[A-Za-z0-9:/._-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'";
}

// timeText writes a time with its day, if it is not of today.
export function timeText(time) {
  if (!time) return "at an unknown time";
  const t = new Date(time);
  return (t.toDateString() === new Date().toDateString() ? "" : t.toLocaleDateString() + " ") + clock(t);
}
