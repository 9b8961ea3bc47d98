"""The shipped methods, and what an environment must be for each: tests of every method give it one it can act in."""

from __future__ import annotations

import pathlib

import pytest

FILES = sorted(path.stem for path in pathlib.Path(__file__).resolve().parents[1].glob("gin/methods/*.gin"))
# SQIL's are SAC and TAAC on other batches, and need demonstrations: `demonstrations/test_imitation.py` has them.
METHODS = [name for name in FILES if not name.startswith("sqil_")]
# One of each family: what is wired alike for all of them is tested with these.
REPRESENTATIVES = ["sac", "taac_q", "sac_discrete", "sac_recurrent", "temporl"]
DISCRETE_METHODS = {"sac_discrete", "sac_branches", "sac_discrete_recurrent"}  # the others are of continuous actions
DETERMINISTIC = {"td3", "temporl_ddpg", "tla"}  # policies that draw nothing and have no entropy


def thinned(values, quick):
    """The values of a matrix: `make test` takes those that are in `quick`, `make test-all` all."""
    return [pytest.param(value, marks=() if value in quick else pytest.mark.slow) for value in values]


def every_method(*more: str):
    """The methods: five that stand for the others, and those that are named; `make test-all` takes all."""
    return thinned(METHODS, {*REPRESENTATIVES, *more})


def fitting(method: str) -> list[str]:
    """What to bind after an environment of continuous actions: for a method of discrete ones, another environment.

    TaCoS gets rewards without prices, and observations without the time left: the environment's own.
    """
    environment = ["create_environment.env_name = 'Acrobot-v1'"] if method in DISCRETE_METHODS else []
    own = ["DurationCoordinate.decision_price = 0.0", "DurationCoordinate.observe_time_left = False"] if method == "tacos" else []
    return [*environment, *own, *short_segments(method)]


def short_segments(method: str) -> list[str]:
    """For a method with a memory, whose update steps through each frame: 3 after the burn-in, instead of 12."""
    return ["Trainer.segment_length = 7"] if method.endswith("recurrent") else []
