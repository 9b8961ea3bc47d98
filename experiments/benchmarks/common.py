"""What the benchmarks share: processes that are measured in turn, statistics, goals, tables and files."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from taac.runs import provenance

ROOT = Path(__file__).resolve().parent.parent.parent
OURS = "experiments.benchmarks.ours"
PEERS = "experiments.benchmarks.peers"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
}
FLAGS_OF_INTEREST = ("avx2", "avx512", "amx", "fma", "neon", "sve", "asimd")


class Contender(NamedTuple):
    """Someone who is measured."""

    name: str
    module: str  # OURS or PEERS
    options: dict[str, Any]  # of its process


# Options -------------------------------------------------------------------------------------------------------------


def parser(about: str) -> argparse.ArgumentParser:
    """Flags that every benchmark has."""
    flags = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    flags.add_argument("--quick", action="store_true", help="few and short rounds: seconds instead of minutes")
    flags.add_argument("--rounds", type=int, help="times that each contender is measured")
    flags.add_argument("--seconds", type=float, help="of one measurement")
    flags.add_argument("--cpu", type=int, default=last_cpu(), help="core that every contender is pinned to")
    flags.add_argument(
        "--peers_python",
        default=os.environ.get("PEERS_PYTHON", ".venv-peers/bin/python"),
        help="python of the environment in which the peers are installed",
    )
    flags.add_argument("--gin_param", action="append", default=[], help="a gin binding for our contenders; repeatable")
    flags.add_argument(
        "--contenders", type=lambda s: [name.strip() for name in s.split(";")], help="only these, by name: A;B"
    )
    flags.add_argument("--out", default="runs/bench", help="folder for the Markdown and JSON files")
    return flags


def defaults(options: argparse.Namespace) -> argparse.Namespace:
    """Rounds and seconds where none were given."""
    if options.rounds is None:
        options.rounds = 2 if options.quick else 7
    if options.seconds is None:
        options.seconds = 0.5 if options.quick else 3.0
    return options


def last_cpu() -> int | None:
    """Returns the last core this process may run on: the first is where systems like to handle interrupts."""
    return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


# Processes -----------------------------------------------------------------------------------------------------------


class Process:
    """A contender's process. `begin` says what kept it from being ready, if anything did."""

    def __init__(self, contender: Contender, options: argparse.Namespace):
        self.name = contender.name
        python = str(options.peers_python) if contender.module == PEERS else sys.executable
        sent = {"cpu": options.cpu, **contender.options}
        if contender.module == OURS:
            sent["gin_params"] = [*sent.get("gin_params", []), *options.gin_param]
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (see `close`)
        self._process: subprocess.Popen | None = None
        self.problem: str | None = None
        self.created = time.time()
        # Memory that is given back to the system at once, so that what a process holds can be read from outside.
        eager = {"MALLOC_MMAP_THRESHOLD_": "65536"} if contender.options["task"] == "memory" else {}
        settings = {**ONE_THREAD, **eager}
        if contender.options.get("device", "cpu").startswith("cuda"):
            del settings["CUDA_VISIBLE_DEVICES"]
        try:
            self._process = subprocess.Popen(
                [python, "-m", contender.module, json.dumps(sent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                cwd=ROOT,
                env={**os.environ, **settings},
            )
        except OSError as error:
            self.problem = (
                f"missing: no python of the peers: {error.strerror}" if contender.module == PEERS else str(error)
            )

    def begin(self) -> dict[str, Any]:
        """Waits until it is ready; gives what it says of itself, or nothing and sets `problem`."""
        if self.problem:
            self.close()
            return {}
        answer = self._read()
        for kind in ("missing", "failed"):
            if kind in answer:
                self.problem = f"{kind}: {answer[kind]}"
                self.close()
                return {}
        return answer

    def measure(self, seconds: float) -> float:
        """Units of work a second."""
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"seconds": seconds}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it died of is read below
        answer = self._read()
        if "failed" in answer:
            raise RuntimeError(f"{self.name}: {answer['failed']}")
        return answer["units"] / answer["seconds"]

    def _read(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        tail = self._errors.read()[-2000:]
        return {"failed": f"the process ended with {self._process.returncode}; it said: {tail}"}

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._process = None
        self._errors.close()


@contextlib.contextmanager
def started(
    contenders: Sequence[Contender], options: argparse.Namespace
) -> Iterator[tuple[dict[str, Process], dict[str, dict[str, Any]], dict[str, str]]]:
    """Processes that are ready, what each says of itself, and of the others why they are not. One starts after another."""
    processes: dict[str, Process] = {}
    about: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    try:
        for contender in contenders:
            if options.contenders and contender.name not in options.contenders:
                problems[contender.name] = "not asked for"
                continue
            process = Process(contender, options)
            told = process.begin()
            if process.problem:
                problems[contender.name] = process.problem
                say(f"  {contender.name}: {process.problem.splitlines()[0]}")
            else:
                processes[contender.name], about[contender.name] = process, told
        yield processes, about, problems
    finally:
        for process in processes.values():
            process.close()


def interleaved(
    contenders: Sequence[Contender], options: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, dict[str, Any]], dict[str, str]]:
    """Rates `[rounds]` of every contender, measured A B C A B C; what each says of itself; and who was not there.

    In every other round the order is turned round, so that nobody always comes after the same one.
    """
    names = [contender.name for contender in contenders]
    if options.contenders and not set(names) & set(options.contenders):
        say(f"  nothing to measure: --contenders names {options.contenders}; there are {names}")
    with started(contenders, options) as (processes, about, problems):
        rates: dict[str, list[float]] = {name: [] for name in processes}
        for number in range(options.rounds):
            order = list(processes) if number % 2 == 0 else list(reversed(processes))
            for name in order:
                if name in problems:
                    continue
                try:
                    rates[name].append(processes[name].measure(options.seconds))
                except RuntimeError as error:
                    problems[name] = f"failed: {error}"
                    del rates[name]
    for name, values in rates.items():
        say(f"  {name}: {statistics.median(values):,.1f} ({min(values):,.1f} to {max(values):,.1f})")
    return rates, about, problems


# Figures and goals ---------------------------------------------------------------------------------------------------


def figure(what: str, values: Sequence[float], unit: str, **more: Any) -> dict[str, Any]:
    """Returns a row of the table of figures: median and range."""
    return {
        "what": what, "unit": unit, "median": statistics.median(values), "low": min(values), "high": max(values),
        "values": list(values), **more,
    }  # fmt: skip


def missing_figure(what: str, reason: str) -> dict[str, Any]:
    return {"what": what, "missing": reason}


def rate_figures(
    contenders: Sequence[Contender],
    rates: dict[str, list[float]],
    problems: dict[str, str],
    unit: str,
    note: Callable[[str], str] | None = None,
) -> list[dict[str, Any]]:
    """Returns a row for each contender that was asked for: its rates, with a note on it, or why there are none."""
    found = []
    for name in (c.name for c in contenders):
        if name in rates:
            found.append(figure(name, rates[name], unit, **({} if note is None else {"note": note(name)})))
        elif problems[name] != "not asked for":
            found.append(missing_figure(name, problems[name]))
    return found


def ratio_goal(
    what: str, rates: dict[str, list[float]], ours: str, theirs: str, at_least: float, problems: dict[str, str]
) -> dict[str, Any]:
    """Returns a goal on the ratio of two contenders: the median over rounds of what was measured side by side."""
    return rates_goal(
        what, at_least, rates, (ours, theirs), lambda: [a / b for a, b in zip(rates[ours], rates[theirs])], problems
    )


def rates_goal(
    what: str, at_least: float, rates: dict[str, list[float]], needed: Sequence[str], values: Callable[[], list[float]],
    problems: dict[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Returns a goal on values of each round, computed from the rates of the contenders that are needed."""
    for name in needed:
        if name not in rates:
            return goal(what, f">= {at_least:g}", None, problem=f"{name}: {problems.get(name, 'not measured')}")
    return goal(what, f">= {at_least:g}", values(), lambda x: x >= at_least)


def goal(
    what: str,
    wanted: str,
    values: Sequence[float] | None,
    reached: Callable[[float], bool] | None = None,
    unit: str = "",
    problem: str | None = None,
) -> dict[str, Any]:
    """Returns a row of the table of goals. `values` None: not measured, and `problem` says why."""
    row: dict[str, Any] = {"what": what, "goal": wanted, "unit": unit, "reached": None}
    if values is None:
        return {**row, "problem": problem or "not measured"}
    middle = statistics.median(values)
    row |= {"measured": middle, "low": min(values), "high": max(values)}
    return row if reached is None else {**row, "reached": bool(reached(middle))}


# Tables and files ----------------------------------------------------------------------------------------------------


def number(x: float) -> str:
    """Formats a number by four digits or so."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4g}"


def spread(row: dict[str, Any], middle: str) -> str:
    """Formats as `12.3 (11.9 to 12.5) updates/s`; the range only where there is one."""
    unit = f" {row['unit']}" if row.get("unit") else ""
    if row["low"] == row["high"]:
        return f"{number(row[middle])}{unit}"
    return f"{number(row[middle])} ({number(row['low'])} to {number(row['high'])}){unit}"


def goals_table(goals: Sequence[dict[str, Any]]) -> str:
    lines = ["| what | goal | measured | reached |", "|---|---|---|---|"]
    words = {True: "yes", False: "no", None: "-"}
    for row in goals:
        measured = row["problem"].splitlines()[0] if "problem" in row else spread(row, "measured")
        lines.append(f"| {row['what']} | {row['goal']} | {measured} | {words[row['reached']]} |")
    return "\n".join(lines)


def figures_table(figures: Sequence[dict[str, Any]]) -> str:
    lines = ["| what | median (range over rounds) | notes |", "|---|---|---|"]
    for row in figures:
        value = row["missing"].splitlines()[0] if "missing" in row else spread(row, "median")
        lines.append(f"| {row['what']} | {value} | {row.get('note', '')} |")
    return "\n".join(lines)


def report(results: Sequence[dict[str, Any]], about: dict[str, Any]) -> str:
    """Returns the whole report in Markdown; also what is printed."""
    parts = ["# Benchmarks", machine_table(about)]
    goals = [row for result in results for row in result["goals"]]
    if goals:
        parts += ["## Goals", goals_table(goals)]
    for result in results:
        parts += [f"## {result['title']}", figures_table(result["figures"])]
    return "\n\n".join(parts) + "\n"


def write(results: Sequence[dict[str, Any]], options: argparse.Namespace, name: str) -> None:
    """Prints the report, and writes it as `<name>.md` and `<name>.json` under `--out`."""
    about = machine()
    about["settings"] = f"{options.rounds} rounds of {options.seconds:g} s" + (" (quick)" if options.quick else "")
    if options.gin_param:
        about["gin parameters"] = "; ".join(options.gin_param)
    text = report(results, about)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    content = {"machine": about, "results": list(results)}
    (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(text)
    print(f"written: {folder / name}.md and .json")
    failed = [row for result in results for row in result["figures"] if row.get("missing", "").startswith("failed")]
    if failed:  # what is not installed is no error; what broke is
        raise SystemExit(f"{len(failed)} contenders failed: {', '.join(row['what'] for row in failed)}")


def main(name: str, flags: argparse.ArgumentParser, run: Callable[[argparse.Namespace], dict[str, Any]]) -> None:
    """Runs a benchmark by itself."""
    options = defaults(flags.parse_args())
    write([run(options)], options, name)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# The machine ---------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Returns what the figures depend on."""
    flags: set[str] = set()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
    return {
        "processor": provenance.processor(),
        "instructions": " ".join(sorted(flag for flag in flags if flag.startswith(FLAGS_OF_INTEREST))),
        "cores": os.cpu_count(),
        "load average (1 min)": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        **{name: provenance.versions()[name] for name in ("python", "torch", "numpy", "gymnasium", "mujoco")},
        "commit": provenance.commit(),
        "date": provenance.now(),
    }


def machine_table(about: dict[str, Any]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in about.items())])
