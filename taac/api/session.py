"""What surrounds each call: gin, random numbers and threads stay the caller's, and messages name arguments, not flags."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator

import torch

from taac import registry
from taac.acting.random_numbers import random_numbers_kept
from taac.api.environments import Named
from taac.configuration import gin_state
from taac.environments.single import given
from taac.errors import TaacError

_ARGUMENTS = {
    "task": "environment", "env_name": "environment", "set": "settings", "gin_param": "settings", "gin_file": "gin_files",
    "best": "best=True", "trust": "trust=True", "paired": "paired=True", "allow_mixed": "allow_mixed=True",
}  # fmt: skip


_ALONE = threading.RLock()


@contextlib.contextmanager
def torch_as_in_training() -> Iterator[None]:
    """A context in which tensors are float32 and on the CPU unless told otherwise, without autocast.

    On exit all is as before, the number of threads included.
    """
    with contextlib.ExitStack() as entered:
        entered.callback(torch.set_num_threads, torch.get_num_threads())
        entered.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        if torch.get_default_device().type != "cpu":  # both contexts take long, and are seldom needed
            entered.enter_context(torch.device("cpu"))
        if torch.is_autocast_enabled("cpu"):
            entered.enter_context(torch.autocast("cpu", enabled=False))
        yield


@contextlib.contextmanager
def session(environment: Named | None = None) -> Iterator[None]:
    """A context without gin bindings and with torch's own modes, in which an environment of the program is known by its name.

    On exit the caller's bindings, random numbers, number of threads, gradient mode and default dtype are restored. All of these
    belong to the process, so another thread is refused.
    """
    name, make = (environment.name, environment.make) if environment else (None, None)
    with (
        _alone(), _random_numbers_kept(), gin_state.isolated(), torch.inference_mode(False), torch.enable_grad(),
        torch_as_in_training(), given(name, make) if name and make else contextlib.nullcontext(),
    ):  # fmt: skip
        registry.register()  # here, because gin may be locked outside
        try:
            yield
        except TaacError as error:
            if error.args:
                error.args = (in_python(str(error.args[0])), *error.args[1:])
            raise


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    if not _ALONE.acquire(blocking=False):
        raise TaacError(
            "another thread of this program is in a call of taac, and gin and random numbers belong to the process: wait for it, "
            "or use another process. TrainedAgent.act may be called meanwhile"
        )
    try:
        yield
    finally:
        _ALONE.release()


@contextlib.contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """`random_numbers_kept`, which does not start CUDA: it takes memory of the GPU, and a forked process cannot."""
    started = torch.cuda.is_initialized()
    try:
        with random_numbers_kept(torch.device("cuda" if started else "cpu")):
            yield
    finally:
        if not started:
            torch.cuda.manual_seed_all(torch.initial_seed())  # with which it would have started


def in_python(message: str) -> str:
    """Returns a message of a command with arguments in place of flags: `--set gamma=2` as `gamma=2`.

    Commands that the message quotes keep their flags.
    """
    parts = re.split(r"(`taac [^`]*`|\btaac \w+(?: --\w+(?: [\w./]+)?)+)", message)
    return "".join(part if number % 2 else _with_arguments(part) for number, part in enumerate(parts))


def _with_arguments(text: str) -> str:
    text = re.sub(r"--set (?=[\w/.]+=)", "", text)
    return re.sub(r"(?<![\w-])--([a-z]\w*)", lambda found: _ARGUMENTS.get(found[1], found[1]), text)
