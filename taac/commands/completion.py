"""`taac completion`: prints a script that completes commands, flags, methods, tasks and settings at the Tab key of a shell.

The script is made from the commands' own flags and from the shipped gin files. It holds all words, so that a Tab calls nothing.
"""

from __future__ import annotations

import collections
import importlib
import re
from pathlib import Path

from absl import flags as absl_flags

from taac.commands import shells
from taac.commands.shells import Words
from taac.errors import TaacError

# `Constructor.parameter` of everything that --set takes, one a line. Written by `python -m experiments.docs_tables`, because
# asking the constructors themselves takes seconds.
SETTINGS = Path(__file__).with_name("settings.txt")


def define_flags() -> None:
    absl_flags.DEFINE_enum("shell", None, list(shells.SCRIPTS), "The shell, also as `taac completion bash`.")


def run() -> None:
    shell = absl_flags.FLAGS.shell
    if shell is None:
        raise TaacError(f"which shell? taac completion {'|'.join(shells.SCRIPTS)}")
    print(shells.SCRIPTS[shell](words()), end="")


def words() -> Words:
    """Collects the words from the commands, the gin files and the list of settings."""
    from taac.commands.main import COMMANDS

    found = Words(dict(COMMANDS), {}, set(), _choices(), {"methods", "tasks"})
    for command in COMMANDS:
        found.flags[command] = []
        for flag in _flags_of(command):
            found.flags[command].append(flag.name)
            if flag.boolean:
                found.switches.add(flag.name)
                if flag.default:
                    found.flags[command].append(f"no{flag.name}")
                    found.switches.add(f"no{flag.name}")
            elif isinstance(flag, absl_flags.EnumFlag):
                found.choices[flag.name] = list(flag.parser.enum_values)
    return found


def _choices() -> dict[str, list[str]]:
    from taac.configuration import TASK_MACROS, shipped

    methods, tasks = list(shipped.files("methods")), list(shipped.files("tasks"))
    environments = [name for task in tasks for name in shipped.environments(task)]
    named = _plain(dict.fromkeys([*environments, *tasks]))
    settings = SETTINGS.read_text(encoding="utf-8").split()
    owners = collections.Counter(setting.rpartition(".")[2] for setting in settings)
    plain = [name for name, count in owners.items() if count == 1 and name not in TASK_MACROS]
    names_of_settings = [*TASK_MACROS, *sorted(plain), *settings]
    return {
        "method": _plain(methods), "methods": _plain(methods), "baseline": _plain(methods),
        "task": named, "tasks": named, "set": names_of_settings,
        "search": names_of_settings,
    }  # fmt: skip


def _plain(names: object) -> list[str]:
    """Leaves out names that a shell might read as more than a word."""
    return [name for name in names if re.fullmatch(r"[\w.:/-]+", name)]  # type: ignore[attr-defined]


def _flags_of(command: str) -> list[absl_flags.Flag]:
    """Returns the flags that a command defines. Leaves the flags of this process as they are."""
    if command == "completion":  # its flag is given as a word
        return []
    known = absl_flags.FLAGS
    before = set(known)
    importlib.import_module(f"taac.commands.{command}").define_flags()
    found = [known[name] for name in sorted(set(known) - before)]
    for flag in found:
        delattr(known, flag.name)
    return found
