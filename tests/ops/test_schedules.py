import pytest

from taac.errors import TaacError
from taac.ops.schedules import LinearSchedule


@pytest.mark.parametrize("env_steps, expected", [(0, 1.0), (50, 0.55), (100, 0.1), (1000, 0.1)])
def test_a_straight_line_and_then_its_end(env_steps, expected):
    assert LinearSchedule(1.0, 0.1, 100)(env_steps) == pytest.approx(expected)


def test_it_needs_a_length():
    with pytest.raises(TaacError, match="env_steps"):
        LinearSchedule(1.0, 0.1, 0)
