"""Building a whole experiment from what gin bound, before anything is run or written."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import gin
import numpy as np
import torch

from taac import nest, specs
from taac.algorithms import Algorithm
from taac.data_structures import Experience, Nest, TimeStep
from taac.environments.vector_environment import VectorEnvironment, create_environment
from taac.errors import TaacError
from taac.networks import ObservationNormalizer, RewardNormalizer
from taac.replay import ReplayBuffer
from taac.training.agent import Agent
from taac.training.learner import Learner
from taac.training.trainer import Trainer


@gin.configurable
def create_agent(
    environment: VectorEnvironment,
    device: torch.device,
    algorithm_ctor: Callable[..., Algorithm] = gin.REQUIRED,
    normalize_observations: bool = False,
    normalize_rewards: bool = False,
    reward_clip: float | None = None,
) -> Agent:
    """An algorithm for an environment, with its normalisers.

    Args:
        algorithm_ctor: called with observation spec, action spec and `reward_dim`.
        normalize_observations: by running statistics of what rollouts see; see `ObservationNormalizer`.
        normalize_rewards: by running statistics of sampled rewards; see `RewardNormalizer`.
        reward_clip: normalised rewards are clipped to +- this; None does not clip.
    """
    spec, reward_dim = environment.observation_spec, environment.reward_dim
    return Agent(
        algorithm_ctor(spec, environment.action_spec, reward_dim=reward_dim),
        ObservationNormalizer(spec) if normalize_observations else None,
        RewardNormalizer(reward_dim, reward_clip) if normalize_rewards else None,
    ).to_device(device)


@gin.configurable
def create_experiment(
    trainer_ctor: Callable[..., Trainer] = Trainer,
    learner_ctor: Callable[..., Learner] = Learner,
    replay_buffer_ctor: Callable[..., ReplayBuffer] = ReplayBuffer,
    replay_device: str | None = None,
    seed: int = 0,
    device: str = "auto",
    num_threads: int = 1,
    evaluation_envs: int = 5,
) -> Trainer:
    """A trainer ready to train, from what gin bound.

    Args:
        trainer_ctor, learner_ctor, replay_buffer_ctor: what the parts are built with.
        replay_device: where frames are kept; None: where the agent is.
        seed: of everything random in the run.
        device: "auto" (CUDA when present), "cpu", "cuda", "cuda:1".
        num_threads: of torch, on the CPU; 1 is best for networks of this size when several runs share a machine.
        evaluation_envs: environments that evaluate side by side; more is faster where an episode is cheap.

    Raises:
        TaacError: anything that training would refuse.
    """
    if num_threads < 1:
        raise TaacError(f"create_experiment.num_threads must be 1 or more, got {num_threads}")
    if not 0 <= seed < 2**32:
        raise TaacError(f"create_experiment.seed must be in [0, 2^32), got {seed}")
    torch.set_num_threads(num_threads)
    torch.manual_seed(seed)
    np.random.seed(seed)
    where = choose_device(device)
    with contextlib.ExitStack() as opened:
        environment = create_environment()
        opened.callback(environment.close)
        agent = create_agent(environment, where)
        spec = experience_spec(environment, agent)
        replay_where = where if replay_device is None else choose_device(replay_device)
        replay_buffer = replay_buffer_ctor(spec, environment.num_envs, device=replay_where)
        evaluation_environment = create_environment(num_envs=evaluation_envs, asynchronous=False)
        opened.callback(evaluation_environment.close)
        evaluation_environment.name += " (evaluation)"  # for messages
        trainer = trainer_ctor(environment, evaluation_environment, learner_ctor(agent), replay_buffer, seed)
        if trainer.explorer is not None and nest.flatten(spec.rollout_info):
            raise TaacError(
                f"Trainer.explorer {type(trainer.explorer).__name__} replaces actions, which "
                f"{type(agent.algorithm).__name__} would not see: it stores choices of its own. Use SacAlgorithm"
            )
        if trainer.explorer is not None and nest.is_container(environment.action_spec):
            raise TaacError(
                f"Trainer.explorer {type(trainer.explorer).__name__} explores one continuous action vector, but the actions "
                f"are nested: {', '.join(path for path, _ in nest.flatten_with_path(environment.action_spec))}"
            )
        opened.pop_all()  # all is well: they are the trainer's to close
        return trainer


def choose_device(name: str) -> torch.device:
    """The device a name stands for.

    Raises:
        TaacError: no such device, or CUDA asked for where there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise TaacError(f"device must be 'auto', 'cpu' or 'cuda' (or 'cuda:1'...), got '{name}'")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise TaacError(
            f"device '{name}' was asked for, but torch {torch.__version__} sees no CUDA; use 'cpu' or 'auto'"
        )
    return device


def experience_spec(environment: VectorEnvironment, agent: Agent) -> Nest:
    """Specs of one frame as the replay buffer keeps it: the environment's, and the `info` of a rollout."""
    scalar = specs.TensorSpec(())
    parts: dict[str, Nest] = {
        "step_type": specs.TensorSpec((), torch.uint8),
        "reward": specs.TensorSpec((environment.reward_dim,)) if environment.reward_dim else scalar,
        "discount": scalar,
        "observation": environment.observation_spec,
        "prev_action": environment.action_spec,
        "duration": specs.TensorSpec((), torch.int16),
    }
    time_step = TimeStep(**parts)
    with torch.random.fork_rng(devices=[]):
        blank = specs.zeros(time_step, 1, device=agent.device)
        info = agent.algorithm.random_step(blank, agent.initial_state(1)).info
    return Experience(time_step, nest.map_structure(specs.spec_of, info))
