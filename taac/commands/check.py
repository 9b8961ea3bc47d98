"""`taac check`: builds an experiment without training, and prints what it would be."""

from __future__ import annotations

from taac.commands import flags


def define_flags() -> None:
    flags.define_gin()


def run() -> None:
    gin_files = flags.gin_files()

    from taac import nest
    from taac.replay.memory import readable_bytes
    from taac.training import config, experiment

    loaded = config.load(gin_files, flags.FLAGS.gin_param)
    trainer = config.build(experiment.create_experiment)
    trainer.close()
    loaded.check_used()
    environment, algorithm, replay = trainer.environment, trainer.agent.algorithm, trainer.replay_buffer
    print(config.operative_config())
    print(f"environment: {environment.name}, {environment.num_envs} in parallel")
    for path, spec in nest.flatten_with_path(environment.observation_spec):
        print(f"  observation {path + ' ' if path else ''}{spec}")
    for path, spec in nest.flatten_with_path(environment.action_spec):
        print(f"  action {path + ' ' if path else ''}{spec}{'' if spec.is_categorical else ' (rescaled)'}")
    count = sum(p.numel() for p in algorithm.parameters() if p.requires_grad)
    print(f"algorithm: {type(algorithm).__name__} on {trainer.agent.device}, {count} trainable parameters")
    for line in algorithm.describe():
        print(f"  {line}")
    print(
        f"replay buffer: {replay.num_bytes} bytes ({readable_bytes(replay.num_bytes)}): {replay.length} frames x "
        f"{replay.num_envs} environments on {replay.device}"
    )
    ratio = trainer.updates_per_iteration / (trainer.unroll_length * environment.num_envs)
    print(f"updates per environment step: {ratio:g}, after {trainer.initial_collect_steps} steps of collection")
