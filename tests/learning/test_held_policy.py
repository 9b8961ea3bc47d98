"""Updates that leave the policy as it is compute nothing for it, and change nothing else."""

from __future__ import annotations

import pytest
import torch

from tests.learning.test_compiled_update import COMPILE
from tests.methods import fitting, thinned
from tests.training.runs import SMALL as RUN
from tests.training.runs import assert_same_parameters, build, built, trained

SMALL = ("hidden_layers = (8,)", "initial_collect_steps = 60", "Learner.learning_rate = 0.01",
         "ActorCriticAlgorithm.policy_delay = 3")  # fmt: skip
METHODS = ["sac", "taac_q", "td3", "sac_value", "sac_krep", "sdar", "temporl", "sac_recurrent", "tla"]


@pytest.mark.parametrize("method", thinned(METHODS, ("taac_q", "td3", "sac_recurrent")))
def test_parameters_are_those_of_updates_that_compute_all(method, monkeypatch):
    found = []
    for whole in (False, True):
        trainer = build(*SMALL, *fitting(method), method=method)
        if whole:
            monkeypatch.setattr(trainer.learner, "_held_program", trainer.learner.uncompiled)
        trained(trainer, 7)
        found.append(trainer)
    assert_same_parameters(*found)


@pytest.mark.parametrize("method", ["sac", "taac", "td3", "sac_krep", "sdar"])
def test_no_gradient_of_the_actor_is_computed(method):
    trainer = build(*SMALL, *fitting(method), method=method)
    algorithm, calls, told = trainer.agent.algorithm, [], []
    action_gradient, update = algorithm.action_gradient, trainer.learner.update
    algorithm.action_gradient = lambda *args: calls.append(trainer.learner.num_updates + 1) or action_gradient(*args)
    trainer.learner.update = lambda *args: told.append(update(*args)) or told[-1]
    trained(trainer, 7)
    assert calls == [3, 6]
    assert ["loss/actor" in info.extra for info in told] == [False, False, True, False, False, True, False]
    trainer.close()


def test_an_actor_with_batch_statistics_proposes_once():
    """Where it learns, twice: with the statistics of the batch, and as it acts. So do the critics compare."""
    trainer = built(
        ["gin/tasks/simple_control.gin", "gin/methods/taac.gin", "gin/backbones/crossq.gin"],
        [*RUN, *SMALL, "critic/MlpBody.hidden_layers = (8,)", "actor/MlpBody.hidden_layers = (8,)"],
    )
    algorithm, calls, told = trainer.agent.algorithm, [], []
    actor, compare, update = algorithm.actor.forward, algorithm._min_q, trainer.learner.update
    algorithm.actor.forward = lambda x: calls.append("actor") or actor(x)
    algorithm._min_q = lambda *args: calls.append("critics") or compare(*args)
    trainer.learner.update = lambda *args: (calls.clear(), update(*args), told.append([*calls]))[1]
    trained(trainer, 3)
    held, learns = ["actor", "critics", "critics"], ["actor", "critics", "critics", "actor", "critics"]
    assert told == [held, held, learns]


def test_compiled_updates_have_a_program_for_each(traced_only):
    compiled = build(*SMALL, COMPILE, method="sac")
    trained(compiled, 4)
    torch.manual_seed(0)
    for program in (compiled.learner._program, compiled.learner._held_program):
        assert len(program._programs) == 1 and program.retraced == 0
    compiled.close()
