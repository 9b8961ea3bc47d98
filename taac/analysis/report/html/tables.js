// Tables, sections, and terms that are explained at a tap.

const report = JSON.parse(document.getElementById("data").textContent);
const indexOf = (method) => report.methods.indexOf(method);

// --- Cells and tables

// An estimate with its interval. All digits are in the data attributes and in the title.
function valueCell(found) {
  if (!found) return el("td", { class: "value" }, "–");
  const { estimate, low, high } = found;
  const cell = el("td", { class: "value", "data-estimate": estimate, "data-low": low, "data-high": high }, number(estimate));
  if (low !== null) cell.append(" ", el("span", { class: "interval" }, bracket(low, high)));
  cell.title = [estimate, low === null ? "" : `[${low}, ${high}]`, found.method ?? ""].filter(String).join("  ");
  return cell;
}
const numberCell = (value) => el("td", { class: "value", "data-estimate": value }, value === null ? "–" : number(value));
const rankCell = (rank) => valueCell(rank ?? null); // known if all pairs were compared
const cell = (text, name = "") => el("td", name ? { class: name } : {}, text === null ? "–" : String(text));
const rowHead = (...content) => el("th", { scope: "row" }, ...content);
const methodHead = (method) => rowHead(swatch(indexOf(method)), method);
const verdictCell = (verdict, note) => el("td", {}, el("span", { class: `verdict ${verdict}` }, verdict), note);

function table(caption, head, rows, attributes = {}) {
  const body = rows.map((row) => el("tr", {}, ...row));
  const made = el("table", attributes,
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...body));
  return el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption }, made);
}

// A table whose rows become cards on a phone. Roles are written out, as the style sheet takes those of a table away there.
function cards(caption, head, rows, attributes = {}) {
  const made = table(caption, head, rows, { ...attributes, class: "cards", role: "table" });
  const roles = { "thead, tbody": "rowgroup", tr: "row", "thead th": "columnheader", "tbody th": "rowheader", td: "cell" };
  for (const [selector, role] of Object.entries(roles)) {
    made.querySelectorAll(selector).forEach((part) => part.setAttribute("role", role));
  }
  made.querySelectorAll("tbody tr").forEach((row) => [...row.cells].forEach((of, i) => (of.dataset.label = head[i])));
  return made;
}

function section(id, title, ...content) {
  document.getElementById("sections").append(el("li", {}, el("a", { href: `#${id}` }, title)));
  const made = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...content);
  explain(made);
  document.getElementById("report").append(made);
}

// --- Terms

// Makes the first mention of each term in a section a button that shows its explanation.
const byName = new Map(report.terms.flatMap((t, i) => t.names.map((name) => [name.toLowerCase(), i])));
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const longestFirst = [...byName.keys()].sort((a, b) => b.length - a.length);
const mentions = new RegExp(`(?<![\\w])(?:${longestFirst.map(escaped).join("|")})(?![\\w])`, "i");

function explain(part) {
  const told = new Set();
  const texts = [...part.querySelectorAll("caption, thead th, p, dt, dd")];
  for (const node of texts.flatMap((of) => [...of.childNodes]).filter((of) => of.nodeType === Node.TEXT_NODE)) {
    for (let rest = node, found; (found = mentions.exec(rest.data)); ) {
      const term = byName.get(found[0].toLowerCase());
      const mention = rest.splitText(found.index);
      rest = mention.splitText(found[0].length);
      if (told.has(term)) continue;
      told.add(term);
      mention.replaceWith(el("button", { type: "button", class: "term", popovertarget: `term-${term}` }, found[0]));
    }
  }
}

function explanations() {
  const of = report.terms.map((t, i) => el("div", { id: `term-${i}`, class: "explained", popover: "" }, el("strong", {}, t.term), el("p", {}, t.text)));
  document.body.append(...of);
}
