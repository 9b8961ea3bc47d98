"""`taac report`: compares the runs below a folder in tables, figures and a page."""

from __future__ import annotations

from pathlib import Path

from absl import flags as absl_flags

from taac.commands import flags
from taac.runs.terminal import printable


def define_flags() -> None:
    flags.define_root_dir("The folder with runs below it, at any depth.")
    absl_flags.DEFINE_string("output_dir", None, "The folder of the report; --root_dir by default.")
    absl_flags.DEFINE_integer("last_evaluations", 3, "The final return is the mean of this many last evaluations.", lower_bound=1)
    absl_flags.DEFINE_string(
        "anchors", None, "A JSON file with more normalisation anchors; see taac/analysis/report/anchors.json."
    )
    absl_flags.DEFINE_integer(
        "at_step", None, "Compare at this environment step; by default where the first finished run ended.", lower_bound=1
    )
    absl_flags.DEFINE_string(
        "published", None, "A JSON file with published returns to print beside these; see experiments/results/published.json."
    )
    absl_flags.DEFINE_string(
        "baseline", None, "Compare every method with this one only; by default every two methods are compared."
    )
    absl_flags.DEFINE_bool(
        "paired", False, "Compare runs with the same seed; methods must have the same seeds. A verdict needs 6, or 7 for 3 "
        "comparisons, 10 for 25.",
    )  # fmt: skip
    absl_flags.DEFINE_multi_string(
        "bounds", [], "The lowest and highest possible return, LOW,HIGH (0,1 for success rates), or TASK=LOW,HIGH for one task; "
        "repeat for several; none: ignore declared ones.",
    )  # fmt: skip
    flags.define_grouping("Compare runs even if budgets, versions, update ratios, environments or evaluations differ.")


def run() -> None:
    given = flags.FLAGS
    root = Path(flags.root_dir())

    from taac.analysis.report.page import make_report, write_report
    from taac.analysis.report.scores import Options
    from taac.analysis.report.tables import verdict_line

    options = Options(
        last=given.last_evaluations,
        paired=given.paired,
        baseline=given.baseline,
        bounds=tuple(given.bounds),
        allow_mixed=given.allow_mixed,
        group_by=tuple(given.group_by),
        anchors=Path(given.anchors) if given.anchors else None,
        published=Path(given.published) if given.published else None,
        at_step=given.at_step,
    )
    output = Path(flags.output_folder("--output_dir", given.output_dir)) if given.output_dir else root
    comparison = make_report(root, options)
    with flags.writing("--output_dir"):
        written = write_report(comparison, output)
    for warning in comparison["warnings"]:
        print(f"warning: {printable(warning)}")
    for told in (*comparison["settings_told"], comparison["family_told"]):
        print(printable(told))
    for pair in comparison["pairs"]:
        print(printable(verdict_line(pair)))
    for path in written:
        print(printable(path))
