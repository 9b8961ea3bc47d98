"""A measured process: pinned to one core, it gets ready, and then measures a stretch of work each time it is asked.

Imports nothing but the standard library, so that it runs in the environments of others. Requests come as lines of JSON on
standard input, answers go as lines of JSON to standard output, which nobody else may write to.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any


class Missing(Exception):
    """What is to be measured is not there; no error."""


class Meter:
    """Counts units of work, and answers how many were done in how many seconds.

    Whoever works calls `tick` as it goes. The first `warmup` units are not counted; while no one asks, `tick` waits. When
    the one who asks is gone, it ends the process.

    Args:
        answer: sends a reply.
        warmup: units before the process says that it is ready.
        finish: called before the clock is read, for work that is still under way.
    """

    def __init__(
        self, answer: Callable[..., None], warmup: int, about: dict[str, Any], finish: Callable[[], Any] | None = None
    ):
        self._answer, self._warmup, self._about = answer, warmup, about
        self._finish = finish or (lambda: None)
        self._warm, self._units, self._start, self._deadline = False, 0.0, 0.0, 0.0

    def tick(self, units: float = 1) -> None:
        self._units += units
        if not self._warm:
            if self._units < self._warmup:
                return
            self._finish()
            self._warm = True
            self._answer(ready=True, **self._about)
        elif time.perf_counter() < self._deadline:
            return
        else:
            self._finish()
            self._answer(units=self._units, seconds=time.perf_counter() - self._start)
        request = sys.stdin.readline()
        if not request:
            raise SystemExit(0)
        self._units, self._start = 0.0, time.perf_counter()
        self._deadline = self._start + json.loads(request)["seconds"]


def run(tasks: dict[str, Callable[[dict[str, Any], Callable[..., None]], None]]) -> None:
    """Runs the process: options as JSON in the first argument, among them `task`, and `cpu` to pin to."""
    options = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not come between the answers

    def answer(**content: Any) -> None:
        print(json.dumps(content), file=out, flush=True)

    if options.get("cpu") is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options["cpu"]})
    try:
        tasks[options["task"]](options, answer)
    except Missing as error:
        answer(missing=str(error))
    except Exception as error:
        traceback.print_exc()
        answer(failed=f"{type(error).__name__}: {error}")
