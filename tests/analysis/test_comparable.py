"""Runs that are not comparable, also where their environments differ in what a wrapper or the environment's class was given."""

from __future__ import annotations

import gin
import gymnasium
import pytest

from taac import configuration
from taac.analysis.readers import comparable, run_records
from taac.analysis.report.page import make_report
from taac.analysis.report.scores import Options
from taac.environments.create import create_environment
from taac.errors import TaacError
from taac.runs import layout
from tests.analysis.campaigns import VERSIONS, make_run

WRAPPED = "create_environment.wrappers = (@MyWrapper,)\n"


@pytest.mark.parametrize(
    "other, what",
    [
        (
            {"versions": {**VERSIONS, "gymnasium": "1.3.0"}},
            "version of gymnasium: 1.4.0 in 3 run(s), but odd has 1.3.0",
        ),
        ({"budget": 2000}, "budget on Hopper-v5, environment steps: 1000 in 3 run(s), but odd has 2000"),
        ({"updates_per_iteration": 4}, "updates per environment step on Hopper-v5: 0.5 in 3 run(s), but odd has 2.0"),
        ({"extra_gin": "create_environment.env_kwargs = {'a': 1}\n"}, None),  # the others do not say: nothing differs
        ({"extra_gin": "SacAlgorithm.gamma = 0.5\n", "method": "sac"}, "odd has SacAlgorithm.gamma = 0.5 for None"),
        ({"extra_gin": "SacAlgorithm.later = None\nSacAlgorithm.also = False\n", "method": "sac"}, None),  # of an earlier version
        ({"extra_gin": "SacAlgorithm.later = True\n", "method": "sac"}, "odd has SacAlgorithm.later = True for None"),
        ({"method": "sac", "seed": 1}, "seed 1 of sac on Hopper-v5 occurs more than once: odd, sac_1"),
        ({"versions": {**VERSIONS, "tensorboard": "1.0"}}, None),
        ({"versions": {"taac": "0.1.0"}}, None),
        ({"task": "Ant-v5", "budget": 77, "updates_per_iteration": 9}, None),
        ({"budget": 77, "status": "failed", "steps": ()}, None),  # before its first evaluation
        ({"budget": 77, "status": "failed"}, "budget on Hopper-v5, environment steps: 1000 in 3 run(s), but odd has 77"),
    ],
)
def test_what_differs_is_named(tmp_path, other, what):
    for seed in range(3):
        make_run(tmp_path / f"sac_{seed}", seed=seed)
    make_run(tmp_path / "odd", **{"method": "taac", "seed": 7, **other})
    records = run_records.find(tmp_path)
    found = comparable.mixtures(records)
    if what is None:
        assert found == []
        return
    assert len(found) == 1 and what in found[0], found
    with pytest.raises(TaacError, match="--allow_mixed") as refused:
        comparable.refuse_mixtures(records, allow_mixed=False)
    assert what in str(refused.value)
    assert what in comparable.refuse_mixtures(records, allow_mixed=True)[0]


# --- Settings of environments ---------------------------------------------------------------------


def names(text):
    return comparable.reaching_environment(layout.parse_bindings(text))


def mixtures(tmp_path, common, *differing):
    """What tells four runs of two methods apart, of which the last has the second of two texts."""
    for number, (method, seed) in enumerate([("a", 0), ("a", 1), ("b", 0), ("b", 1)]):
        make_run(tmp_path / str(number), method, seed=seed, extra_gin=common + differing[number == 3])
    records = [r._replace(method=r.folder) for r in run_records.find(tmp_path)]  # as `groups.labelled` tells them apart
    return comparable.mixtures(records)


def test_no_verdict_is_made_between_environments_of_other_wrappers(tmp_path):
    for method, scale in {"a": 0.5, "b": 5.0}.items():
        for seed in range(5):
            make_run(tmp_path / f"{method}{seed}", method, seed=seed, extra_gin=f"{WRAPPED}MyWrapper.scale = {scale}\n")
    with pytest.raises(TaacError, match=r"MyWrapper\.scale on Hopper-v5: 0\.5 in 5 run\(s\), but b0, .*, b4 has 5\.0"):
        make_report(tmp_path, Options())
    content = make_report(tmp_path, Options(allow_mixed=True))
    assert content["warnings"][0].startswith("not comparable: MyWrapper.scale on Hopper-v5")


@pytest.mark.parametrize(
    "common, binding",
    [
        (WRAPPED, "MyWrapper.scale = {}"),
        ("create_environment.wrappers = (@a/MyWrapper, @MyWrapper)\n", "a/MyWrapper.scale = {}"),
        ("create_environment.wrappers = (@a/b/MyWrapper,)\n", "a/MyWrapper.scale = {}"),  # holds in the scope inside it
        ("create_environment.wrappers = (@my.own.MyWrapper,)\n", "MyWrapper.scale = {}"),
        (WRAPPED, "own.MyWrapper.scale = {}"),
        (WRAPPED + "MyWrapper.bonus = @extra\n", "extra.amount = {}"),  # what a wrapper calls
        ("create_environment.wrappers = (@a/MyWrapper,)\na/MyWrapper.bonus = @extra\n", "a/extra.amount = {}"),
        (WRAPPED + "MyWrapper.range = (0.0, %high)\n", "high = {}"),
        ("create_environment.env_kwargs = {'reward': @cost}\n", "cost.weight = {}"),
        ("", "create_environment.max_episode_steps = {}"),
        ("", "create_environment.engine = {}"),
        ("", "Evaluator.evaluation_epsilon = {}"),
        ("", "Evaluator.evaluation_episodes = {}"),
        ("", "Intervals.evaluation_interval = {}"),
        ("create_environment.evaluation_wrappers = (@late/Delay,)\n", "late/Delay.steps = {}"),
        ("create_environment.env_name = 'my.envs:Arm'\n", "envs.Arm.mass = {}"),
        ("create_environment.env_name = 'my.envs:Arm'\n", "a/my.envs.Arm.mass = {}"),
    ],
)
def test_what_reaches_an_environment_is_compared(tmp_path, common, binding):
    (told,) = mixtures(tmp_path, common, f"{binding.format(0.5)}\n", f"{binding.format(5.0)}\n")
    assert told == f"{binding.partition(' ')[0]} on Hopper-v5: 0.5 in 3 run(s), but 3 has 5.0"


@pytest.mark.parametrize("name, one, other", [("env_kwargs", "{'g': 0.5}", "{'g': 5.0}"), ("wrappers", "(@A,)", "(@B,)")])
def test_arguments_and_wrappers_of_an_environment_are_compared(tmp_path, name, one, other):
    (told,) = mixtures(tmp_path, "", *(f"create_environment.{name} = {text}\n" for text in (one, other)))
    assert told == f"create_environment.{name} on Hopper-v5: {one} in 3 run(s), but 3 has {other}"


@pytest.mark.parametrize(
    "common, one, other",
    [
        (WRAPPED, "MyWrapper.scale = 0.5\n", ""),  # the other does not say: as of earlier versions
        (WRAPPED, "SacAlgorithm.scale = 0.5\n", "SacAlgorithm.scale = 5.0\n"),
        (WRAPPED, "create_environment.action_repeat = 1\n", "create_environment.action_repeat = 3\n"),  # as of sac_nrep
    ],
)
def test_what_does_not_reach_it_may_differ(tmp_path, common, one, other):
    assert mixtures(tmp_path, common, one, other) == []


@gin.configurable("found_bonus")
def bonus(amount=0.0):
    return amount


@gin.configurable("FoundScale")
class Scale(gymnasium.Wrapper):
    def __init__(self, env, factor=1.0, bonus=lambda: 0.0):
        super().__init__(env)
        bonus()


def test_what_a_run_writes_of_its_environment_is_found():
    """In the operative configuration of real wrappers and a real class, with what they take by default."""
    loaded = configuration.load(
        [],
        [
            "create_environment.env_name = 'tests.toy_tasks:PointMass'", "FoundScale.factor = 3.0", "extra = 2.0",
            "create_environment.wrappers = (@double/FoundScale, @FoundScale)", "found_bonus.amount = %extra",
            "FoundScale.bonus = @found_bonus", "double/FoundScale.factor = 2.0",
        ],
    )  # fmt: skip
    configuration.build(create_environment).close()
    loaded.check_used()
    assert names(configuration.operative_config()) == {
        "FoundScale.factor", "FoundScale.bonus", "double/FoundScale.factor", "double/FoundScale.bonus",
        "found_bonus.amount", "double/found_bonus.amount",
    }  # fmt: skip


def test_configurables_and_macros_that_name_each_other_end():
    found = names(f"{WRAPPED}MyWrapper.a = (@MyWrapper, %b)\nb = (%c,)\nc = (%b, @MyWrapper())\n")
    assert found == {"MyWrapper.a", "b", "c"}
