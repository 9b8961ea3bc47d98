"""A real Ray cluster on this machine, started and ended by the tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from taac.campaigns.launchers import ray_cluster
from taac.errors import TaacError
from tests.campaigns.launched import (
    BREAKS,
    LONG,
    POINT,
    compare,
    compared,
    evaluations,
    finish,
    processes,
    record,
    wait_for,
)

pytest.importorskip("ray", reason="the extra 'ray' is not installed")


def with_ray(root, address, *more, **given):
    return compare(root, "--launcher", "ray", "--ray_address", address, *more, **given)


@pytest.mark.slow
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


@pytest.mark.slow
def test_ctrl_c_cancels_the_tasks(tmp_path, cluster):
    process = with_ray(tmp_path, cluster, *LONG, seeds=3)
    wait_for(lambda: any(tmp_path.glob("**/checkpoints/*.json")), process)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 75 and "the same command resumes" in err and "Traceback" not in err
    assert not processes(str(tmp_path))
    assert all("num_env_steps = 1000000" in path.read_text() for path in tmp_path.glob("**/config.gin"))
    assert {run["status"] for run in record(tmp_path).values()} == {"waiting"}


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_the_run_ends_with_the_same_bits(tmp_path, cluster):
    assert compared(tmp_path / "whole", methods="sac")[0] == 0
    folder = tmp_path / "lost"
    process = with_ray(folder, cluster, methods="sac")
    wait_for(lambda: any(folder.glob("**/checkpoints/*.json")), process)
    (training,) = [p for p in processes(str(folder)) if "train" in p.cmdline()]
    worker = training.parent()
    assert worker.cmdline()[0].startswith("ray::")  # and nobody else
    worker.kill()
    code, _, err = finish(process)
    assert code == 0, err
    assert record(folder)[POINT, "sac", 0]["attempts"] == 2
    assert evaluations(folder) == evaluations(tmp_path / "whole")


def placed(address, root, cpus, gpus, runs=2):
    """Lets runs that only sleep and say when they did; returns (begin, end, the GPUs it saw) of each."""
    run = (
        "import json, os, sys, time; begin = time.time(); time.sleep(1.0)\n"
        "told = begin, time.time(), os.environ.get('CUDA_VISIBLE_DEVICES')\n"
        "open(sys.argv[1], 'w').write(json.dumps(told))"
    )
    code = (
        "import sys; from pathlib import Path\n"
        "from taac.campaigns.launchers.ray_cluster import RayCluster; from taac.campaigns.run import Run\n"
        "address, root, code, cpus, gpus, count = sys.argv[1:]\n"
        "launcher, ended = RayCluster(address, root, float(cpus), float(gpus)), []\n"
        "for n in range(int(count)):\n"
        "    launcher.begin(Run('T', 'm', n, Path(root) / f'seed_{n}', ('python', '-c', code, f'{root}/{n}.json')))\n"
        "import time\n"
        "while len(ended) < int(count):\n"
        "    ended += launcher.ended(); time.sleep(0.05)\n"
        "assert all(outcome.returncode == 0 for _, outcome in ended), ended\n"
        "launcher.stop()\n"
    )
    words = [sys.executable, "-c", code, address, str(root), run, str(cpus), str(gpus), str(runs)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads((root / f"{n}.json").read_text()) for n in range(runs)], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "cpus, gpus, together, seen", [(1, 0.5, True, "0"), pytest.param(2, 0, False, "", marks=pytest.mark.slow)]
)
def test_runs_are_placed_by_their_shares(tmp_path, cluster, cpus, gpus, together, seen):
    """Of 2 CPUs and 1 GPU. Two runs that each take half of the GPU see the same one; two that take both CPUs take turns."""
    ((begin, end, first), (later, over, second)), err = placed(cluster, tmp_path, cpus, gpus)
    assert (begin < over and later < end) == together
    assert first == second == seen
    assert "wait until one joins" not in err


def test_a_share_that_no_machine_has_is_told(capsys):
    machines = [{"CPU": 4.0}, {"CPU": 1.0, "GPU": 1.0}]
    for share, told in (({"CPU": 1, "GPU": 0.5}, ""), ({"CPU": 4, "GPU": 0.0}, ""), ({"CPU": 2, "GPU": 1}, "2 CPU and 1 GPU")):
        ray_cluster._tell_if_impossible(machines, share)
        assert (told in (err := capsys.readouterr().err)) and bool(err) == bool(told)


@pytest.mark.parametrize("shares, why", [((-1, 0), "--ray_cpus must be"), ((1, 1.5), "--ray_gpus must be"),
                                         ((0.12345, 0), "4 decimals"), ((0, 0), "both 0")])  # fmt: skip
def test_shares_that_cannot_be_are_refused(tmp_path, shares, why):
    with pytest.raises(TaacError, match=why):
        ray_cluster.RayCluster("auto", tmp_path, *shares)


def test_a_machine_without_the_shared_folder_is_named(tmp_path):
    with pytest.raises(TaacError, match="share the file system"):
        ray_cluster.train(["-c", "pass"], str(tmp_path / "log"), str(tmp_path), str(tmp_path / "elsewhere"), {})


@pytest.mark.parametrize(
    "address",
    ["taac_test_module://x", "taac_test_module://127.0.0.1:1", "ray://taac_test_module://x:1", "host", "host:", "host:1\n", "",
     "ray://host", "local://x", "auto:x", ":1", "a b:1"],
)  # fmt: skip
def test_addresses_of_another_form_are_refused(tmp_path, monkeypatch, address):
    """Of `MODULE://x`, Ray would import MODULE."""
    (tmp_path / "taac_test_module.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TaacError, match="--ray_address must be auto, local, <host>:<port> or ray://<host>:<port>, got"):
        ray_cluster.connected(address)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("address", ["auto", "local", "10.0.0.1:6379", "ray://head-0.cluster:10001", "[::1]:6379"])
def test_addresses_have_these_forms(address):
    ray_cluster.check_address(address)


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_no_cluster_is_told_at_once(tmp_path, address):
    code, _, err = compared(tmp_path / "R", "--launcher", "ray", "--ray_address", address)
    assert code == 1 and f"--ray_address {address}" in err and "ray start --head" in err
    assert not (tmp_path / "R").exists()


def test_the_brackets_of_an_address_are_not_of_its_host(monkeypatch):
    asked = []

    def refuse(address, timeout):
        asked.append(address)
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setattr("socket.create_connection", refuse)
    for address in ("[::1]:6379", "ray://[fd00::5]:10001"):
        with pytest.raises(TaacError, match="nobody listens"):
            ray_cluster.connected(address)
    assert asked == [("::1", 6379), ("fd00::5", 10001)]


def test_without_ray_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TaacError, match=r"pip install ray"):
        ray_cluster.RayCluster("auto", tmp_path)
