"""The processes in which peers are measured, in an environment of their own that need not have taac; see `worker`.

`sb3` is SAC of Stable-Baselines3, `sbx` SAC of SBX (the same interface on JAX). Both as they come, with the sizes given.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import importlib.util
import time
from collections.abc import Callable
from typing import Any

from experiments.benchmarks import worker

Answer = Callable[..., None]
PACKAGES = {"sb3": ("stable_baselines3", "stable-baselines3"), "sbx": ("sbx", "sbx-rl")}
FOREVER = 1_000_000_000


def build(options: dict[str, Any], env: Any = None, **settings: Any) -> Any:
    module, _ = PACKAGES[options["peer"]]
    if importlib.util.find_spec(module) is None:
        raise worker.Missing(f"{module} is not installed there")
    import torch

    torch.set_num_threads(1)
    algorithm = getattr(importlib.import_module(module), options.get("algorithm", "SAC"), None)
    if algorithm is None:
        raise worker.Missing(f"{module} {about(options)['version']} has no {options['algorithm']}")
    if env is None:
        env = options.get("env", "HalfCheetah-v5")
        if env == "Free-v0":
            from experiments.benchmarks import toy  # noqa: F401 (registers it)
    own = dict(options.get("settings", {}))
    kwargs = {"net_arch": [256, 256], **own.pop("policy_kwargs", {})}
    policy = options.get("policy", "MlpPolicy")
    return algorithm(policy, env, device="cpu", seed=0, policy_kwargs=kwargs, verbose=0, **own, **settings)


def finish(options: dict[str, Any], model: Any) -> Callable[[], Any]:
    """Waits for what is under way: JAX answers before it has computed."""
    if options["peer"] == "sb3":
        return lambda: None
    import jax

    critics = "qf1_state" if hasattr(model.policy, "qf1_state") else "qf_state"  # of TQC, which has two
    return lambda: jax.block_until_ready((getattr(model.policy, critics), model.policy.actor_state, model.ent_coef_state))


def about(options: dict[str, Any]) -> dict[str, Any]:
    return {"version": importlib.metadata.version(PACKAGES[options["peer"]][1])}


def fill(model: Any) -> None:
    """Adds random transitions, as many as the replay buffer takes."""
    import numpy as np

    rng, buffer = np.random.default_rng(0), model.replay_buffer
    for name in ("observations", "next_observations", "actions", "rewards"):
        array = getattr(buffer, name)
        for begin in range(0, len(array), 10_000):
            array[begin : begin + 10_000] = rng.uniform(-1, 1, size=array[begin : begin + 10_000].shape)
    for name in ("dones", "timeouts"):
        getattr(buffer, name)[...] = 0
    buffer.full, buffer.pos = True, 0


def updates(options: dict[str, Any], answer: Answer) -> None:
    from stable_baselines3.common.logger import configure

    per_call, batch_size = options["per_call"], options["batch_size"]
    model = build(options, buffer_size=options["frames"], batch_size=batch_size)
    model.set_logger(configure(None, []))
    fill(model)
    meter = worker.Meter(answer, options["warmup"], about(options), finish(options, model))
    while True:
        model.train(per_call, batch_size)
        meter.tick(per_call)


def _learn(model: Any, on_step: Callable[[], Any]) -> None:
    from stable_baselines3.common.callbacks import BaseCallback

    class OnStep(BaseCallback):
        def _on_step(self) -> bool:
            on_step()
            return True

    model.learn(FOREVER, callback=OnStep())


def training(options: dict[str, Any], answer: Answer) -> None:
    """Measures the whole training loop, one update a step."""
    model = build(options, batch_size=256, buffer_size=1_000_000, learning_starts=options["collect"])
    meter = worker.Meter(answer, options["collect"] + options["warmup"], about(options), finish(options, model))
    _learn(model, meter.tick)


def rollout(options: dict[str, Any], answer: Answer) -> None:
    """Measures exploring without learning: "policy" the policy alone, "collect" with environment, replay buffer and books."""
    model = build(options, buffer_size=1_000_000, learning_starts=0, gradient_steps=0)
    meter = worker.Meter(answer, options["warmup"], about(options))
    if options["part"] == "collect":
        _learn(model, meter.tick)
    observation = model.env.reset()
    while True:
        model.predict(observation, deterministic=False)
        meter.tick()


def memory(options: dict[str, Any], answer: Answer) -> None:
    import psutil

    process = psutil.Process()
    few, many = min(options["frames"] // 2, 3000), options["frames"]
    kept, grown = [], []
    for frames in (few, few, many):  # as ours
        before = process.memory_info().rss
        model = build(options, buffer_size=frames)
        fill(model)
        kept.append(model)
        gc.collect()
        grown.append(process.memory_info().rss - before)
    answer(ready=True, bytes=(grown[2] - grown[1]) / (many - few) * many, **about(options))


def startup(options: dict[str, Any], answer: Answer) -> None:
    model = build(options, learning_starts=8)
    events = {"built": time.time()}

    def on_step() -> None:
        events.setdefault("first_step", time.time())
        if model._n_updates:
            events["first_update"] = time.time()
            answer(ready=True, events=events, **about(options))
            raise SystemExit(0)

    _learn(model, on_step)


if __name__ == "__main__":
    worker.run({"updates": updates, "training": training, "rollout": rollout, "memory": memory, "startup": startup})
