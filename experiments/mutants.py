"""Breaks the package in one line at a time, and says whether the tests see it.

    python -m experiments.mutants choose --seed 0 --count 60   # writes experiments/mutants.json
    python -m experiments.mutants run                          # whole suite where a room's own tests see nothing: hours

Every mutant changes one operator, number, index, `detach` or mask of a line that runs. A line is found again by its text and
its function, so that the same mutants can be tried after code has moved; one that is gone is told.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "experiments" / "mutants.json"
COMPARED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not"}
COMPUTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
SECONDS = 1800  # of one run of tests


def mutations(tree: ast.Module, lines: list[str]) -> Iterator[dict[str, Any]]:
    """Every mutation of a file: kind, function, number of the line, the line before and after."""

    def replaced(node: ast.expr, text: str) -> tuple[int, str] | None:
        if node.lineno != node.end_lineno:
            return None
        line = lines[node.lineno - 1].encode()
        return node.lineno, (line[: node.col_offset] + text.encode() + line[node.end_col_offset :]).decode()

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, str, tuple[int, str] | None]]:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)):
            return  # words, and what cannot happen
        if function:
            of = ast.unparse
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
                new = f"{of(node.left)} {COMPARED[type(node.ops[0])]} {of(node.comparators[0])}"
                yield "comparison", function, replaced(node, new)
            if isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
                if not any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(node)):
                    yield (
                        "operator",
                        function,
                        replaced(node, f"({of(node.left)} {COMPUTED[type(node.op)]} {of(node.right)})"),
                    )
                if isinstance(node.op, ast.Mult):
                    yield "mask dropped", function, replaced(node, of(node.left))
            if isinstance(node, ast.BoolOp) and len(node.values) == 2:
                new = " or " if isinstance(node.op, ast.And) else " and "
                yield "and, or", function, replaced(node, f"({new.join(f'({of(v)})' for v in node.values)})")
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
                yield "sign", function, replaced(node, of(node.operand))
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.slice, ast.Constant)
                and type(node.slice.value) is int
            ):
                yield "index", function, replaced(node, f"{of(node.value)}[{1 - node.slice.value}]")
            if isinstance(node, ast.Constant) and type(node.value) is int and node.value in (0, 1, 2):
                yield "off by one", function, replaced(node, str(node.value + 1))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
                yield "detach dropped", function, replaced(node, of(node.func.value))
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            for item in child if isinstance(child, list) else [child]:
                if isinstance(item, ast.AST):
                    yield from visit(item, function)

    for kind, function, found in visit(tree, ""):
        if found is not None and found[1] != lines[found[0] - 1]:
            before = lines[found[0] - 1].strip()
            yield {"kind": kind, "function": function, "line": found[0], "before": before, "after": found[1].strip()}


def choose(seed: int, count: int, without: list[str]) -> None:
    """As many of each room as its lines ask for, one at least; kinds equally likely within a room."""
    rooms: dict[str, dict[str, list[dict[str, Any]]]] = {}
    weights: dict[str, int] = {}
    for path in sorted((ROOT / "taac").rglob("*.py")):
        text, name = path.read_text(), str(path.relative_to(ROOT))
        if any(name.startswith(f"taac/{left_out}") for left_out in without):
            continue
        room = path.relative_to(ROOT / "taac").parts[0].removesuffix(".py")
        weights[room] = weights.get(room, 0) + text.count("\n")
        for mutation in mutations(ast.parse(text), text.split("\n")):
            rooms.setdefault(room, {}).setdefault(mutation["kind"], []).append({"file": name, **mutation})
    drawn = random.Random(seed)
    rooms = {room: rooms[room] for room in sorted(rooms, key=weights.__getitem__, reverse=True)}
    chosen = dict.fromkeys(list(rooms)[:count], 1)
    while sum(chosen.values()) < count:  # whoever is furthest below its share
        chosen[max(chosen, key=lambda room: weights[room] / chosen[room])] += 1
    found = []
    for room, number in chosen.items():
        for _ in range(number):
            kind = drawn.choice(sorted(rooms[room]))
            found.append(drawn.choice(rooms[room][kind]))
    LIST.write_text(json.dumps({"seed": seed, "without": without, "mutants": found}, indent=1) + "\n")
    print(f"{len(found)} mutants in {LIST.relative_to(ROOT)}")


def place(mutant: dict[str, Any], root: Path) -> tuple[Path, int] | None:
    """File and index of the mutant's line now: the only such line, or the one in the function of its name."""
    alike = [
        (path, index)
        for path in sorted((root / "taac").rglob("*.py"))
        for index, line in enumerate(path.read_text().split("\n"))
        if line.strip() == mutant["before"]
    ]
    if len(alike) > 1:
        name = mutant["function"].split(".")[-1]
        alike = [(path, index) for path, index in alike if _function(path, index + 1) == name] or alike
    if len(alike) > 1:
        own = [(path, index) for path, index in alike if str(path.relative_to(root)) == mutant["file"]] or alike
        alike = sorted(own, key=lambda found: abs(found[1] + 1 - mutant["line"]))[:1]
    return alike[0] if alike else None


def _function(path: Path, line: int) -> str:
    """Name of the innermost function or class that holds a line."""
    around = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name if around else ""


def run(numbers: list[int], out: Path, workers: int) -> None:
    """Tries mutants in a copy of the checkout; a room's own tests first, then all. Results are added to `out`."""
    mutants = json.loads(LIST.read_text())["mutants"]
    results = json.loads(out.read_text()) if out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "_build", ".*_cache")

        def ignore(at: str, names: list[str]) -> set[str]:
            return {*ignored(at, names), *(["runs"] if Path(at) == ROOT else [])}

        shutil.copytree(ROOT, copy, ignore=ignore, symlinks=True)
        subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
        for number in numbers or range(len(mutants)):
            mutant = mutants[number]
            if str(number) in results:
                continue
            found = place(mutant, copy)
            if found is None:
                results[str(number)] = "gone"
            else:
                path, index = found
                text = path.read_text()
                lines = text.split("\n")
                lines[index] = lines[index].replace(mutant["before"], mutant["after"])
                path.write_text("\n".join(lines))
                room = copy / "tests" / path.relative_to(copy / "taac").parts[0].removesuffix(".py")
                results[str(number)] = _seen([room] if room.is_dir() else [], copy, workers)
                path.write_text(text)
            out.write_text(json.dumps(results, indent=1) + "\n")
            print(
                f"{number}: {mutant['file']} {mutant['function']}: {mutant['after']}: {results[str(number)]}",
                flush=True,
            )
    killed = sum(text.startswith("killed") for text in results.values())
    print(f"{killed} of {len(results)} mutants killed")


def _seen(first: list[Path], copy: Path, workers: int) -> str:
    """The first test that fails, of a room's own or of all."""
    for paths in ([first] if first else []) + [[copy / "tests"]]:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", str(workers), "--dist", "worksteal", "-m", "not slow"]
        try:
            done = subprocess.run(
                [*command, *map(str, paths)], cwd=copy, capture_output=True, text=True, timeout=SECONDS,
                env={**os.environ, "PYTHONPATH": "."},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "killed: the tests do not end"
        if done.returncode:
            named = [line for line in done.stdout.split("\n") if line.startswith(("FAILED", "ERROR"))]
            return "killed: " + (named[0] if named else done.stdout.strip()[-200:])
    return "survived"


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = flags.add_subparsers(dest="command", required=True)
    chosen = commands.add_parser("choose")
    chosen.add_argument("--seed", type=int, default=0)
    chosen.add_argument("--count", type=int, default=60)
    chosen.add_argument("--without", nargs="*", default=[], help="files and folders of taac/ that are left out")
    tried = commands.add_parser("run")
    tried.add_argument("numbers", type=int, nargs="*", help="of the list; all if none is given")
    tried.add_argument("--out", type=Path, default=ROOT / "runs" / "mutants.json")
    tried.add_argument("--workers", type=int, default=3)
    options = flags.parse_args()
    if options.command == "choose":
        choose(options.seed, options.count, options.without)
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        run(options.numbers, options.out, options.workers)


if __name__ == "__main__":
    main()
