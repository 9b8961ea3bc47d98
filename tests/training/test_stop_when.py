"""When a run ends early: tables of returns, and what the state restores."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from taac.errors import TaacError
from taac.training.hooks import StopWhen


class Stub:
    def __init__(self):
        self.env_steps, self.evaluation, self.why = 0, None, None

    def stop_early(self, why):
        self.why = self.why or why


def evaluations_until_stopped(rule, returns, reload_after=None):
    """The number of evaluations after step 0 at which a rule ends the run; None if it does not."""
    trainer = Stub()
    for number, found in enumerate(returns):
        if number == reload_after:
            fresh = StopWhen(**{n: getattr(rule, n) for n in ("return_at_least", "evaluations", "no_improvement")})
            fresh.load_state_dict(rule.state_dict())
            rule = fresh
        trainer.env_steps, trainer.evaluation = 100 * number, SimpleNamespace(return_mean=found)
        rule(trainer)
        if trainer.why:
            return number
    return None


@pytest.mark.parametrize(
    "settings, returns, stopped",
    [
        ({"return_at_least": 5}, [9, 1, 4.9, 5.0], 3),  # the evaluation at step 0 does not count
        ({"return_at_least": 5}, [9, 1, 2], None),
        ({"return_at_least": 5, "evaluations": 2}, [0, 6, 4, 6, 7], 4),
        ({"return_at_least": 5, "not_before": 300}, [0, 6, 6, 6], 3),
        ({"no_improvement": 2}, [0, 1, 0, 2, 2, 1], 5),  # an equal return is no improvement
        ({"no_improvement": 1, "min_improvement": 1.0}, [0, 1, 1.9], 2),
        ({"no_improvement": 1, "min_improvement": 1.0}, [0, 1, 2.1, 3.2], None),
        ({"no_improvement": 2, "min_improvement": 1.0}, [0, 1.0, 1.9, 2.8, 3.0], 3),  # 2.8 is not 1 above 1.9
        ({"no_improvement": 1, "return_at_least": 3}, [0, 1, 3], 2),
    ],
)
def test_rules(settings, returns, stopped):
    assert evaluations_until_stopped(StopWhen(**settings), returns) == stopped


def test_a_restored_rule_counts_on():
    assert evaluations_until_stopped(StopWhen(return_at_least=5, evaluations=3), [0, 6, 6, 6], reload_after=3) == 3
    assert evaluations_until_stopped(StopWhen(no_improvement=2), [0, 5, 4, 3], reload_after=3) == 3


@pytest.mark.parametrize(
    "settings, message",
    [
        ({}, "needs return_at_least or no_improvement"),
        ({"return_at_least": 0, "evaluations": 0}, "StopWhen.evaluations must be 1 or more, got 0"),
        ({"no_improvement": 0}, "StopWhen.no_improvement must be 1"),
        ({"no_improvement": 1, "min_improvement": -1}, "StopWhen.min_improvement must be 0"),
    ],
)
def test_rules_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(TaacError, match=message):
        StopWhen(**settings)
