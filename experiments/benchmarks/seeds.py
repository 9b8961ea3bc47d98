"""Updates a second of N seeds in one process: stacked against in turn.

    python -m experiments.benchmarks.seeds

An update is sampling, loss and gradients, guard, optimizer, temperature and targets, on HalfCheetah-v5's observations and
actions with the batch size of its settings. Rates are sums over the seeds. Shares are of the stacked time: the program is the
joint computation of loss and gradients, and the rest is taken by each seed for itself.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

FRAMES = 600  # in each buffer
SHARES = ("program", "sampling", "optimizer and targets", "generators exchanged")


def seeds(
    counts: Sequence[int] = (2, 4),
    widths: Sequence[int] = (64, 256),
    method: str = "sac",
    seconds: float = 3.0,
    rounds: int = 3,
    device: str = "cpu",
    compiled: bool = False,
) -> list[dict[str, Any]]:
    """Measures each number of seeds with hidden layers of each width; returns a row for each.

    The limits of what is stacked on a CPU are lifted. The best of the rounds counts, as other work on the
    machine only slows down; for the same reason, seconds on a CPU are those that the process had of it.

    Returns:
        Rows of `seeds`, `width`, `in_turn` and `stacked` (updates/s of all seeds together), their `ratio`, and `shares` by name.
    """
    return [_measure(count, width, method, seconds, rounds, device, compiled) for width in widths for count in counts]


def _measure(
    count: int, width: int, method: str, seconds: float, rounds: int, device: str, compiled: bool
) -> dict[str, Any]:
    best = {"in_turn": 0.0, "stacked": 0.0}
    clock = time.process_time if device == "cpu" else time.perf_counter
    trainers = [_build(seed, width, method, device, compiled) for seed in range(count)]
    stacked = _Stacked(trainers)
    shares: dict[str, float] = {}
    try:
        for _ in range(rounds + 1):  # the first compiles
            for kind, run in (("in_turn", functools.partial(_in_turn, trainers)), ("stacked", stacked.run)):
                begin = clock()
                updates = run(time.perf_counter() + seconds)
                _settle(device)
                rate = updates / (clock() - begin)
                if kind == "stacked" and rate > best[kind]:
                    shares = stacked.shares
                best[kind] = max(best[kind], rate)
    finally:
        for trainer in trainers:
            trainer.close()
    return {"seeds": count, "width": width, **best, "ratio": best["stacked"] / best["in_turn"], "shares": shares}


def _build(seed: int, width: int, method: str, device: str, compiled: bool) -> Any:
    from taac import configuration, registry
    from taac.training import experiment

    registry.register()
    params = [
        "create_environment.env_name = 'HalfCheetah-v5'", f"create_experiment.device = '{device}'",
        f"create_experiment.seed = {seed}", "num_env_steps = 1000000", f"hidden_layers = ({width}, {width})",
        f"replay_length = {FRAMES}", f"initial_collect_steps = {FRAMES}", "create_experiment.evaluation_envs = 1",
        f"create_agent.compile = {compiled}",
    ]  # fmt: skip
    configuration.load(["gin/tasks/locomotion.gin", f"gin/methods/{method}.gin"], params)
    trainer = configuration.build(experiment.create_experiment)
    while trainer.collector.env_steps < FRAMES // 2:
        trainer.collect()
    return trainer


def _update(trainer: Any) -> None:
    trainer.learner.learn_from(trainer.replay_buffer, trainer.batch_size, trainer.segment_length)


def _in_turn(trainers: Sequence[Any], until: float) -> int:
    updates, joined = 0, [trainer.learner.together for trainer in trainers]
    for trainer in trainers:
        trainer.learner.together = None
    while time.perf_counter() < until:
        for trainer in trainers:
            _update(trainer)
        updates += len(trainers)
    for trainer, together in zip(trainers, joined):
        trainer.learner.together = together
    return updates


class _Stacked:
    """Runs of updates that meet as those of `taac train --num_seeds` do."""

    def __init__(self, trainers: Sequence[Any]):
        from taac.learning.joint import JointUpdates

        self._trainers = trainers
        self._turns: list[Any] = []
        self.shares: dict[str, float] = {}
        self._seconds: Counter[str] = Counter()
        self._told: set[str] = set()
        self._updates = JointUpdates(
            [trainer.learner for trainer in trainers], lambda n, share: self._turns[n].pause(share),
            lambda n, text: self._told.add(text),
        )  # fmt: skip

    def run(self, until: float) -> int:
        from taac.learning import joint
        from taac.training.turns import Turn, take_turns

        def work(trainer: Any) -> None:
            while time.perf_counter() < until:
                _update(trainer)

        before, begin = sum(t.learner.num_updates for t in self._trainers), time.perf_counter()
        self._seconds.clear()
        compute = self._timed("program", self._updates.compute)
        self._turns = [Turn(functools.partial(work, t), t.agent.device) for t in self._trainers]
        unlimited = {"MOST_COMPILED": float("inf"), "MOST_UNCOMPILED": float("inf"), "FEWEST_COMPILED": 2}
        with mock.patch.multiple(joint, **unlimited), self._parts_timed():
            take_turns(self._turns, compute, lambda: False)
        for turn in self._turns:
            if turn.error is not None:
                raise turn.error
        if in_turn := [text for text in self._told if text.startswith("in turn")]:
            raise RuntimeError(f"not stacked: {in_turn[0]}")
        self.shares = {name: self._seconds[name] / (time.perf_counter() - begin) for name in SHARES}
        return sum(t.learner.num_updates for t in self._trainers) - before

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            found = function(*args)
            self._seconds[name] += time.perf_counter() - start
            return found

        return timed

    @contextlib.contextmanager
    def _parts_timed(self) -> Iterator[None]:
        """Counts the seconds of what each seed does for itself."""
        from taac.learning import learner
        from taac.training.turns import Owner

        algorithm, replay = type(self._trainers[0].agent.algorithm), type(self._trainers[0].replay_buffer)
        parts = [
            (learner, "take_step", "optimizer and targets"), (algorithm, "after_update", "optimizer and targets"),
            (replay, "sample_batch", "sampling"), (Owner, "give", "generators exchanged"),
        ]  # fmt: skip
        with contextlib.ExitStack() as patched:
            for owner, method, name in parts:
                patched.enter_context(mock.patch.object(owner, method, self._timed(name, getattr(owner, method))))
            yield


def _settle(device: str) -> None:
    """Waits for what a GPU still has to do."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    numbers: Callable[[str], tuple[int, ...]] = lambda text: tuple(int(word) for word in text.split(","))  # noqa: E731
    flags.add_argument("--counts", type=numbers, default=(2, 4), help="numbers of seeds, 2 or more, such as 2,4")
    flags.add_argument("--widths", type=numbers, default=(64, 256), help="of both hidden layers, such as 64,256")
    flags.add_argument("--method", default="sac")
    flags.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    flags.add_argument("--rounds", type=int, default=3, help="of which the best counts")
    flags.add_argument("--device", default="cpu")
    flags.add_argument("--compiled", action="store_true", help="with create_agent.compile = True")
    return flags


def main() -> None:
    options = parser().parse_args()
    rows = seeds(**vars(options))
    print(f"| hidden layers | seeds | in turn, updates/s | stacked, updates/s | ratio | {' | '.join(SHARES)} |")
    print("|---" * (5 + len(SHARES)) + "|")
    for row in rows:
        shares = [f"{row['shares'][name]:.0%}" for name in SHARES]
        print(
            f"| {row['width']}-{row['width']} | {row['seeds']} | {row['in_turn']:.1f} | {row['stacked']:.1f} | "
            f"{row['ratio']:.2f} | {' | '.join(shares)} |"
        )


if __name__ == "__main__":
    main()
