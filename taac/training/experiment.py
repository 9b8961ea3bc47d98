"""Builds a whole experiment from the gin bindings, before anything is run or written."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import gin
import torch

from taac import nest, specs
from taac.acting.collecting import Collecting, Offline, experience_spec
from taac.acting.collector import Collector
from taac.acting.evaluation import Evaluator
from taac.acting.explorers import Explorer
from taac.acting.noise import Noise
from taac.acting.random_numbers import seed_generators
from taac.algorithms import Algorithm
from taac.algorithms.actor_critic import task_gamma
from taac.algorithms.agent import Agent, Role
from taac.algorithms.algorithm import check_acting
from taac.algorithms.reward_signals import RewardSignal
from taac.algorithms.shared_policy import AgentBatch
from taac.demonstrations.replay import Demonstrations, HalfDemonstrations, demonstrated_frames, kept_apart, prefilled
from taac.environments.create import create_environment
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError
from taac.learning.learner import Learner
from taac.machine.memory import keep_freed_memory
from taac.machine.program_cache import check_named_folder
from taac.machine.ranks import ALONE, Ranks
from taac.networks import ObservationNormalizer, RewardNormalizer, RewardScaler
from taac.ops.schedules import Schedule
from taac.parallel.data_parallel import check_supported, own_seed
from taac.parallel.remote_collector import RemoteCollector
from taac.replay import ReplayBuffer
from taac.training import checks
from taac.training.data_parallel_files import SilentReporter
from taac.training.reporting import Reporter
from taac.training.saving import Saving
from taac.training.trainer import Trainer
from taac.training.update_ratio import Intervals, UpdateRatio


@gin.configurable(denylist=["environment", "device", "role"])
def create_agent(
    environment: VectorEnvironment,
    device: torch.device,
    algorithm_ctor: Callable[..., Algorithm] = gin.REQUIRED,
    normalize_observations: bool = False,
    normalize_rewards: bool | Literal["scale", "bounded"] = False,
    reward_clip: float | None = None,
    reward_signals: Sequence[Callable[..., RewardSignal]] = (),
    task_strength: float | Schedule | Sequence[float | Schedule] = 1.0,
    compile: bool | Literal["auto"] = "auto",
    shared_policy: bool | None = None,
    random_shift: int = 0,
    role: Role = "learn",
) -> Agent:
    """Builds an agent: an algorithm for an environment, with its normalisers.

    Args:
        environment: the environment whose specs the agent must fit.
        device: where its networks are placed.
        algorithm_ctor: called with observation spec, action spec and `reward_dim`. Reward signals add `reward_weights` and
            `reward_weight_names`, and `signal_gammas` if one has its own discount. Repeated actions add `repeat_gamma`.
        normalize_observations: normalises by running statistics of the observations in rollouts; see `ObservationNormalizer`.
        normalize_rewards: True subtracts a running mean of sampled rewards and divides by their standard deviation; see
            `RewardNormalizer`. "scale" keeps the mean and divides by the standard deviation of returns; see `RewardScaler`.
            "bounded" divides by more if a return would otherwise be beyond the critics' range. Each sets the algorithm's own
            `reward_scale` to 1.
        reward_clip: normalised rewards are clipped to +- this; None does not clip.
        reward_signals: rewards besides the task's, such as `(@ICM, @RND)`. Each is called with observation and action spec.
            The algorithm then learns a vector reward, the task's and theirs, with their strengths as `reward_weights`.
        task_strength: weight of the task's reward beside the signals, or the weights of its parts if it is a vector. Each is a
            number, or a schedule of it. A part with weight 0 is not learnt.
        compile: compiles updates and the acting of rollouts, which needs a C++ compiler; see `Agent`. "auto" does so in runs of
            10,000 updates or more, if there is a compiler; see `training.compilation`.
        shared_policy: True: the first dimension of action and observation counts agents that share the policy; see
            `AgentBatch`. False: there is one agent, and the entries of a MultiDiscrete action are its branches; see
            `DiscreteSacAlgorithm`. None: like False, but MultiDiscrete actions are refused because they can mean either.
        random_shift: sampled pictures are moved by up to this many pixels in each direction (DrQ has 4 of 84); 0: they are not.
        role: "learn", or "collect", "act" or "value" for an agent that holds only what it needs for that; see `Agent`.
    """
    spec, action_spec, reward_dim = environment.observation_spec, environment.action_spec, environment.reward_dim
    agents = AgentBatch(spec, action_spec, reward_dim) if shared_policy else None
    if agents is not None:  # normalisers, signals and algorithm handle a single agent
        spec, action_spec, reward_dim = agents.observation, agents.action, None
    elif shared_policy is None:
        checks.refuse_ambiguous(action_spec)
    normalized_parts = reward_dim
    signals = [ctor(specs.observed(spec, action_spec), action_spec) for ctor in reward_signals]
    options: dict[str, Any] = {}
    if len({signal.name for signal in signals}) < len(signals):
        raise TaacError(f"create_agent.reward_signals has two signals of one name: {', '.join(s.name for s in signals)}")
    if signals:
        task = _task_weights(task_strength, reward_dim or 1)
        options["reward_weights"] = (*task, *(signal.strength for signal in signals))
        own = [f"{type(signal).__name__}.strength" for signal in signals]
        several = not isinstance(task_strength, (int, float, Schedule))
        names = [f"create_agent.task_strength{f'[{i}]' if several else ''}" for i in range(len(task))]
        options["reward_weight_names"] = (*names, *own)
        reward_dim = len(task) + len(signals)
    elif task_strength != 1.0:
        raise TaacError("create_agent.task_strength has no effect without create_agent.reward_signals")
    if any(signal.gamma is not None for signal in signals):
        options["signal_gammas"] = tuple(signal.gamma for signal in signals)
    if environment.repeat_gamma != 1.0:
        options["repeat_gamma"] = environment.repeat_gamma
    algorithm = algorithm_ctor(spec, action_spec, reward_dim=reward_dim, **options)
    check_acting(algorithm, spec, action_spec, environment.reward_dim if agents is None else None)
    if random_shift:
        checks.check_random_shift(random_shift, spec)
    if agents is not None and agents.centralised:
        checks.check_centralised(algorithm)
    if role in ("learn", "collect"):  # finished runs may still be played
        checks.check_decision_price(algorithm, environment)
    if normalize_rewards:
        algorithm.reward_scale = 1.0  # the algorithm's own scale is meant for raw rewards and would scale twice
    reward_normalizer: RewardNormalizer | RewardScaler | None = None
    if normalize_rewards in ("scale", "bounded"):
        if algorithm.gamma is None:
            kind = type(algorithm).__name__
            raise TaacError(
                f"create_agent.normalize_rewards = '{normalize_rewards}' needs a discount, but {kind}.gamma is None: define it"
            )
        rows = environment.num_envs * (1 if agents is None else agents.count)
        bound = checks.bound_of_returns(algorithm) if normalize_rewards == "bounded" else None
        gamma = task_gamma(algorithm, len(signals))
        reward_normalizer = RewardScaler(rows, gamma, environment.repeat_gamma, normalized_parts, reward_clip, bound)
    elif normalize_rewards:
        reward_normalizer = RewardNormalizer(normalized_parts, reward_clip)
    return Agent(
        algorithm,
        ObservationNormalizer(spec) if normalize_observations else None,
        reward_normalizer,
        role,
        signals,
        compile,
        agents,
        random_shift,
    ).to_device(device)


def _task_weights(strength: float | Schedule | Sequence[float | Schedule], parts: int) -> tuple[float | Schedule, ...]:
    weights = (strength,) * parts if isinstance(strength, (int, float, Schedule)) else tuple(strength)
    if len(weights) != parts:
        raise TaacError(
            f"create_agent.task_strength must be one number or {parts}, one for each part, got {', '.join(map(str, weights))}"
        )
    return weights


@gin.configurable(denylist=["ranks"])
def create_experiment(
    learner_ctor: Callable[..., Learner] = Learner,
    replay_buffer_ctor: Callable[..., ReplayBuffer] = ReplayBuffer,
    replay_device: str | None = None,
    demonstrations: str | None = None,
    demonstrations_ctor: Callable[..., ReplayBuffer | HalfDemonstrations] = prefilled,
    seed: int = 0,
    device: str = "auto",
    num_threads: int = 1,
    collectors: int = 0,
    offline: bool = False,
    evaluation_envs: int = 5,
    load_from: Sequence[str] = (),
    evaluation_video: bool = False,
    method: str | None = None,
    tuning: str | None = None,
    return_bounds: tuple[float, float] | None = None,
    ranks: Ranks = ALONE,
) -> Trainer:
    """Builds a trainer, ready to train, from the gin bindings.

    Args:
        learner_ctor, replay_buffer_ctor: constructors of the parts. A buffer with arguments `compute_reward` or
            `compute_terminated` is given these functions of an environment with goals, one with `critics_need` the algorithm's,
            and every buffer `frame_stack` if it is above 1.
        replay_device: where frames are stored: "cpu", or None for the agent's device.
        demonstrations: a file of `taac play --record_demonstrations`, or a Minari dataset as "minari:ID".
        demonstrations_ctor: called with the replay buffer and the demonstrations' frames; returns what batches are sampled
            from. `prefilled` adds the frames to the buffer before training; they count neither as environment steps nor
            towards the initial collection. `HalfDemonstrations` stores them separately and samples half of each batch from them;
            `SqilReplay` also sets the rewards.
            `kept_apart` reserves them for reward signals and behaviour cloning.
        seed: determines everything random in the run.
        device: "auto" (CUDA if present), "cpu", "cuda", "cuda:1".
        num_threads: torch's threads on the CPU. 1 is best for small networks when several runs share a machine.
        collectors: processes that collect while this one learns, each with an equal share of `num_envs`; see `RemoteCollector`.
            0: this process collects and learns in turn.
        offline: learns from the first content of the replay buffer alone (`demonstrations`) and takes no environment step, except
            in evaluations. `initial_collect_steps` is then 0. Settings in environment steps, such as `num_env_steps`, count the
            steps that a run would take: with one environment and the default ratio, one for each update.
        evaluation_envs: environments that evaluate side by side. More is faster where an episode is cheap.
        load_from: parts of other runs that a new run starts from, such as `("runs/a:actor", "runs/b:replay")`; see
            `warm_start`. A resumed run no longer needs them.
        evaluation_video: writes each evaluation's first episode to TensorBoard as a video; see `EpisodeVideo`. It costs the
            time of rendering and a few hundred kilobytes per evaluation, and changes no random number.
        method: the method's name in reports and pictures. A method file binds it. It changes nothing in the run.
        tuning: what the settings were chosen for, in one's own words, such as 'for SAC on Hopper, 20 trials'. Reports show it. It
            changes nothing in the run.
        return_bounds: the lowest and highest possible return of the task, such as (0, 1) for solved or not. Reports then use
            tests that know them. It changes nothing in the run.
        ranks: the processes that train the run together.

    Raises:
        TaacError: anything that training would refuse.
    """
    names = {"method": method, "tuning": tuning}
    checks.check_settings(seed, num_threads, evaluation_envs, return_bounds, collectors, ranks, names)
    check_named_folder()
    torch.set_num_threads(num_threads)
    keep_freed_memory()
    seed_generators(seed)
    where = choose_device(device, ranks)
    replay_where = choose_replay_device(replay_device, where, ranks)
    with contextlib.ExitStack() as opened:
        environment = create_environment(ranks=ranks, elsewhere=bool(collectors))
        opened.callback(environment.close)
        agent = create_agent(environment, where)
        checks.check_steps_of_training(agent.algorithm)
        spec = experience_spec(environment, agent)
        if ranks.count > 1:
            check_supported(agent, demonstrations)
        burn_in, on_last = agent.algorithm.burn_in, agent.algorithm.learns_on_last_frame
        asked = inspect.signature(replay_buffer_ctor).parameters
        known: dict[str, Any] = {name: function for name, function in environment.goal_functions.items() if name in asked}
        if "critics_need" in asked:
            known["critics_need"] = agent.algorithm.critics_need
        if environment.frame_stack > 1:
            known["frame_stack"] = environment.frame_stack
        replay_buffer = replay_buffer_ctor(
            spec, environment.num_envs, device=replay_where, burn_in=burn_in, learns_on_last_frame=on_last, **known
        )
        checks.check_hindsight(replay_buffer, environment, agent, demonstrations_ctor if demonstrations else None)
        replay: ReplayBuffer | HalfDemonstrations = replay_buffer
        shown: dict[str, Any] = {}  # constructors of one's own may not know demonstrations
        if demonstrations is not None:
            frames = demonstrated_frames(demonstrations, environment, agent, spec)
            replay = demonstrations_ctor(replay_buffer, frames)
            if demonstrations_ctor is not kept_apart and not offline:  # which counts what the buffer holds
                steps = (nest.index(frames.time_step, slice(t, t + 1)) for t in range(len(frames.time_step.reward)))
                agent.count_recorded(steps, num_envs=1)
            # Cloning and signals learn from transitions, none of which begins at the last frame of a segment.
            shown = {"demonstrations": functools.partial(Demonstrations, frames, replay_where, burn_in, False)}
            demonstrated = len(frames.time_step.step_type)
            del frames
        learner = learner_ctor(agent, **shown)
        shown.clear()  # so that the memory of the frames is free for the replay buffer
        checks.check_use_of_demonstrations(learner, demonstrations, demonstrations_ctor)
        other: dict[str, Any] = {"recorded": True, "render_mode": "rgb_array"} if evaluation_video else {}
        evaluation_environment = create_environment(num_envs=evaluation_envs, asynchronous=False, evaluating=True, **other)
        opened.callback(evaluation_environment.close)
        evaluation_environment.name += " (evaluation)"  # for error messages
        evaluation_environment.load_state_dict(environment.state_dict())  # they may draw their spaces
        if (parts := evaluation_environment.reward_dim) != environment.reward_dim:
            of = ["a number" if dim is None else f"a vector of {dim}" for dim in (parts, environment.reward_dim)]
            raise TaacError(
                f"create_environment.evaluation_wrappers: the reward of evaluations is {of[0]}, that of training {of[1]}; name "
                "the wrappers that make it in both"
            )
        intervals = Intervals()
        ratio = functools.partial(UpdateRatio, environment.num_envs * ranks.count, intervals.num_env_steps)
        update_ratio = ratio(initial_collect_steps=0) if offline else ratio()
        if ranks.count > 1:  # only now, because the networks are the same in all ranks
            seed_generators(own_seed(seed, ranks))
        first = update_ratio.initial_collect_steps
        collector = create_collector(environment, learner, replay_buffer, own_seed(seed, ranks), first, collectors, offline)
        trainer = Trainer(
            collector, learner, replay_buffer, intervals, update_ratio, Evaluator(agent, evaluation_environment, seed), Saving(),
            (Reporter if ranks.first else SilentReporter)(collector, learner),
            load_from=(load_from,) if isinstance(load_from, str) else load_from, replay=replay, ranks=ranks,
        )  # fmt: skip
        if demonstrations is not None:
            checks.check_demonstrations(demonstrated, trainer.segment_length)
        if offline:
            checks.check_offline(trainer.segment_length, replay_buffer, agent)
        opened.pop_all()  # all is well, so the trainer closes them from here on
        return trainer


@gin.configurable(denylist=["environment", "learner", "replay_buffer", "seed", "initial_collect_steps", "number", "offline"])
def create_collector(
    environment: VectorEnvironment,
    learner: Learner,
    replay_buffer: ReplayBuffer,
    seed: int,
    initial_collect_steps: int,
    number: int = 0,
    offline: bool = False,
    explorer: Explorer | Noise | None = None,
    uniform_initial_collect: bool = True,
) -> Collecting:
    """Builds the collector.

    Args:
        seed: of this rank's environments.
        initial_collect_steps, number, offline: `initial_collect_steps`, `collectors` and `offline` of the experiment.
        explorer: may replace the policy's actions while collecting, after the uniformly random ones, see `explorers`; or draws
            their noise, see `noise`.
        uniform_initial_collect: whether actions in the first `initial_collect_steps` environment steps are uniformly random,
            instead of the untrained policy's.
    """
    agent = learner.agent
    if offline and (explorer is not None or number):
        what = "create_collector.explorer" if explorer is not None else "create_experiment.collectors"
        raise TaacError(f"{what} has no effect with create_experiment.offline = True, which takes no environment step: remove it")
    if explorer is not None:
        info = experience_spec(environment, agent).rollout_info
        checks.check_explorer(explorer, agent.algorithm, info, environment.action_spec)
    if offline:
        return Offline(environment, agent, replay_buffer)
    ctor: Callable[..., Collecting] = Collector
    if number:
        checks.refuse_given(environment)
        build = functools.partial(create_collecting, environment.state_dict())
        ctor = functools.partial(RemoteCollector, number=number, learner=learner, build=build)
    random_steps = initial_collect_steps if uniform_initial_collect else 0
    return ctor(environment, agent, replay_buffer, seed, explorer, random_steps, signal_returns=learner.diagnostics.on)


def create_collecting(spaces: dict[str, str], num_envs: int) -> tuple[VectorEnvironment, Agent]:
    """Returns environments with the learner's `spaces` and an agent that acts in them, for a collector in another process."""
    environment = create_environment(num_envs=num_envs)
    environment.load_state_dict(spaces)
    return environment, create_agent(environment, torch.device("cpu"), compile=False, role="collect")


# Devices --------------------------------------------------------------------------------------------------------------


def choose_device(name: str, ranks: Ranks = ALONE) -> torch.device:
    """Returns the torch device of a name; refuses one that is not there. Of several ranks on a machine, each has its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if ranks.count > 1 and name.startswith("cuda"):
        return _own_gpu(name, ranks)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise TaacError(f"device must be 'auto', 'cpu' or 'cuda' (or 'cuda:1'...), got '{name}'")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise TaacError(f"device '{name}' is not available: torch {torch.__version__} finds no CUDA; use 'cpu' or 'auto'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise TaacError(f"device '{name}' is not available: torch finds {torch.cuda.device_count()} GPU(s), counted from 0")
    return device


def choose_replay_device(name: str | None, agent: torch.device, ranks: Ranks = ALONE) -> torch.device:
    """Returns the device of the replay buffer: the agent's for None. Refuses another GPU than the agent's."""
    if name is None:
        return agent
    chosen = choose_device(name, ranks)
    if chosen.type == "cuda" and (agent.type != "cuda" or (chosen.index or 0) != (agent.index or 0)):  # "cuda" is the first
        raise TaacError(
            f"create_experiment.replay_device = '{name}', but the agent is on {agent}: another GPU draws random numbers that no "
            "checkpoint holds. Bind 'cpu', or leave it out"
        )
    return chosen


def _own_gpu(name: str, ranks: Ranks) -> torch.device:
    if name != "cuda":
        raise TaacError(f"device must be 'auto', 'cpu' or 'cuda' with {ranks.count} ranks, one each; got '{name}'")
    if ranks.local_number >= torch.cuda.device_count():
        raise TaacError(
            f"rank {ranks.number} has no GPU: this machine has {torch.cuda.device_count()}; start as many processes a machine "
            "(--nproc_per_node), or bind create_experiment.device = 'cpu'"
        )
    torch.cuda.set_device(ranks.local_number)
    return torch.device("cuda", ranks.local_number)
