"""What summaries show of updates: means since the last summary, exact over a resume."""

from __future__ import annotations

import pytest
import torch

from taac.training.diagnostics import RunningMeans
from tests.training.test_tensorboard import train


def scalars(**values):
    return {tag: torch.tensor(value) for tag, value in values.items()}


def test_means_of_updates_that_report_different_tags():
    means = RunningMeans()
    assert means.means() == {}
    means.add(scalars(a=1.0, b=4.0))
    means.add(scalars(a=2.0, b=8.0))
    means.add(scalars(a=6.0))
    assert means.means() == {"a": 3.0, "b": 6.0}
    means.clear()
    assert means.means() == {}
    means.add(scalars(b=5.0))
    assert means.means() == {"b": 5.0}


def test_a_value_that_moves_later_was_taken_as_it_was():
    """A temperature's alpha may be its parameter itself."""
    means, alpha = RunningMeans(), torch.tensor(1.0)
    for value in (1.0, 2.0, 6.0):
        alpha.fill_(value)
        means.add({"alpha": alpha, "other": torch.tensor(0.0)})
    assert means.means() == {"alpha": 3.0, "other": 0.0}


def test_many_small_values_lose_no_digits():
    means = RunningMeans()
    for _ in range(20_000):
        means.add(scalars(a=0.1))
    assert means.means()["a"] == pytest.approx(torch.tensor(0.1).item(), rel=1e-12)


def test_its_state_is_all_of_it():
    means, resumed = RunningMeans(), RunningMeans()
    means.add(scalars(a=0.1, b=0.7))
    means.add(scalars(a=1 / 3))
    resumed.load_state_dict(means.state_dict(), torch.device("cpu"))
    for one in (means, resumed):
        one.add(scalars(a=0.2, b=0.1))
    assert resumed.means() == means.means()


def test_a_summary_is_the_mean_of_its_updates(tmp_path, monkeypatch):
    """Twenty environment steps after the initial collection, a summary every five: four of five updates each, by hand."""
    from taac.training.learner import Learner
    from taac.training.summaries import SummaryWriter

    seen, written = [], []
    update, write = Learner.update, SummaryWriter.scalars

    def watched(self, *args):
        info = update(self, *args)
        seen.append(info.extra["loss/critic"].item())
        return info

    def scalars_of(self, values, env_steps):
        write(self, values, env_steps)
        if "count/updates" in values:
            written.append((env_steps, values.get("loss/critic")))

    monkeypatch.setattr(Learner, "update", watched)
    monkeypatch.setattr(SummaryWriter, "scalars", scalars_of)
    train(tmp_path, "sac", "num_env_steps = 120", "Trainer.summary_interval = 5")
    assert len(seen) == 20
    means = [sum(seen[i : i + 5]) / 5 for i in range(0, 20, 5)]
    assert [value for _, value in written if value is not None] == pytest.approx(means, rel=1e-6)
    assert [step for step, value in written if value is None] == list(range(5, 101, 5)), "no update, no mean"
