"use strict";
// Elements, numbers, and a line chart with intervals whose values can be read by pointer and by keyboard.

function make(namespace, tag, attributes, children) {
  const made = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children); // strings become text, whatever they hold
  return made;
}
const el = (tag, attributes = {}, ...children) => make("http://www.w3.org/1999/xhtml", tag, attributes, children);
const svg = (tag, attributes = {}, ...children) => make("http://www.w3.org/2000/svg", tag, attributes, children);

// Four significant digits, or all digits of the integer part if there are more. A dash for unknown values.
function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(Number(value.toPrecision(4)));
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(3);
  return value.toLocaleString("en-US", size >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 });
}

const tick = (value) => value.toLocaleString("en-US", { notation: "compact", maximumSignificantDigits: 4 });

// Round numbers between two ends, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step + 0); // no -0
  return found;
}

// [first, last] of each stretch of indices at which all the columns are known.
function stretches(...columns) {
  const found = [];
  for (let i = 0; i < columns[0].length; i++) {
    if (columns.some((column) => column[i] === null)) continue;
    if (found.length && found.at(-1)[1] === i - 1) found.at(-1)[1] = i;
    else found.push([i, i]);
  }
  return found;
}

// Colour, dash and marker of a method are those of the pictures: the page holds them as STYLES and as classes.
const styleOf = (index) => `m${index}`;

function mark(index, x, y, size) {
  return svg("path", { class: "mark", d: STYLES[index].marker, transform: `translate(${x} ${y}) scale(${size} ${-size})` });
}

function swatch(index) {
  const line = svg("line", { class: "line", x1: 0, x2: 30, y1: 6, y2: 6 });
  return svg("svg", { class: `swatch ${styleOf(index)}`, viewBox: "0 0 30 12", "aria-hidden": "true" }, line, mark(index, 15, 6, 4));
}

// The points of a curve that have a marker: every one of a few, else about ten, at other places by method.
function marked(index, first, last, points) {
  const every = Math.max(1, Math.ceil(points / 10));
  const found = [];
  for (let i = first; i <= last; i++) if (i % every === index % every) found.push(i);
  return found;
}

// An empty picture that is drawn anew when its width or the methods shown change.
class Plot {
  static made = 0;

  // `shown` returns whether a method is shown.
  constructor(title, shown, attributes) {
    this.title = title;
    this.shown = shown;
    this.id = `panel-${Plot.made++}`;
    this.svg = svg("svg", { ...attributes, "aria-label": title });
    this.element = el("div", { class: "plot" }, this.svg);
    new ResizeObserver(() => {
      if (this.element.clientWidth !== this.width) requestAnimationFrame(() => this.draw());
    }).observe(this.element);
  }

  // Empties the picture. Returns the box within its axes.
  clear() {
    this.width = this.element.clientWidth || 480;
    this.height = Math.min(340, Math.max(220, 0.6 * this.width));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
    return { left: 54, right: this.width - 14, top: 12, bottom: this.height - 44 };
  }

  tell(text) {
    this.svg.append(svg("text", { x: this.width / 2, y: this.height / 2, "text-anchor": "middle" }, text));
  }

  axes(box) {
    const { xLabel, yLabel } = this.data;
    const group = svg("g", { "aria-hidden": "true" });
    for (const y of ticks(...this.yScale.domain, (box.bottom - box.top) / 45)) {
      const at = this.yScale(y);
      group.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }));
      group.append(svg("text", { x: box.left - 6, y: at + 4, "text-anchor": "end" }, tick(y)));
    }
    for (const x of ticks(...this.xScale.domain, (box.right - box.left) / 75)) {
      group.append(svg("text", { x: this.xScale(x), y: box.bottom + 18, "text-anchor": "middle" }, tick(x)));
    }
    const middle = (box.top + box.bottom) / 2;
    const center = { x: (box.left + box.right) / 2, y: this.height - 8, "text-anchor": "middle", class: "x-label" };
    group.append(svg("text", center, xLabel));
    group.append(svg("text", { transform: `translate(12 ${middle}) rotate(-90)`, "text-anchor": "middle" }, yLabel));
    this.svg.append(group);
  }
}

class Chart extends Plot {
  // `withRuns` returns whether single runs are shown. `show` sets the data:
  // {x, xLabel, yLabel, series: [{method, index, estimate, low, high, each}], marker, step, range}
  constructor(title, shown, withRuns = () => false) {
    super(title, shown, { class: "chart", role: "slider", tabindex: "0" });
    this.withRuns = withRuns;
    this.cursor = null; // an index into x
    this.readout = el("div", { class: "readout", hidden: "" });
    this.element.append(this.readout);
    const point = (event) => this.moveTo(this.nearest(event.clientX));
    this.svg.addEventListener("pointermove", point);
    this.svg.addEventListener("pointerdown", point);
    this.svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.moveTo(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.moveTo(null));
    this.svg.addEventListener("focus", () => {
      if (this.svg.matches(":focus-visible") && this.cursor === null) this.moveTo(this.data.x.length - 1);
    });
  }

  show(data) {
    this.data = data;
    this.cursor = null;
    this.draw();
  }

  // --- Drawing

  draw() {
    const { x, series, marker, range } = this.data;
    const box = this.clear();
    this.visible = series.filter((of) => this.shown(of.method));
    const runsOf = (of) => (this.withRuns() && of.each?.length > 1 ? of.each : []);
    const known = this.visible.flatMap((of) => [of.estimate, ...runsOf(of)].flat()).filter((y) => y !== null);
    if (!x.length || !known.length) {
      this.tell(series.length ? "no method is shown" : "not known on this axis");
      return this.moveTo(null);
    }
    const xs = marker === null ? x : [...x, marker];
    this.xScale = scale(Math.min(...xs), Math.max(...xs), box.left, box.right);
    this.yScale = range
      ? scale(range[0], range[1], box.bottom, box.top)
      : padded(...limited(known, this.visible.flatMap((of) => [...of.low, ...of.high])), box.bottom, box.top);
    this.axes(box);
    const [width, height] = [box.right - box.left, box.bottom - box.top];
    this.svg.append(svg("clipPath", { id: this.id }, svg("rect", { x: box.left, y: box.top, width, height })));
    if (marker !== null) {
      const at = this.xScale(marker);
      const line = svg("line", { class: "marker", x1: at, x2: at, y1: box.top, y2: box.bottom });
      line.append(svg("title", {}, "compared here"));
      this.svg.append(line);
    }
    const crowd = this.visible.length > 6 ? "many" : "few";
    this.svg.append(svg("g", { class: `runs ${crowd}` }, ...this.visible.map((of) => this.runs(of, runsOf(of)))));
    this.svg.append(svg("g", { class: crowd }, ...this.visible.map((of) => this.curve(of))));
    this.over = svg("g", { class: "over" });
    this.svg.append(this.over);
    this.moveTo(this.cursor);
  }

  runs(of, each) {
    const at = (column) => (i) => [this.xScale(this.data.x[i]), this.yScale(column[i])];
    const lines = each.flatMap((run) => stretches(run).map(([first, last]) => this.path(first, last, at(run))));
    const paths = lines.map((line) => svg("path", { class: "run", d: `M${line.map((p) => p.join(" ")).join("L")}` }));
    return svg("g", { class: styleOf(of.index), "data-runs-of": of.method }, ...paths);
  }

  curve(of) {
    const group = svg("g", { class: `series ${styleOf(of.index)}`, "data-method": of.method });
    const at = (column) => (i) => [this.xScale(this.data.x[i]), this.yScale(column[i])];
    for (const [first, last] of stretches(of.low, of.high)) {
      const there = this.path(first, last, at(of.high));
      const back = this.path(first, last, at(of.low)).reverse();
      group.append(svg("path", { class: "band", "clip-path": `url(#${this.id})`, d: `M${[...there, ...back].map((p) => p.join(" ")).join("L")}Z` }));
    }
    for (const [first, last] of stretches(of.estimate)) {
      const line = this.path(first, last, at(of.estimate));
      if (last > first) group.append(svg("path", { class: "line", d: `M${line.map((p) => p.join(" ")).join("L")}` }));
      const marks = last > first ? marked(of.index, first, last, this.data.x.length) : [first];
      for (const i of marks) group.append(mark(of.index, ...at(of.estimate)(i), 3.5));
    }
    return group;
  }

  // Points from one index to another: straight from each to the next, or by steps that hold until the next.
  path(first, last, at) {
    const points = [];
    for (let i = first; i <= last; i++) {
      const [x, y] = at(i);
      if (this.data.step && points.length) points.push([x, points.at(-1)[1]]);
      points.push([x, y]);
    }
    return points;
  }

  // --- The cursor

  nearest(clientX) {
    const { x } = this.data;
    if (!x.length || !this.xScale) return null;
    const box = this.svg.getBoundingClientRect();
    const at = this.xScale.inverse(((clientX - box.left) * this.width) / box.width);
    return x.reduce((best, value, i) => (Math.abs(value - at) < Math.abs(x[best] - at) ? i : best), 0);
  }

  key(event) {
    const last = this.data.x.length - 1;
    const from = this.cursor ?? last;
    const moves = {
      ArrowRight: from + 1, ArrowUp: from + 1, ArrowLeft: from - 1, ArrowDown: from - 1,
      PageUp: from + 10, PageDown: from - 10, Home: 0, End: last,
    };
    if (event.key === "Escape") this.moveTo(null);
    if (!(event.key in moves) || last < 0) return;
    event.preventDefault();
    this.moveTo(Math.min(last, Math.max(0, moves[event.key])));
  }

  moveTo(index) {
    const { x, xLabel } = this.data;
    this.cursor = this.visible?.length && x.length ? index : null;
    this.readout.hidden = this.cursor === null;
    this.over?.replaceChildren();
    this.readout.replaceChildren();
    this.svg.setAttribute("aria-valuemin", x[0] ?? 0);
    this.svg.setAttribute("aria-valuemax", x.at(-1) ?? 0);
    this.svg.setAttribute("aria-valuenow", x[this.cursor ?? x.length - 1] ?? 0);
    this.svg.setAttribute("aria-valuetext", this.cursor === null ? "arrow keys read the values" : this.told());
    if (this.cursor === null) return;
    const at = this.xScale(x[this.cursor]);
    this.over.append(svg("line", { class: "cursor", x1: at, x2: at, y1: 12, y2: this.height - 44 }));
    const rows = this.visible.map((of) => {
      const y = of.estimate[this.cursor];
      if (y !== null) {
        const dot = { class: `dot at ${styleOf(of.index)}`, cx: at, cy: this.yScale(y), r: 4.5 };
        this.over.append(svg("circle", dot));
      }
      return el("tr", { "data-method": of.method },
        el("th", { scope: "row" }, swatch(of.index), of.method),
        el("td", {}, number(y)),
        el("td", {}, bracket(of.low[this.cursor], of.high[this.cursor])));
    });
    this.readout.append(el("strong", {}, `${number(x[this.cursor])} ${xLabel}`), el("table", {}, el("tbody", {}, ...rows)));
    this.place(at);
  }

  // Puts the values beside the cursor, on the side with more room, and always within the window.
  place(at) {
    const { style, offsetWidth: width, offsetHeight: height } = this.readout;
    const plot = this.element.getBoundingClientRect();
    const within = (value, low, high) => Math.max(low, Math.min(value, high));
    const cursor = (at * plot.width) / this.width;
    const left = cursor < plot.width / 2 ? cursor + 12 : cursor - 12 - width;
    const margin = 6;
    style.left = `${within(left, margin - plot.left, document.documentElement.clientWidth - margin - width - plot.left)}px`;
    style.top = `${within(8, margin - plot.top, window.innerHeight - margin - height - plot.top)}px`;
  }

  told() {
    const { x, xLabel } = this.data;
    const i = this.cursor;
    const values = this.visible.map((of) => `${of.method} ${number(of.estimate[i])} ${bracket(of.low[i], of.high[i])}`);
    return `${number(x[i])} ${xLabel}: ${values.join("; ")}`;
  }
}

// Points with intervals in both directions, and the stairs that join those on the front.
class Front extends Plot {
  constructor(title, points, xLabel, shown) {
    super(title, shown, { class: "chart front", role: "img" });
    this.points = points;
    this.data = { xLabel, yLabel: "final return" };
  }

  draw() {
    const box = this.clear();
    const visible = this.points.filter((p) => this.shown(p.method));
    if (!visible.length) return this.tell("no method is shown");
    const range = (axis) => limited(visible.map((p) => p[axis].estimate), visible.flatMap((p) => [p[axis].low, p[axis].high]));
    this.xScale = padded(...range("x"), box.left, box.right);
    this.yScale = padded(...range("y"), box.bottom, box.top);
    this.axes(box);
    const within = (value, [low, high]) => Math.max(low, Math.min(value, high));
    const at = (p) => [this.xScale(p.x.estimate), this.yScale(p.y.estimate)];
    const stairs = visible.filter((p) => p.on_front).map(at);
    const path = stairs.map(([x, y], i) => (i ? `H${x}V${y}` : `M${x} ${y}`)).join("");
    this.svg.append(svg("path", { class: "stairs", d: path }));
    for (const p of visible) {
      const [x, y] = at(p);
      const group = svg("g", { class: styleOf(p.index), "data-method": p.method });
      group.append(svg("title", {}, `${p.method}: ${number(p.x.estimate)} ${this.data.xLabel}, return ${number(p.y.estimate)}`));
      const ends = (of, scaled, sides) => [of.low, of.high].map((end) => within(scaled(end), sides));
      if (p.x.low !== null) {
        const [x1, x2] = ends(p.x, this.xScale, [box.left, box.right]);
        group.append(svg("line", { class: "whisker", x1, x2, y1: y, y2: y }));
      }
      if (p.y.low !== null) {
        const [y1, y2] = ends(p.y, this.yScale, [box.top, box.bottom]);
        group.append(svg("line", { class: "whisker", x1: x, x2: x, y1, y2 }));
      }
      group.append(mark(p.index, x, y, 5));
      this.svg.append(group);
    }
  }
}

const bracket = (low, high) => (low === null ? "" : `[${number(low)}, ${number(high)}]`);

// The range of values and intervals. Those of few runs may leave the panel, which has at most half the range of the values beyond them.
function limited(values, ends) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = (high - low) / 2 || Infinity;
  const known = ends.filter((end) => end !== null);
  return [Math.max(low - room, Math.min(low, ...known)), Math.min(high + room, Math.max(high, ...known))];
}

function scale(low, high, from, to) {
  const span = high - low || 1;
  const apply = (value) => from + ((value - low) / span) * (to - from);
  apply.inverse = (at) => low + ((at - from) / (to - from)) * span;
  apply.domain = [low, low + span];
  return apply;
}

// Adds room at both ends. Around a single value, the room has the size of the value.
function padded(low, high, from, to) {
  const room = 0.05 * (high - low) || 0.5 * Math.abs(low) || 1;
  return scale(low - room, high + room, from, to);
}
