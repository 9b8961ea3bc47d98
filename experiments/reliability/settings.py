"""What runs are killed of: every method file, and whatever else a run may have that must survive."""

from __future__ import annotations

from pathlib import Path

from experiments.reliability import runs
from experiments.reliability.runs import Setting
from experiments.reliability.tasks import BOARD, SWITCHES

ASYNCHRONOUS = ("create_environment.asynchronous = True",)
COMPILED = ("create_agent.compile = True",)
PRIORITISED = ("create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer",)
SIGNALS = ("create_agent.reward_signals = (@ICM, @RND)",)
DIRECT = ("QuadraticTrajectory.inverse_mode = False", "TaacAlgorithm.randomize_first_state_tau = True")
PIXELS = (
    *(f"ImageEncoder.{name}" for name in ("kernels = (3,)", "strides = (2,)", "channels = (4,)")),
    "DiscreteSacAlgorithm.reward_weights = (1.0, 0.5)",
)
CLONING = ("Cloning.pretraining_updates = 40", "Cloning.decay_updates = 100")
PRICED = ("TaacAlgorithm.target_decision_rate = 0.2", "TaacAlgorithm.switch_threshold = 0.7")
RISING = ("TempoRLAlgorithm.decision_price = @LinearSchedule()", "LinearSchedule.start = 0.0", "LinearSchedule.end = 1.0",
          "LinearSchedule.env_steps = 400")  # fmt: skip
FAST_AND_SLOW = ("TlaAlgorithm.target_decision_rate = 0.5", "ActorCriticAlgorithm.actor_regularizers = (@CAPS,)")
DELAYED = ("create_environment.wrappers = (@ObservationDelay, @ActionDelay)", "ActionDelay.steps = (0, 3)",
           "ActionDelay.observe_pending = True", "ObservationDelay.steps = 1")  # fmt: skip
PINK = ("create_collector.explorer = @ColoredNoise()", "ColoredNoise.length = 150")
RELATED = ("create_collector.explorer = @AutoregressiveNoise()", "ActorCriticAlgorithm.actor_regularizers = (@L2C2,)")
GOALS = ("create_environment.info = ('is_success',)", "action_repeat = 1", "reward_clip = None")
OF_STATES = ("create_collector.explorer = @StateDependentNoise()",)
GSDE = (*OF_STATES, "ActorNetwork.gsde_log_std = -3.0", "ActorCriticAlgorithm.actor_regularizers = (@CAPS,)")
LATE = ("create_environment.evaluation_wrappers = (@ActionDelay,)",)
NARROW_CROSSQ = ("critic/MlpBody.hidden_layers = (16, 16)", "actor/MlpBody.hidden_layers = (16,)")
CROSSQ = ("gin/backbones/crossq.gin", "gin/backbones/held_noise.gin")
NARROW_FLASH = ("critic/FlashBody.width = 16", "actor/FlashBody.width = 16", "batch_size = 16")
PREFIXES = (*GOALS, "ActorCriticAlgorithm.critic_ctor = @PrefixCritics", "PrefixCritics.hidden_layers = (16,)")
DEAR = ("DurationCoordinate.decision_price = 0.1", "DurationCoordinate.change_price = 0.2")
ANEW = ("Trainer.hooks = {'before_update': @Reset()}", "Reset.at = (30, 100, 180)")
EARLY = ("checkpoint_interval = 64", "initial_collect_steps = 160")
NO_REPLAY = ("Saving.save_replay = False", "initial_collect_steps = 40")

METHODS = (
    Setting("sac", "BipedalWalker-v3", 3),
    Setting("sac_branches", SWITCHES, 2),
    Setting("sac_chunk", "Hopper-v5", 2),
    Setting("sac_discrete", "CartPole-v1", 2),
    Setting("sac_discrete_recurrent", "Acrobot-v1", 1),
    Setting("sac_ez", "Hopper-v5", 3),
    Setting("sac_hybrid", "LunarLanderContinuous-v3", 2),
    Setting("sac_krep", "InvertedDoublePendulum-v5", 2),
    Setting("sac_nrep", "Pendulum-v1", 2),
    Setting("sac_ntd", "InvertedDoublePendulum-v5", 1),
    Setting("sac_recurrent", "Pendulum-v1", 2),
    Setting("sac_value", "Hopper-v5", 1),
    Setting("sdar", "LunarLanderContinuous-v3", 2),
    Setting("sqil_sac", "Pendulum-v1", 1, demonstrations=True),
    Setting("sqil_taac", "Pendulum-v1", 2, demonstrations=True),
    Setting("taac", "BipedalWalker-v3", 1),
    Setting("taac_1td", "InvertedDoublePendulum-v5", 2),
    Setting("taac_chunk", "Hopper-v5", 1),
    Setting("taac_l", "Hopper-v5", 3),
    Setting("taac_ntd", "Pendulum-v1", 2),
    Setting("taac_q", "LunarLanderContinuous-v3", 1),
    Setting("tacos", "Hopper-v5", 2),
    Setting("td3", "Hopper-v5", 2),
    Setting("temporl", "Hopper-v5", 1),
    Setting("temporl_ddpg", "Pendulum-v1", 2),
    Setting("tla", "Hopper-v5", 2),
)
MORE = (
    Setting("taac", "Hopper-v5", 2, "asynchronous", ASYNCHRONOUS),
    Setting("sac_recurrent", "Pendulum-v1", 2, "asynchronous", ASYNCHRONOUS),
    Setting("sac_discrete", "CartPole-v1", 3, "asynchronous", ASYNCHRONOUS),
    Setting("taac", "Pendulum-v1", 1, "compiled", COMPILED),
    Setting("sac_discrete", "CartPole-v1", 2, "compiled", COMPILED),
    Setting("taac", "Hopper-v5", 1, "prioritised replay", PRIORITISED),
    Setting("sac_discrete", "Acrobot-v1", 2, "prioritised replay, asynchronous", (*PRIORITISED, *ASYNCHRONOUS)),
    Setting("sac", "InvertedDoublePendulum-v5", 1, "ICM and RND", SIGNALS),
    Setting("taac", "Pendulum-v1", 2, "ICM and RND, prioritised replay", (*SIGNALS, *PRIORITISED)),
    Setting("sac", "Pendulum-v1", 2, "GAIL", (), ("gin/gail.gin",), True),
    Setting("taac", "Pendulum-v1", 1, "GAIL, asynchronous", ASYNCHRONOUS, ("gin/gail.gin",), True),
    Setting("sac", "Pendulum-v1", 1, "cloning", CLONING, ("gin/cloning.gin",), True),
    Setting("taac", "Pendulum-v1", 2, "cloning", CLONING, ("gin/cloning.gin",), True),
    Setting("sac", "Humanoid-v5", 1, "many numbers"),
    Setting("taac_q", "Pendulum-v1", 2, "direct, random first trajectories", DIRECT),
    Setting("sac_discrete", "Taxi-v4", 2, "masks from info", ("create_environment.wrappers = (@ActionMaskFromInfo,)",)),
    Setting("sac_discrete", BOARD, 2, "pixels, masks, a vector reward", PIXELS),
    Setting("taac", "Hopper-v5", 2, "a learnt price of decisions", PRICED),
    Setting("temporl", "Pendulum-v1", 1, "a rising price of decisions", RISING),
    Setting("sac_hybrid", "Pendulum-v1", 2, "a price of decisions", ("TaacAlgorithm.decision_price = 0.1",)),
    Setting("sac_krep", "Pendulum-v1", 2, "a learnt price of decisions", ("MixedSacAlgorithm.target_decision_rate = 0.5",)),
    Setting("sdar", "Hopper-v5", 1, "a learnt price of decisions", ("SdarAlgorithm.target_decision_rate = 0.3",)),
    Setting("tla", "Pendulum-v1", 1, "a learnt price of decisions, CAPS", FAST_AND_SLOW),
    Setting("sac", "Hopper-v5", 2, "a delayed policy", ("ActorCriticAlgorithm.policy_delay = 3",)),
    Setting("sac", "Hopper-v5", 2, "delays, asynchronous", (*DELAYED, *ASYNCHRONOUS)),
    Setting("taac", "Pendulum-v1", 1, "a delay of evaluations", LATE),
    Setting("sac", "Hopper-v5", 2, "gSDE, CAPS", GSDE),
    Setting("sac", "Hopper-v5", 1, "CrossQ, held noise", NARROW_CROSSQ, CROSSQ),
    Setting("taac", "Pendulum-v1", 2, "FlashSAC", NARROW_FLASH, ("gin/backbones/flash_small.gin",)),
    Setting("sac_chunk", "FetchReach-v4", 1, "prefixes, goals in hindsight", PREFIXES, ("gin/her.gin",)),
    Setting("taac", "FetchReach-v4", 2, "goals in hindsight", GOALS, ("gin/her.gin",)),
    Setting("sac", "Hopper-v5", 2, "parts that begin anew", ANEW),
    Setting("sac", "Pendulum-v1", 2, "pink noise", PINK),
    Setting("sac", "Hopper-v5", 2, "pink noise, collectors", (*PINK, "create_experiment.collectors = 2")),
    Setting("taac", "Hopper-v5", 2, "autoregressive noise, L2C2", RELATED),
    Setting("td3", "Pendulum-v1", 1, "state-dependent noise", OF_STATES),
    Setting("taac", "Hopper-v5", 2, "durations at a price, asynchronous", (*DEAR, *ASYNCHRONOUS), ("gin/durations.gin",)),
    Setting("sac", "Pendulum-v1", 2, "collectors, ICM and RND", (*SIGNALS, "create_experiment.collectors = 2")),
    Setting("taac", "LunarLanderContinuous-v3", 32, "a checkpoint before any episode ends", EARLY),
    Setting("taac", "Hopper-v5", 1, "without the replay buffer", NO_REPLAY, compared="counters"),
    Setting("sac", "Pendulum-v1", 2, "without the replay buffer, asynchronous", (*NO_REPLAY, *ASYNCHRONOUS), compared="counters"),
)  # fmt: skip
COMPILING = (Setting("taac", "Pendulum-v1", 1, "killed while it compiles", COMPILED),)
WORKERS = (
    Setting("sac", "Pendulum-v1", 2, "asynchronous, a worker killed", ASYNCHRONOUS, compared="restarts"),
    Setting("taac", "Hopper-v5", 3, "asynchronous, a worker killed", ASYNCHRONOUS, compared="restarts"),
)
_BY_NAME = {(s.method, s.about): s for s in (*METHODS, *MORE)}
QUICK = tuple(
    _BY_NAME[name]
    for name in (
        ("sac_branches", ""),
        ("sac_discrete", ""),
        ("sac_recurrent", ""),
        ("sqil_taac", ""),
        ("taac", ""),
        ("taac", "asynchronous"),
        ("taac", "prioritised replay"),
        ("taac", "ICM and RND, prioritised replay"),
        ("taac", "GAIL, asynchronous"),
        ("taac", "cloning"),
        ("taac", "without the replay buffer"),
    )
)
EXPERT = Setting("sac", "Pendulum-v1", 1, "the demonstrator")


def with_demonstrations(setting: Setting, folder: Path) -> Setting:
    """Returns the setting with a file of demonstrations in `folder`, which is recorded if it is not there: 4 episodes."""
    if not setting.demonstrations:
        return setting
    file = (folder / "demonstrations.npz").resolve()
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        expert, log = folder / "demonstrator", folder / "demonstrator.log"
        play = ["taac", "play", "--root_dir", str(expert), "--num_episodes", "4", "--record_demonstrations", str(file)]
        codes = runs.run(EXPERT, expert, log), runs.run(EXPERT, expert, log, words=play)
        if codes != (0, 0):
            raise RuntimeError(f"no demonstrations could be recorded: {log.read_text()[-2000:]}")
    return setting._replace(params=(*setting.params, f"create_experiment.demonstrations = '{file}'"))
