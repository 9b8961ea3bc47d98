"""A real Ray cluster on this machine, started and ended by the tests."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from taac.campaigns.launchers import ray_cluster
from taac.errors import TaacError
from tests.campaigns.launched import (
    BREAKS,
    POINT,
    compare,
    compared,
    evaluations,
    finish,
    processes,
    record,
    trained,
    wait_for,
)

pytest.importorskip("ray", reason="the extra 'ray' is not installed")


class Node:
    """A node of the cluster: `ray start --block` in a session of its own, which is all that is killed."""

    def __init__(self, folder, *words):
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2", *words]
        self.log = Path(folder) / f"{len(list(Path(folder).iterdir()))}.log"
        env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
        with open(self.log, "w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=env, start_new_session=True)
        wait_for(lambda: "Ray runtime started" in self.log.read_text(), self.process)

    def family(self):
        with_me = psutil.Process(self.process.pid)
        return [*with_me.children(recursive=True), with_me]

    def kill(self):
        family = self.family() if self.process.poll() is None else []
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()


@pytest.fixture(scope="module")
def cluster():
    """Its address."""
    folder = tempfile.mkdtemp(prefix="ray_", dir="/tmp")  # the names of its sockets must be short
    memory = "--object-store-memory=80000000"
    head = Node(folder, "--head", "--port=0", "--include-dashboard=false", f"--temp-dir={folder}/r", memory)
    address = re.search(r"--address='([\d.:]+)'", head.log.read_text())[1]
    yield address
    head.kill()
    shutil.rmtree(folder, ignore_errors=True)


def with_ray(root, address, *more, **given):
    return compare(root, "--launcher", "ray", "--ray_address", address, *more, **given)


def test_a_cluster_trains_the_same_bits_and_records_failures(tmp_path, cluster):
    assert compared(tmp_path / "local", methods="sac", tasks=f"{POINT},{BREAKS}")[0] == 1
    code, out, err = finish(with_ray(tmp_path / "ray", cluster, methods="sac", tasks=f"{POINT},{BREAKS}"))
    assert code == 1 and "1 of 2 runs finished" in out and "1 of 2 runs failed" in err
    assert evaluations(tmp_path / "ray") == evaluations(tmp_path / "local")
    told = record(tmp_path / "ray")
    local = record(tmp_path / "local")
    for root, runs in (("ray", told), ("local", local)):
        for run in runs.values():  # but for where it is
            run.update({name: str(value).replace(str(tmp_path / root), "R") for name, value in run.items()})
    assert told == local and "not finite" in told[BREAKS, "sac", 0]["error"]


def test_a_campaign_that_is_killed_leaves_nothing_at_work_and_goes_on(tmp_path, cluster):
    assert trained(tmp_path / "whole", methods="taac")[0] == 0
    process = with_ray(tmp_path / "killed", cluster, methods="taac")
    folder = tmp_path / "killed"
    wait_for(lambda: any(folder.glob("**/checkpoints/*.json")), process)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    assert finish(with_ray(folder, cluster, methods="taac"))[0] == 0
    assert evaluations(folder) == evaluations(tmp_path / "whole")


def test_ctrl_c_cancels_the_tasks(tmp_path, cluster):
    process = with_ray(tmp_path, cluster, "--gin_param", "num_env_steps = 1000000", seeds=3)
    wait_for(lambda: any(tmp_path.glob("**/checkpoints/*.json")), process)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 75 and "the same command resumes" in err and "Traceback" not in err
    assert not processes(str(tmp_path))
    assert all("num_env_steps = 1000000" in path.read_text() for path in tmp_path.glob("**/config.gin"))
    assert {run["status"] for run in record(tmp_path).values()} == {"waiting"}


def kill_worker_of(process):
    worker = process.parent()
    assert worker.cmdline()[0].startswith("ray::")  # and nobody else
    worker.kill()


def test_a_worker_that_dies_is_replaced_and_the_run_ends_with_the_same_bits(tmp_path, cluster):
    assert trained(tmp_path / "whole", methods="sac")[0] == 0
    folder = tmp_path / "lost"
    process = with_ray(folder, cluster, methods="sac")
    wait_for(lambda: any(folder.glob("**/checkpoints/*.json")), process)
    (training,) = [p for p in processes(str(folder)) if "train" in p.cmdline()]
    kill_worker_of(training)
    code, _, err = finish(process)
    assert code == 0, err
    assert record(folder)[POINT, "sac", 0]["attempts"] == 2
    assert evaluations(folder) == evaluations(tmp_path / "whole")


def test_a_worker_that_dies_again_and_again_is_a_failure_in_the_end(tmp_path, cluster):
    code = (
        "import sys; from pathlib import Path\n"
        "from taac.campaigns.campaign import Campaign; from taac.campaigns.run import Run\n"
        "from taac.campaigns.launchers.ray_cluster import RayCluster\n"
        "root = Path(sys.argv[2])\n"
        "run = Run('T', 'm', 0, root / 'seed_0', ('python', '-c', 'import time; time.sleep(600)', sys.argv[2]))\n"
        "Campaign([run], RayCluster(sys.argv[1], root), None, root / 'compare.json').run(lambda state: None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, cluster, str(tmp_path)])
    seen = set()
    for _ in range(4):

        def new_one(seen=seen):
            found = [p for p in processes(str(tmp_path)) if p.pid not in seen]
            return [p for p in found if p.cmdline()[1:3] == ["-c", "import time; time.sleep(600)"]]

        (sleeping,) = wait_for(new_one, process)
        seen.add(sleeping.pid)
        kill_worker_of(sleeping)
    assert process.wait(timeout=120) == 0
    (told,) = record(tmp_path).values()
    assert told["status"] == "failed" and told["attempts"] == 4
    assert "WorkerCrashedError" in told["error"] and "4 times" in told["error"]
    wait_for(lambda: not processes(str(tmp_path)))


def test_a_machine_without_the_shared_folder_is_named(tmp_path):
    with pytest.raises(TaacError, match="share the file system"):
        ray_cluster.train(["-c", "pass"], str(tmp_path / "log"), str(tmp_path), str(tmp_path / "elsewhere"), None)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_no_cluster_is_told_at_once(tmp_path, address):
    code, _, err = compared(tmp_path / "R", "--launcher", "ray", "--ray_address", address)
    assert code == 1 and f"--ray_address {address}" in err and "ray start --head" in err
    assert not (tmp_path / "R").exists()


def test_without_ray_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TaacError, match=r"pip install ray"):
        ray_cluster.RayCluster("auto", tmp_path)
