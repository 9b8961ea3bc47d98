"""What `taac play` records of its first episodes: a video, a film strip, a timeline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taac.errors import TaacError

if TYPE_CHECKING:
    from taac.environments.vector_environment import VectorEnvironment
    from taac.pictures.steps import Recorder


class Pictures:
    """The files asked for, refused before any work where they cannot be written.

    Args:
        record_file, film_strip, timeline: new files, or None.
        record_episodes: episodes in the video; strip and timeline show the first.
        overlay: whether the video says on each frame what the agent does.
    """

    def __init__(
        self, record_file: str | None, film_strip: str | None, timeline: str | None, record_episodes: int, overlay: bool
    ):
        self._video = new_file("--record_file", record_file, ".gif", ".mp4")
        self._strip = new_file("--film_strip", film_strip, ".png")
        self._timeline = new_file("--timeline", timeline, ".png")
        self._episodes, self._overlay = record_episodes, overlay
        self._files = [path for path in (self._video, self._strip, self._timeline) if path]
        if len(set(self._files)) < len(self._files):
            raise TaacError(f"--film_strip and --timeline are one file, {self._strip}; give two names")

    @property
    def environment_arguments(self) -> dict[str, Any]:
        """What `create_environment` needs for them."""
        if not self._files:
            return {}
        return {"recorded": True, **({"render_mode": "rgb_array"} if self._video or self._strip else {})}

    def begin(self, environment: VectorEnvironment) -> Recorder | None:
        """What is to see every step of the evaluation; None if nothing was asked for."""
        if not self._files:
            return None
        from taac.pictures.steps import Recorder
        from taac.pictures.video import Film, VideoFile

        self._film, self._writer = Film(), None
        watchers: list[Any] = [self._film] if self._strip or self._timeline else []
        if self._video:
            self._writer = VideoFile(self._video, environment.render_fps, self._overlay)
            watchers.append(self._writer)
        return Recorder(environment, watchers, self._episodes, film_every=1 if self._video or self._strip else 0)

    def close(self) -> None:
        """Ends the video, also where playing failed."""
        if self._files and self._writer:
            self._writer.close()

    def finish(self, environment: VectorEnvironment, method: str | None) -> list[Path]:
        """Draws strip and timeline; gives all files."""
        if not (self._strip or self._timeline):
            return self._files
        from taac.pictures import figures

        steps = self._film.steps
        decided = np.stack([s.decided for s in steps])
        title = f"{environment.name}{', ' + method if method else ''}: return {steps[-1].ret:.1f}"
        if self._strip:
            frames = [s.frame for s in steps if s.frame is not None]
            figures.film_strip(self._strip, frames, decided, title)
        if self._timeline:
            nothing = np.full(decided.shape[1], np.nan)
            looked = [s.switch_probability for s in steps]
            names, choices = action_parts(environment)
            figures.timeline(
                self._timeline,
                np.stack([s.action for s in steps]),
                names,
                choices,
                decided,
                np.stack([nothing if p is None else p for p in looked]) if any(p is not None for p in looked) else None,
                np.array([s.reward for s in steps]),
                f"{title}, {len(steps)} steps, {decided.any(1).sum()} decisions",
            )
        return self._files


def action_parts(environment: VectorEnvironment) -> tuple[list[str], list[int | None]]:
    """A label for each number of an action, and of how many choices it is one, if it is; in the order of `EpisodeStep.action`."""
    from taac import nest

    names, choices = list[str](), list[int | None]()
    for path, spec in nest.flatten_with_path(environment.action_spec):
        count = spec.numel
        label = f"{'choice' if spec.is_categorical else 'action'}{' ' + path if path else ''}"
        names += [label] if count == 1 else [f"{label}[{i}]" for i in range(count)]
        choices += (
            np.broadcast_to(spec.num_choices, spec.shape).flatten().tolist() if spec.is_categorical else [None] * count
        )
    return names, choices


def new_file(flag: str, name: str | None, *endings: str) -> Path | None:
    """The path, of a file that can be made.

    Raises:
        TaacError: another ending, a file that exists, a folder that does not.
    """
    if name is None:
        return None
    path = Path(name)
    if path.suffix not in endings:
        raise TaacError(f"{flag} must end in {' or '.join(endings)}, got '{name}'")
    if os.path.lexists(path):  # a link, wherever it leads
        raise TaacError(f"{flag} {name} exists; give a new name")
    if not path.parent.is_dir():
        raise TaacError(f"{flag} {name}: there is no folder {path.parent}")
    return path
