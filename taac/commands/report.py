"""`taac report`: compares the runs below a folder in tables, figures and a page."""

from __future__ import annotations

from pathlib import Path

from absl import flags as absl_flags

from taac.commands import flags
from taac.runs.terminal import printable


def define_flags() -> None:
    flags.define_root_dir("The folder with runs below it, at any depth.")
    absl_flags.DEFINE_string("output_dir", None, "The folder of the report; --root_dir by default.")
    absl_flags.DEFINE_integer(
        "last_evaluations", 3, "The final return is the mean of this many last evaluations.", lower_bound=1
    )
    absl_flags.DEFINE_string(
        "anchors", None, "A JSON file with more normalisation anchors; see taac/analysis/report/anchors.json."
    )
    absl_flags.DEFINE_integer(
        "at_step",
        None,
        "Compare at this environment step; by default where the first finished run ended.",
        lower_bound=1,
    )
    absl_flags.DEFINE_string(
        "diverged",
        "worst",
        "The score of a diverged run: worst (the lowest return of any evaluation on its task, or the anchor y0 if that is "
        "lower), leave_out, or a return such as -1000.",
    )
    absl_flags.DEFINE_bool("paired", True, "Compare two methods seed by seed if they have the same seeds.")
    absl_flags.DEFINE_bool(
        "allow_mixed", False, "Compare runs even if their budgets, versions or update ratios differ."
    )
    absl_flags.DEFINE_list(
        "group_by", [], "Settings to show in the names of methods, separated by commas: learning_rate,gamma."
    )


def run() -> None:
    given = flags.FLAGS
    root = Path(flags.root_dir())

    from taac.analysis.report import diverged
    from taac.analysis.report.content import make_report
    from taac.analysis.report.files import write_report
    from taac.analysis.report.scores import Options

    options = Options(
        last=given.last_evaluations,
        paired=given.paired,
        allow_mixed=given.allow_mixed,
        group_by=tuple(given.group_by),
        anchors=Path(given.anchors) if given.anchors else None,
        at_step=given.at_step,
        diverged=diverged.parse(given.diverged),
    )
    output = Path(flags.output_folder("--output_dir", given.output_dir)) if given.output_dir else root
    comparison = make_report(root, options)
    written = write_report(comparison, output)
    for warning in comparison["warnings"]:
        print(f"warning: {printable(warning)}")
    for pair in comparison["pairs"]:
        difference = pair["difference"]
        interval = (
            "no interval" if difference["low"] is None else f"[{difference['low']:.4g}, {difference['high']:.4g}]"
        )
        line = f"{pair['task']}: {pair['x']} - {pair['y']} = {difference['estimate']:.4g} {interval}"
        print(printable(f"{line}: {'' if pair['verdict'] == 'inconclusive' else pair['x'] + ' is '}{pair['verdict']}"))
    for path in written:
        print(printable(path))
