"""Updates with `create_agent.compile` against those without."""

from __future__ import annotations

import pytest
import torch

from taac.errors import TaacError
from taac.machine.compiled import CompiledFunction
from taac.training import experiment
from tests.machine.test_amx import needs_amx
from tests.machine.test_compiled import needs_compiler
from tests.methods import METHODS, fitting, thinned
from tests.training.runs import assert_resumes_exactly, build, trained

PRIORITIZED = "create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer"
COMPILE = "create_agent.compile = True"


def told_by(trainer, updates):
    """The trainer after so many updates, closed, and what each of them told."""
    told, update = [], trainer.learner.update
    trainer.learner.update = lambda *args: told.append(update(*args)) or told[-1]
    return trained(trainer, updates), told


def updated(method, *params, updates=6):
    """A trainer after so many updates, and what each of them told."""
    more = "num_envs = 2", "Learner.learning_rate = 0.01", *fitting(method), *params
    return told_by(build(*more, method=method), updates)


def assert_close(found, expected, **tolerance):
    (found, told), (expected, also_told) = found, expected
    states = found.agent.state_dict(), expected.agent.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, value in states[1].items():
        torch.testing.assert_close(states[0][name], value, **tolerance, msg=lambda text, name=name: f"{name}: {text}")
    torch.testing.assert_close(found.learner.summary(), expected.learner.summary(), rtol=1e-3, atol=1e-4)
    for one, other in zip(told, also_told, strict=True):
        assert one.extra.keys() == other.extra.keys()
        torch.testing.assert_close(one.loss, other.loss, **tolerance)
        torch.testing.assert_close(one.extra, other.extra, **tolerance)
        torch.testing.assert_close(one.segment_error, other.segment_error, **tolerance)
    assert len({float(one.extra["loss/total"]) for one in told}) == len(told)  # each update is another


# One of each family, with what else its networks may be made of.
FAMILIES = {
    "sac": ["ActorNetwork.activation = @ELU", "ELU.alpha = 0.5", "CriticEnsemble.last_bias_init_range = 0.1"],
    "sac_discrete": ["CategoricalActorNetwork.activation = @SiLU"],
    "sac_recurrent": [],
    "sac_krep": [],  # MixedSacAlgorithm
    "taac_q": ["CriticEnsemble.activation = @Tanh"],
    "td3": [  # whose actor is held in every second update
        "Td3Algorithm.exploration_noise = @noise/LinearSchedule()", "noise/LinearSchedule.start = 0.5",
        "noise/LinearSchedule.end = 3.0", "noise/LinearSchedule.updates = 5",
    ],
    "temporl": [],
    "tla": ["DeterministicActorNetwork.activation = @ELU"],
}  # fmt: skip


@pytest.mark.parametrize("method", thinned(FAMILIES, ("sac", "taac_q", "sac_recurrent", "td3")))
def test_an_update_of_each_family(method, traced_only):
    params = ["hidden_layers = (8,)", "initial_collect_steps = 60", *FAMILIES[method]]
    updates = 6 if method == "td3" else 3  # so many that its growing noise is in replayed actions
    compiled = updated(method, COMPILE, *params, updates=updates)
    for function in (compiled[0].learner._program, compiled[0].agent._rollout_step):
        assert isinstance(function, CompiledFunction) and len(function._programs) == 1 and function.retraced == 0
    assert_close(compiled, updated(method, *params, updates=updates), rtol=1e-4, atol=1e-5)


def test_what_stands_around_the_loss(traced_only):
    """Huber's error, another optimizer, smooth actors."""
    params = [
        "hidden_layers = (8,)", "initial_collect_steps = 60", "TAACTDLoss.huber_delta = 0.5",
        "Learner.optimizer_ctor = @AdamW", "AdamW.eps = 1e-4", "ActorCriticAlgorithm.actor_regularizers = (@CAPS, @L2C2)",
    ]  # fmt: skip
    assert_close(updated("taac", COMPILE, *params), updated("taac", *params), rtol=1e-4, atol=1e-5)


# Each changes much over the 6 updates: what a program keeps of the first call would show.
SCHEDULED = [
    "Learner.learning_rate = @rate/LinearSchedule()", "rate/LinearSchedule.start = 0.0", "rate/LinearSchedule.end = 0.05",
    "rate/LinearSchedule.updates = 5", "SacAlgorithm.target_entropy = @target/LinearSchedule()",
    "target/LinearSchedule.start = 0.5", "target/LinearSchedule.end = -50.0", "target/LinearSchedule.updates = 5",
    "create_agent.reward_signals = (@RND,)", "RND.strength = @novelty/LinearSchedule()", "novelty/LinearSchedule.start = 3.0",
    "novelty/LinearSchedule.end = -1.0", "novelty/LinearSchedule.updates = 5",
    "ActorCriticAlgorithm.target_update_tau = @tau/LinearSchedule()", "tau/LinearSchedule.start = 0.9",
    "tau/LinearSchedule.end = 0.1", "tau/LinearSchedule.updates = 5",
]  # fmt: skip
OF_TAAC = [p.replace("SacAlgorithm.target_entropy", "TaacAlgorithm.action_target_entropy") for p in SCHEDULED]
SIZES = ["batch_size = @size/PiecewiseSchedule()", "size/PiecewiseSchedule.values = (32, 16)",
         "size/PiecewiseSchedule.updates = (0, 4)"]  # fmt: skip


@pytest.mark.parametrize(
    "method, params",
    [("sdar", SCHEDULED), pytest.param("taac", [*OF_TAAC, *SIZES], marks=pytest.mark.slow)],
)
def test_what_follows_a_schedule(method, params, traced_only):
    params = ["hidden_layers = (8,)", "initial_collect_steps = 60", *params]
    compiled = updated(method, COMPILE, *params)
    assert compiled[0].agent.algorithm.weights.tolist() == [1.0, -1.0]
    function = compiled[0].learner._program
    assert len(function._programs) == 1 + (method == "taac")  # one for each batch size
    assert function.retraced == compiled[0].agent._rollout_step.retraced == 0
    assert_close(compiled, updated(method, *params), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs_compiler
def test_schedules_with_the_compiler():
    assert_close(updated("sac", COMPILE, *SCHEDULED), updated("sac", *SCHEDULED), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("method", METHODS)
def test_with_the_compiler(method):
    """Whose own faults no trace shows."""
    # Wide enough for vector instructions, which batches and layers of the other tests are not.
    wide = ["hidden_layers = (32,)", "batch_size = 64", "initial_collect_steps = 100"]
    assert_close(updated(method, COMPILE, *wide, updates=2), updated(method, *wide, updates=2), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@needs_compiler
def test_with_bfloat16_products(request):
    """As the plain path with them: nearer to it by far than that is to float32.

    Compiled as a whole where the processor has the instructions; `test_compiled.py` compiles a small model anywhere.
    """
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        request.getfixturevalue("traced_only")
    bfloat16 = "Learner.matmul = 'bfloat16'"
    found, plain, exact = (
        updated("taac", *params, updates=1)[1][0].loss for params in ((COMPILE, bfloat16), (bfloat16,), ())
    )
    assert 0 < (plain - exact).norm() < 0.05 * exact.norm()
    assert (found - plain).norm() < 0.3 * (plain - exact).norm()


@needs_amx
@pytest.mark.parametrize("method", ["taac"])
def test_with_six_products_of_parts(method, traced_only):
    """As exact as float32, which three are not."""
    products = "Learner.matmul = 'bfloat16x{}'"
    six, three, plain = (
        updated(method, COMPILE, products.format(6)), updated(method, COMPILE, products.format(3)), updated(method)
    )  # fmt: skip
    assert_close(six, plain, rtol=1e-4, atol=1e-5)
    losses = [torch.stack([one.loss for one in told]) for _, told in (six, three, plain)]
    assert 1e-7 < (losses[1] - losses[2]).norm() / losses[2].norm() < 1e-3
    assert 10 * (losses[0] - losses[2]).norm() < (losses[1] - losses[2]).norm()


@pytest.mark.slow
@needs_compiler
def test_a_killed_run_ends_as_the_run_that_was_never_killed(tmp_path):
    # With the sizes of `test_with_the_compiler`, whose programs are kept on the disk.
    params = (COMPILE, "num_envs = 2", "Intervals.checkpoint_interval = 100", "num_env_steps = 450")
    assert_resumes_exactly(tmp_path, *params, until=[430])


def test_a_compiled_collector_takes_over_what_a_learner_hands_out(traced_only):
    """Its program, made before, reads the parameters of after."""
    trainer, _ = updated("taac", COMPILE, "hidden_layers = (8,)", "initial_collect_steps = 60", updates=2)
    rollout = trainer.collector.rollout
    torch.manual_seed(1)
    collector = experiment.create_agent(trainer.environment, trainer.agent.device, role="collect")

    def acts(agent):
        torch.manual_seed(2)
        return agent.rollout_step(rollout.time_step, rollout.state).switch_probability  # from actor and critics

    assert not torch.equal(acts(collector), acts(trainer.agent))
    collector.load_acting_state(trainer.agent.acting_state())
    assert torch.equal(acts(collector), acts(trainer.agent))
    assert isinstance(collector._rollout_step, CompiledFunction) and len(collector._rollout_step._programs) == 1
    refuses_what_is_not_finite(trainer)


def refuses_what_is_not_finite(trainer):
    before = {name: value.clone() for name, value in trainer.agent.state_dict().items()}
    sampled = trainer.replay_buffer.sample(trainer.batch_size, trainer.segment_length)
    sampled.time_step.reward[1, 3] = float("nan")
    with pytest.raises(TaacError, match=r"update 3 was not taken, because .* not finite: the loss"):
        trainer.learner.update(sampled)
    after = trainer.agent.algorithm.state_dict()
    assert all(torch.equal(value, before[f"algorithm.{name}"]) for name, value in after.items())
