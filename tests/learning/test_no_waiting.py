"""No update waits for a GPU: it reads no number back, and copies nothing between devices.

Updates run on torch's "meta" device, whose tensors have shapes and no numbers. Whatever asks for one fails, as does an operation
on tensors of two devices. What moves between devices is watched besides.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from taac import nest, specs
from taac.algorithms import SacAlgorithm
from taac.algorithms.action_specs import DiscreteActionSpec
from taac.algorithms.agent import Agent
from taac.algorithms.reward_signals import GAIL, RND
from taac.demonstrations.replay import Demonstrations, SqilReplay
from taac.learning import learner as learner_module
from taac.learning import side_losses
from taac.learning.guard import CUDA_INTERVAL
from taac.learning.learner import Learner
from taac.machine.cuda_graphs import places
from taac.ops.schedules import LinearSchedule
from taac.specs import TensorSpec, bounded
from taac.training import experiment
from tests.learning.test_compiled_update import COMPILE, OF_TAAC, PRIORITIZED, SCHEDULED
from tests.learning.test_guard import make_batch
from tests.methods import every_method, fitting
from tests.training.runs import build

META = torch.device("meta")


@pytest.fixture(autouse=True)
def no_numbers(monkeypatch, traced_only):
    """Builds on the meta device; compiled programs are traced and not compiled."""
    monkeypatch.setattr(experiment, "choose_device", lambda *_: META)
    for module in (learner_module, side_losses):  # torch has no mixed precision on this device
        monkeypatch.setattr(module, "mixed_precision", lambda *_: contextlib.nullcontext())
    enabled = torch.is_autocast_enabled
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind=None: kind != "meta" and enabled(kind))


class Stays(TorchDispatchMode):
    """Refuses operations on tensors of two devices, but for a number on the CPU, which kernels take as an argument."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in torch.utils._pytree.tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        moved = "copy" in str(func) or any(x.dim() for x in tensors if x.device != META)
        assert not moved or len({x.device for x in tensors}) == 1, f"{func} waits: it moves between devices"
        return result


class SendsNothing(TorchFunctionMode):
    """Refuses to make tensors of Python's numbers on the device, which waits for the copy."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        place = {torch.tensor: 0, torch.as_tensor: 0, torch.Tensor.new_tensor: 1}.get(func)
        makes = place is not None and not isinstance(args[place], torch.Tensor)
        assert not makes or result.device != META, f"{func} waits: it sends a number"
        return result


def updates(trainer, count=1, interval=CUDA_INTERVAL):
    """Takes updates after the first, which the guard always looks at."""
    buffer, learner = trainer.replay_buffer, trainer.learner
    buffer.added = buffer._unopened = 100
    learner.guard.interval, learner.num_updates = interval, 1
    with Stays(), SendsNothing():
        for number in range(count):
            trainer.schedules.move(300 + number, learner.num_updates)
            learner.learn_from(trainer.replay_buffer, 8, trainer.segment_length, 0.1)
    trainer.close()


def built(method, *params):
    small = ("num_envs = 2", "hidden_layers = (8,)", "Learner.diagnostics = 'scalars'")
    return build(*small, *fitting(method), *params, method=method)


@pytest.mark.parametrize("method", every_method("taac"))
def test_every_method(method):
    updates(built(method))


@pytest.mark.parametrize("method", [pytest.param("sac", marks=pytest.mark.slow), "taac"])
def test_a_traced_program(method):
    """It computes nothing on another device, which no CUDA graph could hold."""
    trainer = built(method, COMPILE)
    updates(trainer, 2)
    environments = trainer.environment
    frame = specs.time_step_spec(environments.observation_spec, environments.action_spec, environments.reward_dim)
    trainer.agent.rollout_step(specs.zeros(frame, 2, device=META), trainer.agent.initial_state(2))
    for function in (trainer.learner._program, trainer.agent._rollout_step):
        (program,) = [program for program, _ in function._programs.values()]
        assert {device for _, device in places(program)} == {META}


@pytest.mark.parametrize(
    "method, params",
    [
        ("taac", [PRIORITIZED]),
        ("sac", ["Learner.max_grad_norm = 0.5", "create_agent.normalize_rewards = True"]),
        ("sac", ["create_agent.reward_signals = (@RND, @ICM)", "ICM.gamma = 0.9", "ICM.batch_size = 4"]),
        ("sac", SCHEDULED),
        ("taac", OF_TAAC),
        ("sac", ["Learner.weight_decay = {'critic': 1e-3}", "Learner.diagnostics = 'histograms'"]),
        ("sac", ["Learner.diagnostics = 'off'"]),
        ("taac", ["ActorCriticAlgorithm.actor_regularizers = (@CAPS, @L2C2)"]),
        ("taac", ["CriticEnsemble.returns = @CategoricalReturns()", "TaacAlgorithm.decision_price = 0.1"]),
        ("taac_chunk", []),
    ],
    ids=["prioritised", "clipped", "signals", "schedules of SAC", "schedules of TAAC", "histograms", "no diagnostics",
         "smooth actors", "distributions at a price", "trajectories that end"],
)
def test_what_stands_around_the_loss(method, params):
    updates(built(method, *params), 2)


def test_demonstrations(monkeypatch):
    """Cloning, whose weight follows a schedule, a discriminator, and the two halves of SQIL's batches."""
    observation, action = bounded((3,), -1, 1), bounded((2,), -1, 1)
    algorithm = SacAlgorithm(observation, action, reward_dim=3, reward_weights=(1.0, 1.0, 1.0))
    agent = Agent(algorithm, reward_signals=[GAIL(observation, action), RND(observation, action)]).to_device(META)
    cloning = side_losses.Cloning(weight=LinearSchedule(1.0, 0.5, updates=10))
    shown = nest.map_structure(lambda x: x[0].to(META), make_batch())
    with monkeypatch.context() as patched:  # of their digest, which is taken once
        patched.setattr(torch.Tensor, "cpu", lambda x: torch.zeros(x.shape))
        learner = Learner(agent, cloning=cloning, matmul="plain", demonstrations=lambda: Demonstrations(shown, META))
    learner.guard.interval, learner.num_updates = CUDA_INTERVAL, 1
    trainer = built("sac")
    trainer.close()
    ring = trainer.replay_buffer
    ring.added = 100
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "cpu", lambda x: torch.zeros(x.shape))
        halves = SqilReplay(ring, nest.map_structure(lambda x: x[0], ring.sample(9, 1)))
    batch = nest.map_structure(lambda x: x.to(META), make_batch())
    with Stays(), SendsNothing():
        learner.update(batch)
        trainer.learner.guard.interval, trainer.learner.num_updates = CUDA_INTERVAL, 1
        trainer.learner.learn_from(halves, 8, 2)


def test_masked_branches_of_several_sizes():
    observation = {"x": bounded((3,), -1, 1), "action_mask": bounded((9,), 0, 1, torch.bool)}
    discrete = DiscreteActionSpec(TensorSpec((3,), torch.int64, np.zeros(3), np.array([1, 3, 2])), observation, "")
    with Stays(), SendsNothing():
        assert discrete.padded(torch.zeros(5, 9, device=META)).shape == (5, 3, 4)
        mask = {"action_mask": torch.zeros(5, 9, device=META, dtype=torch.bool)}
        assert discrete.valid(mask, torch.Size([5]), META).shape == (5, 3, 4)


def test_the_guard_looks_once_in_an_interval():
    trainer, looked = built("sac"), []
    guard = trainer.learner.guard
    guard.flush = lambda: (looked.append(len(guard._waiting)), guard._waiting.clear())
    updates(trainer, 11, interval=4)
    assert looked == [4, 4]


class Launches(TorchDispatchMode):
    """Counts operations that compute something, by who called them."""

    def __init__(self):
        super().__init__()
        self.count, self.caller = Counter(), "the rest"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        views = func.is_view or "view" in str(func) or "empty" in str(func)
        self.count[self.caller] += not views
        return result

    def watch(self, owner, method, name):
        function = getattr(owner, method)

        def called(*args):
            before, self.caller = self.caller, name
            try:
                return function(*args)
            finally:
                self.caller = before

        return mock.patch.object(owner, method, called)


def test_little_is_launched_outside_the_program():
    """What no CUDA graph holds is launched at each update."""
    trainer, launches = built("sac", "Learner.diagnostics = 'off'"), Launches()
    learner, algorithm = trainer.learner, trainer.agent.algorithm
    with (
        launches.watch(learner, "_program", "program"),
        launches.watch(learner_module, "take_step", "optimizer and targets"),
        launches.watch(algorithm, "after_update", "optimizer and targets"),
    ):
        updates(trainer)
        with launches:
            learner.learn_from(trainer.replay_buffer, 8, trainer.segment_length)
    assert launches.count["program"] > 150 and launches.count["optimizer and targets"] == 2 * 3 + 1  # for each group, two
    assert launches.count["the rest"] < 70
