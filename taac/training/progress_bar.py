"""The progress bar of a training run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tqdm import tqdm

from taac.runs.layout import EpisodeSummary


class ProgressBar:
    """Shows environment steps and updates per second, time left, the last evaluation's return and the fraction repeated.

    The time left is that of environment steps since the first update. Where the bar can no longer be written, it ends and the run
    goes on: Ctrl-C also ends a `tee` that reads it.

    Args:
        total, initial: environment steps of the whole run, and those taken already.
        interval: seconds between two views; None: 0.5 on a terminal, and 15 elsewhere, because each view is then a line.
    """

    def __init__(self, total: int, initial: int, kind: Callable[..., Any] = tqdm, interval: float | None = None):
        shown = sys.stderr is not None and not sys.stderr.closed
        interval = interval or (0.5 if shown and sys.stderr.isatty() else 15.0)
        self._bar = kind(
            total=total, initial=initial, unit=" steps", mininterval=interval, smoothing=0.1, dynamic_ncols=True,
            **({} if shown else {"disable": True}),
        )  # fmt: skip
        self._interval, self._last = interval, time.monotonic()
        self._updates: int | None = None
        self._began: tuple[float, int] | None = None  # time and environment steps after the first update
        self._show_left("?")

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        with self._until_it_fails():
            self._bar.close()

    @contextlib.contextmanager
    def _until_it_fails(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._bar.disable = True

    def __call__(self, env_steps: int, updates: int, evaluation: EpisodeSummary | None, repeated: float) -> None:
        now = time.monotonic()
        if self._updates is None:
            self._updates = updates
        if self._began is None and updates:
            self._began = now, env_steps
        if now - self._last >= self._interval:
            rate = (updates - self._updates) / (now - self._last)
            returned = "-" if evaluation is None else f"{evaluation.return_mean:.1f}"
            self._bar.set_postfix_str(f"{rate:.0f} updates/s, return {returned}, repeated {repeated:.0%}", refresh=False)
            self._last, self._updates = now, updates
            if self._began is not None and env_steps > self._began[1]:
                pace = (now - self._began[0]) / (env_steps - self._began[1])
                self._show_left(tqdm.format_interval((self._bar.total - env_steps) * pace))
        with self._until_it_fails():
            self._bar.update(env_steps - self._bar.n)

    def _show_left(self, left: str) -> None:
        """Shows a time left: tqdm's own would be that of random steps, which make no updates and take next to no time."""
        self._bar.bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<" + left + ", {rate_fmt}{postfix}]"
