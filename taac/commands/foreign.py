"""Flags and commands of other tools, and what they are called here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from absl import flags

from taac.errors import nearest

# Other tools' names of flags. A flag that the command at hand does not have is not proposed.
FLAGS = {
    "task": ("env", "env_id", "env_name", "environment", "gym_id", "game"),
    "method": ("algo", "alg", "algorithm", "agent", "method_name", "methods"),
    "methods": ("algos", "algorithms", "agents"),
    "tasks": ("envs", "environments", "env_ids"),
    "seeds": ("num_seeds", "n_seeds"),
    "trials": ("n_trials", "num_trials"),
    "search": ("search_space", "space", "param_space"),
    "root_dir": (
        "logdir", "log_dir", "output", "output_dir", "out", "save_dir", "save_path", "dir", "folder", "run_dir", "log_folder",
        "run", "load", "checkpoint", "model",
    ),
    "gin_file": ("config", "config_file", "cfg", "gin_files", "gin_config", "conf_file"),
    "gin_param": ("gin_params", "gin_bindings", "gin_binding", "bindings", "hyperparams", "hparams"),
    "num_episodes": ("n_episodes", "episodes", "eval_episodes"),
    "record_file": ("video", "record", "record_video", "gif"),
}  # fmt: skip
COMMANDS = {
    "play": ("evaluate", "eval", "enjoy", "test", "watch", "render", "view"),
    "train": ("run", "learn", "fit", "main", "resume"),
    "compare": ("benchmark", "bench", "experiment"),
    "sweep": ("tune", "optimize", "optuna", "hpo", "search"),
    "check": ("doctor", "validate", "dry_run", "config", "show"),
    "list": ("ls", "methods", "tasks", "algos", "envs"),
}
ONLY_FLAGS = (
    "use flags only, such as --task Pendulum-v1; lists have commas and no spaces (sac,taac), and settings an equals sign "
    "(--set learning_rate=1e-3)"
)
OF_LOGGING = ("log_dir",)  # flags that absl defines and nothing here reads


def only_flags(defined: flags.FlagValues) -> str:
    """Returns what to write instead of words without a flag, in terms of the flags that a command has."""
    if "set" in defined:
        return ONLY_FLAGS
    return "use flags only" + (", such as --root_dir runs/pendulum" if "root_dir" in defined else "")


def command_meant(name: str, commands: Iterable[str]) -> str:
    """Returns "; did you mean 'x'?" for an unknown command, or ""."""
    known = [ours for ours, names in COMMANDS.items() if name in names]
    return f"; did you mean '{known[0]}'?" if known else nearest(name, commands)


def flag_meant(name: str, defined: flags.FlagValues) -> str:
    """Returns the message for an unknown flag, with the flag or setting that it stands for if that can be told."""
    from taac.configuration.macros import TASK_MACROS, meant_by  # not above: it loads gin, which few calls need

    typed, name = name, name.replace("-", "_")
    modules = defined.flags_by_module_dict()
    own = sorted(flag.name for module in modules if module.startswith("taac.") for flag in modules[module])
    meant = [f"--{flag}" for flag, names in FLAGS.items() if name in names and flag in own]
    setting = name if name in TASK_MACROS else meant_by(name)
    if setting in own:
        meant.append(f"--{setting}")
    elif setting is not None and "set" in own:
        meant.append(f"--set {setting}=VALUE")
    if not meant:
        meant = [f"--{near}" for near in difflib.get_close_matches(name, own, n=1)]
    if not meant and "set" in own:
        return f"there is no flag --{typed}; other settings are --set NAME=VALUE"
    return f"there is no flag --{typed}" + (f"; did you mean {meant[0]}?" if meant else "")


def refuse_flags_of_logging(given: flags.FlagValues) -> None:
    """Refuses flags that absl would accept and that mean something else in other tools.

    Raises:
        flags.UnrecognizedFlagError: names the flag.
    """
    for name in OF_LOGGING:
        if name in given and given[name].present:
            raise flags.UnrecognizedFlagError(name)
