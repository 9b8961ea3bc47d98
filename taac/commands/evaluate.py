"""`taac evaluate`: plays a run's greedy agent at several switching thresholds: return against decisions."""

from __future__ import annotations

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError
from taac.runs.terminal import printable


def define_flags() -> None:
    flags.define_saved_agent("Evaluate")
    absl_flags.DEFINE_list("switch_threshold", ["0.5"], "Thresholds, separated by commas: 0.5,0.6,0.7,0.8,0.9.")
    absl_flags.DEFINE_integer("num_episodes", 20, "Episodes at each.", lower_bound=1)
    absl_flags.DEFINE_integer("seed", 0, "Seed of the environment.", lower_bound=0, upper_bound=2**32 - 1)
    absl_flags.DEFINE_string("output", None, "A new .csv or .png file, for the table or its picture.")


def run() -> None:
    given = flags.FLAGS
    try:
        thresholds = [float(word) for word in given.switch_threshold]
    except ValueError as error:
        words = ",".join(given.switch_threshold)
        raise TaacError(f"--switch_threshold must be numbers separated by commas, such as 0.5,0.7, got '{words}'") from error

    from taac import registry
    from taac.playing.pictures import new_file
    from taac.playing.thresholds import evaluate_thresholds, write_picture, write_table

    output = new_file("--output", given.output, ".csv", ".png")
    root_dir = flags.root_dir()
    registry.register()
    front = evaluate_thresholds(root_dir, thresholds, given.num_episodes, given.seed, given.best, given.trust)
    print(f"{printable(front.method)} on {printable(front.environment)}, {given.num_episodes} greedy episodes each:\n")
    print(f"{'switch_threshold':>16} {'return':>24} {'decisions':>10} {'repeated':>9} {'mean run':>9} {'jerk':>8} {'length':>8}")
    for point in front.points:
        found = point.summary
        interval = f"{found.return_mean:.2f} +- {point.half_width:.2f}"
        print(
            f"{point.switch_threshold:>16g} {interval:>24} {found.decisions:>10.1f} {found.fraction_repeated:>9.0%} "
            f"{found.mean_run:>9.2f} {found.jerk:>8.3g} {found.length:>8.1f}"
        )
    print("\nreturn: mean with half the width of its 95% interval over episodes; the other columns are means")
    if output is not None:
        (write_table if output.suffix == ".csv" else write_picture)(front, output)
        print(printable(output))
