"""The table of summary tags is the only source of tags."""

from __future__ import annotations

import errno
import random

import gin
import numpy as np
import pytest
import torch

from taac.analysis.readers import events
from taac.runs.layout import EpisodeSummary
from taac.runs.run_folder import RunFolder
from taac.training.summaries import SummaryWriter, known_tags
from tests.training.runs import assert_same_parameters
from tests.training.test_trainer import build


def test_an_error_of_the_disk_names_the_event_file(tmp_path):
    """TensorBoard writes in a thread, whose errors the next call raises without a name."""
    writer = SummaryWriter(tmp_path)

    def fails():
        raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer._writer, "flush", fails)
        with pytest.raises(OSError, match=r"Input/output error: '.*/events\.out\.tfevents\.\*\.taac-0-[0-9a-f]{16}'"):
            writer.flush()
    writer.close()


def test_an_unknown_tag_is_told_once_and_written(tmp_path, capsys):
    writer = SummaryWriter(tmp_path)
    for step in (0, 1):
        writer.scalars({"loss/unheard_of": 1.0, "loss/critic": 1.0}, step)
    writer.close()
    told = capsys.readouterr().err
    assert told.count("loss/unheard_of") == 1 and "summary_tags()" in told and "loss/critic" not in told
    assert events.read(tmp_path).scalars["loss/unheard_of"].env_steps.tolist() == [0, 1]


@gin.configurable(module="tests.summaries")
class Answer:
    """A monitor with a tag of its own, which draws a batch and random numbers."""

    def __call__(self, agent, replay, batch_size, length):
        agent.prepare(replay.sample_batch(batch_size, length).experience)
        np.random.rand(), random.random()
        return {"mine/answer": torch.tensor(42.0)}

    def summary_tags(self):
        return {"mine/answer": "the answer"}


def test_a_monitor_may_have_tags_of_its_own(tmp_path):
    short = ("hidden_layers = (8,)", "batch_size = 4", "initial_collect_steps = 20", "num_env_steps = 40", "replay_length = 100",
             "evaluation_episodes = 1", "Intervals.summary_interval = 30", "Evaluator.initial_evaluation = False",
             "create_environment.max_episode_steps = 20")  # fmt: skip
    trainers = []
    for name, own in (("with", ["Reporter.monitor = @tests.summaries.Answer()"]), ("without", [])):
        trainers.append(build(*short, *own))
        (folder := RunFolder(tmp_path / name)).begin("x", {})
        trainers[-1].train(folder)
        trainers[-1].close()
    assert events.read(tmp_path / "with").scalars["mine/answer"].value.tolist() == [42.0]
    assert_same_parameters(*trainers)  # it leaves random numbers and running statistics as they were


def test_every_episode_average_has_a_tag():
    names = {"return" if f == "return_mean" else f for f in EpisodeSummary._fields} - {"episodes", "info"} | {"info/{name}"}
    for phase, without in {"rollout": {"high_frequency", "multiply_adds"}, "evaluation": set()}.items():
        assert {f"{phase}/{name}" for name in names - without} == {t for t in known_tags() if t.startswith(f"{phase}/")}


def test_numbers_of_the_environment_keep_their_names(tmp_path, capsys):
    own = {"return_mean": 1.0, "speed": 2.0, "speed_mean": 3.0, "reward/forward": 4.0}
    numbers = dict.fromkeys(EpisodeSummary._fields, 0) | {"info": own}
    writer = SummaryWriter(tmp_path)
    writer.episodes("evaluation", EpisodeSummary(**numbers), 10)
    writer.close()
    found = {tag: of.value.tolist() for tag, of in events.read(tmp_path).scalars.items() if "/info/" in tag}
    assert found == {f"evaluation/info/{name}": [value] for name, value in own.items()}
    assert "no meaning" not in capsys.readouterr().err


# Prefixes of tags that are no means over updates: of episodes, and of counts and settings at the summary.
NO_MEANS = ("rollout/", "evaluation/", "time/", "count/", "schedule/", "learning_rate/", "gradient/total")


@pytest.mark.parametrize(
    "method, params",
    [
        ("taac", ["Learner.diagnostics = 'scalars'", "create_agent.reward_signals = (@RND,)"]),
        pytest.param("sac_krep", ["create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer"], marks=pytest.mark.slow),
    ],
)
def test_what_updates_report_is_averaged_since_the_last_summary(tmp_path, method, params):
    """Summaries after about 330 and 360 steps, so after about 30 updates and 30 more."""
    short = ["num_env_steps = 360", "evaluation_interval = 360", "evaluation_episodes = 1", "hidden_layers = (8,)",
             "batch_size = 4", "Intervals.summary_interval = 30"]  # fmt: skip
    trainer, folder = build(*short, *params, method=method), RunFolder(tmp_path)
    told: dict[str, list[tuple[int, float]]] = {}

    def note(of):
        for tag, value in of.learner.losses.items():
            told.setdefault(tag, []).append((of.env_steps, float(value)))

    trainer.hooks.add("after_update", note)
    folder.begin("x", {})
    trainer.train(folder)
    trainer.close()
    scalars = events.read(tmp_path).scalars
    assert {"loss/total", "policy/alpha", "critic/q"} <= set(told) <= set(scalars)
    for tag, values in told.items():
        steps = scalars[tag].env_steps.tolist()
        assert len(steps) == 2 and steps[0] >= 330
        for after, up_to, shown in zip((0, steps[0]), steps, scalars[tag].value):
            of = [value for at, value in values if after < at <= up_to]
            assert len(of) > 5 and shown == pytest.approx(sum(of) / len(of), rel=1e-5, abs=1e-6), tag
    others = {tag for tag in scalars if tag not in told and not tag.startswith(NO_MEANS)}
    diagnostics = ("critic_", "critic/target/", "critic/next_value", "policy/", "switch/", "gradient/", "signal/rnd_return",
                   "replay/fraction_repeated")  # fmt: skip
    assert all(tag.startswith(diagnostics) for tag in others), others  # `learning/test_diagnostics.py` has their means
