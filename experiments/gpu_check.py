"""Tries on a GPU what else runs on CPUs only, and writes a Markdown page: tests, speed, memory, and short trainings.

    python -m experiments.gpu_check --out runs/gpu_check

All of it takes about `--minutes`, of which each part has its share; docs/gpu.md says what was run. A part that fails, or is
not done in time, does not stop the next. Where torch finds no GPU it says so and ends; `--device cpu --quick` tries the command
without one.

Parts (`--parts` chooses):

- tests: `tests/training/test_on_gpu.py`, which uses a GPU where there is one.
- updates: updates a second, and memory, each row in a process of its own, measured in turn while the others wait.
- profile: what an update consists of: kernels, the time in which the GPU computes, and the host's time.
- training: HalfCheetah-v5, all at once, each on a core of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.benchmarks import common
from experiments.benchmarks.contenders import ON_S_ALONE

SMALL, LARGE = ("hidden_layers = (256, 256)", 256), ("hidden_layers = (1024, 1024)", 1024)
# How an update runs: bindings, and `graphs` of `ours.updates`.
MODES: dict[str, tuple[list[str], str]] = {
    "eager": ([], "own"),
    "eager, own CUDA graph": (["create_agent.compile = True"], "uncompiled"),
    "compiled": (["create_agent.compile = True"], "none"),
    "compiled, torch's CUDA graphs": (["create_agent.compile = True"], "torch"),
    "compiled, own CUDA graph": (["create_agent.compile = True"], "own"),
}
AT_ONCE = 4  # processes that compile; those of a GPU wait for each other whenever the host waits
PRODUCTS = {"float32": "plain", "TF32": "tf32", "bfloat16": "bfloat16"}


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the rows of the table of updates, the papers' sizes and float32 first: name and options of the process."""
    modes, last = ("compiled, own CUDA graph", "eager", "compiled"), ("TF32", "bfloat16", "1024-1024")

    def place(row: tuple[str, dict[str, Any]]) -> tuple[int, int]:
        mode = row[0].split(" | ")[1]
        late = max((n for n, word in enumerate(last, 1) if word in row[0]), default=0)
        return late, modes.index(mode) if mode in modes else len(modes)

    yield from sorted(_rows(), key=place)


def _rows() -> Iterator[tuple[str, dict[str, Any]]]:
    for method, extra in (("sac", [ON_S_ALONE]), ("taac", [])):
        for (size, batch_size), mode, products in (
            *((SMALL, mode, "float32") for mode in MODES),
            (SMALL, "compiled, own CUDA graph", "TF32"),
            (SMALL, "compiled, own CUDA graph", "bfloat16"),
            (LARGE, "eager", "float32"),
            *((LARGE, "compiled, own CUDA graph", products) for products in PRODUCTS),
        ):
            bindings, graphs = MODES[mode]
            widths = re.sub(r"[^\d,]", "", size).replace(",", "-")
            yield f"{method}, {widths}, batch {batch_size} | {mode} | {products}", {
                "method": method, "graphs": graphs, "batch_size": batch_size,
                "gin_params": [size, f"Learner.matmul = '{PRODUCTS[products]}'", *bindings, *extra],
            }  # fmt: skip
        plain = [(mode, "float32") for mode in ("eager", "compiled")]
        for mode, products in (*plain, *(("compiled, own CUDA graph", products) for products in PRODUCTS)):
            bindings, graphs = MODES[mode]
            yield f"{method}+flash, batch 512 | {mode} | {products}", {
                "method": method, "graphs": graphs, "batch_size": 512, "files": ["gin/backbones/flash.gin"],
                "gin_params": [f"Learner.matmul = '{PRODUCTS[products]}'", *bindings],  # its actor sees both halves
            }  # fmt: skip


def updates(options: argparse.Namespace) -> str:
    base = {"task": "updates", "device": options.device, "frames": options.frames, "per_call": 1, "warmup": options.warmup,
            "limit": 0.4 * options.limit}  # fmt: skip
    contenders = {name: common.Contender(name, common.OURS, {**base, **row}) for name, row in rows()}
    chosen = [name for name in contenders if re.search(options.rows, name)]
    processes: dict[str, common.Process] = {}
    lines = ["| method | how | products | updates/s | of the GPU's memory, MB | ready after, s |", "|---|---|---|---|---|---|"]
    try:
        told: dict[str, dict[str, Any]] = {}
        begin = time.time()
        for first in range(0, len(chosen), AT_ONCE):
            if time.time() - begin >= 0.4 * options.limit:  # the rest is for these to get ready, and for measuring
                lines += [f"| {name} | no time left | | |" for name in chosen[first:]]
                chosen = chosen[:first]
                break
            some = chosen[first : first + AT_ONCE]
            processes |= {name: common.Process(contenders[name], options) for name in some}
            for name in some:
                told[name] = processes[name].begin()
                common.say(f"{name}: {processes[name].problem or told[name]}")
        rates: dict[str, list[float]] = {name: [] for name in chosen}
        for _ in range(options.rounds):
            for name in chosen:
                if processes[name].problem is None:
                    try:
                        rates[name].append(processes[name].measure(options.seconds))
                    except RuntimeError as error:
                        processes[name].problem = str(error)
        for name in chosen:
            about, problem = told[name], processes[name].problem
            if problem:
                lines.append(f"| {name} | {problem.strip()[-600:]} | | |".replace("\n", " "))
            else:
                rate = " ".join(f"{rate:,.0f}" for rate in sorted(rates[name]))
                lines.append(f"| {name} | {rate} | {about.get('megabytes', 0):,.0f} | {about.get('seconds', 0):.0f} |")
    finally:
        for process in processes.values():
            process.close()
    return "\n".join(lines)


def profile(options: argparse.Namespace) -> str:
    found = []
    for method, mode in (("sac", "eager"), ("sac", "compiled, own CUDA graph"), ("taac", "compiled, own CUDA graph")):
        row = dict(rows())[f"{method}, 256-256, batch 256 | {mode} | float32"]
        sent = {**row, "device": options.device, "frames": 10_000, "per_call": 1, "warmup": 30}
        try:
            told = subprocess.run(
                [sys.executable, "-m", "experiments.gpu_check", "--profile_one", json.dumps(sent)],
                capture_output=True, text=True, timeout=options.limit / 3, check=False, cwd=common.ROOT,
            )  # fmt: skip
            text = told.stdout if told.returncode == 0 else told.stdout + told.stderr[-3000:]
        except subprocess.TimeoutExpired:
            text = f"not done after {options.limit / 3:.0f} s"
        found.append(f"### {method}, {mode}\n\n```text\n{text.strip()}\n```")
    return "\n\n".join(found)


def profile_one(sent: dict[str, Any]) -> None:
    """Prints what 50 updates consist of."""
    import torch
    from torch.profiler import ProfilerActivity

    from experiments.benchmarks import ours

    count = 50
    trainer = ours.updater(sent)
    for _ in range(sent["warmup"]):
        trainer.collector.env_steps += 1
        trainer.learn()
    wait = ours.finisher(trainer) or (lambda: None)
    wait()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with torch.profiler.profile(activities=activities) as seen:
        begin = time.perf_counter()
        for _ in range(count):
            trainer.collector.env_steps += 1
            trainer.learn()
        wait()
        seconds = time.perf_counter() - begin
    averages = seen.key_averages()
    on_gpu = [row for row in averages if row.device_type.name == "CUDA"]
    kernels = sum(row.count for row in on_gpu) / count
    busy = sum(row.self_device_time_total for row in on_gpu) / count
    calls = {row.key: row.count / count for row in averages if row.key.startswith(("cuda", "cuLaunch"))}
    whole = 1e6 * seconds / count
    print(f"{kernels:.0f} kernels and copies an update, {busy:.0f} us of the GPU, {whole:.0f} us in all (profiled)")
    print("the host's calls an update:", ", ".join(f"{name} {calls[name]:.1f}" for name in sorted(calls) if calls[name] >= 0.05))
    print(averages.table(sort_by="self_cpu_time_total", row_limit=14, max_name_column_width=45))


def tests(options: argparse.Namespace) -> str:
    command = [sys.executable, "-m", "pytest", "-v", "--no-header", "-x" if options.quick else "--maxfail=20", "-p",
               "no:cacheprovider", "--durations=5", "tests/training/test_on_gpu.py"]  # fmt: skip
    with contextlib.suppress(ImportError):
        import xdist  # noqa: F401

        command += ["-n", str(min(4, os.cpu_count() or 1)), "-p", "no:benchmark"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit, check=False, cwd=common.ROOT)
        told = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        told = f"{(error.stdout or b'').decode()}\nnot done after {options.limit:.0f} s"
    return f"```text\n{told[-9000:].strip()}\n```"


def training(options: argparse.Namespace) -> str:
    begin, running, lines = time.time(), {}, ["| method | mean greedy return, at a step | seconds |", "|---|---|---|"]
    folder = Path(options.out) / "training"
    folder.mkdir(parents=True, exist_ok=True)
    for method in ("sac", "taac", "sac+flash", "taac+flash"):
        path = folder / method
        params = [f"create_experiment.device = '{options.device}'", f"num_env_steps = {options.steps}",
                  f"initial_collect_steps = {options.steps // 4}",
                  f"evaluation_interval = {options.steps // 2}", f"evaluation_episodes = {1 if options.quick else 20}",
                  *MODES["compiled, own CUDA graph"][0]]  # fmt: skip
        command = ["train", "--root_dir", str(path), "--task", "HalfCheetah-v5", "--method", method]
        with open(path.with_suffix(".log"), "w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "taac", *command, *(word for binding in params for word in ("--gin_param", binding))],
                stdout=log, stderr=subprocess.STDOUT, cwd=common.ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        running[method] = process, path
    ended: dict[str, float] = {}
    while len(ended) < len(running) and time.time() - begin < options.limit:
        time.sleep(0.5)
        for name, (process, _) in running.items():
            if name not in ended and process.poll() is not None:
                ended[name] = time.time() - begin
    for name, (process, path) in running.items():
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
        try:
            with open(path / "evaluations.csv", encoding="utf-8") as file:
                told = ", ".join(f"{float(row['return_mean']):,.0f} at {row['env_steps']}" for row in csv.DictReader(file))
            if name in ended and process.returncode:
                log = path.with_suffix(".log").read_text(encoding="utf-8")
                told += f"; then it ended with {process.returncode}: {log[-1500:]}".replace("\n", " ")
        except (OSError, KeyError) as error:
            log = path.with_suffix(".log").read_text(encoding="utf-8")
            told = f"{type(error).__name__}: {error}; {log[-1500:]}".replace("\n", " ")
        lines.append(f"| {name} | {told} | {f'{ended[name]:.0f}' if name in ended else f'not done after {options.limit:.0f}'} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "tests": tests, "updates": updates, "training": training, "profile": profile,
}  # fmt: skip
SHARES = {"tests": 2, "updates": 4, "training": 2, "profile": 1}


def machine(device: str) -> str:
    import torch

    about = common.machine()
    if device.startswith("cuda"):
        found = torch.cuda.get_device_properties(device)
        about = {"GPU": f"{found.name}, {found.total_memory / 2**30:.0f} GiB", "CUDA": torch.version.cuda, **about}
    return common.machine_table({name: about[name] for name in about if name not in ("instructions", "load average (1 min)")})


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    flags.add_argument(
        "--out", default=time.strftime("runs/gpu_check/%Y-%m-%d_%H-%M-%S"), help="new folder, of gpu.md and of trainings"
    )
    flags.add_argument("--device", default="cuda")
    flags.add_argument("--parts", default=",".join(PARTS), help="which, separated by commas")
    flags.add_argument("--rows", default=".", help="rows of the table of updates, a regular expression")
    flags.add_argument("--quick", action="store_true", help="tries the command: few updates and steps")
    flags.add_argument("--minutes", type=float, default=7.5, help="that all of it may take, about")
    flags.add_argument("--profile_one", help=argparse.SUPPRESS)
    options = flags.parse_args()
    if unknown := set(options.parts.split(",")) - set(PARTS):
        flags.error(f"--parts: no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    out = Path(options.out)
    if (out / "gpu.md").exists():
        flags.error(f"--out: {out} has the page of an earlier call; give another folder")
    if options.profile_one:
        profile_one(json.loads(options.profile_one))
        return 0
    import torch

    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no GPU; `--device cpu --quick` tries the command without one", file=sys.stderr)
        return 1
    options.cpu, options.gin_param, options.peers_python = None, [], ""
    options.rounds, options.seconds = (1, 0.3) if options.quick else (2, 1.0)
    options.frames, options.warmup, options.steps = (4_000, 3, 2_000) if options.quick else (100_000, 60, 20_000)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    os.environ.setdefault("MUJOCO_GL", "disable")  # nothing is rendered
    out.mkdir(parents=True, exist_ok=True)
    page, parts, until = f"{machine(options.device)}\n", options.parts.split(","), time.time() + 60 * options.minutes
    for number, name in enumerate(parts):
        begin = time.time()
        options.limit = max(0.0, (until - begin) * SHARES.get(name, 1) / sum(SHARES.get(part, 1) for part in parts[number:]))
        try:
            text = PARTS[name](options)
        except Exception:
            text = f"failed:\n\n```text\n{traceback.format_exc()[-3000:]}\n```"
        section = f"\n## {name.capitalize()}\n\n{text}\n\n({time.time() - begin:.0f} s)\n"
        print(section, flush=True)
        page += section
        (out / "gpu.md").write_text(page, encoding="utf-8")  # after each part, so that none is lost
    return 0


if __name__ == "__main__":
    sys.exit(main())
