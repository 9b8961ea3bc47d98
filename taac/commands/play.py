"""`taac play`: loads a run and plays greedy episodes."""

from __future__ import annotations

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError
from taac.runs.terminal import printable


def define_flags() -> None:
    flags.define_saved_agent("Play")
    flags.define_switch_threshold()
    absl_flags.DEFINE_integer("num_episodes", 10, "Episodes to play.", lower_bound=1)
    absl_flags.DEFINE_integer("seed", 0, "Seed of the environment.", lower_bound=0, upper_bound=2**32 - 1)
    absl_flags.DEFINE_float(
        "epsilon_greedy", 0.0, "Probability with which each choice is sampled instead of taking its mode.", lower_bound=0.0,
        upper_bound=1.0,
    )
    absl_flags.DEFINE_string("record_file", None, "A new .gif or .mp4 file for a video.")
    absl_flags.DEFINE_string("record_demonstrations", None, "A new .npz file for the episodes, as demonstrations.")
    absl_flags.DEFINE_integer("record_episodes", 1, "Episodes in the video.", lower_bound=1)
    absl_flags.DEFINE_boolean("overlay", True, "Show below each frame of the video whether the agent acts or repeats.")
    absl_flags.DEFINE_string("film_strip", None, "A new .png file for the first episode's frames, one column per action.")
    absl_flags.DEFINE_string("timeline", None, "A new .png file for the first episode's actions against time.")


def run() -> None:
    given = flags.FLAGS
    for name in ("record_file", "record_demonstrations", "film_strip", "timeline"):
        flags.checked_path(f"--{name}", given[name].value or "")
    if given.record_file is None and (given.record_episodes > 1 or not given.overlay):
        raise TaacError("--record_episodes and --nooverlay are for a video: add --record_file, or leave them out")

    from taac.playing.pictures import Pictures

    pictures = Pictures(given.record_file, given.film_strip, given.timeline, given.record_episodes, given.overlay)

    from taac import registry
    from taac.acting.metrics import summarize
    from taac.playing.episodes import play

    root_dir = flags.root_dir()
    registry.register()
    played = play(
        root_dir, given.num_episodes, given.seed, pictures, given.epsilon_greedy, given.best, given.trust,
        given.record_demonstrations, given.switch_threshold,
    )  # fmt: skip
    for number, episode in enumerate(played.episodes, 1):
        total = float(episode.ret.sum())
        print(f"episode {number}: return {total:.2f}, {episode.decisions} decisions in {episode.length} steps")
    summary = summarize(played.episodes)
    print(
        f"{summary.episodes} episodes of {played.environment}: return {summary.return_mean:.2f} +- {summary.return_std:.2f}, "
        f"{summary.decisions:.1f} decisions in {summary.length:.1f} steps"
    )
    for file in played.pictures:
        print(printable(file))
    if (writer := played.demonstrations) is not None:
        print(f"{printable(writer.path)}: {writer.num_episodes} episodes, {writer.num_transitions} transitions")
