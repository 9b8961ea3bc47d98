"""Small runs for tests: built, trained until they are killed or stopped, compared."""

from __future__ import annotations

import csv

import torch

from taac import configuration
from taac.analysis.readers import events
from taac.data_structures import Experience
from taac.demonstrations.episode_files import EpisodeWriter
from taac.runs.run_folder import RunFolder
from taac.training import experiment

TASK = "gin/tasks/simple_control.gin"
SMALL = [
    "create_environment.env_name = 'Pendulum-v1'",
    "num_env_steps = 600",
    "initial_collect_steps = 300",
    "hidden_layers = (32, 32)",
    "batch_size = 32",
    "replay_length = 1000",
    "evaluation_interval = 300",
    "evaluation_episodes = 2",
    "Intervals.summary_interval = 100",
]

def built(files, params=()):
    """The trainer of gin files and parameters, nothing of which is left unused."""
    loaded = configuration.load(files, params)
    trainer = configuration.build(experiment.create_experiment)
    loaded.check_used()
    return trainer


def build(*params, method="taac", files=()):
    return built([TASK, f"gin/methods/{method}.gin", *files], [*SMALL, *params])


def learn_until(trainer, updates):
    """Collects and learns until so many updates were taken."""
    while trainer.learner.num_updates < updates:
        trainer.collect()
        trainer.learn()


def recorded(trainer, path, episodes, policy):
    """The frames of episodes that were played by `policy(frames so far)` and are also in a file; closes the trainer."""
    writer, stored = EpisodeWriter(path, trainer.environment), []
    while writer.num_episodes < episodes:
        time_step, alg_step, *_ = trainer.collector.rollout.step(policy(len(stored)))
        writer(time_step, alg_step)
        stored.append(Experience(time_step, alg_step.info))
    trainer.close()
    writer.save()
    return stored


def trained(trainer, updates):
    """The trainer after so many updates, closed."""
    learn_until(trainer, updates)
    trainer.close()
    return trainer


class Killed(Exception):
    pass


def run(path, *params, method="taac", files=(), until=None, stop=None):
    """Trains in a folder from wherever it stands; with `until`, dies there as if killed; with `stop`, stops as told to."""
    trainer, folder = build(*params, method=method, files=files), RunFolder(path)
    if folder.has_checkpoints():
        trainer.resume(folder)
    else:
        about = {"seed": trainer.seed, "environment": trainer.environment.name}
        folder.begin(configuration.operative_config(), about, trainer.environment.info)

    def progress(env_steps, *_):
        if until is not None and env_steps >= until:
            raise Killed

    try:
        trainer.train(folder, progress, stop=lambda: stop is not None and trainer.env_steps >= stop)
    except Killed:
        pass
    finally:
        trainer.close()
    return trainer


def assert_resumes_exactly(path, *params, until=(), stop=(), **of):
    """Asserts that a run that was killed or stopped at these steps ends as one that never was.

    They are in the folders "whole" and "cut" of `path`. Returns their trainers.
    """
    whole = run(path / "whole", *params, **of)
    for moment in until:
        run(path / "cut", *params, until=moment, **of)
    for moment in stop:
        run(path / "cut", *params, stop=moment, **of)
    resumed = run(path / "cut", *params, **of)
    assert_same_parameters(whole, resumed)
    assert rows(path / "whole") == rows(path / "cut") != []
    return whole, resumed


def rows(path):
    with open(RunFolder(path).evaluations) as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def curves(path):
    """All summaries but those of time."""
    scalars = events.read(path).scalars
    return {t: (s.env_steps.tolist(), s.value.tolist()) for t, s in scalars.items() if not t.startswith("time/")}


def assert_same_parameters(first, second):
    first, second = first.agent.state_dict(), second.agent.state_dict()
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
