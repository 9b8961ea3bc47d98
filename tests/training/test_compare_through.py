"""Compare-through never reaches through a step at which the executed trajectory changed."""

from __future__ import annotations

import pytest
import torch

from taac import configuration, nest
from taac.data_structures import StepType
from taac.ops.value_ops import compare_through_return
from taac.training import experiment


@pytest.mark.parametrize("method", [pytest.param("taac", marks=pytest.mark.slow), "taac_l", "taac_q"])
def test_on_replayed_segments_of_a_policy_that_has_changed_since(method):
    """With forced switches, random first trajectories, episodes that end, and a policy trained and then disturbed."""
    configuration.load(
        ["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"],
        ["create_environment.env_name = 'Pendulum-v1'", "create_environment.max_episode_steps = 9", "num_envs = 2",
         "initial_collect_steps = 100", "hidden_layers = (16,)", "batch_size = 64", "replay_length = 400",
         "TaacAlgorithm.max_repeat_steps = 3", "TaacAlgorithm.randomize_first_state_tau = True",
         "learning_rate = 1e-2", "create_experiment.evaluation_envs = 1"],
    )  # fmt: skip
    trainer = configuration.build(experiment.create_experiment)
    while trainer.env_steps < 240:
        trainer.collect()
        trainer.learn()
    trainer.close()
    algorithm = trainer.agent.algorithm
    with torch.no_grad():
        for parameter in algorithm.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    experience = trainer.agent.prepare(trainer.replay_buffer.sample(600, 6))
    time_step, (tau_prev, b) = experience
    info = algorithm.train_step(experience)

    reached = ~info.switch & (time_step.step_type != StepType.LAST)
    reached = reached[1:-1]  # frame 0 and the segment's last are never reached through
    assert 0.02 < reached.double().mean() < 0.9
    # There, what was executed is the old trajectory one step on, part by part...
    gone_on = algorithm.trajectory.advance(tau_prev)
    for executed, expected in zip(nest.flatten(tau_prev), nest.flatten(gone_on)):
        torch.testing.assert_close(executed[2:][reached], expected[1:-1][reached], rtol=0, atol=0)
    # ...and the environment saw that action.
    assert torch.equal(time_step.prev_action[2:][reached], gone_on.a[1:-1][reached])
    # No trajectory ran on beyond its limit: three frames in a row without a switch do not begin with a decision.
    inside = (time_step.step_type == StepType.MID).all(0)
    runs = b[:-3] & ~b[1:-2] & ~b[2:-1] & ~b[3:]
    assert not runs[:, inside].any()

    # A target reads no value of a frame that it reaches through, and no reward beyond a frame that stops it.
    value = torch.randn(time_step.reward.shape, dtype=torch.float64)
    reward, discount = torch.zeros_like(value), torch.ones_like(value)
    poisoned = value.clone()
    poisoned[1:-1][reached] = float("nan")
    target = compare_through_return(reward, poisoned, time_step.step_type, discount, info.switch)
    acted = time_step.step_type[:-1] != StepType.LAST
    assert target[acted].isfinite().all()
