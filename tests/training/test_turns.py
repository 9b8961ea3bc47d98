"""Turns: one at a time, each with random numbers of its own."""

from __future__ import annotations

import random

import numpy as np
import torch

from taac.training.turns import Generators, Turn, take_turns

CPU = torch.device("cpu")


def draw():
    """A number from each global generator; numpy's normal numbers come in pairs, the second of which it keeps."""
    return random.random(), float(np.random.standard_normal()), float(torch.rand(()))


def drawing(seed, times, found, meet):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    for _ in range(times):
        found.append(draw())
        meet()


def test_each_draws_what_it_would_draw_alone_and_nobody_else_notices():
    expected = []
    for seed in range(3):
        expected.append([])
        drawing(seed, 4 + seed, expected[-1], lambda: None)
    found, turns = [[], [], []], []
    for seed in range(3):
        turns.append(Turn(lambda seed=seed: drawing(seed, 4 + seed, found[seed], lambda: turns[seed].pause(seed)), CPU))
    before, shares = Generators.now(CPU), []
    take_turns(turns, lambda requests: shares.append(dict(requests)) or {}, lambda: False)
    assert found == expected
    after = Generators.now(CPU)
    assert after.of_python == before.of_python and torch.equal(after.of_torch, before.of_torch)
    assert all(np.array_equal(one, other) for one, other in zip(after.of_numpy, before.of_numpy))
    assert shares == [{0: 0, 1: 1, 2: 2}] * 4 + [{1: 1, 2: 2}, {2: 2}, {}]  # those that have ended are not waited for


def test_answers_errors_and_turns_that_never_began():
    told, turns = [], []

    def first():
        told.append(turns[0].pause("a"))
        raise KeyError("gone")

    def second():
        told.append(turns[1].pause(None))
        told.append("second")

    turns += [Turn(first, CPU), Turn(second, CPU), Turn(lambda: told.append("third"), CPU)]
    stop = [False]

    def compute(requests):
        stop[0] = True
        return {number: request.upper() for number, request in requests.items()}

    turns[1]._function = lambda: (stop.__setitem__(0, True), second())
    take_turns(turns, compute, lambda: stop[0])
    assert told == ["A", None, "second"] and isinstance(turns[0].error, KeyError)
    assert [turn.ended for turn in turns] == [True, True, False] and not turns[2].began
