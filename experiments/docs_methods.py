"""What each method can do and how it is set, found by asking the code: tables of docs/choosing.md and of docs/methods/.

Each method file is tried on environments with all kinds of actions, observations and rewards: an agent is built and learns from
one blank batch, and its explorer is asked. A cell of the table says whether that was refused.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any, NamedTuple

import gin
import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from experiments.results import of_methods
from taac import configuration, nest, registry, specs
from taac.algorithms import TaacAlgorithm
from taac.algorithms.agent import Agent
from taac.algorithms.memories import Memories
from taac.checking.description import first_update
from taac.configuration import shipped
from taac.environments.create import create_environment
from taac.errors import TaacError
from taac.training.checks import check_explorer
from taac.training.experiment import create_agent, experience_spec
from taac.training.summaries import TAGS

DOCS = Path(__file__).resolve().parents[1] / "docs"
CPU = torch.device("cpu")
SMALL = ["hidden_layers = (4,)", "num_envs = 1", "replay_length = 50"]
ACTIONS = {
    "Box": spaces.Box(-2.0, 2.0, (2,)),
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "Discrete and Box": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))),
}


class Probe(gymnasium.Env):
    """An environment of given spaces in which nothing happens."""

    def __init__(self, actions: str, camera: bool = False, mask: bool = False, agents: bool = False, parts: int = 0):
        space = ACTIONS[actions]
        seen: dict[str, spaces.Space] = {"numbers": spaces.Box(-1.0, 1.0, (3,))}
        if camera:
            seen["camera"] = spaces.Box(0, 255, (40, 40, 3), np.uint8)
        if mask:
            seen["action_mask"] = spaces.MultiBinary(3 if actions == "Discrete" else 5)
        if agents:
            seen = {"numbers": spaces.Box(-1.0, 1.0, (2, 3))}
            space = spaces.Box(-1.0, 1.0, (2, 2)) if actions == "Box" else spaces.MultiDiscrete([3, 3])
        self.observation_space, self.action_space = spaces.Dict(seen), space
        if parts:
            self.reward_space = spaces.Box(-1.0, 1.0, (parts,))


class Able(NamedTuple):
    """What a method was found to do."""

    actions: tuple[str, ...]  # the kinds of ACTIONS
    images: bool
    masks: bool
    agents: bool
    vector_reward: bool
    signals: bool
    demonstrations: bool
    memory: bool
    trajectories: bool


def files() -> dict[str, Path]:
    return shipped.files("methods")


def load(method: str, params: tuple[str, ...], probe: dict[str, Any]) -> configuration.Config:
    """Reads a method file, for an environment `Probe(**probe)`."""
    registry.register()
    bindings = [f"create_environment.env_name = '{__name__}:Probe'", f"create_environment.env_kwargs = {probe!r}"]
    return configuration.load(["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"], [*SMALL, *bindings, *params])


def build_from(loaded: configuration.Config) -> tuple[Agent, Any, list[str]]:
    """Builds an agent, which learns from a blank batch. Returns it with the spec of a stored frame, and the loss's tags.

    Raises:
        TaacError: the method cannot be used so.
    """
    environment = configuration.build(create_environment)
    try:
        agent = configuration.build(lambda: create_agent(environment, CPU))
        spec = experience_spec(environment, agent)
        if any(binding.line.startswith("create_collector.explorer = ") for binding in loaded.bindings.values()):
            explorer = configuration.build(lambda: copy.deepcopy(gin.query_parameter("create_collector.explorer")))
            check_explorer(explorer, agent.algorithm, spec.rollout_info, environment.action_spec)
    finally:
        environment.close()
    tags, failure = first_update(agent, spec, loaded.bound("Trainer.segment_length"))
    if failure is not None:
        raise TaacError("it fails on a blank batch")
    return agent, spec, tags


def build(method: str, **probe: Any) -> tuple[configuration.Config, Agent, Any, list[str]]:
    """Does `load` and `build_from` in one."""
    loaded = load(method, (), probe)
    return loaded, *build_from(loaded)


def works(method: str, *params: str, **probe: Any) -> bool:
    """Returns whether `build` succeeds. That the files cannot be read is no answer, but an error."""
    loaded = load(method, params, probe)
    try:
        build_from(loaded)
    except TaacError:
        return False
    return True


@functools.cache
def able(method: str) -> Able:
    """Asks a method what it can do."""
    one_agent = "create_agent.shared_policy = False"  # says what a MultiDiscrete space means
    kinds = tuple(kind for kind in ACTIONS if works(method, one_agent, actions=kind))
    own = "Box" if "Box" in kinds else "Discrete"
    _, agent, spec, _ = build(method, actions=own)
    shared = "create_agent.shared_policy = True"
    return Able(
        actions=kinds,
        images=works(method, actions=own, camera=True),
        masks=works(method, actions=own, mask=True),
        agents=works(method, shared, actions=own, agents=True),
        vector_reward=works(method, actions=own, parts=2),
        signals=works(method, "create_agent.reward_signals = (@RND,)", actions=own),
        demonstrations=_reads_demonstrations(agent, spec),
        memory=isinstance(agent.algorithm, Memories),
        trajectories=isinstance(agent.algorithm, TaacAlgorithm),
    )


def _reads_demonstrations(agent: Agent, spec: Any) -> bool:
    """Returns whether recorded actions contain what rollouts store, as `demonstrated_frames` asks."""
    frame = nest.map_structure(lambda x: x.unsqueeze(0).repeat(2, *(1,) * x.dim()), specs.zeros(spec.time_step, 1))
    info = agent.demonstrated_info(frame)
    shapes = [(path, tuple(s.shape)) for path, s in nest.flatten_with_path(spec.rollout_info)]
    return shapes == [(path, tuple(x.shape[2:])) for path, x in nest.flatten_with_path(info)]


# Tables ---------------------------------------------------------------------------------------------------------------

Rows = list[tuple[str, ...]]
ABLE_HEAD = (
    "method", "actions", "masks of choices", "images", "several agents", "vector reward", "reward signals", "demonstrations",
    "memory", "trajectories",
)  # fmt: skip


def able_rows() -> Rows:
    """Returns what every method can do."""
    rows: Rows = []
    for method in files():
        if method.startswith("sqil_"):
            continue  # SAC and TAAC on other batches
        can = able(method)
        discrete = "Box" not in can.actions  # elsewhere a mask is an observation like any other
        marks = (
            can.masks and discrete, can.images, can.agents, can.vector_reward, can.signals, can.demonstrations, can.memory,
            can.trajectories,
        )  # fmt: skip
        rows.append((f"[{method}](methods/{method}.md)", ", ".join(can.actions), *("yes" if m else "-" for m in marks)))
    return rows


# What all methods share; `taac check` prints it.
SHARED = {
    "ActorCriticAlgorithm", "ActorNetwork", "BaseTDLoss", "CategoricalActorNetwork", "CriticEnsemble", "Temperature",
    "create_agent", "create_environment",
}  # fmt: skip


def setting_rows(loaded: configuration.Config) -> Rows:
    """Returns the settings of a method's own parts, and what its file binds. Call it after the agent was built."""
    found: dict[str, tuple[str, str]] = {}
    for line, where in loaded.origins():
        name, _, value = line.partition(" = ")
        if "." in name and name.split(".")[0] not in SHARED:
            found[name] = value, where
    for binding in loaded.bindings.values():
        own = ("gin/methods/", "gin/taac_base.gin", "gin/sqil.gin", "gin/durations.gin")
        if not binding.is_macro and binding.where.startswith(own):
            name, _, value = binding.line.partition(" = ")
            found[name] = value, binding.where
    found.pop("create_experiment.method")
    rows: Rows = []
    for name, (value, where) in sorted(found.items()):
        shown = f"the macro `{value[1:]}`" if value.startswith("%") else f"`{value}`"
        rows.append((f"`{name}`", shown, "default" if where == "default" else f"`{where.rpartition(':')[0]}`"))
    return rows


EVERY_METHOD = {"loss/critic", "loss/actor", "critic/q", "critic/target"}
RANDOM_POLICY = {"policy/entropy", "policy/alpha", "policy/log_std"}


def tag_rows(agent: Agent, tags: list[str]) -> Rows:
    """Returns the tags of a method's loss that not every method has."""
    assert {*tags} >= EVERY_METHOD
    meanings = {**TAGS, **agent.algorithm.summary_tags()}
    known = EVERY_METHOD | RANDOM_POLICY | {tag for tag in tags if tag.startswith("loss/temperature_")}
    return [(f"`{tag}`", meanings[tag]) for tag in tags if tag not in known]


def tail(method: str) -> str:
    """Returns what is generated at the end of a method's page."""
    try:
        loaded, agent, _, told = build(method, actions="Box")
    except TaacError:
        loaded, agent, _, told = build(method, actions="Discrete")
    settings, results = setting_rows(loaded), (DOCS / "results.md").read_text(encoding="utf-8")
    tags = tag_rows(agent, told)
    parts = [
        "## Settings",
        f"`gin/methods/{method}.gin` builds `{type(agent.algorithm).__name__}`. A [macro](../macros.md) has the task's value.\n"
        f"`taac check --task ID --method {method}` prints every value, also of what all methods share.",
        table(("setting", "value", "from"), settings),
        "## Summaries",
    ]
    if tags:
        parts += ["Beside the [summaries](../summaries.md) of every method:", table(("tag", "meaning"), tags)]
    else:
        parts += ["The [summaries](../summaries.md) of every method."]
    return "\n\n".join(parts) + "\n\n" + of_methods.section(method, results)


def table(head: tuple[str, ...], rows: Rows) -> str:
    """Returns a table in Markdown.

    Raises:
        ValueError: a cell would break it.
    """
    if broken := [cell for row in rows for cell in row if "|" in cell or "\n" in cell]:
        raise ValueError(f"these cells would break the table: {broken}")
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)])
