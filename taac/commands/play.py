"""`taac play`: loads a run and plays greedy episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags as absl_flags

from taac.commands import flags
from taac.commands.pictures import Pictures
from taac.runs.terminal import printable

if TYPE_CHECKING:
    from taac.acting.metrics import Episode
    from taac.data_structures import AlgStep, TimeStep


def define_flags() -> None:
    flags.define_root_dir("The folder of the run.")
    absl_flags.DEFINE_integer("num_episodes", 10, "Episodes to play.", lower_bound=1)
    absl_flags.DEFINE_integer("seed", 0, "Seed of the environment.", lower_bound=0, upper_bound=2**32 - 1)
    absl_flags.DEFINE_float(
        "epsilon_greedy", 0.0, "Probability with which each choice is sampled.", lower_bound=0.0, upper_bound=1.0
    )
    absl_flags.DEFINE_bool("best", False, "Play the agent with the best evaluation instead of the newest checkpoint.")
    absl_flags.DEFINE_bool(
        "trust", False, "Allow a run that you did not train here to import modules. They are code: look at them first."
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
    pictures = Pictures(given.record_file, given.film_strip, given.timeline, given.record_episodes, given.overlay)

    from taac import registry
    from taac.acting.evaluation import evaluate
    from taac.demonstrations.episode_files import EpisodeWriter, check_new_file
    from taac.training.saved_agent import load_saved

    if given.record_demonstrations:
        check_new_file(given.record_demonstrations)
    registry.register()
    saved = load_saved(flags.root_dir(), given.best, given.trust, **pictures.environment_arguments)
    environment = saved.environment
    try:
        recorder = pictures.begin(environment)
        writer = EpisodeWriter(given.record_demonstrations, environment) if given.record_demonstrations else None

        def on_step(time_step: TimeStep, alg_step: AlgStep) -> None:
            for watcher in (recorder, writer):
                if watcher is not None:
                    watcher(time_step, alg_step)

        try:
            episodes = evaluate(saved.agent, environment, given.num_episodes, given.seed, given.epsilon_greedy, on_step)
        finally:
            pictures.close()
        drawn = pictures.finish(environment, saved.method)
    finally:
        environment.close()
    _report(episodes, environment.name)
    for file in drawn:
        print(printable(file))
    if writer is not None:
        writer.save()
        print(f"{printable(writer.path)}: {writer.num_episodes} episodes, {writer.num_transitions} transitions")


def _report(episodes: Sequence[Episode], name: str) -> None:
    from taac.acting.metrics import summarize

    for number, episode in enumerate(episodes, 1):
        total = float(episode.ret.sum())
        print(
            f"episode {number}: return {total:.2f}, length {episode.length}, repeated {episode.repeated / episode.length:.0%}"
        )
    summary = summarize(episodes)
    print(
        f"{summary.episodes} episodes of {name}: return {summary.return_mean:.2f} +- {summary.return_std:.2f}, "
        f"length {summary.length:.1f}, fraction repeated {summary.fraction_repeated:.3f}"
    )
