"""Collectors as actors of a real Ray cluster on this machine."""

from __future__ import annotations

import contextlib
import signal

import psutil
import pytest
import torch

from taac.runs.run_folder import RunFolder
from tests import forked
from tests.campaigns.launched import wait_for
from tests.parallel.collecting import POINT, SHORT
from tests.training.runs import rows, run

pytest.importorskip("ray", reason="the extra 'ray' is not installed")

PARAMS = (
    POINT, *SHORT, "num_envs = 4", "num_env_steps = 10000", "initial_collect_steps = 60", "evaluation_interval = 100",
    "UpdateRatio.updates_per_env_step = 0.25", "create_experiment.collectors = 2", "create_agent.normalize_observations = True",
    "checkpoint_interval = 100", "Saving.keep_checkpoints = 1000",
)  # fmt: skip
CODE = (
    "import sys, torch; torch.set_num_threads(1)\n"
    "from taac import registry; registry.register()\n"
    "from tests.training.runs import run\n"
    "run(sys.argv[1], *sys.argv[2:], method='sac')\n"
)


def ray_at(address):
    return "RemoteCollector.launcher = 'ray'", f"RemoteCollector.ray_address = '{address}'"


@pytest.mark.slow
def test_actors_compute_what_processes_compute(tmp_path, cluster):
    """The same bits, whatever carries the frames."""
    short = ("num_env_steps = 100", "Evaluator.initial_evaluation = False")
    done = forked.run([tmp_path / "ray", *PARAMS, *ray_at(cluster), *short], code=CODE, cwd=forked.ROOT)
    assert done.returncode == 0, done.stderr
    run(tmp_path / "local", *PARAMS, *short, method="sac")
    ours, theirs = (RunFolder(tmp_path / name).checkpoints.newest().part("agent") for name in ("ray", "local"))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert rows(tmp_path / "ray") == rows(tmp_path / "local") != []


@pytest.mark.slow
def test_an_actor_that_is_lost_is_replaced(tmp_path, cluster):
    folder = RunFolder(tmp_path / "ray")
    learner = forked.Process([folder.path, *PARAMS, *ray_at(cluster)], code=CODE, cwd=forked.ROOT)
    wait_for(folder.checkpoints.saved, learner)
    both = actors()
    assert len(both) == 2
    at = folder.checkpoints.newest().env_steps
    both[0].kill()
    wait_for(lambda: folder.checkpoints.newest().part("collector")["num_restarts"], learner)
    assert folder.checkpoints.newest().env_steps > at
    learner.send_signal(signal.SIGTERM)
    _, err = learner.communicate(timeout=60)
    assert "replaced it: its running episodes were truncated" in err
    wait_for(lambda: not actors())


def actors():
    """The processes of all collectors on this machine that are Ray actors."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline() and process.cmdline()[0].startswith("ray::Actor"):
                found.append(process)
    return found
