// Plots of the last hour, with the changes of policies as marks.
import { el } from "./dom.js";
import { clock, number, short, visible } from "./format.js";

// The palette of Okabe and Ito, which the colour-blind can tell apart; limitColor is used for limits
// only.
const palette = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#B8A800", "#999999"];
export const limitColor = "#D55E00";

// A Plots has plots of the same times. Each is { title, lines(data), stacked }, where lines returns
// [[name, values, color]], of data with times and the lists of values that points have.
export class Plots {
  constructor(plots) {
    this.plots = plots;
    this.data = { times: [] };
    this.marks = [];
    this.charts = [];
    this.colors = plots.map(() => new Map()); // of each, by the names of lines
    this.element = el("div", { class: "plots" });
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.element);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.recolor = () => { this.key = ""; this.draw(); };
    this.scheme.addEventListener("change", this.recolor);
  }

  close() {
    this.scheme.removeEventListener("change", this.recolor);
    this.observer.disconnect();
    for (const { chart } of this.charts) chart.destroy();
  }

  // add takes over points: { times, and by name values, or lists of { name, values } }. What is no
  // list is ignored.
  add(points) {
    const d = this.data, times = points.times || [];
    const last = d.times.length ? d.times[d.times.length - 1] : 0;
    const from = times.findIndex(t => t > last);
    if (from < 0) return;
    const before = d.times.length;
    d.times.push(...times.slice(from));
    const grow = (values, more) => {
      while (values.length < before) values.push(null);
      if (more) values.push(...more.slice(from));
      while (values.length < d.times.length) values.push(null);
      return values;
    };
    for (const [field, values] of Object.entries(points)) {
      if (field === "times" || !Array.isArray(values)) continue;
      const named = values.length > 0 && values[0] !== null && typeof values[0] === "object";
      if (!named && values.length > 0) {
        d[field] = grow(d[field] || [], values);
        continue;
      }
      if (values.length === 0 && !(d[field] instanceof Map)) continue;
      d[field] = d[field] || new Map();
      for (const r of values) d[field].set(r.name, grow(d[field].get(r.name) || [], r.values));
    }
    const old = Math.max(0, d.times.findIndex(t => t > d.times[d.times.length - 1] - 3600));
    const cut = values => { grow(values); values.splice(0, old); };
    for (const [field, values] of Object.entries(d)) {
      if (values instanceof Map) {
        for (const [name, v] of values) {
          cut(v);
          if (v.every(x => x === null)) values.delete(name);
        }
      }
      else if (field !== "times") cut(values);
    }
    d.times.splice(0, old);
    this.draw();
  }

  mark(records) {
    const marks = records.filter(r => r.time).map(r => ({ time: Date.parse(r.time) / 1000, text: visible((r.author || "unknown") + (r.reason ? ": " + r.reason : "")).slice(0, 80) }));
    if (JSON.stringify(marks) === JSON.stringify(this.marks)) return;
    this.marks = marks;
    for (const { chart } of this.charts) {
      chart.redraw();
      figures(chart, this.marks);
    }
  }

  draw() {
    const drawn = this.plots.map((p, i) => {
      const lines = few(p.lines(this.data), this.colors[i]);
      return p.stacked ? stack(lines) : lines;
    });
    const key = JSON.stringify(drawn.map(lines => lines.map(l => [l.name, l.color])));
    if (this.key !== key) {
      this.key = key;
      for (const { chart } of this.charts) chart.destroy();
      this.charts = this.plots.map((p, i) => this.chart(p, drawn[i]));
      this.element.replaceChildren(...this.charts.map(c => c.figure));
      this.resize();
    }
    this.charts.forEach(({ chart }, i) => {
      const values = drawn[i].map(l => l.values || this.data.times.map(() => null));
      chart.own = drawn[i].map((l, j) => l.own || values[j]);
      const zoomed = chart.zoomed;
      chart.setData([this.data.times, ...values], !zoomed);
      if (zoomed) chart.redraw();
      figures(chart, this.marks);
    });
  }

  chart(plot, lines) {
    const color = getComputedStyle(document.body).color;
    const axis = { stroke: color, grid: { stroke: "#8884", width: 1 }, ticks: { stroke: "#8884", width: 1 } };
    const holder = el("div"), figure = el("figure", {}, el("figcaption", {}, plot.title), holder);
    figure.plotted = () => Object.fromEntries([["time", chart.data[0].at(-1) ?? null]].concat(chart.series.slice(1).map((s, i) => [s.label, chart.own[i].at(-1) ?? null])));
    const chart = new uPlot({
      width: 400, height: 180,
      cursor: { sync: { key: "throttle" } },
      legend: { live: true },
      scales: { y: { range: (u, min, max) => [0, Math.max(max || 0, 1e-3) * 1.08] } },
      axes: [{ ...axis, space: 70, values: (u, all) => all.map(t => clock(1000 * t)) }, { ...axis, size: 60, values: (u, all) => all.map(number) }],
      series: [{ label: "time", value: (u, t) => u.data[0].length > 0 ? clock(1000 * (t ?? u.data[0].at(-1))) : "-" }, ...lines.map(l => ({
        label: short(l.name, 40), stroke: l.color, width: l.own ? 1 : 2, fill: l.own ? l.color : undefined, spanGaps: false, points: { show: false },
        value: (u, v, s, i) => {
          const own = u.own[s - 1], x = own[i === null ? own.length - 1 : i]; // not on top of others
          return x === null || x === undefined ? "unknown" : number(x);
        },
      }))],
      hooks: {
        draw: [u => this.drawMarks(u, color)],
        setScale: [(u, key) => {
          if (key === "x" && u.data[0].length > 0) u.zoomed = u.scales.x.min > u.data[0][0] || u.scales.x.max < u.data[0].at(-1);
        }],
      },
    }, [[], ...lines.map(() => [])], holder);
    chart.own = lines.map(() => []);
    return { chart, figure, holder };
  }

  drawMarks(u, color) {
    const c = u.ctx;
    c.save();
    c.strokeStyle = c.fillStyle = color;
    c.setLineDash([4, 4]);
    c.font = 11 * devicePixelRatio + "px system-ui, sans-serif";
    c.beginPath();
    c.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    c.clip();
    let row = 0;
    for (const m of this.marks) {
      const x = u.valToPos(m.time, "x", true);
      if (!(x >= u.bbox.left && x <= u.bbox.left + u.bbox.width)) continue;
      c.beginPath();
      c.moveTo(x, u.bbox.top);
      c.lineTo(x, u.bbox.top + u.bbox.height);
      c.stroke();
      const y = u.bbox.top + (1 + 1.2 * (row++ % 4)) * 12 * devicePixelRatio;
      const right = x > u.bbox.left + u.bbox.width / 2;
      c.textAlign = right ? "right" : "left";
      c.fillText(m.text, right ? x - 4 : x + 4, y);
    }
    c.restore();
  }

  resize() {
    for (const { chart, holder } of this.charts) {
      const width = Math.max(200, holder.clientWidth);
      if (width !== chart.width) chart.setSize({ width, height: 180 });
    }
  }
}

// few leaves the lines that have the largest values last, and the sum of the others, as
// { name, values, color, fixed }. A line that was left before stays, with its color, until another
// is a fifth larger: colors has those of such lines, by name, as places in the palette. Lines that
// have a color of their own are fixed.
function few(lines, colors) {
  const named = lines.filter(([, , color]) => !color), fixed = lines.filter(([, , color]) => color);
  const most = named.length > palette.length ? palette.length - 1 : palette.length;
  const size = ([name, values]) => (values || []).slice(-60).reduce((sum, x) => sum + (x || 0), 0) * (colors.has(name) ? 1.2 : 1);
  const largest = new Set(named.map(l => [l[0], size(l)]).sort((a, b) => b[1] - a[1]).slice(0, most).map(([name]) => name));
  for (const [name, at] of colors) if (!largest.has(name) || at >= most) colors.delete(name);
  const used = new Set(colors.values()), free = palette.map((_, i) => i).filter(i => !used.has(i));
  for (const name of largest) if (!colors.has(name)) colors.set(name, free.shift());
  const left = named.filter(([name]) => largest.has(name)).map(([name, values]) => ({ name, values, color: palette[colors.get(name)] }));
  const others = named.filter(([name]) => !largest.has(name)).map(([, values]) => values);
  if (others.length > 0) {
    const values = others[0].map((_, i) => others.some(o => o[i] !== null) ? others.reduce((sum, o) => sum + (o[i] || 0), 0) : null);
    left.push({ name: others.length + " others", values, color: palette.at(-1) });
  }
  return left.concat(fixed.map(([name, values, color]) => ({ name, values, color, fixed: true })));
}

// figures says in words what the plot has last, and its marks, for those who do not see it.
function figures(chart, marks) {
  const last = chart.series.slice(1).map((s, i) => s.label + " " + (chart.own[i].at(-1) === null || chart.own[i].at(-1) === undefined ? "unknown" : number(chart.own[i].at(-1))));
  const canvas = chart.root.querySelector("canvas");
  canvas.setAttribute("role", "img");
  const times = chart.data[0], seen = marks.filter(m => m.time >= times[0] && m.time <= times.at(-1));
  canvas.setAttribute("aria-label", (last.join(", ") || "nothing yet") + seen.map(m => "; " + clock(1000 * m.time) + " " + m.text).join(""));
}

// stack puts each line that is not fixed on top of those before. The topmost comes first, since each
// covers those that are drawn before it.
function stack(lines) {
  let below = [];
  const all = lines.filter(l => !l.fixed).map(l => {
    const top = below = l.values.map((v, i) => (below[i] || 0) + (v || 0));
    return { ...l, values: l.values.map((v, i) => v === null ? null : top[i]), own: l.values };
  }).reverse();
  return all.concat(lines.filter(l => l.fixed));
}
