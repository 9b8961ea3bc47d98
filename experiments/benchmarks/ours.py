"""The processes in which taac is measured; see `worker`."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import tempfile
import time
from collections.abc import Callable
from typing import Any

from experiments.benchmarks import worker
from taac.machine.processes import settled_heap

Answer = Callable[..., None]
FOREVER = 1_000_000_000


def build(options: dict[str, Any], params: list[str]) -> Any:
    """Returns a trainer of a method on HalfCheetah-v5 (or what `env` says), as `taac train` would build it."""
    from taac import configuration, registry
    from taac.training import experiment

    env = options.get("env", "HalfCheetah-v5")
    if env == "Free-v0":
        from experiments.benchmarks import toy  # noqa: F401 (registers it)
    files = ["gin/tasks/locomotion.gin", f"gin/methods/{options['method']}.gin", *options.get("files", [])]
    fixed = [
        f"create_environment.env_name = '{env}'",
        f"create_experiment.device = '{options.get('device', 'cpu')}'",
        "create_agent.compile = False",  # unless a contender says otherwise; "auto" would compile runs of this length
        f"num_env_steps = {FOREVER}",
        f"evaluation_interval = {FOREVER}",
        f"checkpoint_interval = {FOREVER}",
    ]
    registry.register()
    loaded = configuration.load(files, [*fixed, *params, *options.get("gin_params", [])])
    trainer = configuration.build(experiment.create_experiment)
    loaded.check_used()
    trainer.evaluator.initial = False
    return trainer


def finisher(trainer: Any) -> Callable[[], Any] | None:
    """Returns what waits for work that is still under way on the trainer's device; None on the CPU."""
    if trainer.agent.device.type == "cpu":
        return None
    import torch

    return lambda: torch.cuda.synchronize(trainer.agent.device)


def fill(trainer: Any, frames: int) -> None:
    """Brings the replay buffer to so many frames: two episodes of random actions, over and over."""
    import torch

    buffer = trainer.replay_buffer
    while buffer.size < min(frames, 2002 if trainer.agent.device.type == "cpu" else 302):
        trainer.collect()
    buffer.sample_batch(1, trainer.segment_length)  # what is prioritised gets its first priorities
    state, held = buffer.state_dict(), buffer.size

    def repeated(leaf: Any) -> Any:
        return leaf.repeat(-(-frames // held), *[1] * (leaf.dim() - 1))[:frames]

    if "priorities/masses" in state:
        state["priorities/masses"] = repeated(state["priorities/masses"])
    state["position"] = torch.tensor([frames % buffer.length, frames, buffer.length, frames])
    first = {name: leaf.clone() for name, leaf in buffer.frames(0, held).items()}
    buffer.load_state_dict(state)
    for name, leaf in buffer.frames(0, frames).items():
        leaf.copy_(repeated(first[name]))


def choose_graphs(graphs: str) -> None:
    """Chooses how programs run on a GPU, to compare: "own" as the package does; "none", "torch" and "uncompiled" otherwise."""
    from taac.machine import compiled

    if graphs == "none":
        compiled.captured = lambda make, graph, inputs: make(inputs)
    if graphs == "torch":
        import torch
        import torch._inductor.config as settings

        settings.triton.cudagraphs = True

        def stepped(make: Any, graph: Any, inputs: Any) -> Any:
            program = make(inputs)

            def call(*leaves: Any) -> Any:
                torch.compiler.cudagraph_mark_step_begin()  # else each call would be recorded anew, as a part of the one before
                return [x.clone() if isinstance(x, torch.Tensor) else x for x in program(*leaves)]

            return call

        compiled.captured = stepped
    if graphs == "uncompiled":
        compiled.compile_graph = lambda graph, *_: graph


def updater(options: dict[str, Any]) -> Any:
    """Returns a trainer with a full buffer; its `learn` makes as many updates as `collector.env_steps` has been moved by."""
    frames, first = options["frames"], min(options["frames"], 3000)
    choose_graphs(options.get("graphs", "own"))
    params = [
        f"replay_length = {frames}",
        f"initial_collect_steps = {first}",
        f"batch_size = {options['batch_size']}",
        f"segment_length = {options.get('segment_length', 4)}",
        "create_experiment.evaluation_envs = 1",
    ]
    trainer = build(options, params)
    fill(trainer, frames)
    trainer.collector.env_steps = first
    return trainer


def counted(options: dict[str, Any]) -> float:
    """Operations of the matrix products of an update in 1e9, as torch counts them; the mean over a policy delay."""
    from torch.profiler import ProfilerActivity, profile

    eager = [p for p in options.get("gin_params", ()) if not p.startswith("create_agent.compile")]
    trainer = updater({**options, "frames": 3000, "gin_params": [*eager, "Learner.matmul = 'plain'"]})
    delay = trainer.agent.algorithm.policy_delay
    trainer.collector.env_steps += delay
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True) as seen:
        trainer.learn()
    products = [f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm")]
    return float(sum(event.flops or 0 for event in seen.events() if event.name in products)) / delay / 1e9


def updates(options: dict[str, Any], answer: Answer) -> None:
    """Updates: sampling, gradient step and targets, `per_call` of them between two environment steps."""
    begin, per_call, about = time.time(), options["per_call"], {}
    if "limit" in options:  # then it ends, and says where it was
        faulthandler.dump_traceback_later(options["limit"], exit=True)
    if options.get("count"):
        about["gflop"] = counted(options)
    trainer = updater(options)
    finish = finisher(trainer)

    def finished() -> None:
        faulthandler.cancel_dump_traceback_later()
        if finish is not None:
            import torch

            finish()
            about.update(megabytes=torch.cuda.max_memory_allocated() / 1e6, seconds=time.time() - begin)

    meter = worker.Meter(answer, options["warmup"], about, finished)
    with settled_heap():  # as in training
        while True:
            trainer.collector.env_steps += per_call  # as many updates are due as environment steps
            trainer.learn()
            meter.tick(per_call)


def training(options: dict[str, Any], answer: Answer) -> None:
    """Measures the training loop, one update a step, summaries included; neither evaluation nor checkpoints."""
    from taac import configuration
    from taac.runs.run_folder import RunFolder

    trainer = build(options, [f"initial_collect_steps = {options['collect']}"])
    meter = worker.Meter(answer, options["collect"] + options["warmup"], {}, finisher(trainer))
    taken = 0

    def progress(env_steps: int, *_: Any) -> None:
        nonlocal taken
        meter.tick(env_steps - taken)
        taken = env_steps

    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(path)
        folder.begin(configuration.operative_config(), {})
        trainer.train(folder, progress)


def rollout(options: dict[str, Any], answer: Answer) -> None:
    """Measures exploring without learning.

    `part`: "policy" the policy alone, on one frame; "step" policy and environment; "collect" also what a training does
    with each step: the replay buffer and the episodes' books.
    """
    trainer = build(
        options,
        [
            f"initial_collect_steps = {FOREVER // 2}",
            "create_collector.uniform_initial_collect = False",
            "create_experiment.evaluation_envs = 1",
        ],
    )
    meter = worker.Meter(answer, options["warmup"], {})
    rollout = trainer.collector.rollout
    with settled_heap():  # as in training
        if options["part"] == "policy":
            for _ in range(3):
                trainer.collect()
            state, time_step = trainer.agent.initial_state(1), rollout.time_step
            while True:
                state = trainer.agent.rollout_step(time_step, state).state
                meter.tick()
        while True:
            if options["part"] == "step":
                rollout.step(trainer.agent.rollout_step)
            else:
                trainer.collect()
            meter.tick()


def memory(options: dict[str, Any], answer: Answer) -> None:
    """Bytes that a full replay buffer adds to the process."""
    import psutil

    from taac import nest

    process = psutil.Process()
    few, many = min(options["frames"] // 2, 3000), options["frames"]
    kept, grown = [], []
    # Each adds a trainer and its buffer. The first also loads whatever is loaded on first use; the difference of the
    # other two is the frames alone.
    for frames in (few, few, many):
        before = process.memory_info().rss
        trainer = build(options, [f"replay_length = {frames}", "initial_collect_steps = 100"])
        fill(trainer, frames)
        kept.append(trainer)
        gc.collect()
        grown.append(process.memory_info().rss - before)
    spec = {path: list(leaf.shape[2:]) for path, leaf in nest.flatten_with_path(kept[0].replay_buffer.sample(1, 2))}
    size = (grown[2] - grown[1]) / (many - few) * many
    answer(ready=True, bytes=size, said=kept[2].replay_buffer.num_bytes, fields=spec)


def startup(options: dict[str, Any], answer: Answer) -> None:
    """Tells when the first environment step and the first update had been made, as `taac train` makes them."""
    from taac import configuration
    from taac.runs.run_folder import RunFolder

    imported = time.time()
    trainer = build(options, ["initial_collect_steps = 8"])
    events = {"imported": imported, "built": time.time()}

    def progress(env_steps: int, updates: int, *_: Any) -> None:
        events.setdefault("first_step", time.time())
        if updates:
            events["first_update"] = time.time()
            answer(ready=True, events=events)
            raise SystemExit(0)

    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(path)
        folder.begin(configuration.operative_config(), {})
        trainer.train(folder, progress)


def peak(options: dict[str, Any], answer: Answer) -> None:
    """Repeats one matrix product over and over, on one path; a unit is a GFLOP."""
    from experiments.benchmarks import floor

    rows, inner, columns = options["shape"]
    product = floor.PATHS[options["path"]](rows, inner, columns).call
    size = 2 * rows * inner * columns / 1e9
    times = max(1, round(0.1 / size))  # a tenth of a GFLOP between two looks at the clock
    meter = worker.Meter(answer, options["warmup"], {})
    while True:
        for _ in itertools.repeat(None, times):
            product()
        meter.tick(times * size)


def measure_floor(options: dict[str, Any], answer: Answer) -> None:
    from experiments.benchmarks import floor

    answer(ready=True, **floor.measure(options["seconds"], options["megabytes"]))


if __name__ == "__main__":
    worker.run(
        {
            "updates": updates,
            "training": training,
            "rollout": rollout,
            "memory": memory,
            "startup": startup,
            "peak": peak,
            "floor": measure_floor,
        }
    )
