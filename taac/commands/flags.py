"""Flags shared by several commands."""

from __future__ import annotations

from absl import flags

from taac.errors import TaacError
from taac.runs.terminal import is_one_line

FLAGS = flags.FLAGS


def define_gin() -> None:
    flags.DEFINE_multi_string("gin_file", [], "A gin file; repeat for several, later ones win.")
    flags.DEFINE_multi_string("gin_param", [], 'A gin binding, such as "gamma = 0.98"; repeat for several.')


def define_root_dir(about: str) -> None:
    flags.DEFINE_string("root_dir", None, about)


def root_dir() -> str:
    if not FLAGS.root_dir:
        raise TaacError("--root_dir is missing; it is the folder of the run")
    return folder("--root_dir", FLAGS.root_dir)


def folder(flag: str, path: str) -> str:
    """Returns the path of a folder unchanged.

    Raises:
        TaacError: the path cannot be written to a file and read again, because it has line ends, control characters or bytes
            that are not UTF-8.
    """
    if not is_one_line(path):
        raise TaacError(
            f"{flag} {path!r} holds line ends, control characters or bytes that are not UTF-8; scripts and records that name "
            "it could not be read again: use another name"
        )
    return path


def gin_files() -> list[str]:
    if not FLAGS.gin_file:
        raise TaacError(
            "--gin_file is missing; give a task and a method, for example "
            "--gin_file gin/tasks/simple_control.gin --gin_file gin/methods/taac.gin"
        )
    return FLAGS.gin_file
