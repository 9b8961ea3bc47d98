"""`taac report`: compares the runs below a folder: tables, pictures and a page."""

from __future__ import annotations

from pathlib import Path

from absl import flags as absl_flags

from taac.commands import flags


def define_flags() -> None:
    flags.define_root_dir("The folder below which the runs are, at any depth.")
    absl_flags.DEFINE_string("output_dir", None, "Where the report goes; --root_dir if it is not given.")
    absl_flags.DEFINE_integer(
        "last_evaluations", 3, "The final return is the mean of this many last evaluations.", lower_bound=1
    )
    absl_flags.DEFINE_string(
        "anchors", None, "A JSON file of more normalisation anchors; see taac/analysis/report/anchors.json."
    )
    absl_flags.DEFINE_integer(
        "at_step",
        None,
        "Compare at this environment step; otherwise where the first finished run ended.",
        lower_bound=1,
    )
    absl_flags.DEFINE_string(
        "diverged",
        "worst",
        "What a diverged run scores: worst (the lowest return of any evaluation on its task, or the anchor y0 if that is "
        "lower), leave_out, or a return such as -1000.",
    )
    absl_flags.DEFINE_bool("paired", True, "Compare two methods seed by seed where they have the same seeds.")
    absl_flags.DEFINE_bool(
        "allow_mixed", False, "Compare runs of unequal budgets, versions or update ratios all the same."
    )


def run() -> None:
    given = flags.FLAGS
    root = Path(flags.root_dir())

    from taac.analysis.report import diverged, files
    from taac.analysis.report import make as report
    from taac.analysis.report.scores import Options

    options = Options(
        last=given.last_evaluations,
        paired=given.paired,
        allow_mixed=given.allow_mixed,
        anchors=Path(given.anchors) if given.anchors else None,
        at_step=given.at_step,
        diverged=diverged.parse(given.diverged),
    )
    comparison = report.make(root, options)
    written = files.write(
        comparison, Path(flags.folder("--output_dir", given.output_dir)) if given.output_dir else root
    )
    for warning in comparison["warnings"]:
        print(f"warning: {warning}")
    for pair in comparison["pairs"]:
        difference = pair["difference"]
        interval = (
            "no interval" if difference["low"] is None else f"[{difference['low']:.4g}, {difference['high']:.4g}]"
        )
        told = f"{pair['task']}: {pair['x']} - {pair['y']} = {difference['estimate']:.4g} {interval}"
        print(f"{told}: {'' if pair['verdict'] == 'inconclusive' else pair['x'] + ' is '}{pair['verdict']}")
    for path in written:
        print(path)
