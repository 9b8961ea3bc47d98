"""What summaries show of updates: means since the last summary, exact over a resume, and diagnostics."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from taac.analysis.readers import events
from taac.errors import TaacError
from taac.learning.diagnostics import Diagnostics, RunningMeans, explained_variances
from tests.learning.test_guard import make_batch, make_learner
from tests.training.runs import assert_same_parameters
from tests.training.test_tensorboard import train


def scalars(**values):
    return {tag: torch.tensor(value) for tag, value in values.items()}


def test_means_of_updates_that_report_different_tags():
    means = RunningMeans()
    assert means.means() == {}
    means.add(scalars(a=1.0, b=4.0))
    means.add(scalars(a=2.0, b=8.0))
    means.add(scalars(a=6.0))
    assert means.means() == {"a": 3.0, "b": 6.0}
    means.clear()
    assert means.means() == {}
    means.add(scalars(b=5.0))
    assert means.means() == {"b": 5.0}


def test_a_value_that_moves_later_was_taken_as_it_was():
    """A temperature's alpha may be its parameter itself."""
    means, alpha = RunningMeans(), torch.tensor(1.0)
    for value in (1.0, 2.0, 6.0):
        alpha.fill_(value)
        means.add({"alpha": alpha, "other": torch.tensor(0.0)})
    assert means.means() == {"alpha": 3.0, "other": 0.0}


def test_many_small_values_lose_no_digits():
    means = RunningMeans()
    for _ in range(20_000):
        means.add(scalars(a=0.1))
    assert means.means()["a"] == pytest.approx(torch.tensor(0.1).item(), rel=1e-12)


# --- Statistics of an update ------------------------------------------------------------------------------------------

F, M, L = 0, 1, 2


def agent_of(signals=(), reward_parts=None):
    """What `Diagnostics` reads of an agent."""
    return SimpleNamespace(
        algorithm=SimpleNamespace(part_numbers=reward_parts),
        signals=[SimpleNamespace(name=name) for name in signals],
    )


def test_critics_by_hand():
    """T = 4, B = 1, frames F M L F: critics learn on frames 0 and 1; that of 2, at LAST, must not be read, nor frame 3.

    G = (4, 8, NaN): mean 6, variance 4.  Q_0 = (1, 3): mean 2; G - Q_0 = (3, 5): mean 4, variance 1; explained 3/4.
    Q_1 = (4, 4): mean 4; G - Q_1 = (0, 4): mean 2, variance 4; explained 0.
    """
    step_type = torch.tensor([[F], [M], [L], [F]], dtype=torch.uint8)
    q = torch.tensor([[[1.0], [3.0], [100.0]], [[4.0], [4.0], [-100.0]]])
    target = torch.tensor([[4.0], [8.0], [1000.0]])
    found, observed = Diagnostics("scalars", agent_of()).compute({"step_type": step_type, "q": q, "target": target})
    assert observed == {}
    assert explained_variances({tag: value.item() for tag, value in found.items()}) == {
        "critic/target/reward": 6.0,
        "critic_0/value/reward": 2.0, "critic_0/td_error/reward": 4.0, "critic_0/explained_variance/reward": 0.75,
        "critic_0/loss/reward": (9 + 25) / 2, "critic_1/loss/reward": (0 + 16) / 2,
        "critic_1/value/reward": 4.0, "critic_1/td_error/reward": 2.0, "critic_1/explained_variance/reward": 0.0,
    }  # fmt: skip


def test_each_part_of_a_reward_has_its_own_numbers():
    """A second part is 10 times that of `test_critics_by_hand`."""
    step_type = torch.tensor([[F], [M], [L], [F]], dtype=torch.uint8)
    q = torch.tensor([[[1.0], [3.0], [100.0]], [[4.0], [4.0], [-100.0]]])
    target = torch.tensor([[4.0], [8.0], [1000.0]])
    both = {"step_type": step_type, "q": torch.stack([q, 10 * q], -1), "target": torch.stack([target, 10 * target], -1)}
    found, _ = Diagnostics("scalars", agent_of()).compute(both)
    shown = explained_variances({tag: value.item() for tag, value in found.items()})
    parts = sorted({tag.rpartition("/")[2] for tag in shown})
    assert [shown[f"critic/target/{part}"] for part in parts] == [6.0, 60.0]
    assert [shown[f"critic_0/td_error/{part}"] for part in parts] == [4.0, 40.0]
    assert [shown[f"critic_0/explained_variance/{part}"] for part in parts] == [0.75, 0.75]


def test_frames_that_the_critics_leave_out_are_left_out():
    """T = 3, B = 2: of the four actions, critics learn from three; what they say of the fourth must not be read."""
    step_type = torch.tensor([[F, F], [M, M], [M, M]], dtype=torch.uint8)
    regressed = torch.tensor([[True, False], [True, True]])
    detail = {
        "step_type": step_type, "regressed": regressed, "q": torch.tensor([[[1.0, 100.0], [3.0, 5.0]]]),
        "target": torch.tensor([[2.0, -100.0], [3.0, 7.0]]),
    }  # fmt: skip
    diagnostics = Diagnostics("histograms", agent_of())
    found, observed = diagnostics.compute(detail)
    assert found["critic_0/value/reward"].item() == 3 and found["critic/target/reward"].item() == 4
    shown = diagnostics.histograms(observed)
    assert "histogram/regressed" not in shown
    assert shown["histogram/q"].tolist() == [1, 3, 5] and shown["histogram/td_error"].tolist() == [1, 0, 2]


def test_explained_variance_is_of_mean_variances_and_left_out_where_nothing_varies():
    means = {"critic/target_variance/a": 4.0, "critic_0/td_error_variance/a": 1.0, "loss/critic": 2.0,
             "critic/target_variance/b": 0.0, "critic_0/td_error_variance/b": 1.0}  # fmt: skip
    assert explained_variances(means) == {"critic_0/explained_variance/a": 0.75, "loss/critic": 2.0}


@pytest.mark.parametrize(
    "agent, count, names",
    [
        (agent_of(), 1, ["reward"]),
        (agent_of(), 2, ["part_0", "part_1"]),
        (agent_of(["icm", "rnd"]), 3, ["part_0", "icm", "rnd"]),
        (agent_of(["gail"], reward_parts=[1]), 1, ["gail"]),  # the task's reward has no weight
        (agent_of(["icm"], reward_parts=[0, 2, 3]), 3, ["part_0", "part_2", "icm"]),
    ],
)
def test_parts_have_names(agent, count, names):
    values = {"step_type": torch.tensor([[F], [M]], dtype=torch.uint8)}
    numbers = torch.arange(count).float()
    values |= {"q": numbers.reshape(1, 1, 1, -1), "target": numbers.reshape(1, 1, -1)}
    if count == 1:
        values = {name: x.squeeze(-1) if x.dtype == torch.float32 else x for name, x in values.items()}
    found, _ = Diagnostics("scalars", agent).compute(values)
    found = {tag: value.item() for tag, value in found.items() if tag.startswith("critic_0/value/")}
    assert found == {f"critic_0/value/{name}": float(n) for n, name in enumerate(names)}


def test_policy_switch_and_values_by_hand():
    """Frames F M L: what stands at LAST is not read, but for the value there, which targets bootstrap from; at FIRST none is."""
    ignored = 1e6
    values = {
        "step_type": torch.tensor([[F], [M], [L]], dtype=torch.uint8),
        "q": torch.zeros(1, 2, 1), "target": torch.zeros(2, 1),
        "mean": torch.tensor([[[1.0, 3.0]], [[5.0, 7.0]], [[ignored, ignored]]]),  # mean 4, variance (9 + 1 + 1 + 9) / 4 = 5
        "log_std": torch.tensor([[[-1.0, -1.0]], [[-3.0, -3.0]]]),  # of frames 0..T-2: mean -2, deviation 1
        "advantage": torch.tensor([[2.0], [6.0], [ignored]]),  # mean 4, deviation 2
        "beta": torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]], [[0.0, ignored]]]),  # deviation 0.2
        "q_pi": torch.tensor([[1.0], [5.0], [ignored]]), "v": torch.tensor([[2.0], [4.0]]),
        "v_target": torch.tensor([[6.0], [8.0], [ignored]]), "value": torch.tensor([[ignored], [3.0], [9.0]]),
        "action": torch.tensor([[[-1.0]], [[0.0]]]), "switch": torch.tensor([[True], [False], [False]]),
    }  # fmt: skip
    found, observed = Diagnostics("histograms", agent_of()).compute(values)
    expected = {
        "policy/mean": 4.0, "policy/mean_std": math.sqrt(5), "policy/log_std_std": 1.0,
        "policy/action": -0.5, "policy/action_std": 0.5, "policy/q": 3.0, "value/prediction": 3.0, "value/target": 7.0,
        "switch/advantage": 4.0, "switch/advantage_std": 2.0, "switch/beta_std": 0.2,
        "replay/fraction_repeated": 0.5,
    }  # fmt: skip
    shown = {tag: value.item() for tag, value in found.items() if not tag.startswith("critic")}
    assert shown == pytest.approx(expected) and found["critic/next_value"] == 6.0
    histograms = {tag: sorted(x.tolist()) for tag, x in Diagnostics("off", agent_of()).histograms(observed).items()}
    assert histograms.pop("histogram/beta") == pytest.approx([0.2, 0.6])
    assert histograms == {
        "histogram/mean": [1, 3, 5, 7], "histogram/log_std": [-3, -3, -1, -1], "histogram/advantage": [2, 6],
        "histogram/q": [0, 0], "histogram/target": [0, 0], "histogram/td_error": [0, 0], "histogram/target/reward": [0, 0],
        "histogram/critic_0/value/reward": [0, 0], "histogram/critic_0/td_error/reward": [0, 0],
        "histogram/q_pi": [1, 5], "histogram/v": [2, 4], "histogram/v_target": [6, 8], "histogram/action": [-1, 0],
    }  # fmt: skip


def test_gradient_norms_by_hand():
    """Groups of (3, 4) and (0): 5 and 0; one without gradients is left out."""
    one, two, three = (torch.nn.Parameter(torch.zeros(n)) for n in (1, 1, 2))
    one.grad, two.grad = torch.tensor([3.0]), torch.tensor([-4.0])
    four = torch.nn.Parameter(torch.zeros(()))
    four.grad = torch.tensor(0.0)
    groups = torch.optim.SGD([{"params": [one, two]}, {"params": [three]}, {"params": [four]}], lr=0.1)
    norms = Diagnostics("scalars", agent_of()).gradient_norms(["actor", "icm", "temperature"], groups)
    assert {tag: value.item() for tag, value in norms.items()} == {"gradient/actor": 5.0, "gradient/temperature": 0.0}
    assert Diagnostics("off", agent_of()).gradient_norms(["actor", "icm", "temperature"], groups) == {}


def test_gradient_norms_are_those_before_clipping():
    plain, clipped = make_learner(diagnostics="scalars"), make_learner(diagnostics="scalars", max_grad_norm=1e-3)
    clipped.agent.load_state_dict(plain.agent.state_dict())
    norms = []
    for learner in (plain, clipped):
        torch.manual_seed(1)
        learner.update(make_batch())
        norms.append({tag: value for tag, value in learner.summary().items() if tag.startswith("gradient/")})
    assert norms[0] == norms[1] and norms[0]["gradient/critic"] > 1e-2
    assert torch.stack([p.grad.norm() for p in clipped.agent.parameters() if p.grad is not None]).norm() < 1.001e-3


def test_the_norm_of_the_last_gradient_costs_nothing_before_a_summary():
    """Over all of the algorithm's parameters, before clipping; a resumed learner knows it without an update."""
    plain, clipped = make_learner(), make_learner(max_grad_norm=1e-3)
    clipped.agent.load_state_dict(plain.agent.state_dict())
    for learner in (plain, clipped):
        torch.manual_seed(1)
        learner.update(make_batch())
    expected = torch.cat([p.grad.flatten() for p in plain.agent.parameters() if p.grad is not None]).norm().item()
    resumed = make_learner()
    resumed.load_state_dict(clipped.state_dict())
    assert expected > 1e-2
    for learner in (plain, clipped, resumed):
        assert learner.summary()["gradient/total"] == pytest.approx(expected, rel=1e-5)
        assert learner.summary() == {}


COMMON = {
    *(f"critic_{i}/{kind}/reward" for i in (0, 1) for kind in ("value", "td_error", "explained_variance", "loss")),
    "critic/target/reward", "critic/next_value", *(f"gradient/{group}" for group in ("actor", "critic", "temperature")),
}  # fmt: skip
POLICY = {"policy/mean", "policy/mean_std", "policy/log_std_std", "policy/action", "policy/action_std", "policy/q"}
SWITCH = {"switch/advantage", "switch/advantage_std", "switch/beta_std", "replay/fraction_repeated"}
SHOWN = {
    "taac": COMMON | POLICY | SWITCH,
    # its action is a choice and a vector
    "sac_krep": COMMON | POLICY - {"policy/action", "policy/action_std", "policy/q"},
    "sac_discrete": COMMON,
    # its alpha is 1 and stays so: there is no temperature to learn
    "sac_value": (COMMON | POLICY | {"gradient/value", "value/prediction", "value/target"}) - {"gradient/temperature"},
}  # fmt: skip


@pytest.mark.parametrize("method", SHOWN)
def test_what_each_method_shows(method, tmp_path):
    """In a run, beside what it shows without; nothing of what is learnt changes. Histograms stay out of the scalars' reader."""
    short = ("num_env_steps = 110", "Intervals.summary_interval = 55")
    plain = train(tmp_path / "off", method, *short)
    shown = train(tmp_path / "on", method, *short, "Learner.diagnostics = 'histograms'")
    assert_same_parameters(plain, shown)
    off, on = (events.read(tmp_path / name).scalars for name in ("off", "on"))
    assert set(on) - set(off) == SHOWN[method] and set(off) <= set(on)
    always = {"loss/temperature_action", "learning_rate/actor", "learning_rate/critic", "gradient/total", "policy/entropy"}
    always |= {f"time/{activity}" for activity in ("collecting", "sampling", "updating", "evaluating")}
    assert always | ({"policy/log_std"} if "policy/mean" in SHOWN[method] else set()) <= set(off)
    for tag in set(off) - {t for t in off if t.startswith("time/")}:
        assert on[tag].value.tolist() == off[tag].value.tolist(), tag
    assert all(math.isfinite(value) for tag in SHOWN[method] for value in on[tag].value.tolist())
    written = b"".join(p.read_bytes() for p in (tmp_path / "on").glob("events.out.tfevents.*"))
    assert b"histogram/td_error" in written and (b"histogram/advantage" in written) == (method == "taac")


def test_another_kind_is_refused():
    with pytest.raises(TaacError, match=r"Learner\.diagnostics must be 'off', 'scalars' or 'histograms', got 'all'"):
        Diagnostics("all", agent_of())
