"""The pictures that `taac play` records of its first episodes: a video, a film strip, a timeline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from taac.errors import TaacError

if TYPE_CHECKING:
    from taac.environments.vector_environment import VectorEnvironment
    from taac.pictures.video import Recorder

Name: TypeAlias = "str | Path | None"


class Pictures:
    """The requested files. Files that cannot be written are refused before any work.

    Args:
        record_file, film_strip, timeline: new files, or None.
        record_episodes: number of episodes in the video. Strip and timeline show the first.
        overlay: whether each frame of the video shows what the agent does.
    """

    def __init__(self, record_file: Name, film_strip: Name, timeline: Name, record_episodes: int, overlay: bool):
        self._video = new_file("--record_file", record_file, ".gif", ".mp4")
        self._strip = new_file("--film_strip", film_strip, ".png")
        self._timeline = new_file("--timeline", timeline, ".png")
        self.record_episodes, self._overlay = record_episodes, overlay
        self._files = [path for path in (self._video, self._strip, self._timeline) if path]
        if len(set(self._files)) < len(self._files):
            raise TaacError(f"--film_strip and --timeline name the same file, {self._strip}; use two names")

    @property
    def environment_arguments(self) -> dict[str, Any]:
        """The arguments of `create_environment` that the files need. Only Gymnasium's environments record steps."""
        if not self._files:
            return {}
        return {"recorded": True, "engine": "gymnasium", **({"render_mode": "rgb_array"} if self._video or self._strip else {})}

    def begin(self, environment: VectorEnvironment) -> Recorder | None:
        """Returns a recorder to be called at every step of the evaluation, or None if no file was requested."""
        if not self._files:
            return None
        from taac.pictures.video import Film, Recorder, VideoFile

        self._film, self._writer = Film(), None
        watchers: list[Any] = [self._film] if self._strip or self._timeline else []
        if self._video:
            self._writer = VideoFile(self._video, environment.render_fps, self._overlay)
            watchers.append(self._writer)
        return Recorder(environment, watchers, self.record_episodes, film_every=1 if self._video or self._strip else 0)

    def close(self) -> None:
        """Closes the video. Call it even if playing failed."""
        if self._files and self._writer:
            self._writer.close()

    def discard(self) -> None:
        """Removes the video of episodes that failed, so that its name can be used again."""
        if self._video:
            self._video.unlink(missing_ok=True)

    def finish(self, environment: VectorEnvironment, method: str) -> list[Path]:
        if not (self._strip or self._timeline):
            return self._files
        import numpy as np

        from taac import nest
        from taac.analysis.styles import shortened
        from taac.pictures import figures

        steps = self._film.steps
        decided = np.stack([s.decided for s in steps])
        title = f"{shortened(method, 60)} on {environment.name}: return {steps[-1].ret:.1f}"
        if self._strip:
            frames = [s.frame for s in steps if s.frame is not None]
            figures.film_strip(self._strip, frames, decided, title)
        if self._timeline:
            nothing = np.full(decided.shape[1], np.nan)
            probabilities = [s.switch_probability for s in steps]
            has_any = any(p is not None for p in probabilities)
            names, choices = action_parts(environment)
            switching = np.stack([nothing if p is None else p for p in probabilities]) if has_any else None
            actions, rewards = np.stack([s.action for s in steps]), np.array([s.reward for s in steps])
            title = f"{title}, {len(steps)} steps, {decided.any(1).sum()} decisions"
            if len(nest.flatten(environment.action_spec)) == 1:  # of several agents, each decides for its own dimensions
                decided = np.repeat(decided, actions.shape[1] // decided.shape[1], axis=1)
            figures.timeline(self._timeline, actions, names, choices, decided, switching, rewards, title)
        return self._files


def action_parts(environment: VectorEnvironment) -> tuple[list[str], list[int | None]]:
    """Returns, for each element of `EpisodeStep.action`, a label, and the number of choices if it is a choice, else None."""
    import numpy as np

    from taac import nest

    names, choices = list[str](), list[int | None]()
    for path, spec in nest.flatten_with_path(environment.action_spec):
        count = spec.numel
        label = f"{'choice' if spec.is_categorical else 'action'}{' ' + path if path else ''}"
        names += [label] if count == 1 else [f"{label}[{i}]" for i in range(count)]
        each = np.broadcast_to(spec.num_choices, spec.shape).flatten().tolist() if spec.is_categorical else [None] * count
        choices += each
    if environment.duration_coordinate:
        names[-1] = "duration"
    return names, choices


def new_file(flag: str, name: Name, *endings: str) -> Path | None:
    """Returns the path of a file that can be created: of one of these endings, in a folder that exists, under a new name."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix not in endings:
        raise TaacError(f"{flag} must end in {' or '.join(endings)}, got '{name}'")
    if os.path.lexists(path):  # including a link to nothing
        raise TaacError(f"{flag} {name} exists; use a new name")
    if not path.parent.is_dir():
        raise TaacError(f"{flag} {name}: there is no folder {path.parent}")
    return path
