"""Checks of what fits together, with parts that hold only what a check reads."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from taac.errors import TaacError
from taac.ops.schedules import LinearSchedule, PiecewiseSchedule
from taac.training.checks import check_batches, check_demonstrations, check_segments

PLAIN, COMPILED = SimpleNamespace(compiled=False), SimpleNamespace(compiled=True)
FALLING, STEPS = LinearSchedule(8.0, 1.0, updates=5), PiecewiseSchedule((8.0, 2.0), updates=(0, 5))


def replay(smallest):
    return SimpleNamespace(min_batch_size=smallest)


@pytest.mark.parametrize("agent, size", [(PLAIN, 2), (PLAIN, LinearSchedule(8.0, 1.6, updates=5)), (COMPILED, STEPS)])
def test_batches_that_fit(agent, size):
    """Sizes are rounded: 1.6 is 2. A monitor may be a plain function, without a check."""
    check_batches(size, agent, replay(2), lambda *given: {})
    check_batches(size, agent, replay(2), None)


@pytest.mark.parametrize(
    "agent, size, message",
    [
        (PLAIN, 1, "must be 2 or more with SimpleNamespace, got 1"),
        (PLAIN, FALLING, "must be 2 or more with SimpleNamespace, got 1"),
        (COMPILED, LinearSchedule(8.0, 2.0, updates=5), "bind a PiecewiseSchedule"),
    ],
)
def test_batches_that_do_not_fit(agent, size, message):
    with pytest.raises(TaacError, match=message):
        check_batches(size, agent, replay(2), None)


@pytest.mark.parametrize("durations, least", [((1, 1), 8), ((1, 3), 24)])
def test_initial_collection_holds_a_segment_of_each_environment_also_if_actions_are_repeated(durations, least):
    environment = SimpleNamespace(num_envs=2, durations=durations)
    agent = SimpleNamespace(algorithm=SimpleNamespace(min_segment_length=2, max_segment_length=None, min_segment_reason=""))
    replay_buffer = SimpleNamespace(length=100)
    check_segments(4, least + 1, least, environment, agent, replay_buffer)
    with pytest.raises(TaacError, match=f"x action_repeat = {least}, so that .* got {least - 1}"):
        check_segments(4, 1000, least - 1, environment, agent, replay_buffer)
    for steps in (1, least, least + 1, 2 * least + 2, 1000):  # what is advised is taken
        with pytest.raises(TaacError, match=rf"num_env_steps {steps} must be above .*collect_steps 1000: ") as error:
            check_segments(4, steps, 1000, environment, agent, replay_buffer)
        advised = re.search(r"set initial_collect_steps=(\d+)$|shortest run has (\d+)$", str(error.value))
        assert (advised[1] is None) == (steps <= least)
        check_segments(4, int(advised[2] or steps), int(advised[1] or least), environment, agent, replay_buffer)


def test_demonstrations_hold_at_least_a_segment():
    check_demonstrations(4, 4)
    with pytest.raises(TaacError, match=r"3 frames, fewer than Trainer\.segment_length = 4"):
        check_demonstrations(3, 4)
