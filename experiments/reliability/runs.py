"""Short runs of `taac train`, each in a process of its own that can be killed, and all that they leave behind."""

from __future__ import annotations

import contextlib
import csv
import importlib
import json
import os
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# What every run needs is imported here once: runs are forked from this process, and so begin at once.
import torch
import torch._dynamo  # which every optimizer imports: more than a second
import torch.utils.tensorboard

import taac.environments.wrappers
import taac.training.experiment  # noqa: F401
from taac.analysis.readers import events
from taac.commands import main as commands
from taac.commands import play, train  # noqa: F401
from taac.machine.processes import die_with_parent
from taac.runs import durable, files, frame_chunks, tensor_files
from taac.runs.checkpoint import Checkpoints
from taac.runs.tensor_files import read_entry

for _name in ("classic_control", "box2d", "mujoco"):
    importlib.import_module(f"gymnasium.envs.{_name}")

SMALL = (
    "num_env_steps = 300", "initial_collect_steps = 100", "hidden_layers = (16,)", "batch_size = 16",
    "replay_length = 125", "evaluation_interval = 75", "evaluation_episodes = 1", "checkpoint_interval = 70",
    "Intervals.summary_interval = 45", "create_environment.max_episode_steps = 40",
    "create_agent.normalize_observations = True", "create_experiment.evaluation_envs = 1",
    "Learner.matmul = 'plain'",  # the same on every machine
)  # fmt: skip
CHUNK_BYTES = 4 << 10  # so that these small replay buffers have several parts

Prepare = Callable[[], "Callable[[], object] | None"]


class Setting(NamedTuple):
    """What is trained."""

    method: str
    env_name: str
    num_envs: int
    about: str = ""  # what else
    params: tuple[str, ...] = ()  # bindings of it
    files: tuple[str, ...] = ()  # gin files after that of the method
    demonstrations: bool = False  # whether it learns from a file of them, see `with_demonstrations`
    compared: str = "bits"  # what a resumed run is held against, see `differences`

    def __str__(self) -> str:
        more = f", {self.about}" if self.about else ""
        name = self.env_name.rsplit("/", 1)[-1]
        return f"{self.method}, {name}, {self.num_envs} env{'s' * (self.num_envs > 1)}{more}"

    def words(self, folder: Path) -> list[str]:
        """Returns the words of its command."""
        named = f"create_environment.env_name = '{self.env_name}'"
        words = ["taac", "train", "--root_dir", str(folder), "--gin_file", "gin/tasks/simple_control.gin"]
        for file in (f"gin/methods/{self.method}.gin", *self.files):
            words += ["--gin_file", file]
        for param in (*SMALL, named, f"num_envs = {self.num_envs}", *self.params):
            words += ["--gin_param", param]
        return words


def start(
    setting: Setting, folder: Path, log: Path, prepare: Prepare | None = None, words: list[str] | None = None
) -> int:
    """Begins a run, or goes on with it, in a process of its own; gives its id.

    Args:
        log: where what it prints is added.
        prepare: called in that process first; what it gives is called at the end.
        words: another command than that of training.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):
            os.setpgid(child, child)  # whichever of both comes first: a signal to the group is for this run alone
        return child
    code, finish = 99, None
    try:
        os.setpgid(0, 0)
        die_with_parent(signal.SIGKILL)
        with open(log, "ab", buffering=0) as file:
            os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
        torch.set_num_threads(1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        frame_chunks.CHUNK_BYTES = CHUNK_BYTES
        finish = prepare() if prepare is not None else None
        commands.main(words or setting.words(folder))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except KeyboardInterrupt:  # before the command itself
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            if finish is not None:
                finish()
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def wait(child: int) -> int:
    """Returns its exit code, or minus the signal that ended it."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def run(
    setting: Setting, folder: Path, log: Path, prepare: Prepare | None = None, words: list[str] | None = None
) -> int:
    return wait(start(setting, folder, log, prepare, words))


# What is left behind -------------------------------------------------------------------------------------------------


def outcome(folder: Path) -> dict[str, Any]:
    """Returns all that a finished run leaves behind, but for the time of day: what must not differ by a bit."""
    found = Checkpoints(folder / "checkpoints").newest()
    with open(folder / "evaluations.csv", newline="") as file:
        evaluations = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    scalars = {
        tag: (series.env_steps.tolist(), series.value.tolist())
        for tag, series in events.read(folder).scalars.items()
        if not tag.startswith("time/")
    }
    about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    run = {k: v for k, v in about.items() if k not in ("start", "end", "resumed", "command")}
    state = dict(found.state)
    del state["run"], state["evaluations"]  # compared above, without their times
    del state["reporter"]  # the seconds of training
    frames = [read_entry(folder / "checkpoints", entry) for entry in found.frames]
    tree, tensors = tensor_files.encode({**state, "frames": frames})
    return {
        "evaluations": evaluations, "summaries": scalars, "run.json": run, "plain values": tree,
        "finite": all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point()),
        "best": _best(folder),
        "tensors": {name: files.digest(tensor_files.pack({"": t})) for name, t in tensors.items()},
    }  # fmt: skip


def _best(folder: Path) -> list[Any]:
    """Returns the agents of best evaluations, with checksums of their tensors."""
    kept = []
    for found in Checkpoints(folder / "best").readable():
        tree, tensors = tensor_files.encode(found.state)
        kept.append([found.env_steps, tree, {n: files.digest(tensor_files.pack({"": t})) for n, t in tensors.items()}])
    return kept


def differences(expected: dict[str, Any], folder: Path, compared: str = "bits") -> list[str]:
    """Names of what a finished run's outcome differs in.

    Args:
        compared: "bits": all of it. "counters", where bits differ by design, because checkpoints are without the replay buffer:
            run.json, the environment steps of all and of each evaluation, and the updates that are due where steps that fill the
            buffer again earn none. "restarts", where episodes were cut off: run.json, the number of
            evaluations and the budget, and the updates that the steps have earned. In both, that all tensors are finite.
    """
    found = outcome(folder)
    if compared == "bits":
        return [name for name in expected if _text(found[name]) != _text(expected[name])]  # text: a NaN equals itself
    taken, due = found["run.json"]["env_steps"], expected["run.json"]["env_steps"]
    steps = [[int(row["env_steps"]) for row in of["evaluations"]] for of in (found, expected)]
    initial = _bound(folder, "initial_collect_steps")
    ratio, updates = expected["run.json"]["updates"] / (due - initial), 0.0
    unearned, earns_from = 0, initial
    about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    begun = dict.fromkeys(int(resumed["env_steps"]) for resumed in about["resumed"])  # each checkpoint once
    for end in (*begun, taken):  # what had been earned there; from then on the buffer is filled again
        updates = max(updates, (end - unearned - initial) * ratio)
        if compared == "counters" and end in begun:
            unearned += end + initial - max(end, earns_from)
            earns_from = end + initial
    abouts = [{**of["run.json"], "env_steps": 0, "updates": 0} for of in (found, expected)]
    wrong = {
        "run.json": abouts[0] != abouts[1],
        "evaluations": steps[0] != steps[1] if compared == "counters" else len(steps[0]) != len(steps[1]),
        "environment steps": taken < _bound(folder, "num_env_steps") if compared == "restarts" else taken != due,
        "updates": abs(found["run.json"]["updates"] - updates) > 1,
        "finite numbers": not found["finite"],
    }  # fmt: skip
    return [name for name, differs in wrong.items() if differs]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _bound(folder: Path, name: str) -> int:
    """Returns a number of a run's configuration."""
    found = re.search(rf"^{name} = (\d+)", (folder / "config.gin").read_text(), re.MULTILINE)
    assert found, (folder, name)
    return int(found[1])


# Trouble ------------------------------------------------------------------------------------------------------------


class Trouble:
    """Takes the place of `os` in `taac.runs.files` and `durable`: at the n-th call that changes the disk, something happens.

    Args:
        at: which call, from 1 on; 0: none.
        happens: called with the name of the call and its arguments; may not return.
    """

    CALLS = ("open", "write", "fsync", "close", "replace", "unlink")

    def __init__(self, at: int, happens: Callable[..., None]):
        self.at, self.count, self._happens = at, 0, happens

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        if name not in self.CALLS:
            return call

        def watched(*args: Any, **more: Any) -> Any:
            if name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR):
                return call(*args, **more)  # to read
            self.count += 1
            if self.count == self.at:
                self._happens(name, *args)
            return call(*args, **more)

        return watched


def die(name: str, *args: Any) -> None:
    """Ends this process as SIGKILL does; of a write, half is done."""
    if name == "write":
        os.write(args[0], args[1][: len(args[1]) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def replace_os(trouble: Trouble) -> None:
    files.os = durable.os = trouble  # type: ignore[assignment]


def whole(setting: Setting, folder: Path) -> tuple[int, dict[str, Any]]:
    """Trains a run to which nothing happens: the number of its calls that change the disk, and what it leaves behind."""
    calls = folder / "calls"

    def count() -> Callable[[], object]:
        replace_os(trouble := Trouble(0, die))
        return lambda: calls.write_text(str(trouble.count))

    code = run(setting, folder / "whole", folder / "log", count)
    assert code == 0, (folder / "log").read_text()
    return int(calls.read_text()), outcome(folder / "whole")


def seeded(*words: Any) -> random.Random:
    return random.Random("/".join(map(str, words)))


def failures(rows: list[dict[str, Any]]) -> int:
    """Prints the rows whose verdict is in capitals, which must not be; returns their number."""
    failed = [row for row in rows if row["verdict"].split(":")[0].isupper()]
    for row in failed:
        print(json.dumps(row))
    return len(failed)
