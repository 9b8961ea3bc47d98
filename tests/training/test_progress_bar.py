"""The progress bar of a training run."""

from __future__ import annotations

import io

import pytest
from tqdm import tqdm

from taac.training import progress_bar
from taac.training.progress_bar import ProgressBar


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    return now


def test_time_left_is_that_of_steps_with_updates(clock):
    text = io.StringIO()

    def bar(**settings):
        return tqdm(file=text, **{**settings, "mininterval": 0, "miniters": 1})

    with ProgressBar(1000, 0, bar, 0.01) as shown:
        for steps in range(0, 401, 100):  # random steps, 100 in a second
            clock[0] += 1.0
            shown(steps, 0, None, 0.0)
        assert "<?," in text.getvalue().splitlines()[-1] and "<00:0" not in text.getvalue()
        for steps in range(401, 501):  # a step in 2 seconds
            clock[0] += 2.0
            shown(steps, steps - 400, None, 0.0)
    assert "<16:40," in text.getvalue().rpartition("500/1000")[2], text.getvalue()[-300:]
