"""Plays greedy episodes of a saved agent, and records them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import NamedTuple

from taac.acting.evaluation import evaluate
from taac.acting.metrics import Episode
from taac.data_structures import AlgStep, TimeStep
from taac.demonstrations.episode_files import EpisodeWriter
from taac.errors import TaacError
from taac.playing.pictures import Name, Pictures, new_file
from taac.playing.saved_agent import load_saved


class Played(NamedTuple):
    """Episodes, and what was recorded of them."""

    environment: str
    episodes: list[Episode]
    pictures: list[Path]
    demonstrations: EpisodeWriter | None  # which has been saved


def play(
    path: str | Path,
    num_episodes: int,
    seed: int,
    pictures: Pictures,
    epsilon: float = 0.0,
    best: bool = False,
    trusted: bool = False,
    demonstrations: Name = None,
    switch_threshold: float | None = None,
) -> Played:
    """Plays episodes with the agent of a run, and records them. Call `taac.registry.register()` first.

    Args:
        num_episodes, seed, epsilon: as in `evaluate`.
        pictures: of the first episodes.
        best, trusted, switch_threshold: as in `load_saved`.
        demonstrations: a new .npz file for the episodes.
    """
    if pictures.record_episodes > num_episodes:
        raise TaacError(
            f"record_episodes {pictures.record_episodes} is above num_episodes {num_episodes}: play as many as are recorded"
        )
    recorded = new_file("--record_demonstrations", demonstrations, ".npz")
    saved = load_saved(path, best, trusted, switch_threshold=switch_threshold, **pictures.environment_arguments)
    with contextlib.closing(saved.environment) as environment:
        recorder = pictures.begin(environment)
        writer = EpisodeWriter(recorded, environment) if recorded else None

        def on_step(time_step: TimeStep, alg_step: AlgStep) -> None:
            for watcher in (recorder, writer):
                if watcher is not None:
                    watcher(time_step, alg_step)

        try:
            with contextlib.closing(pictures):
                episodes = evaluate(saved.agent, environment, num_episodes, seed, epsilon, on_step)
        except BaseException:
            pictures.discard()
            if writer is not None and writer.num_episodes:
                writer.save()
                print(f"{writer.path} holds the {writer.num_episodes} episodes that had ended", file=sys.stderr)
            raise
        if writer is not None:
            writer.save()
        drawn = pictures.finish(environment, saved.method)
    return Played(environment.name, episodes, drawn, writer)
