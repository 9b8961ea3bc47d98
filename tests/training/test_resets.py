"""Parts of the agent begin anew in the middle of a run: what is new, what stays, and that a resumed run does the same."""

from __future__ import annotations

import copy

import pytest
import torch

from taac.errors import TaacError
from taac.training.resets import Reset
from tests.training.runs import assert_resumes_exactly, build, learn_until, run


def before_and_after(reset, *params, method="taac"):
    """State of the algorithm after 12 updates, after the call of the hook, and the trainer."""
    trainer = build(*params, method=method)
    learn_until(trainer, 12)
    before = copy.deepcopy(trainer.agent.state_dict())
    reset(trainer)
    return before, trainer.agent.state_dict(), trainer


def changed(before, after):
    return {name.split(".")[1] for name in before if not torch.equal(before[name], after[name])}


def moments(trainer, name):
    module = trainer.agent.algorithm.get_submodule(name)
    return [trainer.learner.optimizer.state.get(p) for p in module.parameters()]


def counts(trainer):
    return {n: g["num_steps"] for n, g in zip(trainer.learner.group_names, trainer.learner.optimizer.param_groups)}


def test_named_modules_begin_anew_with_their_targets_and_nothing_else_changes():
    before, after, trainer = before_and_after(Reset(at=(12,), modules=("critics",)))
    assert changed(before, after) == {"critics", "target_critics"}
    algorithm = trainer.agent.algorithm
    for new, target in zip(algorithm.critics.parameters(), algorithm.target_critics.parameters()):
        assert torch.equal(new, target)
    assert moments(trainer, "critics") == [None] * len(moments(trainer, "critics")) and None not in moments(trainer, "actor")
    assert (counts(trainer)["critic"], counts(trainer)["actor"]) == (0, 12)
    size = trainer.replay_buffer.size
    learn_until(trainer, 13)
    assert trainer.replay_buffer.size > size > 300 and counts(trainer)["critic"] == 1
    first = moments(trainer, "critics")[0]
    # The first step of Adam: m = (1 - 0.9) g and v = (1 - 0.999) g^2.
    torch.testing.assert_close(first["exp_avg_sq"], (first["exp_avg"] / 0.1) ** 2 * 0.001)
    trainer.close()


def test_without_names_all_of_the_algorithm_begins_anew():
    before, after, trainer = before_and_after(Reset(at=(12,)), "create_agent.normalize_observations = True")
    new = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert new == {"algorithm"} and changed(before, after) >= {"actor", "critics", "target_critics", "action_temperature"}
    assert set(counts(trainer).values()) == {0} and not trainer.learner.optimizer.state
    assert float(trainer.agent.algorithm.action_temperature.alpha()) == 1.0
    trainer.close()


def test_a_part_of_a_group_counts_by_itself():
    _, _, trainer = before_and_after(Reset(at=(12,), modules="actor.head"))
    assert counts(trainer)["actor"] == 12
    assert moments(trainer, "actor.head")[0] is None and sum(m is None for m in moments(trainer, "actor")) == 2
    learn_until(trainer, 13)
    (of_head, *_), of_body = moments(trainer, "actor.head"), moments(trainer, "actor")[0]
    assert (of_head["step"].item(), of_body["step"].item()) == (1, 13)
    torch.testing.assert_close(of_head["exp_avg_sq"], (of_head["exp_avg"] / 0.1) ** 2 * 0.001)
    trainer.close()


def test_it_waits_for_its_update():
    before, after, trainer = before_and_after(Reset(at=(11, 13)))
    assert not changed(before, after)
    trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["@TensorFlowAdam", "{'actor': @AdamW}"])
def test_a_resumed_run_resets_where_the_whole_run_does(tmp_path, optimizer):
    params = (f"Learner.optimizer_ctor = {optimizer}", "Trainer.hooks = {'before_update': @Reset()}", "Reset.at = (20, 60)",
              "num_env_steps = 400", "evaluation_interval = 400", "evaluation_episodes = 1")  # fmt: skip
    plain = run(tmp_path / "plain", *params[:1], *params[3:], method="sac")
    whole, _ = assert_resumes_exactly(tmp_path, *params, method="sac", stop=[320, 322, 350])  # 20 updates were taken, and 22
    name = "algorithm.actor.head.weight"
    assert not torch.equal(whole.agent.state_dict()[name], plain.agent.state_dict()[name])


@pytest.mark.parametrize(("given", "message"), [({"at": ()}, "names no update"), ({"at": (0,)}, "at must be 1 or more")])
def test_bad_settings_are_refused(given, message):
    with pytest.raises(TaacError, match=message):
        Reset(**given)


def test_unknown_modules_are_refused_before_the_run():
    with pytest.raises(TaacError, match=r"the algorithm has no 'critic'; did you mean 'critics'.*it has: .*actor"):
        build("Trainer.hooks = {'before_update': @Reset()}", "Reset.at = (2,)", "Reset.modules = ('critic',)")


def test_updates_that_the_run_does_not_reach_are_refused():
    """300 of the 400 steps are collected first, then each earns an update, and none follows the last."""
    params = ("Trainer.hooks = {'before_update': @Reset()}", "num_env_steps = 400")
    build(*params, "Reset.at = (99,)").close()
    with pytest.raises(TaacError, match="the run has 100 updates, so no update follows number 100"):
        build(*params, "Reset.at = (2, 100)")


def test_ranks_begin_anew_alike(monkeypatch):
    """What is new is the first rank's: of others, the values were drawn by other generators."""
    trainer, copied = build(), []
    learn_until(trainer, 2)
    monkeypatch.setattr(type(trainer.ranks), "copy_first", lambda self, tensors: copied.extend(t.data_ptr() for t in tensors))
    Reset(at=(2,), modules=("critics",))(trainer)
    algorithm = trainer.agent.algorithm
    assert {p.data_ptr() for part in (algorithm.critics, algorithm.target_critics) for p in part.parameters()} <= {*copied}
    trainer.close()
