"""The pages: their links, paths, bindings and flags exist, generated tables are up to date, and the README is short."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import gin
import pytest

import taac
from experiments import docs_methods, docs_tables
from experiments.results import of_methods
from taac import configuration
from taac.commands import main as commands
from taac.configuration import plain_words
from taac.errors import TaacError
from taac.networks import encoders
from taac.training.summaries import PHASES, TAGS
from tests.methods import thinned

ROOT = Path(__file__).resolve().parents[1]
DOCS, TAAC = ROOT / "docs", ROOT / "taac"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "experiments").rglob("*.md")),
]
# A changelog also tells of what is gone, and commands of results and their diaries are those of the commits beside them.
OF_PAST = ROOT / "experiments" / "results"
OF_PRESENT = [p for p in PAGES if p.name not in ("CHANGELOG.md", "results.md") and not p.is_relative_to(OF_PAST)]
README_BYTES = 8_192
FENCE = re.compile(r"^ *```.*?^ *```[^\n]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?<![\w./-])(?:taac|gin|experiments|docs|tests)/[\w./*-]*\w")
BINDING = re.compile(r"(?:^|--gin_param \"?|--set \"?)(?:\w+/)?(\w+)(?:\.(\w+))? ?=(?!=)", re.MULTILINE)


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def ours(page: Path) -> str:
    """A page's text without the names of other packages, which stand in the tables of one page, left of ours."""
    text = text_of(page)
    return re.sub(r"^\| .* \| ([^|]*) \|$", r"| \1 |", text, flags=re.MULTILINE) if page.name == "migration.md" else text


# --- links ------------------------------------------------------------------------------------------------------------


@functools.cache
def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", FENCE.sub("", text), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        number, unique = 0, slug
        while unique in found:
            number += 1
            unique = f"{slug}-{number}"
        found.add(unique)
    return found


def dead_links(page: Path, text: str) -> list[str]:
    """Relative links of a page's text that lead to no file, to no heading, or from docs/ to what is neither a page nor source."""
    inside = (DOCS, TAAC) if page.is_relative_to(DOCS) else (ROOT,)
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", INLINE.sub("", FENCE.sub("", text))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        alive = target.exists() and any(target.is_relative_to(folder) for folder in inside)
        if not alive or (anchor and anchor not in anchors(text if target == page else text_of(target))):
            dead.append(link)
    return dead


def accidental_lists(text: str) -> list[str]:
    """Lines of a paragraph that Markdown takes for a list, because they begin with the number 1 and a point."""
    return re.findall(r"\S\n *(1[.)] .*)", FENCE.sub("", text))


# --- what Sphinx adds ---------------------------------------------------------------------------------------------------


@functools.cache
def sphinx_settings() -> dict:
    return runpy.run_path(str(DOCS / "conf.py"))


def test_every_page_is_in_the_tree_of_contents():
    parts = sphinx_settings()["contents"](text_of(DOCS / "README.md"))
    listed = "".join(pages for _, pages in parts).split()
    pages = [str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md") if page.name != "README.md"]
    assert sorted(listed) == sorted([*pages, "api/modules"])
    assert [part for part, _ in parts][-1] == "API"


def test_fields_of_records_are_described_by_their_comments():
    comment_of = sphinx_settings()["comment_of"]
    assert comment_of("taac.data_structures.LossInfo.loss") == "[T, B] the loss of each frame, before averaging"
    assert comment_of("taac.algorithms.taac.TaacInfo.tau_prev") == "parts [B, A], the trajectory before acting here"
    assert comment_of("taac.algorithms.actor_critic.TrainInfo.switch") == r"[T, B] bool, b \| b~, with b~ newly sampled"


def source_links(page: Path, text: str) -> list[tuple[str, Path]]:
    """What links to source files show, and where they lead."""
    found = re.findall(r"\[`([\w.]+)`\]\(((?:\.\./)+taac/[\w/]+\.py)\)", text)
    return [(name, (page.parent / path).resolve()) for name, path in found]


@functools.cache
def parsed(path: Path) -> ast.AST:
    return ast.parse(text_of(path))


def missing_in_source(page: Path, text: str) -> list[str]:
    """Names of functions, classes and methods in links to source files that these files do not define."""
    missing = []
    for name, path in source_links(page, text):
        body: list[ast.AST] = [parsed(path)]
        for part in name.split("."):
            body = [n for scope in body for n in getattr(scope, "body", []) if getattr(n, "name", None) == part]
        missing += [] if body else [name]
    return missing


@pytest.mark.parametrize("page", sorted((DOCS / "methods").glob("*.md")), ids=lambda page: page.stem)
def test_every_detail_of_a_method_says_where_it_is(page):
    """And every page has the same parts: paper, details, differences, settings, summaries, results."""
    text = text_of(page)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "Implementation details",
        next(line for line in text.splitlines() if line.startswith("## Differences from the "))[3:],
        *("Settings", "Summaries", "Results"),
    ]
    assert re.search(r"^\*\*(Papers?|Source)\*\*: .*", text, re.MULTILINE) and "arxiv.org/abs/" in text
    details = text.partition("## Implementation details\n")[2].partition("\n## ")[0]
    items = re.split(r"^\d+\. ", details, flags=re.MULTILINE)[1:]
    assert len(items) >= 2 and [item for item in items if not source_links(page, item)] == []


def test_there_is_a_page_for_each_method():
    assert {page.stem for page in (DOCS / "methods").glob("*.md")} == {*docs_methods.files()}


@functools.cache
def cited(pattern: str) -> list[tuple[str, str]]:
    """What code cites in its comments and docstrings: file and line, and what the pattern found there."""
    found = []
    for folder, ending in (("taac", "*.py"), ("tests", "*.py"), ("experiments", "*.py"), ("gin", "*.gin")):
        for path in (ROOT / folder).rglob(ending):
            for number, line in enumerate(text_of(path).splitlines() if path != Path(__file__) else (), 1):
                found += [(f"{path.relative_to(ROOT)}:{number}", what) for what in re.findall(pattern, line)]
    return found


def test_what_code_cites_exists():
    links = cited(r"docs/[\w/-]+\.md(?:#[\w-]*)?")
    assert len({link for _, link in links}) > 3
    assert [(where, link) for where, link in links if dead_links(ROOT / "README.md", f"[x]({link})")] == []


def test_code_cites_nothing_outside_the_repository():
    assert cited(r"SPEC sections?|(?:SPEC|DESIGN|HOUSE)\.md") == []


# --- paths, bindings, flags, functions --------------------------------------------------------------------------------


def code_of(text: str) -> Iterator[str]:
    """What stands in fences and in backticks."""
    yield from FENCE.findall(text)
    yield from INLINE.findall(FENCE.sub("", text))


def missing_paths(text: str) -> list[str]:
    """Paths of the repository that a page's code names and that do not exist; NAME stands for any, as do ids of environments."""
    found = [path for code in code_of(text) for path in PATH.findall(code)]
    return [
        path
        for path in found
        if not any(ROOT.glob(path)) and "NAME" not in path and not re.fullmatch(r"taac/\w+-v\d+", path)
    ]


OWN = re.compile(r"My[A-Z]\w+|Constructor|Other")  # names that stand for something of the reader's


@functools.cache
def parameters(configurable: str) -> frozenset[str] | None:
    """What can be bound, or is an attribute; None: no configurable of that name."""
    configuration.load([])  # registers all
    try:
        found = gin.get_configurable(configurable)
    except ValueError:
        return None
    if not inspect.isclass(found):
        return frozenset(inspect.signature(inspect.unwrap(found)).parameters)
    inits = [vars(level)["__init__"] for level in found.__mro__[:-1] if "__init__" in vars(level)]
    return frozenset(dir(found)).union(*(inspect.signature(init).parameters for init in inits))


@functools.cache
def set_by_name() -> frozenset[str]:
    """Parameters that `--set` knows without their constructor: only one has it, or the algorithm."""
    configuration.load([])  # registers all
    owners = plain_words.owners().items()
    return frozenset(name for name, of in owners if len(of) == 1 or any(f"Algorithm.{name}" in owner for owner in of))


def unknown_bindings(text: str) -> list[str]:
    """Bindings in a page's code that name no configurable, parameter or macro; references such as `Trainer.hooks` likewise."""
    unknown = []
    for code in code_of(text):
        gin_like = code.startswith("```\n") or "--gin_param" in code or "--set " in code or re.match(r"\w+\.\w+ = ", code)
        for name, parameter in BINDING.findall(code) if gin_like else []:
            known = parameters(name) if parameter else {*configuration.TASK_MACROS, *set_by_name(), "NAME"}
            if not OWN.fullmatch(name) and (known is None or (parameter or name) not in known):
                unknown.append(f"{name}.{parameter}" if parameter else name)
        if reference := re.fullmatch(r"(\w+)\.(\w+)", code):
            name, parameter = reference.groups()
            if parameters(name) is not None and parameter not in parameters(name):
                unknown.append(code)
        unknown += [
            f"@{name}"
            for name in re.findall(r"@([A-Z]\w+)", code)
            if not OWN.fullmatch(name) and parameters(name) is None
        ]
    return unknown


@functools.cache
def known_flags() -> frozenset[str]:
    """Of all commands, from where they are defined."""
    found = {"help"}
    for path in (TAAC / "commands").glob("*.py"):
        source = text_of(path)
        found |= set(re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", source))
        if slurm := re.search(r"^SLURM = (\{.*\})$", source, re.MULTILINE):
            found |= {f"slurm_{name}" for name in re.findall(r"\"(\w+)\":", slurm.group(1))}
    return frozenset(found)


def unknown_flags(text: str) -> list[str]:
    """Flags in a page's `taac` commands, or alone in backticks, that no command has."""
    unknown = []
    for code in code_of(text):
        lines = re.sub(r"\\\n", " ", code).splitlines() if code.startswith("```") else [code]
        for line in lines:
            if re.match(r"(python -m )?taac \w", line) or re.match(r"--[a-z_]+\b(?!-)", line):
                given = re.findall(r"(?<![\w'\"=-])--([a-z_]+)", line)
                unknown += [f for f in given if f not in known_flags() and f.removeprefix("no") not in known_flags()]
    return unknown


MANUAL = [page for page in OF_PRESENT if page.parent.name != "benchmarks" and page.parent.name != "reliability"]


def missing_functions(text: str) -> list[str]:
    """`value_ops.x` and the like, in backticks, that the module of that name in `taac.ops` or `taac.algorithms` does not have."""
    modules = {path.stem: f"taac.{room}.{path.stem}" for room in ("ops", "algorithms") for path in (TAAC / room).glob("*.py")}
    named = [code.split(".") for code in code_of(text) if re.fullmatch(r"\w+\.\w+", code)]
    return [
        f"{module}.{name}"
        for module, name in named
        if module in modules and name != "py" and not hasattr(importlib.import_module(modules[module]), name)
        and not (module == "taac" and hasattr(taac, name))  # the package itself
    ]


@functools.cache
def classes() -> dict[str, str]:
    """The source of each class of the package, by name."""
    sources = [text_of(path) for path in TAAC.rglob("*.py")]
    return {
        found[1]: found[0]
        for source in sources
        for found in re.finditer(r"^class (\w+).*?(?=^\S|\Z)", source, re.M | re.S)
    }


def missing_classes(text: str) -> list[str]:
    """Names like `TaacInfo` or `TaacInfo.tau_prev`, in backticks, that no class of the package has."""
    missing = []
    for code in INLINE.findall(FENCE.sub("", text)):
        if named := re.fullmatch(r"([A-Z][a-z]+(?:[A-Z]\w*)+)(?:\.(\w+))?", code):
            name, member = named.groups()
            bindable = member and member in (parameters(name) or ())
            inside = not member or bindable or re.search(rf"\b{member}\b", classes().get(name, ""))
            if not OWN.fullmatch(name) and (name not in classes() or not inside):
                missing.append(code)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_all_that_a_page_names_exists(page):
    text = text_of(page)
    wrong = {"links": dead_links(page, text), "sentences that become lists": accidental_lists(text)}
    if page in OF_PRESENT:
        wrong |= {
            "paths": missing_paths(text), "bindings": unknown_bindings(ours(page)), "functions": missing_functions(text),
            "classes": missing_classes(ours(page)), "flags": unknown_flags(ours(page)) if page in MANUAL else [],
        }  # fmt: skip
    if page.is_relative_to(DOCS):
        wrong["names in source"] = missing_in_source(page, text)
        assert len(source_links(page, text)) == len(re.findall(r"\]\([./]+taac/", text))
        index = DOCS / "README.md"
        assert page == index or f"]({page.relative_to(index.parent)})" in text_of(index)
    assert {kind: found for kind, found in wrong.items() if found} == {}


# --- generated tables, and the README ---------------------------------------------------------------------------------


GENERATED = sorted(docs_tables.WRITERS)


# That of choosing tries each method with each part.
@pytest.mark.parametrize("path", thinned(GENERATED, [p for p in GENERATED if p.stem != "choosing"]), ids=lambda path: path.stem)
def test_generated_pages_are_up_to_date(path):
    assert text_of(path) == docs_tables.WRITERS[path](), "call `make docs-tables`"


def test_the_table_of_methods_follows_the_code(monkeypatch):
    """The code is asked: an algorithm that refuses what it could do changes its row."""
    assert "| Box | - | yes | yes | yes | yes | yes | - | yes |" in table_row("taac")
    assert "| Discrete, MultiDiscrete | yes | yes | yes |" in table_row("sac_branches")
    assert not docs_methods.works("sac", actions="Discrete and Box")
    assert docs_methods.works("sac", "create_agent.algorithm_ctor = @MixedSacAlgorithm", actions="Discrete and Box")

    def refuse(*args, **named):
        raise TaacError("no images")

    monkeypatch.setattr(encoders.ImageEncoder, "__init__", refuse)
    assert docs_methods.works("sac", actions="Box") and not docs_methods.works("sac", actions="Box", camera=True)


def table_row(method: str) -> str:
    return next(line for line in text_of(DOCS / "choosing.md").splitlines() if line.startswith(f"| [{method}]("))


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES


def test_pages_say_from_how_many_updates_on_runs_are_compiled():
    source = text_of(TAAC / "training" / "compilation.py")
    fewest = f"{int(re.search(r'^FEWEST_UPDATES = ([0-9_]+)$', source, re.MULTILINE)[1]):,}"
    texts = {page: text_of(page) for page in [*OF_PRESENT, TAAC / "training" / "experiment.py"]}
    said = {page: re.findall(r"runs\s+of\s+([0-9,]+)\s+updates\s+or\s+more", text) for page, text in texts.items()}
    assert {page: numbers for page, numbers in said.items() if {*numbers} - {fewest}} == {}
    assert sum(map(len, said.values())) >= 3


def test_the_map_names_every_room():
    page = text_of(ROOT / "CONTRIBUTING.md").partition("## Map of the code\n")[2].partition("\n## ")[0]
    rooms = [path.parent.name for path in sorted(TAAC.glob("*/__init__.py"))]
    assert [room for room in rooms if f"taac/{room}/" not in page] == []


def test_the_example_of_using_the_parts_runs():
    """The Python blocks of the pages, as they stand."""
    blocks = [block for page in OF_PRESENT for block in re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL)]
    assert blocks
    with gin.unlock_config():  # another test may have read a configuration here
        for block in blocks:
            exec(compile(block, "docs", "exec"), {})


# --- trouble-shooting ------------------------------------------------------------------------------------------------


def flat(node: ast.expr) -> str:
    """The text of a string in the code, with \0 for what varies."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(flat(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return flat(node.left) + flat(node.right)
    return "\0"


@functools.cache
def texts_of_the_code() -> str:
    """All strings of the code, one a line."""
    kinds = (ast.Constant, ast.JoinedStr, ast.BinOp)
    trees = [ast.parse(text_of(path)) for path in TAAC.rglob("*.py")]
    return "\n".join({" ".join(flat(node).split()) for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)})


def is_said(message: str) -> bool:
    """Whether some string of the code is this message; `...` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in message.strip(".").split("..."))
    return re.search(pattern, texts_of_the_code()) is not None


def messages(text: str) -> list[str]:
    """The first column of the tables of messages."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def test_messages_are_those_of_the_code():
    found = messages(text_of(DOCS / "troubleshooting.md"))
    assert len(found) >= 40 and all(len(message.replace("...", "")) > 12 for message in found)
    assert [message for message in found if not is_said(message)] == []


# --- names of other packages -------------------------------------------------------------------------------------------


def unknown_here(text: str) -> list[str]:
    """What stands in backticks in the last column of a table and is no name of this package."""
    tags = {tag.replace("{phase}", phase) for tag in TAGS if "{phase}" in tag for phase in PHASES} | {*TAGS}
    rows = re.findall(r"^\| .* \| ([^|]*) \|$", text, re.MULTILINE)
    named = [name for row in rows for name in INLINE.findall(row)]
    return [
        name
        for name in named
        if not (
            name in configuration.TASK_MACROS
            or name in tags
            or name in classes()
            or (ROOT / name).is_file()
            or (name.startswith("--") and name[2:] in known_flags())
            or (name.startswith("taac ") and name.split()[1] in commands.COMMANDS)
            or (name.count(".") == 1 and name.split(".")[1] in (parameters(name.split(".")[0]) or ()))
        )
    ]


def test_names_of_ours_in_the_tables_of_migration_exist():
    text = text_of(DOCS / "migration.md")
    assert len(re.findall(r"^\| `", text, re.MULTILINE)) > 80
    assert unknown_here(text) == []


def test_private_names_lead_to_their_class():
    source = ["[`TaacAlgorithm.train_step`](../taac/algorithms/taac.py) [`TaacAlgorithm._min_q`](../taac/algorithms/taac.py)"]
    sphinx_settings()["link_sources"](None, "x", source)
    assert source[0].startswith("{py:obj}`TaacAlgorithm.train_step <taac.algorithms.taac.TaacAlgorithm.train_step>` ")
    assert "{py:obj}`TaacAlgorithm._min_q <taac.algorithms.taac.TaacAlgorithm>`" in source[0]


def test_results_reach_the_pages_of_their_methods():
    head = "| task | method | seeds | final return | each seed | at 1 | at 2 | at 3 |\n"
    one = "| T-v0 | a | 0 | 5 | 5 | 1 | 2 | 3 |\n|  | sac | 0 1 | 5 | 4, 6 | 1 | 2 | 3 |\n"  # of the task above
    published = "\n| task | method | seeds | return | published | decisions | |\n| T-v0 | sac | 3 | 8 | 9 | 1 | no |\n"
    results = f"## One\n{head}{one}{published}## Other\n{head}| T-v0 | sac | 0 | 7 | 7 | 1 | 2 | 3 |\n"
    section = of_methods.section("sac", results)  # of other settings: not to be taken for one another
    assert "| One | T-v0 | 0 1 | 5 | 4, 6 |\n| Other | T-v0 | 0 | 7 | 7 |\n" in section and "9" not in section
    assert of_methods.section("taac", results) == "## Results\n\nNo campaign has run it.\n"
