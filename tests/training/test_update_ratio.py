"""When updates are due, and what is due at intervals, without an environment."""

from __future__ import annotations

import pytest

from taac.errors import TaacError
from taac.ops.schedules import LinearSchedule
from taac.training.update_ratio import Due, Intervals, UpdateRatio


def test_transitions_earn_after_the_initial_collection():
    ratio = UpdateRatio(2, 1000, 10, unroll_length=2, updates_per_iteration=3, update_clock="transitions")  # 3/4 each
    for env_steps in range(0, 20, 4):  # transitions that take two steps each
        ratio.add_transitions(2, env_steps)
    assert ratio.updates_earned(20) == 2 * 2 * 3 // 4  # those that began at 12 and 16
    assert ratio.constant is None


def test_a_decimal_ratio_is_the_number_that_was_written():
    """The floats 0.3 and 0.6 are below 3/10 and 6/10: the update that completes a sum would come one step late."""
    for ratio, earned in ((0.3, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3]), (0.6, [0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 6])):
        due = UpdateRatio(1, 1000, 10, updates_per_env_step=ratio)
        assert [due.updates_earned(10 + steps) for steps in range(11)] == earned


@pytest.mark.parametrize("clock", ["env_steps", "transitions"])
def test_a_ratio_that_is_restored_alone_earns_as_before(clock):
    first, second = (UpdateRatio(1, 1000, 10, updates_per_iteration=2, update_clock=clock) for _ in range(2))

    def go_on(ratio, env_steps):
        taken = [2 * (49 - 10)]
        for now in env_steps:
            ratio.add_transitions(1, now - 1)
            taken.append(max(taken[-1], ratio.updates_earned(now)))
        return taken[1:]

    go_on(first, range(1, 50))
    first.refill(49)
    go_on(first, range(50, 55))
    second.load_state_dict(first.state_dict())
    earned = go_on(first, range(55, 70))
    assert earned == go_on(second, range(55, 70))
    assert earned == [2 * (49 - 10)] * 5 + [2 * (39 + n) for n in range(1, 11)]  # steps 50 to 59 fill the buffer again


@pytest.mark.parametrize("clock", ["env_steps", "transitions"])
@pytest.mark.parametrize("moments", [(0,), (4,), (30,), (30, 60), (30, 33), (30, 33, 39, 45), (3, 7, 20), (30, 40)])
def test_updates_go_on_as_soon_as_the_buffer_is_full_again(moments, clock):
    """Each step of a run that has 10 steps in its buffer earns an update; however often it is resumed with none."""
    ratio, held, taken, expected = UpdateRatio(1, 1000, 10, update_clock=clock), 0, 0, 0
    for step in range(100):
        if step in moments:
            ratio.refill(step)
            held = 0
        ratio.add_transitions(1, step)
        expected += held >= 10
        held += 1
        taken = max(taken, ratio.updates_earned(step + 1))
        assert taken == expected, step


def test_what_it_refuses():
    for arguments, message in (
        ({"unroll_length": 0}, "unroll_length must be 1 or more"),
        ({"updates_per_iteration": 0}, "updates_per_iteration must be 1 or more"),
        ({"unroll_length": 101}, "the first iteration would be longer than the run"),
        ({"update_clock": "seconds"}, "must be 'env_steps' or 'transitions', got 'seconds'"),
        ({"update_clock": "transitions", "updates_per_env_step": 0.5}, "is a ratio to environment steps"),
        ({"updates_per_env_step": 0.001}, "gives no update in the 90"),
        ({"updates_per_env_step": 0.0}, "must be above 0, or None"),
        ({"updates_per_env_step": LinearSchedule(1.0, 2.0, updates=5)}, "a number or a schedule in environment steps"),
    ):
        with pytest.raises(TaacError, match=message):
            UpdateRatio(**{"num_envs": 1, "num_env_steps": 100, "initial_collect_steps": 10, **arguments})
    UpdateRatio(1, 100, 10, unroll_length=100)  # an iteration that is the whole run


def test_a_ratio_that_follows_a_schedule_earns_the_floor_of_its_integral():
    """0.5 + t / 100, whose integral is t/2 + t^2/200: 5.5 at 10, where earning begins, then 6.105, 6.72 and 9.28 at 16."""
    ratio = UpdateRatio(1, 100, 10, updates_per_env_step=LinearSchedule(0.5, 1.5, env_steps=100))
    assert [ratio.updates_due(steps) for steps in (9, 10, 11, 12, 16)] == [0, 0, 0, 1, 3]


def test_what_is_due_when_a_multiple_is_reached_or_passed():
    intervals = Intervals(100, summary_interval=10, evaluation_interval=30, checkpoint_interval=40)
    assert intervals.due(0, 9) == Due(False, False, False)
    assert intervals.due(9, 10) == Due(True, False, False)
    assert intervals.due(10, 12) == Due(False, False, False)
    assert intervals.due(25, 45) == Due(True, True, True)
    assert intervals.due(95, 99) == Due(False, False, False) and not intervals.done(99)
    assert intervals.due(99, 100) == Due(True, True, True) and intervals.done(100)
    assert intervals.due(95, 103) == Due(True, True, True)  # the end, reached in an iteration of several steps
    with pytest.raises(TaacError, match=r"Intervals\.evaluation_interval must be 1 or more, got 0"):
        Intervals(100, summary_interval=10, evaluation_interval=0, checkpoint_interval=40)
