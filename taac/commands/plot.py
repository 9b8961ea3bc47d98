"""`taac plot`: draws any summaries of any runs, or the curves of one run, to PNG, SVG and CSV."""

from __future__ import annotations

from pathlib import Path

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError
from taac.runs import terminal


def define_flags() -> None:
    absl_flags.DEFINE_multi_string(
        "root_dir", [], "The folder of a run, or a folder with runs below it at any depth; repeat for several."
    )
    absl_flags.DEFINE_list(
        "tags", [], "Summaries, or patterns such as 'beta/*', separated by commas, a row of panels each; by default "
        "evaluation/return,evaluation/fraction_repeated.",
    )  # fmt: skip
    absl_flags.DEFINE_string("x", "env_steps", "The horizontal axis: env_steps, decisions, updates or wall_time.")
    absl_flags.DEFINE_float(
        "smoothing", 0.0, "Replace each point by the mean of the run's points in the last so many units of --x; 0 for none."
    )
    absl_flags.DEFINE_string(
        "output", None, "A .png, .svg or .csv file; by default plot.png and plot.csv in the first --root_dir; for one run "
        "without other flags, curves.png and curves.csv.",
    )  # fmt: skip
    flags.define_grouping("Draw runs together even if budgets, versions, update ratios, environments or evaluations differ.")


def run() -> None:
    given = flags.FLAGS
    if not given.root_dir:
        raise TaacError("--root_dir is missing; it is the folder of a run, or a folder with runs below it")
    roots = [Path(flags.checked_path("--root_dir", root)) for root in given.root_dir]
    options_given = given.tags or given.x != "env_steps" or given.smoothing or given.output or given.group_by

    from taac.analysis.curves import plots, tag_curves
    from taac.analysis.readers import run_records

    if len(roots) == 1 and run_records.is_run(roots[0]) and not options_given:
        with flags.writing("--output"):
            picture, table, notes = plots.plot_run(roots[0])
        written = [table, picture]
    else:
        outputs = [roots[0] / "plot.csv", roots[0] / "plot.png"]
        if given.output:
            outputs = [Path(flags.checked_path("--output", given.output))]
            flags.output_folder("--output: the folder", str(outputs[0].parent))
        for output in outputs:
            plots.check_format(output)
        options = tag_curves.Options(
            tags=tuple(given.tags) or tag_curves.DEFAULT_TAGS, x=given.x, smoothing=given.smoothing,
            allow_mixed=given.allow_mixed, group_by=tuple(given.group_by),
        )  # fmt: skip
        found = tag_curves.make_curves(roots, options)
        with flags.writing("--output"):
            notes, written = found.notes, [plots.write_curves(found, output) for output in outputs]
    for note in notes:
        print(f"note: {terminal.printable(note)}")
    for path in written:
        print(terminal.printable(path))
