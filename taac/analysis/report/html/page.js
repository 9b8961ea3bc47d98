// Builds the sections of the report in order, from the JSON in the page, which is report.json.

const hidden = new Set(); // methods
const drawn = { runs: true }; // whether single runs are drawn
const charts = []; // every chart, to redraw when a method is shown or hidden
const MEASURES = { final: "final return", area: "area under the curve" };
const STATISTICS = { iqm: "IQM", mean: "mean", median: "median", optimality_gap: "optimality gap" };

// --- Sections

function head() {
  const { methods, tasks, runs, options } = report;
  const named = methods.length <= 6 ? methods.join(", ") : `${methods.length} methods`;
  document.title = document.getElementById("title").textContent = `Comparison of ${named}`;
  const used = runs.filter((run) => run.left_out === null).length;
  const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  document.getElementById("summary").textContent =
    `${count(tasks.length, "task")}, ${count(methods.length, "method")}, ${used} of ${count(runs.length, "run")}. ` +
    `Brackets are ${100 * options.confidence}% intervals. ` +
    `Made by taac ${report.taac}.`;
}

function warnings() {
  const list = report.warnings;
  const items = list.length
    ? el("details", { class: "warnings", open: "" },
        el("summary", {}, `${list.length} warning${list.length === 1 ? "" : "s"}`),
        el("ul", {}, ...list.map((text) => el("li", {}, text))))
    : el("p", {}, "None.");
  section("warnings", "Warnings", items);
}

const PAIR = ["verdict on X", "X − Y", "p, corrected", "P(X > Y)", "effect", "would find", "diverged X, Y"];
const pairCells = (pair) => [
  verdictCell(pair.verdict, pair.findable ? "" : " (too few runs)"),
  valueCell(pair.difference),
  el("td", { class: "value", "data-estimate": pair.p_adjusted }, number(pair.p_adjusted)),
  valueCell(pair.improvement),
  numberCell(pair.effect),
  numberCell(pair.detectable),
  cell(pair.diverged.some((n) => n) ? pair.diverged.join(", ") : "0"),
];

const MOST_PAIRS = 30; // in one table

// Tables of pairs: many are folded by task, which stays open with a baseline.
function pairsTables(id, caption, head, pairs, rowOf) {
  const tableOf = (of, name, more) => cards(`${caption}${more}`, head, of.map(rowOf), { id: name });
  if (pairs.length <= MOST_PAIRS) return [tableOf(pairs, id, "")];
  const open = (report.options.baseline ?? null) === null ? null : "";
  return [...new Set(pairs.map((p) => p.task))].map((task, i) => {
    const of = pairs.filter((p) => p.task === task);
    const decided = of.filter((p) => p.verdict === "better" || p.verdict === "worse").length;
    const told = "verdict" in of[0] ? `, ${decided} of them decided` : "";
    const title = `${task ?? "all"}: ${of.length} pairs${told}`;
    return el("details", { open }, el("summary", {}, title), tableOf(of, `${id}-${i}`, task ? ` on ${task}` : ""));
  });
}

function verdicts() {
  const row = (p) => [rowHead(p.task), cell(p.x, "name"), cell(p.y, "name"), ...pairCells(p)];
  const tables = (id, what, pairs) => (pairs.length ? pairsTables(id, `Differences of mean ${what}`, ["task", "X", "Y", ...PAIR], pairs, row) : []);
  const areas = tables("area-pairs", "areas under the curve", report.area_pairs);
  section("verdicts", "Verdicts", ...(report.pairs.length
    ? [el("p", {}, report.family_told), el("p", {}, "Settings that decide most:"), el("ul", {}, ...report.settings_told.map((text) => el("li", {}, text))), ...tables("pairs", "final returns", report.pairs), ...(areas.length ? [el("details", {}, el("summary", {}, "areas under the curve"), ...areas)] : [])]
    : [el("p", {}, "No two methods have runs on the same task, so nothing is compared.")]));
}

function scores() {
  const parts = report.tasks.map((task) => {
    const rows = task.methods.map((m) => [
      methodHead(m.method), cell(m.diverged ? `${m.runs}, ${m.diverged} diverged` : m.runs), rankCell(m.rank), ...Object.keys(MEASURES).flatMap((k) => [valueCell(m[k].mean), valueCell(m[k].iqm)]),
    ]);
    const names = ["method", "seeds", "rank", ...Object.values(MEASURES).flatMap((name) => [`${name}, mean`, `${name}, IQM`])];
    const at = `At step ${number(task.step)}; final returns are means of the last ${task.evaluations} evaluation(s)`;
    return [el("h3", {}, task.task), table(at, names, rows, { class: "scores", "data-task": task.task })];
  });
  section("scores", "Scores by task", ...parts.flat());
}

const ACTING = {
  repetition: "Repetition at the end of training, acting greedily",
  repetition_exploring: "Repetition at the end of training, exploring",
  info: "What the environment reports, acting greedily",
};
function seeds(runs, diverged) {
  return diverged ? `${runs}; ${diverged} diverged` : runs;
}

function repetition() {
  const parts = report.tasks.map((task) => {
    const tables = Object.entries(ACTING).flatMap(([block, caption]) => {
      const names = [...new Set(task.methods.flatMap((m) => Object.keys(m[block])))];
      const rows = task.methods.map((m) => [methodHead(m.method), cell(seeds(m.final.runs, m.diverged)), ...names.map((n) => valueCell(m[block][n]?.mean))]);
      const head = ["method", "seeds", ...names.map((name) => (block === "info" ? name.replace("info/", "") : name.replaceAll("_", " ")))];
      return names.length ? [table(caption, head, rows, { class: `stacked ${block}`, "data-task": task.task })] : [];
    });
    return [el("h3", {}, task.task), ...tables];
  });
  section("repetition", "Repetition", ...parts.flat());
}

function published() {
  if (!report.published.length) return;
  const spread = (of, diverged) => {
    const lost = diverged ? `${diverged} diverged` : "";
    if (!of) return lost ? `– (${lost})` : "–";
    return `${number(of.mean)}${of.sd === null ? "" : ` ± ${number(of.sd)}`} (n = ${of.n}${lost && `; ${lost}`})`;
  };
  const row = (r) => [
    rowHead(r.task), cell(r.method, "name"), cell(number(r.env_steps) + (r.uncounted_steps ? ` + ${number(r.uncounted_steps)}` : "")), cell(spread(r.here, r.diverged)), cell(spread(r)),
    cell(r.source), cell(r.environment_version), cell(r.protocol),
  ];
  const head = ["task", "method", "step", "here", "published", "source", "environment", "protocol"];
  section("published", "Published numbers", el("p", {}, report.published_told), cards("Means ± standard deviations over n runs", head, report.published.map(row)));
}

function overTasks() {
  const block = report.over_tasks;
  const parts = [];
  if (block.why_none) parts.push(el("p", {}, `No normalised scores: ${block.why_none}.`));
  else parts.push(el("p", {}, `Normalised scores, (y − y0) / (y1 − y0), on ${block.tasks.join(", ")}.`));
  for (const [measure, name] of Object.entries(MEASURES)) {
    const known = block.methods.filter((m) => m[measure]);
    const ranked = measure === "final"; // by the IQM of final scores
    const rows = known.map((m) => [methodHead(m.method), cell(m.diverged), ...(ranked ? [rankCell(m.rank)] : []), ...Object.keys(STATISTICS).map((s) => valueCell(m[measure][s]))]);
    const names = ["method", "diverged runs", ...(ranked ? ["rank"] : []), ...Object.values(STATISTICS)];
    if (rows.length) parts.push(table(`Normalised ${name}, over tasks`, names, rows, { class: `over-${measure}` }));
  }
  if (block.pairs.length) {
    const row = (p) => [rowHead(p.x), cell(p.y, "name"), ...pairCells(p)];
    const head = ["X", "Y", ...PAIR];
    parts.push(...pairsTables("iqm-pairs", "Differences of the IQM of final scores", head, block.pairs, row));
    if (block.area_pairs.length) {
      const tables = pairsTables("iqm-area-pairs", "Differences of the IQM of areas under the curve", head, block.area_pairs, row);
      parts.push(el("details", {}, el("summary", {}, "areas under the curve"), ...tables));
    }
  }
  if (block.curves) parts.push(el("h3", {}, "IQM against steps"), el("div", { class: "panels" }, iqmCurves(block.curves)));
  if (block.profiles) parts.push(el("h3", {}, "Performance profiles"), el("div", { class: "panels" }, profiles(block.profiles)));
  if (block.improvement.length) {
    const row = (i) => [rowHead(i.x), cell(i.y, "name"), valueCell(i.improvement), cell(i.tasks.length)];
    const caption = "Probability of improvement in the final return, mean over the tasks that both methods have";
    parts.push(...pairsTables("improvement", caption, ["X", "Y", "P(X > Y)", "tasks"], block.improvement, row));
  }
  if (block.left_out.length) parts.push(el("p", {}, `Left out because they have no anchors: ${block.left_out.join(", ")}.`));
  const anchors = Object.entries(block.anchors).map(([task, a]) => [rowHead(task), cell(a.y0), cell(a.y1), cell(a.source, "long")]);
  if (anchors.length) parts.push(table(`Anchors, version ${block.anchors_version}`, ["task", "y0", "y1", "source"], anchors, { id: "anchors" }));
  section("over-tasks", "Over tasks", ...parts);
}

function iqmCurves({ x, x_label, methods }) {
  const series = methods.map((m) => ({ ...m, index: indexOf(m.method) }));
  const labels = { xLabel: x_label, yLabel: "IQM of normalised returns" };
  return panel("IQM of normalised returns over tasks", { x, ...labels, series, marker: null, step: false, range: null });
}

function profiles(given) {
  const series = given.methods.map((m) => ({ method: m.method, index: indexOf(m.method), estimate: m.fraction, low: m.low, high: m.high }));
  const labels = { xLabel: "normalised score t", yLabel: "fraction of runs above t" };
  return panel("Runs with a score above t", { x: given.tau, ...labels, series, marker: null, step: true, range: [0, 1] });
}

// --- Curves

function panel(title, data) {
  const chart = new Chart(title, (method) => !hidden.has(method), () => drawn.runs);
  charts.push(chart);
  const note = el("p", { class: "note" });
  const values = el("details", {}, el("summary", {}, "values"));
  const figure = el("figure", { class: "panel" }, el("figcaption", {}, title, note), chart.element, values);
  const fill = () => {
    values.querySelector(".scroll")?.remove();
    if (values.open) values.append(valuesTable(chart.data));
  };
  values.addEventListener("toggle", fill);
  figure.show = (given) => {
    const missing = report.methods.filter((m) => given.methods?.includes(m) && !given.series.some((of) => of.method === m));
    note.textContent = missing.length ? `Not known on this axis: ${missing.join(", ")}` : "";
    chart.show(given);
    fill();
  };
  figure.show(data);
  return figure;
}

function valuesTable({ x, xLabel, series }) {
  const rows = x.map((at, i) => [
    el("th", { scope: "row" }, number(at)),
    ...series.map((of) => valueCell(of.estimate[i] === null ? null : { estimate: of.estimate[i], low: of.low[i], high: of.high[i] })),
  ]);
  return table("Values of the curves", [xLabel, ...series.map((of) => of.method)], rows);
}

function curves() {
  const chosen = { axis: Object.keys(report.axes)[0], measure: Object.keys(report.measures)[0] };
  const data = (task) => {
    const row = report.curves.find((c) => c.task === task.task && c.axis === chosen.axis && c.measure === chosen.measure);
    return {
      x: row.x, xLabel: report.axes[chosen.axis], yLabel: report.measures[chosen.measure],
      series: row.methods.map((m) => ({ ...m, index: indexOf(m.method) })),
      methods: task.methods.map((m) => m.method),
      marker: chosen.axis === "env_steps" ? task.step : null, step: false, range: null,
    };
  };
  const panels = report.tasks.map((task) => panel(task.task, data(task)));
  const choice = (kind, legend, names) => el("fieldset", {}, el("legend", {}, legend), ...Object.entries(names).map(([name, label]) => {
    const input = el("input", { type: "radio", name: kind, value: name, checked: chosen[kind] === name ? "" : null });
    input.disabled = !report.curves.some((c) => c[kind] === name && c.methods.length);
    input.addEventListener("change", () => {
      chosen[kind] = name;
      panels.forEach((figure, i) => figure.show(data(report.tasks[i])));
    });
    return el("label", { class: "choice" }, input, el("span", {}, label));
  }));
  const controls = el("div", { class: "controls" }, legend(), choice("axis", "against", report.axes), choice("measure", "curve of", report.measures));
  const about = "Means over seeds; bands are pointwise intervals, which may leave the panel; faint lines are single runs. Point at a curve, or focus it and use the arrow keys, to read values; choose a method to hide or show it. A dotted line is the step at which the tables compare.";
  section("curves", "Learning curves", el("p", { class: "faint" }, about), controls, el("div", { class: "panels" }, ...panels));
}

function legend() {
  const buttons = report.methods.map((method, i) => {
    const button = el("button", { type: "button", "aria-pressed": "true", "data-method": method }, swatch(i), method);
    button.addEventListener("click", () => {
      if (!hidden.delete(method)) hidden.add(method);
      button.setAttribute("aria-pressed", String(!hidden.has(method)));
      charts.forEach((chart) => chart.draw());
    });
    return button;
  });
  const single = el("input", { type: "checkbox", name: "runs", checked: "" });
  single.addEventListener("change", () => {
    drawn.runs = single.checked;
    charts.forEach((chart) => chart.draw());
  });
  const runs = el("label", { class: "choice" }, single, el("span", {}, "single runs"));
  return el("div", { class: "methods", role: "group", "aria-label": "methods shown" }, el("span", { class: "legend-title" }, "show"), ...buttons, runs);
}

// --- Fronts

function fronts() {
  if (!report.fronts.length) return;
  const parts = report.fronts.map((front) => {
    const points = front.methods.map((m) => ({ ...m, index: indexOf(m.method) }));
    const chart = new Front(`${front.task}: return against ${report.costs[front.cost]}`, points, report.costs[front.cost], (m) => !hidden.has(m));
    charts.push(chart);
    const rows = points.map((p) => [
      methodHead(p.method), cell(seeds(p.runs, p.diverged)), valueCell(p.x), valueCell(p.y), cell(p.on_front ? "yes" : "no"), cell(p.share === null ? "undefined" : `${Math.round(100 * p.share)}%`),
    ]);
    const names = ["method", "seeds", report.costs[front.cost], "final return", "on the front", "of resamples"];
    const volume = front.hypervolume;
    const told = `hypervolume ${number(volume.estimate)} ${bracket(volume.low, volume.high)}`;
    const values = el("details", {}, el("summary", {}, "values"), table(`Front on ${front.task}, ${told}`, names, rows));
    return el("figure", { class: "panel" }, el("figcaption", {}, chart.title, el("p", { class: "note" }, told)), chart.element, values);
  });
  const about = "Means over seeds with their intervals; a grey line joins the methods that no other one beats in both. Up and to the left is better.";
  section("fronts", "Fronts", el("p", { class: "faint" }, about), el("div", { class: "panels" }, ...parts));
}

function ahead() {
  section("ahead", "Who is ahead", el("ul", {}, ...report.ahead.map((text) => el("li", {}, text))));
}

// --- The end

function runs() {
  const names = ["run", "task", "method", "seed", "status", "last step", "final return", "area", "left out"];
  const rows = report.runs.map((r) => [
    el("td", { class: "path" }, r.folder), cell(r.task), cell(r.method), cell(r.seed), cell(r.status),
    cell(number(r.last_step)), valueCell(r.final === null ? null : { estimate: r.final, low: null, high: null }),
    valueCell(r.area === null ? null : { estimate: r.area, low: null, high: null }), cell(r.left_out ?? "", "path"),
  ]);
  section("runs", "Runs", el("details", {}, el("summary", {}, `all ${rows.length} runs`), table("Every run that was found", names, rows, { id: "all-runs" })));
}

function statements() {
  const items = report.statements.flatMap((s) => [el("dt", {}, s.about), el("dd", {}, s.text)]);
  section("statistics", "How these numbers were made", el("dl", { class: "statements" }, ...items));
}

[head, curves, fronts, ahead, warnings, verdicts, scores, overTasks, published, repetition, runs, statements, explanations].forEach((part) => part());

// Opens every list for printing.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("section > details:not([open]), section > details details:not([open])")];
  opened.forEach((details) => (details.open = true));
});
addEventListener("afterprint", () => opened.forEach((details) => (details.open = false)));
