"""Schedules: values by hand, at the edges of each piece; integrals against sums; what is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from taac.errors import TaacError
from taac.ops.schedules import (
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PiecewiseSchedule,
    Schedule,
    at_start,
    bounds,
    follow,
)

LINE = LinearSchedule(1.0, 0.1, 100)
LATER = LinearSchedule(2.0, 4.0, updates=4, begin=10)
DECAY = ExponentialSchedule(8.0, 1.0, env_steps=6, begin=2)  # halves every 2 steps
RISE = ExponentialSchedule(-1.0, -4.0, updates=2)
WAVE = CosineSchedule(3.0, 1.0, updates=4, begin=2)
STEPS = PiecewiseSchedule((3, 7, 5), env_steps=(0, 10, 20))
LINES = PiecewiseSchedule((0.0, 1.0, 1.0, 0.5), updates=(0, 4, 8, 10), interpolate=True)


@pytest.mark.parametrize(
    "schedule, table",
    [
        (LINE, {0: 1.0, 50: 0.55, 99: 0.109, 100: 0.1, 1000: 0.1}),
        (LATER, {0: 2.0, 9: 2.0, 10: 2.0, 11: 2.5, 12: 3.0, 13: 3.5, 14: 4.0, 15: 4.0, 999: 4.0}),
        (DECAY, {0: 8.0, 2: 8.0, 4: 4.0, 5: 8 / 2**1.5, 6: 2.0, 8: 1.0, 9: 1.0, 100: 1.0}),
        (RISE, {0: -1.0, 1: -2.0, 2: -4.0, 3: -4.0}),
        (WAVE, {0: 3.0, 2: 3.0, 3: 2 + 0.5**0.5, 4: 2.0, 5: 2 - 0.5**0.5, 6: 1.0, 7: 1.0}),
        (STEPS, {0: 3, 9: 3, 10: 7, 11: 7, 19: 7, 20: 5, 21: 5, 1000: 5}),
        (LINES, {0: 0.0, 1: 0.25, 3: 0.75, 4: 1.0, 6: 1.0, 8: 1.0, 9: 0.75, 10: 0.5, 11: 0.5}),
    ],
)
def test_values_at_and_between_the_edges(schedule, table):
    for count, expected in table.items():
        assert schedule(count) == pytest.approx(expected, rel=1e-12), count
    assert schedule.bounds == (min(table.values()), max(table.values()))
    assert {type(schedule(count)) for count in table} == {float}  # a checkpoint's kinds of numbers stay the same
    assert schedule(10**9) == table[max(table)]  # the last value itself, not rounded on the way


def test_each_counts_in_its_unit():
    assert (LINE.at(50, 0), LINE.at(0, 50)) == (pytest.approx(0.55), 1.0)
    assert (LATER.at(12, 0), LATER.at(0, 12)) == (2.0, 3.0)


@pytest.mark.parametrize("schedule", [LINE, LATER, DECAY, RISE, WAVE, STEPS, LINES])
def test_the_first_change_is_where_the_value_leaves_that_at_the_start(schedule):
    assert [schedule(count) == schedule(0) for count in range(schedule.first_change + 1)] == (
        [True] * schedule.first_change + [False]
    )


def test_counts_may_be_written_as_floats():
    """As 1e6, which is a float in gin files: the exact integral of a ratio takes integers."""
    for given, same in (
        (LinearSchedule(1.0, 0.1, 1e2, begin=1e1), LinearSchedule(1.0, 0.1, 100, begin=10)),
        (ExponentialSchedule(1.0, 0.1, 1e2), ExponentialSchedule(1.0, 0.1, 100)),
        (
            PiecewiseSchedule((1, 2), env_steps=(0, 1e2), interpolate=True),
            PiecewiseSchedule((1, 2), (0, 100), None, True),
        ),
    ):
        assert [(given(n), given.integral(n)) for n in (5, 50, 500)] == [
            (same(n), same.integral(n)) for n in (5, 50, 500)
        ]


def test_the_first_change_is_after_pieces_that_are_equal():
    assert PiecewiseSchedule((1, 1, 2), env_steps=(0, 5, 9)).first_change == 9
    assert PiecewiseSchedule((1, 1, 2), env_steps=(0, 5, 9), interpolate=True).first_change == 6


@pytest.mark.parametrize("schedule", [LINE, LATER, DECAY, RISE, WAVE, STEPS, LINES])
@pytest.mark.parametrize("count", [0, 1, 7, 10, 13, 20, 101, 250])
def test_the_integral_is_the_limit_of_sums(schedule, count):
    parts = 1000  # of each step; the rule of midpoints
    expected = sum(schedule((number + 0.5) / parts) for number in range(count * parts)) / parts
    assert float(schedule.integral(count)) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_integrals_of_lines_and_steps_are_exact():
    """1 down to 0.1 over 100: at 100 the mean is 0.55. In floats 0.1 would be another number."""
    assert [LINE.integral(n) for n in (0, 10, 100, 130)] == [0, Fraction(955, 100), 55, 58]
    assert [STEPS.integral(n) for n in (5, 10, 25)] == [15, 30, 125]
    assert LINES.integral(10) == Fraction(15, 2)
    tenth = PiecewiseSchedule((0.1, 0.3), env_steps=(0, 10))
    assert tenth.integral(13) == Fraction(19, 10)


def test_those_without_an_integral_say_so():
    with pytest.raises(TaacError, match="Schedule has no integral"):
        Schedule().integral(1)


def test_a_parameter_is_a_number_or_follows():
    class Part:
        pass

    part = Part()
    (one,) = follow(part, rate=LATER, size=3.0)
    assert (part.rate, part.size, one.name, one.schedule) == (2.0, 3.0, "Part.rate", LATER)
    one.set(7.0)
    assert (part.rate, part.size) == (7.0, 3.0)
    assert (at_start(5), bounds(5), at_start(LINE), bounds(LINE)) == (5, (5, 5), 1.0, (0.1, 1.0))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: LinearSchedule(1.0, 0.1, 0), r"LinearSchedule\.env_steps must be 1 or more, got 0"),
        (lambda: LinearSchedule(1.0, 0.1), "LinearSchedule counts environment steps or updates: bind one"),
        (lambda: LinearSchedule(1.0, 0.1, 5, 5), "bind one of env_steps and updates, got 5 and 5"),
        (lambda: LinearSchedule(1.0, 0.1, updates=5, begin=-1), r"LinearSchedule\.begin must be 0 or more"),
        (lambda: LinearSchedule(1.0, float("nan"), 5), r"LinearSchedule\.end must be a finite number"),
        (lambda: ExponentialSchedule(1.0, 0.0, 5), "both be above 0 or both below .* use LinearSchedule"),
        (lambda: ExponentialSchedule(1.0, -1.0, 5), "both be above 0 or both below"),
        (lambda: ExponentialSchedule(float("inf"), 1.0, 5), "finite"),
        (lambda: ExponentialSchedule(1.0, 2.0, updates=0), r"ExponentialSchedule\.updates must be 1 or more"),
        (lambda: PiecewiseSchedule((1,), env_steps=(0,)), "two or more values"),
        (lambda: PiecewiseSchedule((1, 2), env_steps=(0, 1, 2)), "as many counts"),
        (lambda: PiecewiseSchedule((1, 2), env_steps=(5, 10)), "start at 0"),
        (lambda: PiecewiseSchedule((1, 2, 3), updates=(0, 10, 10)), "rise"),
        (lambda: PiecewiseSchedule((1, 2, 3), updates=(0, 10, 5)), "rise"),
        (lambda: PiecewiseSchedule((1, float("inf")), updates=(0, 5)), "finite"),
        (lambda: LinearSchedule(1.0, "x", 5), r"LinearSchedule\.end must be a finite number, got 'x'"),
        (lambda: LinearSchedule(1.0, 0.1, 2.5), r"LinearSchedule\.env_steps must be a whole number, got 2\.5"),
        (lambda: LinearSchedule(1.0, 0.1, updates="5"), r"LinearSchedule\.updates must be a whole number, got '5'"),
        (lambda: ExponentialSchedule(1.0, 0.1, 5, begin=0.5), r"ExponentialSchedule\.begin must be a whole number"),
        (
            lambda: PiecewiseSchedule((1, 2), updates=(0, float("inf"))),
            r"PiecewiseSchedule\.updates must be a whole number",
        ),
        (lambda: PiecewiseSchedule((1, 2), env_steps=5), "as many counts .* got values .1, 2. and env_steps 5"),
        (lambda: PiecewiseSchedule((1, 2)), "bind one of env_steps and updates"),
    ],
)
def test_invalid_schedules_are_refused(make, words):
    with pytest.raises(TaacError, match=words):
        make()
