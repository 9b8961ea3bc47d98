"""Checks that the parts of an experiment fit together. Each raises `TaacError` before any work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from taac import nest, specs
from taac.acting.explorers import Explorer
from taac.acting.noise import Noise
from taac.algorithms import Algorithm
from taac.algorithms.actor_critic import ActorCriticAlgorithm
from taac.algorithms.agent import Agent
from taac.algorithms.sac_mixed import MixedSacAlgorithm
from taac.data_structures import Nest
from taac.demonstrations.replay import HalfDemonstrations, SqilReplay, kept_apart, prefilled
from taac.environments import single
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError, refuse_below
from taac.learning.learner import Learner
from taac.machine.ranks import ALONE, Ranks
from taac.networks import RecurrentEncoder, RewardNormalizer, RewardScaler
from taac.networks.value_heads import HIGH, LOW, atoms_of
from taac.ops.schedules import Schedule, bounds
from taac.replay import HindsightReplayBuffer, ReplayBuffer
from taac.runs import layout
from taac.training.reporting import Monitor


def check_settings(
    seed: int,
    num_threads: int,
    evaluation_envs: int,
    return_bounds: tuple[float, float] | None,
    collectors: int,
    ranks: Ranks,
    names: Mapping[str, str | None],
) -> None:
    """Refuses settings of an experiment that are out of range, collectors beside several ranks, and names that reports could not
    show.
    """
    refuse_below(1, "create_experiment", num_threads=num_threads, evaluation_envs=evaluation_envs)
    if not 0 <= seed < 2**32:
        raise TaacError(f"create_experiment.seed must be in [0, 2^32), got {seed}")
    if return_bounds is not None and not return_bounds[0] < return_bounds[1]:
        raise TaacError(f"create_experiment.return_bounds must be (lowest, highest), got {return_bounds}")
    if collectors and ranks.count > 1:
        raise TaacError("several ranks cannot train one run with create_experiment.collectors: give one or the other")
    for name, text in names.items():
        if text is not None and not layout.is_name(text):
            raise TaacError(
                f"create_experiment.{name} must be printable text of 1 to {layout.MAX_NAME} characters, got {text[:1000]!r}"
            )


def check_random_shift(pixels: int, spec: Nest) -> None:
    """Refuses shifts of observations without pictures, and shifts that leave nothing of a picture."""
    sizes = [min(leaf.shape[:2]) for leaf in nest.flatten(spec) if specs.is_picture(leaf)]
    if not sizes:
        raise TaacError(f"create_agent.random_shift moves pictures of bytes [H, W, C], and the observations have none: {spec}")
    if not 0 < pixels < min(sizes):
        raise TaacError(
            f"create_agent.random_shift must be from 0 to {min(sizes) - 1} pixels for pictures of this size, got {pixels}"
        )


def check_steps_of_training(algorithm: Algorithm) -> None:
    kind = type(algorithm)
    for name in ("train_step", "calc_loss"):
        if getattr(kind, name) is getattr(Algorithm, name):
            raise TaacError(f"{kind.__name__} does not define {name}, which every algorithm needs")


def check_centralised(algorithm: Algorithm) -> None:
    """Refuses an actor that sees observations meant only for critics."""
    own = getattr(algorithm, "actor_encoder", None)
    if own is None or isinstance(own, RecurrentEncoder):
        raise TaacError(
            f"the observation has a '{specs.GLOBAL_STATE}', which only critics may see, but the actor of "
            f"{type(algorithm).__name__} sees all that they see: bind ActorCriticAlgorithm.actor_encoder_ctor = @LocalEncoder. "
            "Recurrent algorithms do not support it. If the actor may see it, give it another key"
        )


def bound_of_returns(algorithm: Algorithm) -> float:
    """Returns the bound that fits the atoms of categorical critics."""
    critics = getattr(algorithm, "critics", None)
    support = atoms_of(critics)
    if support is None:
        raise TaacError(
            "create_agent.normalize_rewards = 'bounded' fits rewards to the range of categorical critics, and "
            f"{type(critics).__name__} predicts no categories: bind 'scale', or CriticEnsemble.returns = @CategoricalReturns()"
        )
    return float(min(side for side in (-support[0], support[-1]) if side > 0))


def beyond_atoms(trainer: Any) -> Iterator[str]:
    """Yields warnings of returns beyond categorical critics' atoms: rewards are not scaled, or entropy is worth too much."""
    algorithm, gamma = trainer.agent.algorithm, trainer.learner.growth.gamma
    support = atoms_of(getattr(algorithm, "critics", None))
    chosen = support is None or (support[0], support[-1]) != (LOW, HIGH)
    if support is not None and not chosen and not isinstance(trainer.agent.reward_normalizer, RewardScaler):
        replay = trainer.replay_buffer
        of_goals = isinstance(replay, HindsightReplayBuffer) and replay.probability > 0 and replay.reward_at_goal > 0
        come_and_go = trainer.agent.agents is not None and trainer.agent.agents.masked
        refused = of_goals or come_and_go or isinstance(trainer.replay, SqilReplay)  # here, and by `Agent`
        yield (
            f"critics predict returns from {support[0]:g} to {support[-1]:g}, and rewards are not scaled to fit: bind "
            + ("" if refused else "create_agent.normalize_rewards = 'bounded', or ")
            + "CategoricalReturns.low and high to returns that can be reached"
        )
    valued = getattr(algorithm, "entropy_in_target", False)
    if support is not None and gamma is not None and gamma < 1 and valued and isinstance(algorithm, ActorCriticAlgorithm):
        for name, temperature in algorithm.temperatures().items():
            worth = float(temperature.alpha()) / (1 - gamma)
            if temperature.tuning == "fixed" and worth > float(support[-1]):
                yield (
                    f"the temperature of '{name}' is fixed, and a nat of entropy a step is worth a return of {worth:.3g}; "
                    f"critics predict returns up to {support[-1]:g}: bind a lower Temperature.initial_value, in the scope that "
                    "the method gives it, such as value/Temperature.initial_value = 0.01"
                )


def check_decision_price(algorithm: Algorithm, environment: VectorEnvironment) -> None:
    """Refuses a price of decisions where every environment step is one, and a rate that durations do not reach."""
    price, (least, longest) = getattr(algorithm, "decision_price", None), environment.durations
    if price is None:
        return
    if price.least is not None:
        rate, settings = price.least
        price.check_reachable(rate / longest, settings)
    if not isinstance(algorithm, MixedSacAlgorithm):
        return
    if least == longest:
        raise TaacError(
            f"MixedSacAlgorithm.decision_price prices decisions whose durations are chosen, but every action lasts {longest} "
            "step(s) here: use the method sac_krep with an action_repeat above 1, or remove the price"
        )
    price.check_reachable(1 / longest, f"actions that last up to {longest} steps")


def check_hindsight(
    replay_buffer: ReplayBuffer, environment: VectorEnvironment, agent: Agent, demonstrations_ctor: Callable[..., object] | None
) -> None:
    """Refuses hindsight where training would not use the rewards of other goals, or not only these."""
    if not isinstance(replay_buffer, HindsightReplayBuffer):
        return
    if environment.durations != (1, 1):
        raise TaacError(
            f"HindsightReplayBuffer: an action lasts up to {environment.durations[1]} environment steps, whose rewards are "
            "summed up, and only the last goal achieved there is stored. Use a method whose actions last one step, such as TAAC, "
            "with create_environment.action_repeat = 1"
        )
    if agent.agents is not None:
        raise TaacError("HindsightReplayBuffer: agents that share a policy have no goals of their own; use @ReplayBuffer")
    if isinstance(agent.reward_normalizer, RewardNormalizer):
        raise TaacError(
            "create_agent.normalize_rewards = True takes its statistics from sampled rewards, which hindsight changes: bind "
            "False, or 'scale', which takes them from rollouts"
        )
    if isinstance(agent.reward_normalizer, RewardScaler) and replay_buffer.probability and replay_buffer.reward_at_goal > 0:
        raise TaacError(
            "create_agent.normalize_rewards = 'scale' and 'bounded' take the scale of returns from rollouts, which seldom reach "
            f"their goals, but hindsight's segments do, and get {replay_buffer.reward_at_goal:g} for a step there: bind False, "
            "and for critics that predict distributions CategoricalReturns.low and high"
        )
    shortest = agent.algorithm.min_segment_length - 1 - agent.algorithm.burn_in
    if replay_buffer.max_steps is not None and replay_buffer.max_steps < shortest:
        raise TaacError(
            f"HindsightReplayBuffer.max_steps must be {shortest} or more ({agent.algorithm.min_segment_reason}), got "
            f"{replay_buffer.max_steps}"
        )
    if demonstrations_ctor is SqilReplay:
        raise TaacError("SqilReplay sets all rewards itself, so HindsightReplayBuffer has no effect: use @ReplayBuffer")


def refuse_ambiguous(action_spec: Nest) -> None:
    """Refuses MultiDiscrete actions, because their entries may be agents or branches."""
    for leaf in nest.flatten(action_spec):
        if leaf.is_categorical and leaf.shape:
            raise TaacError(
                f"the action {leaf} (a MultiDiscrete space) may be a choice of each of {leaf.shape[0]} agents that share a "
                "policy, or one agent's choices in as many branches: bind create_agent.shared_policy = True for agents, or "
                "False for branches"
            )


def refuse_given(environment: VectorEnvironment) -> None:
    """Refuses an environment that only the running program can make, for collectors in other processes."""
    if environment.name.startswith(single.GIVEN):
        raise TaacError(
            f"create_experiment.collectors: a Python program gave the environment '{environment.name}' as an object, which other "
            "processes cannot make: put it in a module and give 'module:Class', or bind collectors = 0"
        )


def check_segments(
    length: int,
    num_env_steps: int,
    initial_collect_steps: int | None,
    environment: VectorEnvironment,
    agent: Agent,
    replay_buffer: ReplayBuffer,
    ranks: Ranks = ALONE,
) -> None:
    """Refuses segments that do not fit the algorithm, runs without an update, and buffers without a segment for the first one.

    None for `initial_collect_steps`: the buffer already holds frames.
    """
    shortest, reason = agent.algorithm.min_segment_length, agent.algorithm.min_segment_reason
    if length < shortest:
        raise TaacError(f"Trainer.segment_length must be {shortest} or more frames ({reason}), got {length}")
    if agent.algorithm.max_segment_length is not None and length > agent.algorithm.max_segment_length:
        raise TaacError(
            f"Trainer.segment_length must be {agent.algorithm.max_segment_length} frames ({reason}), got {length}: no others "
            "would be learnt from"
        )
    least = length * environment.num_envs * ranks.count * environment.durations[1]
    if initial_collect_steps is not None and num_env_steps <= initial_collect_steps:
        example = max(least, num_env_steps // 10)
        either = f"Set either, for example --set initial_collect_steps={example}"
        raise TaacError(
            f"Intervals.num_env_steps {num_env_steps} must be above UpdateRatio.initial_collect_steps {initial_collect_steps}: "
            f"there would be no update. {either if example < num_env_steps else f'The shortest run has {least + 1}'}"
        )
    if initial_collect_steps is not None and initial_collect_steps < least:
        raise TaacError(
            f"UpdateRatio.initial_collect_steps must be at least segment_length x num_envs x action_repeat = {least}, so that "
            f"there is a segment to sample; got {initial_collect_steps}"
        )
    if replay_buffer.length < length:
        raise TaacError(f"ReplayBuffer.length {replay_buffer.length} is below Trainer.segment_length {length}")


def check_offline(length: int, replay_buffer: ReplayBuffer, agent: Agent) -> None:
    """Refuses what a run without environment steps cannot use: an empty replay buffer, GAIL, and a learnt price of decisions."""
    algorithm = agent.algorithm
    if any(signal.needs_demonstrations for signal in agent.signals):
        raise TaacError(
            "create_experiment.offline = True learns from demonstrations alone, and GAIL would compare these with "
            "themselves: remove it from create_agent.reward_signals"
        )
    price = getattr(algorithm, "decision_price", None)
    if price is not None and price.target_rate is not None:
        raise TaacError(
            f"{type(algorithm).__name__}.target_decision_rate learns a price from decisions in rollouts, and "
            "create_experiment.offline = True has none: give a decision_price"
        )
    if 0 < replay_buffer.size < length:
        raise TaacError(
            f"create_experiment.offline = True learns from segments of {length} frames, and the demonstrations are "
            f"{replay_buffer.size} for each of {replay_buffer.num_envs} environments; lower num_envs, or record more"
        )
    if replay_buffer.size == 0:
        raise TaacError(
            "create_experiment.offline = True learns from the first content of the replay buffer, which is empty: bind "
            "create_experiment.demonstrations to a file or 'minari:ID', and demonstrations_ctor to @prefilled, the default, "
            "where another is bound, as for behaviour cloning"
        )


def check_batches(
    batch_size: int | Schedule,
    agent: Agent,
    replay: ReplayBuffer | HalfDemonstrations,
    monitor: Monitor | None,
    ranks: Ranks = ALONE,
) -> None:
    """Refuses batches that are too small or cannot be divided, batches that the monitor does not support, and many sizes for a
    compiled agent.
    """
    if isinstance(batch_size, Schedule) and ranks.count > 1:
        raise TaacError(f"Trainer.batch_size must be a number with {ranks.count} ranks, which divide it; got {batch_size}")
    least, smallest = round(bounds(batch_size)[0]), replay.min_batch_size
    least = ranks.share("Trainer.batch_size", least)
    if least < smallest:
        raise TaacError(f"Trainer.batch_size must be {smallest} or more with {type(replay).__name__}, got {least}")
    if monitor is not None and hasattr(monitor, "check"):
        monitor.check(replay)
    check_sizes(batch_size, agent)


def check_sizes(batch_size: int | Schedule, agent: Agent) -> None:
    """Refuses many sizes of batches for a compiled agent."""
    if isinstance(batch_size, Schedule) and agent.compiled and not batch_size.in_steps:
        raise TaacError(
            f"create_agent.compile compiles the update for each batch size, and Trainer.batch_size takes too many "
            f"({batch_size}): bind a PiecewiseSchedule of few sizes, without interpolate, or create_agent.compile = False in a "
            "new run"
        )


def check_use_of_demonstrations(learner: Learner, source: str | None, ctor: Callable[..., object]) -> None:
    """Refuses demonstrations that nothing learns from, a method that lacks them, and SQIL's rewards if they were normalised."""
    if source is None and (ctor is not prefilled or learner.needs_demonstrations):
        raise TaacError(
            "this method learns from demonstrations: bind create_experiment.demonstrations to a file recorded with "
            "taac play --record_demonstrations, or to a Minari dataset as 'minari:ID'"
        )
    if source is not None and ctor is kept_apart and not learner.needs_demonstrations:
        raise TaacError(
            "create_experiment.demonstrations_ctor = @kept_apart reserves the demonstrations for reward signals and "
            "behaviour cloning, but nothing uses them: bind create_agent.reward_signals = (@GAIL,) or "
            "Learner.cloning = @Cloning()"
        )
    if ctor is SqilReplay and learner.agent.reward_normalizer is not None:
        raise TaacError(
            "SqilReplay sets rewards to 1 and 0, and create_agent.normalize_rewards would divide them by the spread of the "
            "task's: bind False"
        )


def check_demonstrations(num_frames: int, segment_length: int) -> None:
    if num_frames < segment_length:
        raise TaacError(
            f"the demonstrations have {num_frames} frames, fewer than Trainer.segment_length = {segment_length}; record more"
        )


def check_explorer(explorer: Explorer | Noise, algorithm: Algorithm, rollout_info: Nest, action_spec: Nest) -> None:
    """Refuses an explorer that cannot explore such actions, or whose actions the algorithm would not learn from.

    Args:
        rollout_info: what the algorithm stores with each frame.
    """
    if isinstance(explorer, Noise):
        return explorer.check(algorithm)
    if nest.flatten(rollout_info) and algorithm.info_depends_on_action:
        raise TaacError(
            f"create_collector.explorer {type(explorer).__name__} replaces actions, but {type(algorithm).__name__} also stores "
            "what it chose itself: remove the explorer, or use an algorithm that stores no choices, such as SacAlgorithm"
        )
    explorer.check(action_spec)
