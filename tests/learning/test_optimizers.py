"""Our Adam against its equation; optimizers of torch in its place; weight decay by group."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch

from taac.errors import DivergedError, TaacError
from taac.learning.learner import Learner
from taac.learning.optimizers import TensorFlowAdam, forget, load_state, state_after_a_step, take_step
from taac.runs.checkpoint import Checkpoints
from tests.algorithms.test_own_encoders import LinearEncoder  # noqa: F401, gin's by its import
from tests.learning.test_guard import make_batch, parameters
from tests.learning.test_learner import first_batch, make_agent
from tests.training.runs import assert_same_parameters, build


@pytest.mark.parametrize(
    "change", [{"num_steps": -1}, {"num_steps": 10**400}, {"betas": (0.9, 1.0)}, {"betas": (0.9, float("nan"))}]
)
def test_a_state_with_which_no_step_can_be_taken_is_refused_and_changes_nothing(change):
    optimizer = TensorFlowAdam([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0] |= change
    with pytest.raises(TaacError, match="numbers that no optimizer has"):
        load_state(optimizer, state)
    state_after_a_step(optimizer)


def test_adam_adds_epsilon_as_tensorflow_does():
    """`lr sqrt(1-b2^t)/(1-b1^t) m / (sqrt(v) + eps)`, with an epsilon so large that its place matters."""
    lr, b1, b2, eps = 0.1, 0.9, 0.999, 0.5
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    optimizer = TensorFlowAdam([parameter], lr=lr, betas=(b1, b2), eps=eps)
    x, m, v = parameter.detach().numpy().copy(), np.zeros(3), np.zeros(3)
    for t in range(1, 20):
        gradient = np.sin(x * t)
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        x = x - lr * np.sqrt(1 - b2**t) / (1 - b1**t) * m / (np.sqrt(v) + eps)
        np.testing.assert_allclose(parameter.detach().numpy(), x, rtol=1e-12)


def test_adam_goes_on_after_its_state_was_saved():
    def steps(parameter, optimizer, times):
        for t in times:
            parameter.grad = torch.tensor([0.3 * t, -1.0])
            optimizer.step()

    whole = torch.nn.Parameter(torch.ones(2))
    steps(whole, TensorFlowAdam([whole], lr=0.1, eps=0.5), range(6))
    part = torch.nn.Parameter(torch.ones(2))
    first = TensorFlowAdam([part], lr=0.1, eps=0.5)
    steps(part, first, range(3))
    second, state = TensorFlowAdam([part], lr=0.7, eps=0.1), copy.deepcopy(first.state_dict())
    before = part.detach().clone()
    steps(part, second, [7, 8])  # which the state knows nothing of
    part.data.copy_(before)
    second.load_state_dict(state)
    steps(part, second, range(3, 6))
    assert torch.equal(whole, part)


CAMERA = (
    "create_environment.env_name = 'tests.toy_tasks:taac-test/Camera-v0'", "ImageEncoder.channels = (4, 8)",
    "ImageEncoder.kernels = (3, 3)", "ImageEncoder.strides = (2, 1)", "ImageEncoder.output_size = 8",
    "create_agent.compile = False", "Learner.learning_rate = 0.01",
)  # fmt: skip


def first_steps(learner, update):
    """How far Adam's first step moved each parameter, and how far it does by the equation: `-lr g / (|g| + eps / sqrt(1-b2))`."""
    before = {name: p.detach().clone() for name, p in learner.agent.named_parameters()}
    update()
    for name, p in learner.agent.named_parameters():
        if p.grad is not None:
            yield name, p.detach() - before[name], -0.01 * p.grad / (p.grad.abs() + 1e-7 / 0.001**0.5)


@pytest.mark.parametrize("method, convolutions", [("taac", 2), ("sac_recurrent", 4)])
def test_each_weight_of_a_convolution_moves_by_its_own_gradient(method, convolutions):
    """torch returns the gradients of convolutions of such images with the channels last in memory."""
    trainer, experience = first_batch(method, *CAMERA)
    found = list(first_steps(trainer.learner, lambda: trainer.learner.update(experience)))
    assert sum(moved.dim() == 4 and bool(moved.any()) for _, moved, _ in found) == convolutions
    for name, moved, expected in found:
        torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5, msg=name)


def test_parameters_and_gradients_may_have_any_layout():
    """An orthogonal matrix of `torch.linalg.qr` has its columns one after another in memory."""
    agent = make_agent()
    weight = agent.algorithm.critics.hidden[0].weight
    values = torch.rand_like(weight).transpose(1, 2).contiguous().transpose(1, 2)
    weight.data = values
    learner = Learner(agent, 0.01)
    assert torch.equal(weight, values) and not values.is_contiguous()

    def update():
        for p in learner.agent.parameters():
            p.grad = torch.randn(p.shape[::-1]).permute(tuple(reversed(range(p.dim()))))
        take_step(learner.optimizer, None)

    for name, moved, expected in first_steps(learner, update):
        if dict(agent.named_parameters())[name] in learner.optimizer.state:
            torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    "make", [functools.partial(TensorFlowAdam, lr=0.1), functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)]
)
def test_moments_of_a_checkpoint_may_have_any_layout(make):
    """SGD's momentum of a convolution of images had its channels last until gradients were made contiguous."""

    def step(parameter, optimizer):
        parameter.grad = gradient.clone()
        take_step(optimizer, None)

    gradient, of_one, of_other = torch.randn(4, 3, 2, 2), *(torch.nn.Parameter(torch.zeros(4, 3, 2, 2)) for _ in range(2))
    one, other = make([of_one]), make([of_other])
    step(of_one, one)
    saved = copy.deepcopy(one.state_dict())
    for name, moment in saved["state"][0].items():
        if moment.dim() == 4:
            saved["state"][0][name] = moment.to(memory_format=torch.channels_last)
    load_state(other, saved)
    of_other.data.copy_(of_one.data)
    step(of_one, one)
    step(of_other, other)
    assert torch.equal(of_one, of_other)


def test_adam_leaves_alone_what_has_no_gradient():
    """A group without gradients does not count the step either; what an update skipped goes on where it was."""
    moved, idle, sometimes = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    optimizer = TensorFlowAdam([{"params": [moved, idle]}, {"params": [sometimes]}], lr=0.1, eps=1e-7)
    for t in range(4):
        moved.grad = torch.tensor([1.0, -1.0])
        sometimes.grad = torch.tensor([1.0, -1.0]) if t in (1, 3) else None
        optimizer.step()
    assert torch.equal(idle, torch.ones(2)) and idle not in optimizer.state
    assert [group["num_steps"] for group in optimizer.param_groups] == [4, 2]
    # A constant gradient moves by the learning rate at each step.
    torch.testing.assert_close(moved.detach(), torch.tensor([0.6, 1.4]))
    torch.testing.assert_close(sometimes.detach(), torch.tensor([0.8, 1.2]))


def test_adam_moves_what_has_a_gradient_this_time():
    first, second = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = TensorFlowAdam([first, second], lr=0.1, eps=1e-7)
    for moved, idle in ((first, second), (second, first), (second, first)):
        moved.grad, idle.grad = torch.ones(1), None
        before = idle.item()
        optimizer.step()
        assert idle.item() == before
    assert first.item() == pytest.approx(0.9)
    assert second.item() == pytest.approx(0.8) and optimizer.state[second]["exp_avg"].item() == pytest.approx(0.19)


def test_what_is_forgotten_counts_its_own_steps():
    """A constant gradient moves by the learning rate at each step; with the count of old moments the first would be 3.2 of it."""
    kept, new = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = TensorFlowAdam([kept, new], lr=0.1, eps=1e-12)

    def steps(number):
        for _ in range(number):
            kept.grad = new.grad = torch.ones(1)
            optimizer.step()

    steps(2000)
    forget(optimizer, [new])
    steps(1)
    assert new.item() == pytest.approx(-200.1, rel=1e-4) and kept.item() == pytest.approx(-200.1, rel=1e-4)
    state, (of_kept, of_new) = copy.deepcopy(optimizer.state_dict()), (optimizer.state[p]["step"].item() for p in (kept, new))
    assert (of_kept, of_new) == (2001, 1)
    optimizer.load_state_dict(state)  # as a run that is resumed
    steps(9)
    assert new.item() == pytest.approx(-201, rel=1e-4) and optimizer.state[new]["step"].item() == 10


def test_adam_takes_a_closure_and_skips_what_is_not_finite():
    parameter = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = TensorFlowAdam([parameter], lr=0.1)

    def closure():
        parameter.grad = None
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9.0
    assert parameter.item() == pytest.approx(2.9)
    closure()
    take_step(optimizer, torch.tensor(1.0))
    assert parameter.item() == pytest.approx(2.9)


def test_weight_decay_of_adam_adds_to_the_gradient():
    """As a loss with `decay / 2 * w^2` more."""
    decayed, regularised = (torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0])) for _ in range(2))
    first, second = TensorFlowAdam([decayed], lr=0.1, eps=0.5), TensorFlowAdam([regularised], lr=0.1, eps=0.5)
    first.param_groups[0]["weight_decay"] = 0.3
    for t in range(5):
        decayed.grad = torch.tensor([0.5, 1.0, -t])
        regularised.grad = torch.tensor([0.5, 1.0, -t]) + 0.3 * regularised.detach()
        first.step(), second.step()
    torch.testing.assert_close(decayed, regularised)


# Optimizers of torch -------------------------------------------------------------------------------------------------

OTHERS = {
    "Adam": {}, "AdamW": {"amsgrad": True}, "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"momentum": 0.5, "centered": True}, "Adagrad": {}, "NAdam": {},
}  # fmt: skip


def of_torch(name, **settings):
    return functools.partial(getattr(torch.optim, name), **settings)


def test_a_step_of_gradient_descent_by_hand():
    """w <- w - lr_group (dL/dw + decay_group w); the temperature does not decay, whatever the optimizer's own decay is."""
    learner = Learner(
        make_agent(), 0.1, actor_learning_rate=0.2, temperature_learning_rate=0.3,
        optimizer_ctor=of_torch("SGD", weight_decay=0.5), weight_decay={"critic": 0.25},
    )  # fmt: skip
    rates = {"actor": (0.2, 0.5), "critic": (0.1, 0.25), "temperature": (0.3, 0.0)}
    groups = learner.agent.algorithm.parameter_groups()
    before = {name: [p.detach().clone() for p in group] for name, group in groups.items()}
    learner.update(make_batch())
    for name, (rate, decay) in rates.items():
        for w, p in zip(before[name], groups[name], strict=True):
            assert p.grad is not None and p.grad.any()
            torch.testing.assert_close(p.detach(), w - rate * (p.grad + decay * w))


def test_each_group_may_have_an_optimizer_of_its_own():
    """Gradient descent for the actor, AdamW for the critics, and Adam as in TensorFlow for what is left out."""
    ctors = {"actor": of_torch("SGD"), "critic": of_torch("AdamW", eps=1e-30, betas=(0.5, 0.75))}
    learner = Learner(make_agent(), 0.1, optimizer_ctor=ctors, weight_decay={"critic": 0.5}, critic_learning_rate=0.2)
    groups = learner.agent.algorithm.parameter_groups()
    before = {name: [p.detach().clone() for p in group] for name, group in groups.items()}
    learner.update(make_batch())
    steps = {
        "actor": lambda w, g: w - 0.1 * g,
        "critic": lambda w, g: (1 - 0.2 * 0.5) * w - 0.2 * g.sign(),  # its first step
        "temperature": lambda w, g: w - 0.1 * g / (g.abs() + 1e-7),
    }
    for name, step in steps.items():
        for w, p in zip(before[name], groups[name], strict=True):
            torch.testing.assert_close(p.detach(), step(w, p.grad))
    assert [group.get("betas") for group in learner.optimizer.param_groups] == [None, (0.5, 0.75), (0.9, 0.999)]


def test_settings_of_each_group_come_from_scopes_in_gin():
    trainer = build(
        "Learner.optimizer_ctor = {'actor': @actor/TensorFlowAdam, 'value': @value/AdamW}",
        "actor/TensorFlowAdam.betas = (0.5, 0.9)", "value/AdamW.weight_decay = 0.25", "Learner.value_learning_rate = 0.125",
        "SacValueAlgorithm.value_encoder_ctor = @LinearEncoder", method="sac_value",
    )  # fmt: skip
    trainer.close()
    found = dict(zip(trainer.learner.group_names, trainer.learner.optimizer.param_groups))
    assert list(found) == ["actor", "critic", "value", "value_encoder"]  # the temperature is fixed
    assert found["actor"]["betas"] == (0.5, 0.9) and found["critic"]["betas"] == (0.9, 0.999)
    # V's encoder, without settings of its own, has those of V.
    assert [found[name]["weight_decay"] for name in found] == [0, 0, 0.25, 0.25]
    assert [found[name]["lr"] == 0.125 for name in found] == [False, False, True, True]


@pytest.mark.parametrize("name", OTHERS)
def test_a_step_that_is_not_finite_changes_nothing(name):
    learner = Learner(make_agent(), 0.01, optimizer_ctor=of_torch(name, **OTHERS[name]))
    assert learner.guard.interval == 1
    learner.update(make_batch())
    before, state = parameters(learner), copy.deepcopy(learner.optimizer.state_dict())
    batch = make_batch()
    batch.time_step.reward[1, 2] = float("nan")
    with pytest.raises(DivergedError, match="update 2 was not taken"):
        learner.update(batch)
    assert all(torch.equal(p, before[name]) for name, p in learner.agent.named_parameters())
    after = learner.optimizer.state_dict()
    assert after["param_groups"] == state["param_groups"]
    for number, kept in state["state"].items():
        assert all(torch.equal(value, after["state"][number][key]) for key, value in kept.items())
    learner.update(make_batch())
    assert not all(torch.equal(p, before[name]) for name, p in learner.agent.named_parameters())


def test_on_a_gpu_every_step_is_looked_at_before_it_is_taken():
    """None but our own can be told on the device to skip one."""
    agent = make_agent()
    agent.device = torch.device("cuda")
    assert Learner(agent, matmul="plain").guard.interval > 1
    assert Learner(agent, matmul="plain", optimizer_ctor=torch.optim.Adam).guard.interval == 1


@pytest.mark.parametrize("name", ["TensorFlowAdam", *OTHERS])
def test_what_is_kept_after_a_step_is_known_before_it(name):
    """And to find it out changes nothing."""
    learner = Learner(make_agent(), 0.01, optimizer_ctor=of_torch(name, **OTHERS[name]) if name in OTHERS else None)
    before, kept = parameters(learner), copy.deepcopy(learner.optimizer.state_dict())
    expected = state_after_a_step(learner.optimizer)
    assert str(learner.optimizer.state_dict()) == str(kept) and all(p.grad is None for p in learner.agent.parameters())
    assert all(torch.equal(p, before[name]) for name, p in learner.agent.named_parameters())
    learner.update(make_batch())
    found = learner.optimizer.state_dict()["state"]

    def kinds(state):
        return {number: {key: (v.shape, v.dtype) for key, v in kept.items()} for number, kept in state.items()}

    assert kinds(expected) == kinds(found) and found


@pytest.mark.parametrize("name", [*OTHERS, "one for each group"])
def test_a_saved_optimizer_goes_on_bit_for_bit(tmp_path, name):
    def make():
        ctor = of_torch(name, **OTHERS[name]) if name in OTHERS else {"actor": of_torch("AdamW"), "critic": of_torch("RMSprop")}
        return Learner(make_agent(), 0.01, optimizer_ctor=ctor, weight_decay={"actor": 0.1})

    whole, saved, resumed = make(), make(), make()
    saved.agent.load_state_dict(whole.agent.state_dict())
    batches = [make_batch() for _ in range(5)]

    def update(learner, numbers):
        for number in numbers:
            torch.manual_seed(number)
            learner.update(batches[number])

    update(whole, range(5)), update(saved, range(3))
    Checkpoints(tmp_path).save(1, {"agent": saved.agent.state_dict(), "learner": saved.state_dict()})
    found = Checkpoints(tmp_path).newest()
    resumed.agent.load_state_dict(found.part("agent"))
    resumed.load_state_dict(found.part("learner"))
    assert resumed.num_updates == 3 and resumed.losses.keys() == saved.losses.keys()
    update(resumed, range(3, 5))
    assert_same_parameters(whole, resumed)
    with pytest.raises(AssertionError):
        assert_same_parameters(whole, saved)


def test_a_checkpoint_that_lacks_a_part_of_the_state_is_refused():
    learner = Learner(make_agent(), optimizer_ctor=of_torch("AdamW", amsgrad=True))
    learner.update(make_batch())
    state = copy.deepcopy(learner.optimizer.state_dict())
    del state["state"][0]["max_exp_avg_sq"]
    with pytest.raises(TaacError, match=r"of another optimizer: 'max_exp_avg_sq' of parameter 0 is missing, expected"):
        load_state(learner.optimizer, state)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"weight_decay": {"critics": 1e-4}}, "no group 'critics' with weights; there are: actor, critic"),
        ({"weight_decay": {"temperature": 1e-4}}, "no group 'temperature' with weights"),
        ({"weight_decay": {"actor": -1e-4}}, "weight_decay of 'actor' must be 0 or more, got -0.0001"),
        ({"weight_decay": {"actor": float("nan")}}, "must be 0 or more, got nan"),
        ({"weight_decay": {"actor": 0.1}, "optimizer_ctor": torch.optim.Rprop}, "Rprop has no weight decay"),
        ({"optimizer_ctor": {"critics": torch.optim.Adam}}, "no group 'critics' of parameters; there are: actor, critic, te"),
        ({"epsilon": 1e-5, "optimizer_ctor": torch.optim.Adam}, "epsilon 1e-05 has no effect .* Adam.eps"),
        ({"epsilon": 1e-5, "optimizer_ctor": {"actor": torch.optim.Adam}}, "epsilon 1e-05 has no effect on actor with"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(TaacError, match=message):
        Learner(make_agent(), **settings)


@pytest.mark.parametrize("ctors", [None, {"critic": torch.optim.Adam}, {"actor": torch.optim.AdamW}])
def test_the_state_of_other_optimizers_is_refused(ctors):
    learner, other = (Learner(make_agent(), 0.01, optimizer_ctor=c) for c in (ctors, {"actor": torch.optim.SGD}))
    learner.update(make_batch()), other.update(make_batch())
    before = str(learner.optimizer.state_dict())
    with pytest.raises(TaacError, match="the state of another optimizer"):
        load_state(learner.optimizer, other.optimizer.state_dict())
    assert str(learner.optimizer.state_dict()) == before


def test_what_an_optimizer_refuses_is_told():
    with pytest.raises(TaacError, match="in SGD: ValueError: Nesterov momentum requires a momentum"):
        build("Learner.optimizer_ctor = @SGD", "SGD.nesterov = True")
    with pytest.raises(TaacError, match="lr"):
        build("Learner.optimizer_ctor = @SGD", "SGD.lr = 0.1")
