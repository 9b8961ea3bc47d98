"""The benchmarks at sizes that take no time: what they write, and the counted operations. Nothing here is timed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from experiments.benchmarks import __main__ as benchmarks
from experiments.benchmarks import (
    common,
    contenders,
    engines,
    floor,
    hindsight,
    memory,
    ours,
    rollout,
    startup,
    toy,
    training,
    updates,
    worker,
)
from experiments.benchmarks.contenders import ON_S_ALONE
from tests import forked
from tests.environments import envpool_stand_in

TINY = ["--quick", "--rounds", "2", "--seconds", "0.02", "--gin_param", "hidden_layers = (8,)"]
NO_PEERS = ["--peers_python", "no/such/python"]


def options(script, *more):
    make = getattr(script, "parser", None) or (lambda: common.parser("about"))
    found = common.defaults(make().parse_args([*TINY, *NO_PEERS, *more]))
    if "--cpu" not in more:
        found.cpu = None  # the core that processes are pinned to may be that of other tests
    return found


def check(result, *measured):
    """Every row has what the tables need, and these were measured."""
    assert {"title", "figures", "goals"} <= set(result)
    for row in result["figures"]:
        assert "missing" in row or 0 < row["low"] <= row["median"] <= row["high"], row
    for row in result["goals"]:
        assert row["what"] and row["goal"]
        assert "problem" in row or isinstance(row["reached"], bool), row
    found = {row["what"] for row in result["figures"] if "missing" not in row}
    assert set(measured) <= found, [row for row in result["figures"] if "missing" in row]
    assert common.report([result], common.machine()).count("\n| ") > len(result["figures"]) + len(result["goals"])


# Measuring -----------------------------------------------------------------------------------------------------------

# What is forked has its libraries and their threads already.
WORKER = "import runpy, sys, torch; torch.set_num_threads(1); runpy.run_module(sys.argv.pop(1), run_name='__main__')"


@pytest.fixture
def forks(monkeypatch):
    """Contenders are measured in forks, which need not import everything again. Of start-up and memory, this would be wrong."""

    def start(words, *, stderr, cwd, env, **more):
        if words[0] != sys.executable:
            return subprocess.Popen(words, stderr=stderr, cwd=cwd, env=env, **more)
        errors = f"/proc/{os.getpid()}/fd/{stderr.fileno()}"
        return forked.Process(words[2:], code=WORKER, cwd=cwd, env=env, asked=True, errors=errors)

    if sys.platform == "linux":
        monkeypatch.setattr(common, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start}))


@pytest.mark.slow
def test_peak_rates():
    found = floor.measure(0.001, megabytes=1, shapes=[(8, 4, 8), (16, 8, 4)], rounds=2)
    assert {p["path"] for p in found["products"]} == set(floor.PATHS)
    errors = {p["path"]: p["relative_error"] for p in found["products"] if "gflops" in p}
    assert errors[floor.DEFAULT] < floor.FLOAT32_ERROR < errors[floor.BFLOAT16]
    assert floor.peak(found["products"])["path"] in floor.LIBRARIES
    if floor.SIX in errors:
        assert errors[floor.SIX] < 1e-6 < errors[floor.THREE] < floor.FLOAT32_ERROR
    assert set(found["bandwidth"]) == {"read", "copy"}


def test_a_slow_path_is_left_out_of_larger_products(monkeypatch):
    slow = []
    make = floor.PATHS[floor.BFLOAT16]
    monkeypatch.setitem(floor.PATHS, floor.BFLOAT16, lambda *shape: slow.append(make(*shape)) or slow[-1])
    monkeypatch.setattr(floor, "rate", lambda product, seconds: 1.0 if product in slow else 1000.0)
    found = floor.measure(0.001, megabytes=1, shapes=[(8, 4, 8), (16, 8, 4)], rounds=2)["products"]
    (first, second) = [p for p in found if p["path"] == floor.BFLOAT16]
    assert "gflops" in first and "8 x 4 x 8" in second["missing"] and len(slow) == 1
    assert all("gflops" in p for p in found if p["path"] in (floor.DEFAULT, floor.NUMPY))


def test_a_share_is_of_the_peak_rate_of_the_same_round():
    rates = {"taac": [10.0, 20.0], updates.PEAK: [50.0, 200.0]}
    assert updates._shares("taac", rates, {"taac": {"gflop": 2.5}}) == [0.5, 0.25]


@pytest.mark.slow
def test_updates_with_missing_peers(forks, tmp_path):
    wanted = f"{contenders.SAC};{contenders.PRIORITIZED};{updates.PEAK};{contenders.SB3}"
    given = options(
        updates, "--no_growth", "--frames", "600", "--batch_size", "8", "--contenders", wanted, "--out", str(tmp_path)
    )
    result = updates.run(given, {"path": floor.DEFAULT, "shape": [32, 32, 32]})
    check(result, contenders.SAC, contenders.PRIORITIZED)
    assert any("no python of the peers" in row.get("missing", "") for row in result["figures"])
    share = next(row for row in result["goals"] if row["what"] == f"{contenders.SAC}: share of the peak rate")
    assert share["measured"] > 0
    common.write([result], given, "updates")
    assert "## Goals" in (tmp_path / "updates.md").read_text(encoding="utf-8")
    held = json.loads((tmp_path / "updates.json").read_text(encoding="utf-8"))
    assert {"processor", "cores", "torch", "date"} <= set(held["machine"])
    assert held["results"][0]["goals"] == result["goals"]


@pytest.mark.slow
def test_training(forks):
    given = options(
        training, "--env", toy.FREE, "--collect", "30", "--warmup", "2", "--contenders", contenders.TAAC,
        "--gin_param", "batch_size = 4", "--gin_param", "replay_length = 500",
    )  # fmt: skip
    check(training.run(given), contenders.TAAC)


@pytest.mark.slow
def test_rollout(forks):
    given = options(rollout, "--cpu", str(common.last_cpu()), "--contenders", "TAAC, policy alone")
    check(rollout.run(given), "TAAC, policy alone")


def test_all_benchmarks_run_one_after_another_with_their_own_flags(monkeypatch, tmp_path):
    ran = []
    for script in (floor, updates, training, rollout, startup, memory):
        name = script.__name__.rpartition(".")[2]

        def run(options, best=None, *, name=name):
            ran.append((name, options))
            return {"title": name, "figures": [], "goals": [], "peak": {}}

        monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--out", str(tmp_path)])
    benchmarks.main()
    assert [name for name, _ in ran] == ["floor", "updates", "training", "rollout", "startup", "memory"]
    assert all(options.rounds == 2 for _, options in ran) and ran[1][1].frames == 100_000  # a flag of `updates` alone
    assert "## startup" in (tmp_path / "bench.md").read_text(encoding="utf-8")


def test_a_name_that_nobody_has_is_said_with_those_that_there_are(capsys):
    figures = rollout.run(options(rollout, "--contenders", "nobody"))["figures"]
    assert not [row for row in figures if "missing" not in row]
    assert "--contenders names ['nobody']; there are ['TAAC, policy alone'" in capsys.readouterr().err


def test_only_contenders_on_a_gpu_see_one(monkeypatch):
    seen = []

    def start(*_, env, **__):
        seen.append(env["CUDA_VISIBLE_DEVICES"])
        raise OSError("not started")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(common.subprocess, "Popen", start)
    for device in ({}, {"device": "cpu"}, {"device": "cuda"}, {"device": "cuda:1"}):
        common.Process(common.Contender("taac", common.OURS, {"task": "updates", **device}), options(training)).close()
    assert seen == ["", "", "3", "3"]


@pytest.mark.slow
def test_hindsight():
    given = options(hindsight, "--eager", "--env_name", "tests.toy_tasks:taac-test/Reach-v0")
    check(hindsight.run(given), "sac+her: time of an update over that without new goals")


@pytest.mark.slow
def test_memory():
    given = options(memory, "--frames", "20000", "--contenders", contenders.SAC)
    check(memory.run(given), f"{contenders.SAC}, 20,000 frames")
    assert memory.float32_copy({"time_step/observation": [17], "time_step/step_type": [], "time_step/reward": []}) == 72


@pytest.mark.slow
def test_startup():
    given = options(startup, "--contenders", contenders.SAC, "--gin_param", "batch_size = 4")
    check(startup.run(given), f"{contenders.SAC}, first environment step", f"{contenders.SAC}, first update")


def test_ratios_are_taken_round_by_round():
    rates = {"a": [10.0, 40.0, 30.0], "b": [5.0, 10.0, 10.0]}
    row = common.ratio_goal("what", rates, "a", "b", 3.0, {})
    assert (row["low"], row["measured"], row["high"], row["reached"]) == (2.0, 3.0, 4.0, True)
    assert common.ratio_goal("what", rates, "a", "c", 3.0, {"c": "missing: it"})["problem"] == "c: missing: it"


def test_a_contender_that_breaks_while_it_is_measured_costs_the_others_nothing(monkeypatch):
    script = iter([2.0, "it broke", 3.0, 4.0])

    def measure(seconds):
        if isinstance(found := next(script), str):
            raise RuntimeError(found)
        return found

    @contextlib.contextmanager
    def started(contenders, options):
        yield {"a": SimpleNamespace(measure=measure), "b": SimpleNamespace(measure=measure)}, {}, {}

    monkeypatch.setattr(common, "started", started)
    rates, _, problems = common.interleaved([], SimpleNamespace(rounds=3, seconds=1.0, contenders=None))
    assert rates == {"a": [2.0, 3.0, 4.0]} and problems == {"b": "failed: it broke"}


def test_a_meter_counts_what_comes_after_it_is_asked(monkeypatch):
    import io
    import sys

    answers = []
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"seconds": 0}\n'))
    meter = worker.Meter(lambda **content: answers.append(content), 3, {"version": "1"})
    meter.tick(2)
    assert answers == []
    meter.tick(2)
    assert answers == [{"ready": True, "version": "1"}]
    with pytest.raises(SystemExit):  # nobody asks again
        meter.tick(5)
    assert answers[1]["units"] == 5


@pytest.mark.slow
def test_engines_are_measured_alike(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", envpool_stand_in)
    tiny = {"counts": (2,), "seconds": 0.01, "repeats": 2, "hidden_layers": (8,)}
    for name, env_name in ("gymnasium", "Pendulum-v1"), ("envpool", "Script-v0"):
        found = engines.engines(env_name, names=(name,), **tiny)
        assert set(found) == {("environments", 2, name), ("collecting", 2, name)}
        assert all(len(rates) == 2 and min(rates) > 0 for rates in found.values())


@pytest.mark.slow
def test_counted_operations_are_those_by_shapes():
    """Multiplications of a row through an actor and a critic at HalfCheetah's sizes, forward, and twice that backward.

    Of SAC on s alone: the actor at s and s' and its gradient, each critic at (s, a) with its gradient, at (s, a~) with that of
    a~, and its target copy. The gradients of first layers' inputs, or of the observation beside a~, are left out or not.
    """
    actor, critics = 17 * 256 + 256 * 256 + 256 * 12, 2 * (23 * 256 + 256 * 256 + 256)
    most = 4 * actor + 6 * critics
    least = most - 17 * 256 - 2 * 23 * 256 - 2 * 17 * 256
    row = {"frames": 3000, "batch_size": 256, "method": "sac", "gin_params": [ON_S_ALONE, "create_agent.compile = True"]}
    found = ours.counted(row)
    assert 2 * 256 * least / 1e9 <= found <= 2 * 256 * most / 1e9
    assert ours.counted({**row, "batch_size": 512}) == pytest.approx(2 * found)
