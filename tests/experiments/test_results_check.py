"""`make results-check`: its interval, its verdict, and that it reads a finished run again."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.results import check


def test_the_interval_is_that_of_the_mean_of_further_seeds():
    """t(0.975, 9) = 2.26216 by a table; sd sqrt(10 / 9) sqrt(1/10 + 1/1) = 568 x 1.054093 x 1.048809."""
    low, high = check.interval(9068, 568, 10, 1)
    assert (low, high) == pytest.approx((9068 - 1420.5, 9068 + 1420.5), abs=0.1)
    wide, narrow = high - low, check.interval(9068, 568, 10, 5)
    assert narrow[1] - narrow[0] == pytest.approx(wide * (0.3 / 1.1) ** 0.5)


@pytest.mark.parametrize("returns, agrees", [([9300.0], True), ([7000.0], False), ([9300.0, 6000.0], False)])
def test_the_verdict(returns, agrees):
    """The 95% interval reaches from 7647 for one seed, and from 8019 for the mean of two."""
    found, sentence = check.verdict(returns, check.the_entry())
    assert found is agrees and ("inside" if agrees else "OUTSIDE") in sentence
    assert "9068 +- 568 (n = 10)" in sentence and f"(n = {len(returns)})" in sentence and "tianshou" in sentence


def test_a_short_slice_trains_and_is_read_again(tmp_path, monkeypatch):
    entry = check.the_entry()._replace(env_steps=20, uncounted_steps=40)
    small = {"batch_size": 8, "hidden_layers": (8,), "evaluation_interval": 60, "evaluation_episodes": 1}
    first = check.train(tmp_path, 0, entry, **small)
    assert first > 0
    curve = check.taac.Run(tmp_path / "seed_0").curve
    assert (curve["env_steps"][-1], curve["updates"][-1]) == (60, 20)  # the random steps before training come on top
    monkeypatch.setattr(check.taac, "train", None, raising=False)  # a finished run is not trained again
    assert check.train(tmp_path, 0, entry) == first


def test_the_published_spread_divides_by_n():
    """The returns of the ten published seeds at this step, as their file has them."""
    seeds = [9319.2461, 8442.873, 9347.6865, 9353.4678, 9329.8984, 9326.4336, 9334.1406, 7562.1499, 9324.918, 9338.2666]
    entry = check.the_entry()
    assert (entry.mean, entry.sd, entry.n) == (round(np.mean(seeds)), round(np.std(seeds)), len(seeds))
    assert "divided by n" in entry.protocol and f"after {entry.uncounted_steps:,} random ones, not counted" in entry.protocol
