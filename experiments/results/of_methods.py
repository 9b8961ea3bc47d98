"""The last part of each method's page: its rows of docs/results.md. `experiments.results.page` writes both."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
HEADING = "## Results\n"
HEAD = ["task", "method", "seeds", "final return", "each seed"]  # of a table of runs; others have published or other numbers


def section(method: str, results: str) -> str:
    """Returns what a method's page says of results, from its heading on.

    Args:
        method: its name.
        results: the text of docs/results.md.
    """
    found, question, task, of_runs = [], "", "", False
    for line in results.splitlines():
        question = line.removeprefix("## ") if line.startswith("## ") else question
        row = [cell.strip() for cell in line.strip("|").split("|")]
        of_runs = row[: len(HEAD)] == HEAD or (of_runs and line.startswith("|"))
        task = row[0] or task  # a cell is empty where it is that of the row above
        name, _, more = (row[1] if of_runs else "").partition("+")  # such as sac+her
        if name == method:
            found.append((f"{question} (+{more})" if more else question, task, *row[2 : len(HEAD)]))
    if not found:
        return f"{HEADING}\nNo campaign has run it.\n"
    head = [f"| question | task | {' | '.join(HEAD[2:])} |", "|---|---|---|---|---|"]
    table = [*head, *(f"| {' | '.join(row)} |" for row in found)]
    return "\n".join([HEADING, "From the [results](../results.md), which say how they were made:", "", *table, ""])


def write() -> None:
    """Brings the last part of every method's page up to date."""
    results = (DOCS / "results.md").read_text(encoding="utf-8")
    for page in (DOCS / "methods").glob("*.md"):
        before = page.read_text(encoding="utf-8").partition(HEADING)[0]
        page.write_text(before + section(page.stem, results), encoding="utf-8")
