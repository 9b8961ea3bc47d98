"""A run that has been trained: its curve, its agent, its episodes."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np

from taac.acting.metrics import summarize
from taac.analysis.curves import plots
from taac.analysis.readers import events
from taac.analysis.readers.events import Scalar
from taac.api.agent import TrainedAgent, load_in
from taac.api.environments import Environment, named, refuse_other
from taac.api.session import session
from taac.errors import TaacError
from taac.pictures.panels import image
from taac.playing.episodes import play
from taac.playing.pictures import Pictures
from taac.runs import files, layout
from taac.runs.layout import EpisodeSummary
from taac.runs.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Greedy episodes."""

    returns: np.ndarray  # [n], or [n, D] if the reward is a vector; undiscounted sums of the environment's rewards
    lengths: np.ndarray  # [n] steps
    summary: EpisodeSummary  # averages over the episodes
    files: tuple[Path, ...] = ()  # what was recorded of them

    @property
    def return_mean(self) -> float:
        """The mean return; of a vector reward, of the sum of its parts."""
        return self.summary.return_mean

    @property
    def return_std(self) -> float:
        """The standard deviation of the return over the episodes."""
        return self.summary.return_std

    def __repr__(self) -> str:
        found = self.summary
        return (
            f"{found.episodes} episodes: return {found.return_mean:.2f} +- {found.return_std:.2f}, "
            f"{found.decisions:.1f} decisions in {found.length:.1f} steps"
        )


class Run:
    """A run folder, as `taac.train` returns it. `taac.Run(root_dir)` is a run that was trained before.

    `environment` and `trust` are as in `taac.load`. Raises TaacError if the folder holds no run, or one of another environment.
    """

    def __init__(self, root_dir: str | Path, *, environment: Environment | None = None, trust: bool = False):
        self.root_dir = Path(root_dir)
        self._environment, self._trust = named(environment), trust
        self.about  # noqa: B018  refuses a folder without a run
        refuse_other(environment, self._environment, self.root_dir)

    @property
    def about(self) -> dict[str, Any]:
        """What run.json holds: status, versions, seed, how the run began and ended."""
        return RunFolder(self.root_dir).read_run()

    @property
    def status(self) -> str:
        """"finished", "interrupted", "failed", "diverged", "pruned" by a sweep, or "running" if it trains now or was killed."""
        return str(self.about.get("status"))

    @property
    def stopped(self) -> str | None:
        """Why the run was ended early by `StopWhen` or a callback; None if it was not."""
        held = self.about.get("stopped")
        return f"{held.get('why')} (at {held.get('env_steps')} environment steps)" if isinstance(held, dict) else None

    @property
    def config(self) -> str:
        """The whole configuration, a gin file that trains the run again."""
        return files.read_text(self.root_dir / layout.CONFIG, files.MAX_CONFIG_BYTES)

    @property
    def curve(self) -> dict[str, np.ndarray]:
        """The evaluations: the columns of evaluations.csv, `[n]` each, such as "env_steps" and "return_mean".

        Raises TaacError if the file is missing or damaged.
        """
        try:
            table = layout.read_evaluations(self.root_dir)
        except (OSError, files.Damaged) as error:
            raise TaacError(f"the evaluations of {self.root_dir} cannot be read: {error}") from error
        if table.damage:
            raise TaacError(f"{self.root_dir / layout.EVALUATIONS} is damaged: {table.damage}")
        rows = np.array(table.rows, dtype=np.float64).reshape(-1, len(table.columns))
        return dict(zip(table.columns, rows.T))

    @property
    def scalars(self) -> dict[str, Scalar]:
        """Every summary of training by tag, with the fields `env_steps`, `wall_time`, `seconds` and `value`, `[n]` each."""
        return dict(events.read(self.root_dir).scalars)

    @functools.cached_property
    def agent(self) -> TrainedAgent:
        """The agent of the newest checkpoint."""
        return load_in(self._environment, self.root_dir, False, self._trust)

    @functools.cached_property
    def best_agent(self) -> TrainedAgent:
        """The agent with the best evaluation."""
        return load_in(self._environment, self.root_dir, True, self._trust)

    def evaluate(
        self, num_episodes: int = 10, *, seed: int = 0, best: bool = False, switch_threshold: float | None = None
    ) -> Evaluation:
        """Plays greedy episodes and returns what came of them; see `play`."""
        return self.play(num_episodes, seed=seed, best=best, switch_threshold=switch_threshold)

    def play(
        self,
        num_episodes: int = 1,
        *,
        seed: int = 0,
        epsilon_greedy: float = 0.0,
        best: bool = False,
        record_file: str | Path | None = None,
        film_strip: str | Path | None = None,
        timeline: str | Path | None = None,
        record_demonstrations: str | Path | None = None,
        record_episodes: int = 1,
        overlay: bool = True,
        switch_threshold: float | None = None,
    ) -> Evaluation:
        """Plays episodes, as `taac play` does, and records them if asked to.

        Args:
            num_episodes: how many.
            seed: of the environment.
            epsilon_greedy: probability with which each choice is sampled instead of taking its mode.
            best: plays the agent with the best evaluation instead of the newest checkpoint.
            record_file: a new .gif or .mp4 file, for a video of the first `record_episodes` episodes.
            film_strip, timeline: new .png files, for the frames and the actions of the first episode.
            record_demonstrations: a new .npz file, for the episodes as demonstrations.
            overlay: shows in the video whether the agent acts or repeats.
            switch_threshold: the greedy agent switches where the probability is above this, in place of the run's setting.

        Raises:
            TaacError: the run cannot be loaded, a number is out of range, or a file exists.
        """
        refuse_numbers(seed, num_episodes=num_episodes, record_episodes=record_episodes)
        if not (isinstance(epsilon_greedy, (int, float, np.number)) and 0 <= epsilon_greedy <= 1):
            raise TaacError(f"epsilon_greedy must be a number in [0, 1], got {epsilon_greedy!r}")
        with session(self._environment):
            pictures = Pictures(record_file, film_strip, timeline, record_episodes, overlay)
            played = play(
                self.root_dir, int(num_episodes), int(seed), pictures, float(epsilon_greedy), best, self._trust,
                record_demonstrations, switch_threshold,
            )
        written = (*played.pictures, *([Path(played.demonstrations.path)] if played.demonstrations else []))
        returns, lengths = np.array([e.ret for e in played.episodes]), np.array([e.length for e in played.episodes])
        return Evaluation(returns, lengths, summarize(played.episodes), written)

    def plot(self) -> Any:
        """Returns a matplotlib figure: return and fraction of repeated steps against environment steps. A notebook shows it."""
        return _shown(plots.run_figure(plots.drawable(self.root_dir)))

    def __repr__(self) -> str:
        about = self.about
        return f"Run({str(self.root_dir)!r}: {about.get('method')} on {about.get('environment')}, {self.status})"


def refuse_numbers(seed: Any, **counts: Any) -> None:
    """Refuses counts that are not integers of 1 or more, and seeds out of range."""
    for name, number in counts.items():
        if not (isinstance(number, (int, np.integer)) and number >= 1):
            raise TaacError(f"{name} must be an integer, 1 or more, got {number!r}")
    if not (isinstance(seed, (int, np.integer)) and 0 <= seed < 2**32):
        raise TaacError(f"seed must be an integer in [0, 2^32), got {seed!r}")


def _shown(figure: Any) -> Any:
    """Lets a notebook show a figure, whether or not it uses pyplot."""
    figure._repr_png_ = functools.partial(image, figure, dpi=100)
    return figure
