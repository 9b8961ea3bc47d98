"""What is found out about an algorithm when an experiment is built, before it has taken a step."""

from __future__ import annotations

import gin
import pytest
import torch

from taac import configuration
from taac.acting.evaluation import evaluate
from taac.algorithms import Algorithm, SacAlgorithm
from taac.checking.description import describe, first_update
from taac.configuration import RunRequest
from taac.errors import TaacError
from taac.training import experiment
from taac.training.summaries import unknown_tags

SMALL = ("hidden_layers=8,", "replay_length=500", "evaluation_envs=2")


def build(algorithm=None, method="sac", task="Pendulum-v1"):
    RunRequest(task, method, settings=SMALL).load()
    if algorithm is not None:
        with gin.unlock_config():
            gin.bind_parameter("create_agent.algorithm_ctor", algorithm)
    trainer = configuration.build(experiment.create_experiment)
    trainer.close()
    return trainer


def variant(**members):
    """A SAC with other members."""
    return type("SacVariant", (SacAlgorithm,), members)


@pytest.mark.parametrize("name", ["initial_state", "predict_step", "rollout_step", "random_step", "train_step", "calc_loss"])
def test_a_step_that_is_missing_is_named(name):
    algorithm = variant(**{name: getattr(Algorithm, name)})
    with pytest.raises(TaacError, match=rf"^{algorithm.__name__} does not define {name}, which every algorithm needs"):
        build(algorithm)


@pytest.mark.parametrize("name", ["predict_step", "rollout_step", "random_step"])
def test_a_step_that_fails_is_named_with_its_line(name):
    def fails(self, time_step, state, epsilon=0.0):
        raise KeyError("wheels")

    algorithm = variant(**{name: fails})
    with pytest.raises(TaacError, match=rf"{algorithm.__name__}\.{name} failed .*KeyError: 'wheels' \(in fails, .*test_first_"):
        build(algorithm)


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda step: step._replace(output=torch.zeros(2, 3)), r"actions of shape \[2, 3\], expected \[2, 1\]"),
        (lambda step: step._replace(output=step.output[:1]), r"actions of shape \[1, 1\], expected \[2, 1\]"),
        (lambda step: step._replace(output=None), r"expected \[2, 1\]"),
        (lambda step: step.output, "returns a Tensor, expected an AlgStep"),
    ],
)
def test_actions_of_another_shape_are_blamed_on_the_algorithm(change, told):
    def predict_step(self, *arguments):
        return change(SacAlgorithm.predict_step(self, *arguments))

    with pytest.raises(TaacError, match=rf"SacVariant\.predict_step .*{told}"):
        build(variant(predict_step=predict_step))


def test_a_step_that_fails_in_an_evaluation_is_blamed_on_the_algorithm():
    trainer = build()

    def fails(time_step, state, epsilon=0.0):
        raise RuntimeError("no wheels")

    trainer.agent.algorithm.predict_step = fails
    told = r"^SacAlgorithm\.predict_step failed in an evaluation: RuntimeError: no wheels \(in fails, "
    environment = experiment.create_environment(num_envs=1)
    with pytest.raises(TaacError, match=told):
        evaluate(trainer.agent, environment, 1, seed=0)
    environment.close()


def tagged(tag, meaning):
    def calc_loss(self, experience, info):
        loss = SacAlgorithm.calc_loss(self, experience, info)
        return loss._replace(extra={**loss.extra, tag: loss.loss.detach().mean()})

    return variant(calc_loss=calc_loss, summary_tags=lambda self: meaning)


@pytest.mark.parametrize(
    "tag, meaning, known",
    [
        ("mine/answer", {}, False),
        ("mine/answer", {"mine/answer": "a mean"}, True),
        ("mine/7", {"mine/{number}": "one of several"}, True),
        ("signal/mine_loss", {}, True),  # a template of the package
    ],
)
def test_a_tag_without_a_meaning_is_told(tag, meaning, known):
    trainer = build(tagged(tag, meaning))
    spec = experiment.experience_spec(trainer.environment, trainer.agent)
    tags, _ = first_update(trainer.agent, spec, trainer.segment_length)
    assert unknown_tags(tags, trainer.agent.algorithm.summary_tags()) == ([] if known else [tag])


def test_a_loss_that_fails_on_blank_frames_proves_nothing():
    def calc_loss(self, experience, info):
        assert bool((experience.time_step.observation != 0).any()), "blank"
        return SacAlgorithm.calc_loss(self, experience, info)

    build(variant(calc_loss=calc_loss))


@gin.configurable(module="tests.first_update")
class FlatBatches(SacAlgorithm):
    """Takes the critics' predictions for `[N, B]`."""

    def calc_loss(self, experience, info):
        _number, _batch = info.prediction.shape
        return super().calc_loss(experience, info)


def test_taac_check_tells_how_the_first_update_fails():
    settings = (*SMALL, "create_agent.algorithm_ctor=@tests.first_update.FlatBatches")
    lines = describe(RunRequest("Pendulum-v1", "sac", settings=settings))
    told = [line for line in lines if "FlatBatches fails to learn from blank frames, so its first update may fail" in line]
    assert len(told) == 1 and "too many values to unpack" in told[0] and f"in calc_loss, {__file__}:" in told[0]
    assert lines.index("what looks wrong:") + 1 == lines.index(told[0])


@gin.configurable(module="tests.first_update")
class OddValues(SacAlgorithm):
    """Reports a temperature of shape `[1]`, and a Python number."""

    def calc_loss(self, experience, info):
        found = super().calc_loss(experience, info)
        return found._replace(extra={**found.extra, "mine/alpha": torch.ones(1), "mine/rate": 0.5})


def test_taac_check_tells_which_values_are_no_scalars():
    settings = (*SMALL, "create_agent.algorithm_ctor=@tests.first_update.OddValues")
    told = "\n".join(describe(RunRequest("Pendulum-v1", "sac", settings=settings)))
    assert "what an update reports must be scalars, tensors without dimensions: mine/alpha, mine/rate" in told


def test_frames_are_replayed_as_often_as_their_steps_earn():
    """With actions of three steps, a frame earns three updates, and the first 400 environment steps are 134 of them."""
    settings = ("action_repeat=3", "replay_length=150", "initial_collect_steps=400", "batch_size=32")
    told = "\n".join(describe(RunRequest("Pendulum-v1", "sac_nrep", settings=settings)))
    assert "updates per environment step: 1," in told and f"{3 * 2 * 32} frames are replayed for each" in told
    assert "are lost before any update" not in told


@pytest.mark.parametrize("method", ["taac", "sac_recurrent"])
def test_a_first_loss_on_blank_frames_moves_nothing(method):
    """That each method has one is tested by the tables of docs/methods."""
    trainer = build(method=method)
    spec = experiment.experience_spec(trainer.environment, trainer.agent)
    before = {name: tensor.clone() for name, tensor in trainer.agent.state_dict().items()}
    state = torch.get_rng_state()
    tags, failure = first_update(trainer.agent, spec, trainer.segment_length)
    assert "loss/critic" in tags and "loss/actor" in tags and failure is None
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.agent.state_dict().items())
