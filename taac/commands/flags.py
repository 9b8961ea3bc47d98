"""Flags shared by several commands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from taac.errors import TaacError
from taac.runs.terminal import is_one_line

if TYPE_CHECKING:
    from taac.configuration import RunRequest

FLAGS = flags.FLAGS


def define_experiment() -> None:
    """Defines the flags that describe one experiment; `read_request` reads them."""
    define_task_and_method()
    flags.DEFINE_integer("seed", None, "The seed of the run; 0 by default.", lower_bound=0)


def define_task_and_method() -> None:
    """Defines the flags of `define_experiment`, without the seed."""
    task = "An environment: a Gymnasium id, module:Id or module:Class. Or a task file: its name in gin/tasks, or any .gin file."
    flags.DEFINE_string("task", None, task)
    flags.DEFINE_string(
        "method", None, "A method: its name in gin/methods (see `taac list`), or a .gin file; with parts and settings, such as "
        "taac+her or taac+decision_price=0.01."
    )
    define_settings()
    flags.DEFINE_multi_string("gin_file", [], "A gin file, read after those of task and method; repeat for several.")
    flags.DEFINE_multi_string("gin_param", [], 'A gin binding, such as "gamma = 0.98"; repeat for several.')


def define_settings() -> None:
    flags.DEFINE_string("num_env_steps", None, "Environment steps of the whole run.")
    flags.DEFINE_multi_string(
        "set", [], "A setting in plain words, NAME=VALUE, such as learning_rate=1e-3, hidden_layers=128,128 or "
        "Learner.epsilon=1e-5; repeat for several. It wins over files and --gin_param.",
    )  # fmt: skip


def read_common_request() -> RunRequest:
    """Returns what the flags ask of every run of a comparison."""
    from taac.configuration import RunRequest

    return RunRequest(None, None, tuple(FLAGS.gin_file), tuple(FLAGS.gin_param), tuple(FLAGS.set), FLAGS.num_env_steps)


def read_request() -> RunRequest:
    """Returns the experiment that the flags describe."""
    seed = FLAGS.seed if "seed" in FLAGS else None
    return read_common_request()._replace(task=FLAGS.task, method=FLAGS.method, seed=seed)


def given_values(names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values of the flags that are given, lists as tuples. `names` maps what to call each to its flag."""
    values = {name: FLAGS[flag].value for name, flag in names.items()}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if v not in (None, [])}


def define_saved_agent(verb: str, about: str = "The folder of the run.") -> None:
    """Defines which agent of a run is loaded, and whether the run is trusted."""
    define_root_dir(about)
    flags.DEFINE_bool("best", False, f"{verb} the agent with the best evaluation instead of the newest checkpoint.")
    flags.DEFINE_bool(
        "trust", False, "Allow a run that you did not train here to import modules. They are code: look at them first."
    )


def define_switch_threshold() -> None:
    """Defines when the greedy agent of a run switches."""
    threshold = "Switch where its probability is above this, in [0, 1); by default the run's setting (0.5 unless it was bound)."
    flags.DEFINE_float("switch_threshold", None, threshold)


def define_grouping(mixed: str) -> None:
    flags.DEFINE_bool("allow_mixed", False, mixed)
    flags.DEFINE_list("group_by", [], "Settings to show in the names of methods, separated by commas: learning_rate,gamma.")


def define_root_dir(about: str) -> None:
    flags.DEFINE_string("root_dir", None, about)


def root_dir() -> str:
    if not FLAGS.root_dir:
        raise TaacError(f"--root_dir is missing: {FLAGS['root_dir'].help}")
    return checked_path("--root_dir", FLAGS.root_dir)


def checked_path(flag: str, path: str) -> str:
    """Returns the path of a file or folder, and refuses one that cannot be written to a file and read again."""
    if not is_one_line(path):
        raise TaacError(
            f"{flag} {path!r} holds line ends, control characters or bytes that are not UTF-8; scripts and records that name "
            "it could not be read again: use another name"
        )
    return path


def output_folder(flag: str, name: str) -> str:
    """Returns the path of a folder that exists or can be made, so that nothing is computed in vain."""
    if os.path.lexists(checked_path(flag, name)) and not os.path.isdir(name):
        raise TaacError(f"{flag} {name} exists and is not a folder; give a folder")
    return name


@contextlib.contextmanager
def writing(flag: str) -> Iterator[None]:
    """Says which flag names another place, if what is written in the context cannot be."""
    try:
        yield
    except TaacError:
        raise
    except OSError as error:
        raise TaacError(f"{error}; {flag} names another place to write to") from error
