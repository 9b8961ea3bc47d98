"""Who computes together with whom, and who has a turn, with stand-ins for learners and their functions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from taac.learning import joint
from taac.learning.joint import Joint, JointUpdates
from taac.learning.learner import Learner
from taac.machine.stacked import CannotStack, Handed

CPU = torch.device("cpu")


class Plain(SimpleNamespace):
    """Stands for a learner that computes updates as `Learner` does."""

    compute = Learner.compute


def learners(count, *compiled):
    flags = compiled or (False,) * count
    return [
        Plain(
            agent=SimpleNamespace(device=CPU, agents=None, compiled=flag), products="plain", together=None, differentiate=None
        )
        for flag in flags
    ]


@pytest.fixture
def stacks(monkeypatch):
    """Anything can be stacked."""
    monkeypatch.setattr(joint, "StackedTensors", lambda modules: object())


class Function:
    """Records which learners it was called for."""

    multiplications = 0

    def __init__(self):
        self.calls = []

    def hand_in(self, number, *args):
        return Handed((), [], [])

    def __call__(self, handed):
        self.calls.append(sorted(handed))
        return dict.fromkeys(handed, "found")


def share(function, *shapes):
    return Joint(function, Handed(tuple((torch.Size([n]), torch.float32) for n in shapes), [], []), "plain")


def test_those_of_one_function_and_one_shape_are_computed_together(stacks):
    updates, one, other = JointUpdates(learners(5), meet=None), Function(), Function()
    found = updates.compute({0: share(one, 8), 1: share(other, 8), 2: share(one, 8), 3: share(one, 9), 4: share(other, 8)})
    assert found == dict.fromkeys(range(5), "found")
    assert one.calls == [[0, 2], [3]] and other.calls == [[1, 4]]


def test_a_program_that_most_have_left_is_given_up_after_a_while_and_half_are_not_most(stacks, monkeypatch):
    monkeypatch.setattr(joint, "PATIENCE", 2)
    updates, function = JointUpdates(learners(4), meet=None), Function()
    half, few = {n: share(function, 8) for n in (0, 1)}, {0: share(function, 8)}
    for shares in (half, half, half, few, few, half, few, few):  # half begins the patience anew
        assert set(updates.compute(shares).values()) == {"found"}
    (refused,) = updates.compute(few).values()
    assert isinstance(refused, CannotStack) and "most of the seeds have ended" in str(refused)


def test_who_computes_alone_lets_others_have_their_turn_now_and_then():
    met, told, (learner,) = [], [], learners(1)
    JointUpdates([learner], lambda *args: met.append(args), lambda *args: told.append(args))
    found, turns = [], []
    for _ in range(2 * joint.BETWEEN_TURNS + 1):
        found.append(learner.together(lambda *batch: batch, "experience", "weights"))
        turns.append(len(met))
    assert found == [("experience", "weights")] * len(found) and told == [(0, "in turn: there is one seed")]
    assert turns == [0] * 15 + [1] * 16 + [2] * 2 and met == [(0, None)] * 2


def test_how_updates_are_computed_is_told_once(stacks, monkeypatch):
    monkeypatch.setattr(joint, "StackedFunction", lambda *args: Function())
    told, two = [], learners(2)
    JointUpdates(two, lambda *args: "found", lambda *args: told.append(args))
    for _ in range(3):
        assert [learner.together(None, None, None) for learner in two] == ["found"] * 2
    assert told == [(n, "one program for 2 seeds, of 0.0 million multiplications each") for n in (0, 1)]


def test_compiled_and_uncompiled_learners_have_programs_of_their_own(stacks, monkeypatch):
    made = []
    monkeypatch.setattr(joint, "StackedFunction", lambda *args: made.append(args) or Function())
    eight = learners(8, *[True, False] * 4)
    JointUpdates(eight, lambda *args: "found")
    for learner in eight:
        learner.together(None, None, None)
    assert [args[3:] for args in made] == [("inductor", joint.MOST_COMPILED), ("none", joint.MOST_UNCOMPILED)]


@pytest.mark.parametrize("count, device, stacked", [(7, "cpu", False), (8, "cpu", True), (2, "cuda", True)])
def test_few_compiled_learners_take_turns_on_a_cpu(stacks, monkeypatch, count, device, stacked):
    monkeypatch.setattr(joint, "StackedFunction", lambda *args: Function())
    monkeypatch.setattr(joint, "_random_numbers", lambda device: None)
    monkeypatch.setattr(joint, "_set_random_numbers", lambda device, state: None)
    told, all_of_them = [], learners(count, *[True] * count)
    for learner in all_of_them:
        learner.agent.device = torch.device(device)
    JointUpdates(all_of_them, lambda *args: "found", lambda *args: told.append(args))
    found = [learner.together(lambda *batch: "own", None, None) for learner in all_of_them]
    why = f"one program for {count} seeds" if stacked else "in turn: fewer than 8 compiled seeds"
    assert found == ["found" if stacked else "own"] * count
    ahead = [learner.compiles_ahead() for learner in all_of_them]  # one for all, into the cache that all read
    assert ahead == [not stacked] + [False] * (count - 1)
    assert [number for number, text in told if text.startswith(why)] == list(range(count))
