"""Loads an agent of a run folder to act with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from taac import configuration
from taac.algorithms.agent import Agent, Role
from taac.analysis.readers import run_records
from taac.environments.create import create_environment
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import NotTrusted, TaacError
from taac.ops.schedules import Schedules
from taac.runs import checkpoint, files, layout, own_runs
from taac.runs.run_folder import RunFolder
from taac.runs.terminal import warn_user
from taac.training import experiment
from taac.training.attributes import set_strengths


class SavedAgent(NamedTuple):
    """An agent as a checkpoint holds it, and one environment like those of its evaluations."""

    agent: Agent  # role "act", or "value", on the CPU
    environment: VectorEnvironment  # of one environment
    method: str
    env_steps: int  # of training, at the checkpoint


def load_saved(
    path: str | Path,
    best: bool = False,
    trusted: bool = False,
    role: Role = "act",
    switch_threshold: float | None = None,
    **environment_arguments: Any,
) -> SavedAgent:
    """Loads the newest checkpoint of a run, or its best agent, and has torch act on one thread, as in training.

    Call `taac.registry.register()` first.

    Args:
        path: the run folder.
        best: whether to load the agent with the best evaluation.
        trusted: whether the run's configuration may import modules. The user's own runs may anyway; see `taac.runs.own_runs`.
        role: "act", or "value" to keep the critics.
        switch_threshold: in place of the run's, see `Algorithm.set_switch_threshold`.
        environment_arguments: of `create_environment`, in place of the run's.

    Raises:
        TaacError: the folder holds no run or no checkpoint, or its configuration cannot be built; the method has no
            switch_threshold.
    """
    folder = RunFolder(path)
    if not files.check_file(folder.config):
        raise TaacError(
            f"{folder.path} holds no run: there is no {folder.config.name}; use the --root_dir of `taac train`"
        )
    if best and not folder.best.saved():
        raise TaacError(
            f"{folder.best.path} holds no agent with a best evaluation: there has been none, or Saving.save_best is "
            "False; leave out --best to use the newest checkpoint"
        )
    torch.set_num_threads(1)
    method = run_records.method_of(folder.path, folder.read_run())
    saved = (folder.best if best else folder.checkpoints).newest()
    _load_configuration(folder, trusted)
    engine = layout.read_bindings(folder.path).get("create_environment.engine")
    replaced = "engine" in environment_arguments and engine == "'envpool'"
    if replaced:
        environment_arguments["env_kwargs"] = None  # the run's are for envpool
    environment = configuration.build(
        lambda: create_environment(num_envs=1, asynchronous=False, evaluating=True, **environment_arguments)
    )
    mujoco = sys.modules.get("mujoco")
    if mujoco and not trusted and mujoco.get_mju_user_warning() is None:
        # MuJoCo would add it to MUJOCO_LOG.TXT in the working directory, or to what a link of that name leads to.
        mujoco.set_mju_user_warning(warn_user)
    try:
        environment.load_state_dict(saved.part("environment"), precision=not replaced)  # envpool has actions of float64
        agent = configuration.build(
            lambda: experiment.create_agent(environment, torch.device("cpu"), role=role)
        )
        if switch_threshold is not None:
            agent.algorithm.set_switch_threshold(switch_threshold)
        with checkpoint.restoring(f"the checkpoint {saved.path}"):
            checkpoint.load_into(agent, agent.own_state(saved.part("agent")), saved.path)
            if (schedules := Schedules(agent)).values:  # it acts as it did there
                schedules.move(saved.env_steps, saved.num_updates)
            set_strengths(agent, saved.state.get("attributes", {}))
    except BaseException:
        environment.close()
        raise
    return SavedAgent(agent, environment, method, saved.env_steps)


def _load_configuration(folder: RunFolder, trusted: bool) -> None:
    """Reads the configuration of a run. The user's own run may import what it imported in training.

    Raises:
        TaacError: acting needs what `load_untrusted` refuses, and it is neither `trusted` nor an own run.
    """
    config = configuration.ReadFile(folder.config.absolute(), files.read_text(folder.config, files.MAX_CONFIG_BYTES))
    try:
        if not trusted:
            own_runs.allow_imports(folder.path, config.text)
        configuration.load([config])
    except own_runs.NotOwn as why:
        try:
            configuration.load_untrusted(config)
        except NotTrusted as error:
            raise TaacError(
                f"{error}. Whoever wrote this configuration could run any code that way. If you trust it, give --trust, from the "
                f"folder that holds the modules. Runs that you train here need no --trust; this one does: {why}"
            ) from error
