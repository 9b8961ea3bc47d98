"""Every method against an environment that keeps the books itself: steps, and repetition as it reached the environment."""

from __future__ import annotations

import numpy as np
import pytest

from taac import configuration
from taac.training import experiment
from tests.methods import DISCRETE_METHODS, every_method

NEVER_REPEATS = {"sac", "sac_ntd", "sac_recurrent", "sac_value", "td3", *DISCRETE_METHODS}
CURVES = {"taac_l", "taac_q", "sac_chunk", "taac_chunk"}  # going on changes the action: it cannot be seen in actions alone


def trained(method, num_envs=3):
    loaded = configuration.load(
        ["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"],
        [
            "create_environment.env_name = 'tests.environments.toys:taac-test/Ledger-v0'",
            f"create_environment.env_kwargs = {{'choices': {997 if method in DISCRETE_METHODS else None}}}",
            f"num_envs = {num_envs}", "num_env_steps = 840", "initial_collect_steps = 600", "unroll_length = 4",
            "hidden_layers = (16,)", "batch_size = 16", "replay_length = 200",
            *(["ZetaExplorer.epsilon = 0.2"] if method == "sac_ez" else []),
        ],
    )  # fmt: skip
    trainer = configuration.build(experiment.create_experiment)
    loaded.check_used()
    # An episode is recorded with the step that follows its last.
    while trainer.env_steps < trainer.num_env_steps or trainer.collector.rollout.time_step.is_last().any():
        trainer.collect()
        trainer.learn()
    trainer.close()
    return trainer, [env.unwrapped for env in trainer.environment._env.envs]


@pytest.mark.parametrize("method", every_method("taac", "sac_ez", "sac_nrep", "sac_krep"))
def test_steps_and_repetition_are_those_that_reached_the_environment(method):
    trainer, ledgers = trained(method)
    assert trainer.env_steps == sum(ledger.steps for ledger in ledgers)
    assert trainer.learner.num_updates == (trainer.env_steps - 600) // 12
    sent = [actions for ledger in ledgers for actions in ledger.episodes]
    recorded = trainer.collector.ended
    assert len(recorded) == len(sent) > 60
    # Environments end in any order: episodes are matched by length and return (of few choices, many would be alike).
    key = lambda length, ret: (length, round(float(ret), 4))  # noqa: E731
    sent.sort(key=lambda actions: key(len(actions), actions[:, 0].sum(dtype=np.float64)))
    recorded.sort(key=lambda episode: key(episode.length, episode.ret))
    for episode, actions in zip(recorded, sent, strict=True):
        assert episode.length == len(actions)
        equal = actions[1:] == actions[:-1]
        assert episode.same == pytest.approx(equal.mean(1).sum())
        second = np.diff(actions, n=2, axis=0)
        assert episode.jerk == pytest.approx(float(np.mean(second**2)), rel=1e-4, abs=1e-7)
        if method in NEVER_REPEATS:
            assert episode.repeated == 0
            assert episode.same == 0 or method in DISCRETE_METHODS  # chosen again, and decided all the same
        elif method not in CURVES:
            # An episode may begin by going on with the action of rest, which no earlier step shows.
            began = np.all(actions[0] == 0) * 1
            assert episode.repeated == pytest.approx(equal.mean(1).sum() + began)
            assert episode.decisions == len(actions) - np.all(equal, 1).sum() - began
    if method not in NEVER_REPEATS:
        assert sum(episode.repeated for episode in recorded) > 0
