"""report.html: it holds the very numbers of report.json and needs nothing beside it; in a browser, where there is one."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from taac.analysis import styles
from taac.analysis.report.page import html_page, make_report, write_report
from taac.analysis.report.scores import REPETITION, Options
from tests.analysis import browser
from tests.analysis.campaigns import STEPS, THIRTEEN, make_campaign, make_run, make_wide_campaign
from tests.analysis.test_styles import contrast

ROOT = Path(__file__).resolve().parents[2]
# Names that would be markup, an end of the data, a placeholder of the template, or too wide for a phone.
HOSTILE = {
    "methods": ("</script><script>window.broken = 1</script>", "<!--<script>", "$data ${style}"),
    "task": "<img src=x onerror='window.broken = 1'> & \"" + "wide" * 35,
}
DASH = "\N{EN DASH}"  # for what is not known
needs_browser = pytest.mark.skipif(
    browser.find() is None,
    reason=f"report.html is not opened: no {', '.join(browser.NAMES[:3])} on the PATH, and CHROMIUM names none",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three methods on two tasks, of unequal length, one run diverged, one method seen less often; and all files of it."""
    root = make_campaign(tmp_path_factory.mktemp("campaign"), seeds=range(3))
    for seed in range(3):  # compared at 1000; this method is known from 500 on, at other steps
        values = np.array([510, 640, 770.0, 1030]) + seed
        make_run(root / f"late{seed}", "late", "Ant-v5", seed, values, steps=(500, 650, 800, 1000), repeated=0.5)
    shutil.rmtree(root / "Hopper-v5" / "plain" / "seed_2")
    make_run(root / "odd", "plain", "Hopper-v5", 2, [*STEPS[:6], *[math.nan] * 4])
    write_report(make_report(root, Options()), root / "out")
    return root / "out"


@pytest.fixture(scope="module")
def content(folder):
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    for i, method in enumerate(HOSTILE["methods"]):
        for seed in range(2):
            make_run(root / f"{i}_{seed}", method, HOSTILE["task"], seed, np.array(STEPS) + seed + i)
    content = make_report(root, Options())
    (root / "report.json").write_text(json.dumps(content))
    (root / "report.html").write_text(html_page(content))
    return root


def test_the_page_holds_the_very_report(folder, hostile):
    for of in (folder, hostile):
        text = (of / "report.html").read_text()
        (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
        assert json.loads(data) == json.loads((of / "report.json").read_text())
        assert "<" not in data and text.count("</script>") == 2


def test_the_page_names_no_other_file(hostile):
    text = re.sub(r'(?s)id="data">.*?</script>', "", (hostile / "report.html").read_text())
    assert set(re.findall(r'<[^>]+ (?:src|href|srcset|action)="([^"]*)"', text)) == {"#verdicts", "data:,"}
    style = text.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style and "@import" not in style
    assert set(re.findall(r"https?://[\w./]+", text)) == {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"}


def test_a_page_refuses_numbers_that_are_not_finite():
    with pytest.raises(ValueError):
        html_page({"score": math.nan})


# --- In a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.opened(browser.find(), tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


@pytest.fixture
def page(chromium, folder):
    tab = browser.Page(chromium).open(folder / "report.html")
    yield tab
    assert troubles(tab) == []


def troubles(tab):
    """What a page said on the console, threw, or asked."""
    return tab.of(
        "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"
    )


def requested(tab):
    return [e["request"]["url"] for e in tab.of("Network.requestWillBeSent")]


ROWS = """selector => [...document.querySelectorAll(selector + ' tbody tr')].map(row => [...row.cells].map(cell => ({
    text: cell.innerText.trim(), ...Object.fromEntries(['estimate', 'low', 'high'].map(k => [k, cell.dataset[k] ?? null]))})))"""


def rows(tab, selector):
    """Cells of a table: what they show, and the whole numbers that they hold."""
    found = tab.evaluate(f"({ROWS})({json.dumps(selector)})")
    assert found, selector
    return found


def shows(cell, found):
    """Whether a cell has a number of report.json: whole in its attributes, and shortened in what it shows."""
    given = [None if found is None else found[k] for k in ("estimate", "low", "high")]
    held = [None if cell[k] is None else float(cell[k]) for k in ("estimate", "low", "high")]
    shown = [float(t.replace(",", "")) for t in re.findall(r"-?[\d.,]*\d(?:e[+-]\d+)?", cell["text"])]
    expected = [g for g in given if g is not None]
    return held == given and shown == pytest.approx(expected, rel=1e-3, abs=1e-12)


@needs_browser
def test_the_page_opens_without_a_network_and_without_a_word(page, folder):
    assert requested(page) == [(folder / "report.html").resolve().as_uri()]
    assert page.evaluate("document.querySelectorAll('svg.chart').length") == 7  # two tasks, with a front of decisions and
    # on one of jerk, the IQM and the profiles
    assert page.evaluate("document.title") == "Comparison of better, late, null, plain"


@needs_browser
def test_names_stay_text(chromium, hostile):
    tab = browser.Page(chromium, width=390, height=800, mobile=True).open(hostile / "report.html")
    assert troubles(tab) == [] and requested(tab) == [(hostile / "report.html").resolve().as_uri()]
    assert tab.evaluate("typeof window.broken") == "undefined"
    assert tab.evaluate("document.querySelectorAll('#report img, #report script').length") == 0
    shown = {row[0]["text"] for row in rows(tab, "table.scores")}
    assert shown == set(HOSTILE["methods"])
    assert HOSTILE["task"] in tab.evaluate("document.querySelector('#curves figcaption').textContent")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390  # and nothing makes a phone scroll sideways


@needs_browser
def test_tables_have_the_numbers_of_report_json(page, content):
    scores, repetition = iter(rows(page, "table.scores")), iter(rows(page, "table.repetition"))
    for task in content["tasks"]:
        for m in task["methods"]:
            name, seeds, *cells = next(scores)
            told = f"{m['runs']}, {m['diverged']} diverged" if m["diverged"] else str(m["runs"])
            assert (name["text"], seeds["text"]) == (m["method"], told)
            given = [m["rank"], *(m[measure][s] for measure in ("final", "area") for s in ("mean", "iqm"))]
            assert len(cells) == 5 and all(map(shows, cells, given))
            name, seeds, *cells = next(repetition)
            told = f"{m['final']['runs']}; {m['diverged']} diverged" if m["diverged"] else str(m["final"]["runs"])
            assert (name["text"], seeds["text"]) == (m["method"], told) and len(cells) == len(REPETITION)
            assert all(map(shows, cells, [s["mean"] for s in m["repetition"].values()]))
    assert next(scores, None) is None and next(repetition, None) is None


def verdict_text(pair):
    return pair["verdict"] + ("" if pair["findable"] else " (too few runs)")


@needs_browser
def test_pairs_have_their_verdicts(page, content):
    page.evaluate("document.querySelectorAll('#verdicts details').forEach(d => { d.open = true; })")
    for name, given in (("pairs", content["pairs"]), ("area-pairs", content["area_pairs"])):
        for row, pair in zip(rows(page, f"#{name}"), given, strict=True):
            assert [c["text"] for c in row[:4]] == [pair["task"], pair["x"], pair["y"], verdict_text(pair)]
            assert shows(row[4], pair["difference"]) and shows(row[6], pair["improvement"])
            numbers_ = [None if row[i]["estimate"] is None else float(row[i]["estimate"]) for i in (5, 7, 8)]
            assert numbers_ == [pair["p_adjusted"], pair["effect"], pair["detectable"]]
            assert row[9]["text"] == (", ".join(map(str, pair["diverged"])) if any(pair["diverged"]) else "0")
    assert content["family_told"] in page.evaluate("document.querySelector('#verdicts').textContent")


@needs_browser
def test_over_tasks_with_anchors_and_their_source(page, content):
    block = content["over_tasks"]
    order = ("iqm", "mean", "median", "optimality_gap")
    for measure in ("final", "area"):
        for row, m in zip(rows(page, f"table.over-{measure}"), block["methods"], strict=True):
            assert [c["text"] for c in row[:2]] == [m["method"], str(m["diverged"])]
            assert all(map(shows, row[2:], [*([m["rank"]] if measure == "final" else []), *(m[measure][s] for s in order)]))
    for row, pair in zip(rows(page, "#iqm-pairs"), block["pairs"], strict=True):
        assert row[2]["text"] == verdict_text(pair) and shows(row[3], pair["difference"])
    for row, given in zip(rows(page, "#improvement"), block["improvement"], strict=True):
        assert [row[i]["text"] for i in (0, 1, 3)] == [given["x"], given["y"], str(len(given["tasks"]))]
        assert shows(row[2], given["improvement"])
    anchors = [[task, f"{a['y0']:g}", f"{a['y1']:g}", a["source"]] for task, a in block["anchors"].items()]
    assert [[c["text"] for c in row] for row in rows(page, "#anchors")] == anchors


@needs_browser
def test_warnings_runs_and_statements_are_all_shown(page, content):
    assert (
        page.evaluate("[...document.querySelectorAll('.warnings li')].map(e => e.textContent)") == content["warnings"]
    )
    told = page.evaluate("[...document.querySelectorAll('.statements > *')].map(e => e.textContent)")
    assert told == [text for s in content["statements"] for text in (s["about"], s["text"])]
    page.click("#runs summary")
    found = rows(page, "#all-runs")
    assert [row[0]["text"] for row in found] == [run["folder"] for run in content["runs"]]
    for row, run in zip(found, content["runs"]):
        assert row[6]["estimate"] is None if run["final"] is None else float(row[6]["estimate"]) == run["final"]


# --- Fronts ---------------------------------------------------------------------------------------

POINTS = """index => [...document.querySelectorAll('svg.front')[index].querySelectorAll('[data-method]')].map(g => {
    const [x, y] = g.querySelector('.mark').getAttribute('transform').match(/[-\\d.]+/g).map(Number);
    return [g.dataset.method, x, y]; })"""


@needs_browser
def test_fronts_have_their_points_and_a_hidden_method_has_none(page, content):
    first = page.evaluate("[...document.querySelectorAll('main section')].slice(0, 3).map(s => s.id)")
    assert first == ["curves", "fronts", "ahead"]
    for number, front in enumerate(content["fronts"]):
        means = {
            m["method"]: (m["repetition"][front["cost"]]["mean"], m["final"]["mean"])
            for task in content["tasks"] if task["task"] == front["task"] for m in task["methods"]
        }  # fmt: skip
        points = {method: (x, y) for method, x, y in page.evaluate(f"({POINTS})({number})")}
        assert list(points) == [row["method"] for row in front["methods"]]
        pixels, given = np.array(list(points.values())), np.array([[end["estimate"] for end in means[m]] for m in points])
        for x, pixel, rises in zip(given.T, pixels.T, (True, False)):  # linear in the numbers, upwards in the return
            line = np.polyfit(x, pixel, 1)
            assert np.allclose(np.polyval(line, x), pixel, atol=0.01) and (line[0] > 0) == rises
    page.click(".methods button[data-method=better]")
    assert "better" not in [method for method, *_ in page.evaluate(f"({POINTS})(0)")]
    page.click(".methods button[data-method=better]")
    assert page.evaluate("document.querySelector('#ahead li').textContent") == content["ahead"][0]


# --- Curves ---------------------------------------------------------------------------------------

DRAWN = """(index, kind) => Object.fromEntries(
    [...document.querySelectorAll('svg.chart:not(.front)')[index].querySelectorAll('g.series')].map(g =>
        [g.dataset.method, [...g.querySelectorAll(kind)].map(p => p.getAttribute('d').replace('Z', ''))]))"""


def drawn(tab, index=0, kind=".line"):
    """The points `[n, 2]` in pixels of each line, or each band, of a chart, by method."""
    lines = tab.evaluate(f"({DRAWN})({index}, '{kind}')")
    return {
        m: [np.array([[float(v) for v in p.split(" ")] for p in d[1:].split("L")]) for d in of]
        for m, of in lines.items()
    }


def row_of(content, task, axis, measure="return_mean"):
    (row,) = [c for c in content["curves"] if (c["task"], c["axis"], c["measure"]) == (task, axis, measure)]
    return row


READ = """() => { const r = document.querySelector('#curves .readout');
    const shown = row => [...row.cells].slice(1).map(c => c.textContent);
    return r.hidden ? null : [
        r.querySelector('strong').textContent,
        Object.fromEntries([...r.querySelectorAll('tr')].map(row => [row.dataset.method, shown(row)]))]; }"""


def hovered(tab, count):
    """What the first chart reads out at so many places, from its left to its right: x to (label, rows)."""
    x, y = tab.center("#curves svg.chart")
    width = tab.evaluate("document.querySelector('#curves svg.chart').getBoundingClientRect().width")
    found = {}
    for at in np.linspace(x - width / 2 + 1, x + width / 2 - 1, count):
        tab.mouse("mouseMoved", at, y)
        head, told = tab.evaluate(f"({READ})()")
        value, label = head.split(" ", 1)
        found[float(value.replace(",", ""))] = (label, told)
    return found


def numbers(texts):
    return [float(t.replace(",", "")) for text in texts for t in re.findall(r"-?[\d.,]*\d(?:e[+-]\d+)?", text)]


def agree(found, row, label, methods):
    """Whether what was read out is what report.json has there, for these methods and no other."""
    by_x = {x: i for i, x in enumerate(row["x"])}
    for x, (told_label, told) in found.items():
        i = by_x[min(by_x, key=lambda of: abs(of - x))]
        assert told_label == label and row["x"][i] == pytest.approx(x, rel=1e-3) and list(told) == methods
        for m in row["methods"]:
            if m["method"] in methods:
                expected = [v for v in (m["estimate"][i], m["low"][i], m["high"][i]) if v is not None]
                assert numbers(told[m["method"]]) == pytest.approx(expected, rel=1e-3, abs=1e-3), (x, m["method"])
                assert told[m["method"]][0] != DASH or m["estimate"][i] is None


METHODS = ["better", "late", "null", "plain"]


@needs_browser
def test_hovering_reads_the_values_at_the_step_by_method(page, content):
    row = row_of(content, "Ant-v5", "env_steps")
    found = hovered(page, 60)
    assert list(found) == sorted(found) == row["x"]  # each step is reached, from left to right
    agree(found, row, "environment steps", METHODS)
    page.mouse("mouseMoved", 5, 5)
    assert page.evaluate(f"({READ})()") is None


@needs_browser
def test_the_curves_are_drawn_where_the_numbers_are_and_nowhere_else(page, content):
    row, lines = row_of(content, "Ant-v5", "env_steps"), drawn(page)
    assert list(lines) == METHODS
    given, pixels = [], []
    for m in row["methods"]:
        known = [[x, y] for x, y in zip(row["x"], m["estimate"]) if y is not None]
        (line,) = lines[m["method"]]
        assert len(line) == len(known)
        given += known
        pixels.append(line)
    assert len(lines["late"][0]) < len(lines["null"][0])  # known from 500 on, so drawn from there on
    for m in row["methods"]:  # a band goes along the upper ends and back along the lower ones
        given += [[x, y] for x, y in zip(row["x"], m["high"]) if y is not None]
        given += [[x, y] for x, y in zip(row["x"][::-1], m["low"][::-1]) if y is not None]
        pixels += drawn(page, kind=".band")[m["method"]]
    for i, rises in ((0, True), (1, False)):  # one scale for all methods: pixels are a straight function of numbers
        numbers_, at = np.array(given)[:, i], np.concatenate(pixels)[:, i]
        slope, start = np.polyfit(numbers_, at, 1)
        np.testing.assert_allclose(start + slope * numbers_, at, atol=0.01)
        assert (slope > 0) == rises
        if i == 0:
            marker = page.evaluate("document.querySelector('svg.chart .marker').getAttribute('x1')")
            assert float(marker) == pytest.approx(start + slope * content["tasks"][0]["step"], abs=0.01)


@needs_browser
def test_a_method_is_hidden_and_shown_by_its_name_in_the_legend(page, content):
    before = [drawn(page, i) for i in range(3)]
    page.click(".methods button[data-method=better]")
    state = "document.querySelector('.methods button[data-method=better]').getAttribute('aria-pressed')"
    assert page.evaluate(state) == "false"
    for i, task in enumerate(("Ant-v5", "Hopper-v5", None)):
        assert list(drawn(page, i)) == [m for m in before[i] if m != "better"] and "better" in before[i], task
    agree(hovered(page, 12), row_of(content, "Ant-v5", "env_steps"), "environment steps", METHODS[1:])
    page.evaluate("document.querySelector('.methods button[data-method=better]').focus()")
    page.key(" ")
    assert page.evaluate(state) == "true"
    for i in range(3):
        after = drawn(page, i)
        assert list(after) == list(before[i])
        assert all(np.array_equal(a, b) for m in after for a, b in zip(after[m], before[i][m], strict=True))


@needs_browser
def test_all_hidden_is_an_empty_chart_that_says_so(page):
    for method in METHODS:
        page.click(f".methods button[data-method={method}]")
    assert drawn(page) == {} and "no method is shown" in page.evaluate("document.querySelector('svg.chart').textContent")
    page.mouse("mouseMoved", *page.center("svg.chart"))
    assert page.evaluate(f"({READ})()") is None


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("axis", ["env_steps", "training_decisions", "updates", "seconds"])
def test_the_axis_is_switched(page, content, axis):
    page.click("input[value=updates] + span")
    page.click(f"input[value={axis}] + span")
    row, label = row_of(content, "Ant-v5", axis), content["axes"][axis]
    assert page.evaluate("document.querySelector('svg.chart .x-label').textContent") == label
    for m in row["methods"]:
        (line,) = drawn(page)[m["method"]]
        known = np.array([x for x, y in zip(row["x"], m["estimate"]) if y is not None])
        slope, start = np.polyfit(known, line[:, 0], 1)
        np.testing.assert_allclose(start + slope * known, line[:, 0], atol=0.01)
    agree(hovered(page, 25), row, label, METHODS)
    assert page.evaluate("document.querySelectorAll('#curves .marker').length") == (2 if axis == "env_steps" else 0)


@needs_browser
def test_the_measure_is_switched(page, content):
    page.click("input[value=fraction_repeated] + span")
    agree(hovered(page, 12), row_of(content, "Ant-v5", "env_steps", "fraction_repeated"), "environment steps", METHODS)


@needs_browser
def test_values_are_a_table_too(page, content):
    page.click("#curves .panel details summary")
    row = row_of(content, "Ant-v5", "env_steps")
    page.wait("document.querySelectorAll('#curves .panel details table').length === 1")
    found = rows(page, "#curves .panel details table")
    for i, cells in enumerate(found):
        for cell, m in zip(cells[1:], row["methods"], strict=True):
            known = None if m["estimate"][i] is None else {k: m[k][i] for k in ("estimate", "low", "high")}
            assert shows(cell, known)
    assert len(found) == len(row["x"])


@needs_browser
def test_single_runs_are_drawn_faintly_behind_the_means_and_can_be_hidden(page, content):
    """Three seeds each; `late` is known from 500 on, and a run that diverged counts from there on as the worst."""
    faint = "[...document.querySelectorAll('#curves svg.chart')[0].querySelectorAll('.run')]"
    row = row_of(content, "Ant-v5", "env_steps")
    assert page.evaluate(f"{faint}.length") == sum(len(m["each"]) for m in row["methods"]) == 12
    assert float(page.evaluate(f"getComputedStyle({faint}[0]).opacity")) < 0.5
    behind = "(a, b) => Boolean(a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING)"
    assert page.evaluate(f"({behind})({faint}.at(-1), document.querySelector('svg.chart .line'))")
    (line,) = drawn(page)["null"]  # of the mean: the middle of the runs'
    runs = page.evaluate(
        "[...document.querySelectorAll('#curves svg.chart')[0].querySelectorAll('[data-runs-of=null] .run')]"
        ".map(p => p.getAttribute('d').slice(1).split('L').map(q => Number(q.split(' ')[1])))"
    )
    np.testing.assert_allclose(np.mean(runs, axis=0), line[:, 1], atol=0.05)  # runs have four digits
    page.click("input[name=runs] + span")
    assert page.evaluate("document.querySelectorAll('.run').length") == 0
    page.click("input[name=runs] + span")
    assert page.evaluate(f"{faint}.length") == 12


@needs_browser
def test_a_term_is_explained_at_a_tap_and_by_the_keyboard(page, content):
    expected = {"Bonferroni", "IQM", "stratified bootstrap", "Newcombe", "Welch", "Student's t"}
    assert {t["term"] for t in content["terms"]} >= expected
    asked = "[...document.querySelectorAll('.term')].map(e => e.textContent)"
    mentioned = {name.lower(): t["term"] for t in content["terms"] for name in t["names"]}
    assert {mentioned[text.lower()] for text in page.evaluate(asked)} >= {"Bonferroni", "IQM", "Newcombe", "pointwise", "anchors"}
    opened = "document.querySelector('.explained:popover-open')?.textContent ?? null"
    (welch,) = [i for i, t in enumerate(content["terms"]) if t["term"] == "Welch"]
    assert page.evaluate(opened) is None
    page.click(f"#verdicts .term[popovertarget=term-{welch}]")
    assert page.evaluate(opened) == "Welch" + content["terms"][welch]["text"]
    page.key("Escape")
    assert page.evaluate(opened) is None
    page.evaluate(f"document.querySelector('#verdicts .term[popovertarget=term-{welch}]').focus()")
    page.key("Enter")
    assert page.evaluate(opened).startswith("Welch")


# --- Many methods ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    methods = (*THIRTEEN[:-1], "temporl_with_a_rather_long_name")
    root = tmp_path_factory.mktemp("wide")
    make_wide_campaign(root, methods, tasks=("Ant-v5", "Hopper-v5"), seeds=range(3), evaluations=8)
    content = make_report(root, Options())
    (root / "report.html").write_text(html_page(content))
    return root / "report.html", content


LOOKS = """[...document.querySelectorAll('#curves svg.chart')[0].querySelectorAll('g.series')].map(g => {
    const line = getComputedStyle(g.querySelector('.line')), mark = g.querySelector('.mark');
    return [line.stroke, line.strokeDasharray, mark.getAttribute('d'), getComputedStyle(mark).fill]; })"""


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_methods_look_on_the_page_as_in_the_pictures(chromium, wide, dark):
    tab = browser.Page(chromium, dark=dark).open(wide[0])
    looks = tab.evaluate(LOOKS)
    assert len(looks) == len(THIRTEEN)
    for number, (stroke, dash, marker, fill) in enumerate(looks):
        style = styles.style(number)
        color = style.dark if dark else style.color
        assert stroke == fill == f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"
        lengths = [float(v) for v in re.findall(r"[\d.]+", dash)]
        assert lengths == pytest.approx([2 * v for v in style.dash])
        assert marker == styles.svg_markers(number + 1)[number]["marker"]
    assert troubles(tab) == []


OUTSIDE = """selector => [...document.querySelectorAll(selector)].filter(e => { const b = e.getBoundingClientRect();
    return b.width > 0 && (b.left < 0 || b.right > document.documentElement.clientWidth); }).length"""


@pytest.mark.slow
@needs_browser
def test_on_a_phone_every_verdict_is_on_screen_and_so_are_the_values_at_a_step(chromium, wide):
    tab = browser.Page(chromium, width=390, height=780, mobile=True).open(wide[0])
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.evaluate("document.querySelectorAll('#verdicts details, #over-tasks details').forEach(d => { d.open = true; })")
    assert tab.evaluate("document.querySelectorAll('#verdicts .verdict').length") == 2 * 2 * 13 * 12 / 2
    assert tab.evaluate(f"({OUTSIDE})('#verdicts td, #verdicts th[scope=row], .verdict')") == 0
    labels = tab.evaluate("[...document.querySelector('#verdicts tbody tr').cells].map(c => c.dataset.label)")
    assert labels[:4] == ["task", "X", "Y", "verdict on X"]
    x, y = tab.center("#curves svg.chart")
    for at, scroll in ((x - 120, 0), (x - 10, 0), (x + 10, 0), (x + 150, 0), (x, 250), (x, -480)):  # also at the window's ends
        tab.evaluate(f"scrollBy(0, {scroll})")
        y -= scroll
        tab.mouse("mouseMoved", at, y)
        box = tab.evaluate(
            "(() => { const b = document.querySelector('#curves .readout').getBoundingClientRect(); "
            "return [b.left, b.top, b.right, b.bottom, window.innerWidth, window.innerHeight]; })()"
        )
        assert 0 <= box[0] < box[2] <= box[4] and 0 <= box[1] < box[3] <= box[5], (at, box)
        assert tab.evaluate("document.querySelectorAll('#curves .readout:not([hidden]) tr').length") == len(THIRTEEN), at
    assert tab.evaluate("document.documentElement.scrollWidth") == 390 and troubles(tab) == []


@pytest.mark.slow
@needs_browser
def test_many_pairs_are_folded_up_by_task(chromium, wide, tmp_path):
    tab = browser.Page(chromium).open(wide[0])
    folded = "[...document.querySelectorAll('#verdicts details')].map(d => [d.open, d.querySelector('summary').textContent])"

    def decided(name):
        made = {t: [p["verdict"] for p in wide[1][name] if p["task"] == t] for t in ("Ant-v5", "Hopper-v5")}
        return [[False, f"{t}: 78 pairs, {78 - of.count('inconclusive')} of them decided"] for t, of in made.items()]

    assert tab.evaluate(folded) == [*decided("pairs"), [False, "areas under the curve"], *decided("area_pairs")]
    with_taac = {of: [p for p in wide[1][of] if "taac" in (p["x"], p["y"])] for of in ("pairs", "area_pairs")}
    given = {**wide[1], **with_taac, "options": {**wide[1]["options"], "baseline": "taac"}}
    (tmp_path / "report.html").write_text(html_page(given))
    tab = browser.Page(chromium).open(tmp_path / "report.html")
    assert tab.evaluate(folded) == [[False, "areas under the curve"]] and len(rows(tab, "#pairs")) == 24
    more = [{**p, "task": f"{p['task']}{i}"} for i in range(2) for p in given["pairs"]]
    (tmp_path / "report.html").write_text(html_page({**given, "pairs": more, "area_pairs": []}))
    tab = browser.Page(chromium).open(tmp_path / "report.html")
    assert [is_open for is_open, _ in tab.evaluate(folded)] == [True] * 4  # a table for each task, none folded up


@needs_browser
def test_a_band_of_few_runs_flattens_no_curve(chromium, tmp_path):
    """Of two runs 10 apart the band is 64 to either side of a mean that rises by 20: the panel ends 10 beyond the runs."""
    for seed in range(2):
        make_run(tmp_path / str(seed), seed=seed, returns=np.linspace(0, 20, len(STEPS)) + 10 * seed)
    write_report(make_report(tmp_path, Options()), tmp_path)
    tab = browser.Page(chromium).open(tmp_path / "report.html")
    (line,), (band,) = drawn(tab)["sac"], drawn(tab, kind=".band")["sac"]
    rises = np.ptp(line[:, 1])
    top, bottom = tab.evaluate("(r => [r.y.baseVal.value, r.y.baseVal.value + r.height.baseVal.value])"
                               "(document.querySelector('svg.chart clipPath rect'))")  # fmt: skip
    # the mean and two runs from 0 to 30, 15 more to either side, and 5% of all that
    assert (bottom - top) / rises == pytest.approx(60 * 1.1 / 20, rel=0.01) and band[:, 1].min() < top - rises
    panel = tab.evaluate("document.querySelector('svg.chart clipPath').id")
    assert tab.evaluate("document.querySelector('svg.chart .band').getAttribute('clip-path')") == f"url(#{panel})"
    assert troubles(tab) == []


# --- For everybody --------------------------------------------------------------------------------


@needs_browser
def test_curves_are_read_by_the_keyboard(page, content):
    row = row_of(content, "Ant-v5", "env_steps")
    told = "document.querySelector('svg.chart').getAttribute('aria-valuetext')"
    page.evaluate("document.querySelector('.controls input[name=measure]:checked').focus()")
    page.key("Tab")  # to the first chart, which then shows its last step
    assert page.evaluate("document.activeElement.matches('svg.chart[tabindex=\"0\"]')")
    for key, i in (("ArrowLeft", -2), ("ArrowLeft", -3), ("ArrowRight", -2), ("Home", 0), ("End", -1)):
        page.key(key)
        assert page.evaluate(told).startswith(f"{row['x'][i]:,} environment steps: better "), key
        assert float(page.evaluate("document.activeElement.getAttribute('aria-valuenow')")) == row["x"][i]
    text = page.evaluate(told).split("better ")[1].split(";")[0]
    m = row["methods"][0]
    assert numbers([text]) == pytest.approx([m[k][-1] for k in ("estimate", "low", "high")], rel=1e-3)
    page.key("Escape")
    assert page.evaluate(f"({READ})()") is None


@needs_browser
def test_everything_that_can_be_used_has_a_name(page):
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    used = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n.get("ignored")]
    roles = {"button", "radio", "slider", "table", "region", "link"}
    assert {role for role, name in used if name} >= roles and not [role for role, name in used if role in roles and not name]
    assert len({name for role, name in used if role == "slider"}) == 4  # the charts


@pytest.mark.parametrize("scheme", [0, 1])  # light and dark
def test_light_and_dark_can_be_read(scheme):
    """Colours of text, as the style sheet has them. Those of lines are in test_styles."""
    css = (ROOT / "taac" / "analysis" / "report" / "html" / "page.css").read_text()
    colors = [dict(re.findall(r"--([\w-]+): (#\w+);", rule)) for rule in re.findall(r":root \{([^}]*)\}", css)][scheme]
    colors = {name: color if len(color) == 7 else "#" + "".join(2 * c for c in color[1:]) for name, color in colors.items()}
    for name in ("ink", "faint", "accent", "good", "bad"):
        assert contrast(colors[name], colors["paper"]) >= 4.5, name
    assert contrast(colors["faint"], colors["panel"]) >= 4.5 and contrast(colors["ink"], colors["warn-paper"]) >= 4.5


@pytest.mark.slow
@needs_browser
def test_on_a_phone_and_on_paper(chromium, wide):
    tab = browser.Page(chromium, width=360, height=740, mobile=True).open(wide[0])
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    assert tab.evaluate("document.querySelector('svg.chart').getBoundingClientRect().width") > 280
    ends = "[...document.querySelectorAll('caption')].map(of => of.getBoundingClientRect().right)"
    assert tab.evaluate(f"Math.max(...{ends})") <= 360  # a table scrolls, but its caption is read at once
    tab.send("Emulation.setEmulatedMedia", media="print")
    assert tab.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    tab.send("Emulation.setEmulatedMedia", media="")
    # All runs are on paper, and folded up again after.
    tab.evaluate(
        "addEventListener('beforeprint', () => { window.seen = "
        "[...document.querySelectorAll('#runs details, #verdicts details')].every(of => of.open); })"
    )
    assert tab.pdf().startswith(b"%PDF")
    assert tab.evaluate("document.querySelectorAll('#verdicts details details').length") == 2  # areas of two tasks
    assert tab.evaluate("window.seen") and not tab.evaluate("document.querySelector('#runs details').open")
    assert troubles(tab) == []
