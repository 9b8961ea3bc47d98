"""Observations and actions of an environment in the spaces that it declares."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from taac.data_structures import StepType
from taac.environments.create import create_environment
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError
from tests.environments.toys import Counter, Faulty, Probe, env_id

FIRST, MID, LAST = (int(t) for t in StepType)


def probes(num_envs: int, **spaces_: spaces.Space) -> tuple[VectorEnvironment, list[Probe]]:
    envs = [Probe(**spaces_) for _ in range(num_envs)]
    vector = SyncVectorEnv([functools.partial(lambda env: env, env) for env in envs], copy=False)
    return VectorEnvironment(vector, "probe"), envs


def test_actions_are_rescaled_on_the_way_and_kept_as_they_were_given():
    box = spaces.Box(np.array([-1.0, 0.0]), np.array([3.0, 10.0]), dtype=np.float64)
    environment, envs = probes(2, action_space=box)
    environment.reset(0)
    action = torch.tensor([[-1.0, 1.0], [0.5, 0.0]])
    frame = environment.step(action)
    assert torch.equal(frame.prev_action, action)
    assert envs[0].received[0].tolist() == [-1, 10] and envs[1].received[0].tolist() == [2, 5]
    assert envs[0].received[0].dtype == np.float64
    assert environment.action_spec.shape == (2,)
    assert (environment.action_spec.minimum == -1).all() and (environment.action_spec.maximum == 1).all()


def test_nested_actions_arrive_part_by_part_and_are_zero_at_first():
    """A choice counted from its start and a rescaled box, in environments whose episodes end at different times."""

    class Nested(Counter):
        def __init__(self, scripts):
            super().__init__(scripts)
            self.action_space = spaces.Dict({"k": spaces.Discrete(4, start=2), "a": spaces.Box(0.0, 10.0, (1,))})

        def _observe(self, action):
            return super()._observe([action["k"], action["a"][0]] if isinstance(action, dict) else action)

    make = [functools.partial(Nested, (script,)) for script in (("2t",), ("9n",))]
    environment = VectorEnvironment(SyncVectorEnv(make, copy=False), "nested")
    assert list(environment.action_spec) == ["a", "k"]
    frame = environment.reset(0)
    assert frame.prev_action["k"].tolist() == [0, 0] and frame.prev_action["k"].dtype == torch.int64
    assert frame.prev_action["a"].tolist() == [[0], [0]]
    rows = []
    for step in range(4):
        k, a = torch.tensor([step % 4, (step + 1) % 4]), torch.tensor([[0.0], [0.5]]) + step / 10
        frame = environment.step({"a": a, "k": k})
        rows.append((frame.prev_action["k"].tolist(), frame.observation[:, 2].tolist(), frame.step_type.tolist()))
        not_first = frame.step_type != FIRST
        assert torch.equal(frame.prev_action["a"], a * not_first[:, None])
        sent = torch.where(not_first, (a[:, 0] + 1) * 5, 0.0)  # [-1, 1] to [0, 10]
        torch.testing.assert_close(frame.observation[:, 3], sent)
    # Environment 0 ends at step 2 and begins again at 3, where its action is ignored.
    assert rows == [
        ([0, 1], [2, 3], [MID, MID]), ([1, 2], [3, 4], [LAST, MID]), ([0, 3], [0, 5], [FIRST, MID]),
        ([3, 0], [5, 2], [MID, MID]),
    ]  # fmt: skip


def test_a_fault_after_a_nested_action_reports_every_part_of_it():
    class Pair(Faulty):
        def __init__(self):
            super().__init__(seed=1)
            self.action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))

    environment = VectorEnvironment(SyncVectorEnv([Pair, Pair], copy=False), "nested")
    environment.reset(0)
    with pytest.raises(TaacError, match=r"number 1 of 2.*was \(2, \[0\.25, -0\.5\]\)"):
        environment.step((torch.tensor([0, 2]), torch.tensor([[0.0, 0.0], [0.25, -0.5]])))


HALF = spaces.Box(-0.5, 0.5, (1,))


@pytest.mark.parametrize(
    "spaces_, message",
    [
        ({"observation_space": spaces.Dict({"words": spaces.Text(5)})}, "at '/words' is Text"),
        ({"observation_space": spaces.Dict({})}, r"observation space at '/' is Dict\(\), which holds no numbers"),
        ({"observation_space": spaces.Tuple(())}, "holds no numbers"),
        ({"observation_space": spaces.Box(-1, 1, (0,))}, "holds no numbers"),
        ({"observation_space": spaces.Dict({"a": spaces.Box(-1, 1, (2, 0)), "b": spaces.Discrete(2)})}, "at '/a' is Box"),
        ({"observation_space": spaces.Dict({"a": spaces.Dict({}), "b": spaces.Discrete(2)})}, "at '/a' is Dict"),
        *(
            ({f"{kind}_space": spaces.Dict(parts)}, f"the {kind} space at '/' has {why}: files name")
            for kind in ("observation", "action")
            for parts, why in (
                ({"arm/pos": HALF, "arm": spaces.Dict({"pos": HALF})}, "two parts that are both called 'arm.pos'"),
                ({"arm.0": HALF, "arm": spaces.Tuple((HALF,))}, r"two parts that are both called 'arm\.0'"),
                ({"/arm": HALF, "arm": HALF}, "two parts that are both called 'arm'"),
                ({0: HALF, 1: HALF}, "the key 0, which is no text"),
                ({("a", 1): HALF}, r"the key \('a', 1\), which is no text"),
            )
        ),
        ({"action_space": spaces.Box(-1, 1, (0,))}, "the action space at '/' is Box.*holds no number"),
        ({"action_space": spaces.Tuple(())}, "holds no number"),
        ({"action_space": spaces.Dict({"a": spaces.Dict({}), "b": spaces.Discrete(2)})}, "holds no number"),
        ({"action_space": spaces.Box(-np.inf, np.inf, (1,))}, "unbounded"),
        ({"action_space": spaces.Box(1.0, 1.0, (1,))}, "empty range"),
        ({"action_space": spaces.MultiBinary(2)}, "not supported"),
    ],
)
def test_spaces_that_cannot_be_used_are_refused(spaces_, message):
    with pytest.raises(TaacError, match=message):
        create_environment(env_id("Probe"), env_kwargs=spaces_)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED, None])
def test_other_autoreset_modes_are_refused(mode):
    vector = SyncVectorEnv([Probe])
    vector.metadata["autoreset_mode"] = mode
    with pytest.raises(TaacError, match=rf"'it' has autoreset mode {mode}.*NEXT_STEP"):
        VectorEnvironment(vector, "it")
