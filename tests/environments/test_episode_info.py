"""Numbers of the environment's `info`, from a step to evaluations.csv and the report."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from taac.acting.evaluation import evaluate
from taac.analysis.readers import events
from taac.analysis.report.page import make_report, write_report
from taac.analysis.report.scores import Options
from taac.environments.create import create_environment
from taac.errors import TaacError
from taac.runs import layout
from tests.training.runs import build, learn_until, rows, run


class Telling(gymnasium.Env):
    """Episodes of 3 steps; at step t of episode e it tells 10 e + t, and in every second episode whether it is odd."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self):
        self._e = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is None or self._e < 0:
            self._e += 1
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._t += 1
        told = 10.0 * self._e + self._t
        info = {"told": told, "at:2": np.array(self._t == 2), "noise": "x", "sum": told}
        return np.zeros(1, np.float32), 1.0, False, self._t >= 3, info


gymnasium.register("taac-test/Telling-v0", Telling)
NAME = "tests.environments.test_episode_info:taac-test/Telling-v0"
NAMES = ("sum", "told", "told:sum", "told:mean", "told:max", "told:min", "at:2", "at:2:sum")


@pytest.mark.parametrize("repeat, asynchronous", [(1, False), (2, False), (1, True)])
def test_an_episode_tells_its_numbers_where_it_ends(repeat, asynchronous):
    """Whether its steps are repeated inside or not, and in processes of their own."""
    environment = create_environment(NAME, 2, asynchronous, info=NAMES, action_repeat=repeat)
    assert environment.info == NAMES
    environment.reset(0)
    ended = 0
    for _ in range(8):
        step = environment.step(environment._zero_action)
        for i in np.flatnonzero(step.is_last().numpy()):
            last = environment.episode_info[i, 0]
            assert last % 10 == 3
            np.testing.assert_allclose(environment.episode_info[i], [last, last, 3 * last - 3, last - 1, last, last - 2, 0, 1])
            ended += 1
    environment.close()
    assert ended >= 4


@pytest.mark.parametrize(
    "info, said",
    [(("tol",), "'tol'.*the last info has at:2, noise, sum, told"), (("a,b",), "letters"), (("told", "told"), "twice")],
)
def test_a_name_that_the_info_never_has_is_refused(info, said):
    with pytest.raises(TaacError, match=said):
        environment = create_environment(NAME, info=info)
        environment.reset(0)
        for _ in range(4):
            environment.step(environment._zero_action)


@pytest.mark.slow
def test_success_is_in_summaries_tables_and_reports(tmp_path):
    """And the mean over an evaluation's episodes is that of what they tell; a killed run goes on telling it."""
    told = [
        "create_environment.env_name = 'tests.toy_tasks:taac-test/Reach-v0'", "create_environment.info = ('is_success',)",
        "Intervals.checkpoint_interval = 100", "Evaluator.evaluation_episodes = 7", "create_experiment.method = 'm'",
    ]  # fmt: skip
    for seed in (0, 1):
        run(tmp_path / f"seed_{seed}", *told, f"create_experiment.seed = {seed}", until=450 if seed else None)
    run(tmp_path / "seed_1", *told, "create_experiment.seed = 1")
    for seed in (0, 1):
        table = layout.read_evaluations(tmp_path / f"seed_{seed}")
        assert table.columns == (*layout.COLUMNS, "info/is_success") and not table.damage
        found = [float(row["info/is_success"]) for row in rows(tmp_path / f"seed_{seed}")]
        assert found == [row[-1] for row in table.rows] and all(0 <= x <= 1 and (7 * x).is_integer() for x in found)
        scalars = events.read(tmp_path / f"seed_{seed}").scalars
        assert scalars["evaluation/info/is_success"].value.tolist() == pytest.approx(found)
        assert len(scalars["rollout/info/is_success"].value) >= 3
    content = make_report(tmp_path, Options())
    (text,) = (path.read_text() for path in write_report(content, tmp_path / "out") if path.suffix == ".md")
    assert "What the environment reports" in text and "| is_success |" in text
    told_of = content["tasks"][0]["methods"][0]["info"]["info/is_success"]
    assert told_of["runs"] == 2


def test_an_evaluation_counts_the_episodes_that_it_is_asked_for():
    reach = "create_environment.env_name = 'tests.toy_tasks:taac-test/Reach-v0'"
    trainer = build(reach, "create_environment.info = ('is_success',)")
    learn_until(trainer, 1)
    episodes = evaluate(trainer.agent, trainer.evaluation_environment, 6, seed=0)
    trainer.close()
    assert [set(e.info) for e in episodes] == [{"is_success"}] * 6
    assert [e.info["is_success"] for e in episodes] == [float(e.ret > -15) for e in episodes]


def test_what_is_no_number_is_told_with_the_setting():
    environment = create_environment(NAME, 1, info=("noise",))
    environment.reset(0)
    with pytest.raises(TaacError, match=r"create_environment\.info: 'noise' is not a number in the info: 'x'"):
        environment.step(environment._zero_action)
    environment.close()
