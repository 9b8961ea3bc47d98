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


def test_actors_compute_what_processes_compute_and_one_that_is_lost_is_replaced(tmp_path, cluster):
    """The same bits, whatever carries the frames. Then an actor is killed, and the run goes on."""
    ray = ("RemoteCollector.launcher = 'ray'", f"RemoteCollector.ray_address = '{cluster}'")
    folders = {name: RunFolder(tmp_path / name) for name in ("ray", "local")}
    learner = forked.Process([tmp_path / "ray", *PARAMS, *ray], code=CODE, cwd=forked.ROOT)
    run(tmp_path / "local", *PARAMS, method="sac", stop=201)  # after the evaluation at 200, which a stop would end
    wait_for(lambda: len(folders["ray"].checkpoints.saved()) > 1, learner)
    first = sorted(folders["ray"].checkpoints.readable(), key=lambda c: c.env_steps)[1]
    second = next(c for c in folders["local"].checkpoints.readable() if c.env_steps == first.env_steps)
    assert first.env_steps >= 200
    assert all(torch.equal(value, second.part("agent")[name]) for name, value in first.part("agent").items())
    assert rows(tmp_path / "ray")[:2] == rows(tmp_path / "local")[:2] != []

    both = actors()
    assert len(both) == 2
    at = folders["ray"].checkpoints.newest().env_steps
    both[0].kill()
    wait_for(lambda: folders["ray"].checkpoints.newest().part("collector")["num_restarts"], learner)
    assert folders["ray"].checkpoints.newest().env_steps > at
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
