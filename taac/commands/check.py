"""`taac check`: builds an experiment without training, examines an environment, or explains a batch that stopped a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError

if TYPE_CHECKING:
    from taac.configuration import Asked, Config
    from taac.training.trainer import Trainer


def define_flags() -> None:
    flags.define_experiment()
    absl_flags.DEFINE_string(
        "env_name", None, "Check this environment for everything that training needs; report faults and how to fix them."
    )
    absl_flags.DEFINE_string(
        "batch",
        None,
        "Explain the file diverged-N.json that a run left behind when a number that was not finite stopped it.",
    )


def run() -> None:
    names = ("task", "method", "gin_file", "env_name", "batch")
    given = [f"--{name}" for name in names if flags.FLAGS[name].value]
    if len(given) > 1 and {"--env_name", "--batch"} & set(given):
        raise TaacError(f"use only one of --env_name, --batch and an experiment, got {' and '.join(given)}")
    if flags.FLAGS.batch:
        _batch(Path(flags.FLAGS.batch))
    elif flags.FLAGS.env_name:
        _environment(flags.FLAGS.env_name)
    else:
        _experiment(flags.asked())


def _batch(path: Path) -> None:
    from taac.runs import inspection, terminal

    for line in inspection.describe(inspection.read(path)):
        print(terminal.printable(line))


def _environment(env_name: str) -> None:
    from taac.environments.examine import examine

    findings = examine(env_name)
    for finding in findings:
        print(f"{'  ok  ' if finding.ok else 'FIX   '}{finding.about}")
        if finding.advice:
            print(f"      {finding.advice}")
    wrong = sum(not finding.ok for finding in findings)
    if wrong:
        raise TaacError(f"environment '{env_name}': {wrong} of {len(findings)} findings are faults")
    print(f"environment '{env_name}' can be trained on")


def _experiment(asked: Asked) -> None:
    asked.files()  # refuses what is missing or unknown before anything is imported
    from taac import configuration, registry
    from taac.training import experiment
    from taac.training.footprint import shares

    registry.register()
    loaded = asked.load()
    trainer = configuration.build(experiment.create_experiment)
    try:
        memory = shares(trainer)
    finally:
        trainer.close()
    loaded.check_used()
    taken = trainer.begin()
    for line in asked.describe(loaded):
        print(line)
    origins = loaded.origins()
    width = min(90, max(len(line) for line, _ in origins))
    for line, where in origins:
        print(f"{line:<{width}}  # {where}")
    _describe(trainer)
    for part in taken:
        print(f"  {part['module']} from {part['run']}, at {part['env_steps']} environment steps")
    _numbers(trainer, loaded, memory)


def _describe(trainer: Trainer) -> None:
    from taac import nest

    environment, algorithm = trainer.environment, trainer.agent.algorithm
    print(f"\nenvironment: {environment.name}, {environment.num_envs} in parallel")
    for path, spec in nest.flatten_with_path(environment.observation_spec):
        print(f"  observation {path + ' ' if path else ''}{spec}")
    for path, spec in nest.flatten_with_path(environment.action_spec):
        print(f"  action {path + ' ' if path else ''}{spec}{'' if spec.is_categorical else ' (rescaled)'}")
    count = sum(p.numel() for p in algorithm.parameters() if p.requires_grad)
    print(f"algorithm: {type(algorithm).__name__} on {trainer.agent.device}, {count} trainable parameters")
    for line in algorithm.describe():
        print(f"  {line}")
    if scheduled := trainer.schedules.describe():
        print("schedules:")
    for line in scheduled:
        print(f"  {line}")


def _numbers(trainer: Trainer, loaded: Config, memory: list) -> None:
    from taac.machine.memory import readable_bytes
    from taac.training.advice import advice

    replay, earned = trainer.replay_buffer, trainer.update_ratio
    print(
        f"replay buffer: {replay.num_bytes} bytes ({readable_bytes(replay.num_bytes)}): {replay.length} frames x "
        f"{replay.num_envs} environments on {replay.device}"
    )
    updates, first = earned.updates_due(trainer.num_env_steps), earned.initial_collect_steps
    mean = updates / (trainer.num_env_steps - first)
    ratio = float(earned.ratio) if earned.schedule is None else mean
    of, most = ("environment step", "") if earned.clock == "env_steps" else ("transition", "at most ")
    print(f"updates per {of}: {ratio:g}, after {first} steps of collection")
    print(
        f"  {most}{updates} updates in all, {updates / trainer.num_env_steps:.4g} a step of the whole run; "
        f"{ratio * trainer.batch_size * trainer.segment_length:g} frames are replayed for each that is collected"
    )
    print(f"programs: {trainer.compilation}; products of matrices: {trainer.learner.products}")
    print(f"memory: {readable_bytes(sum(share.bytes for share in memory))}, and temporary memory of a gradient step")
    for share in memory:
        print(f"  {readable_bytes(share.bytes):>9}  {share.what}")
    found = [*loaded.without_effect(), *advice(trainer, loaded.settings("create_environment"), memory)]
    print("what looks wrong:" if found else "what looks wrong: nothing")
    for line in found:
        print(f"  {line}")
