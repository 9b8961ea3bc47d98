"""Several ranks in forks of the tests' process, which need not import anything again."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from taac.machine import ranks

DEADLINE = 120  # seconds after which a rank that waits for another in vain ends


class Died(Exception):
    """A rank ended without a result."""


def together(function: Callable[..., Any], *args: Any, count: int = 2) -> list[Any]:
    """Calls `function(ranks, *args)` in `count` processes that have joined; returns the result, or the exception, of each."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        children = []
        for number in range(count):
            if (child := fork()) == 0:
                _child(number, count, port, Path(folder, str(number)), function, args)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        return [_result(Path(folder, str(number))) for number in range(count)]


def fork() -> int:
    """Like `os.fork`, without the warning of Python 3.12 about threads that the process may have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        tqdm.set_lock(threading.RLock())  # the thread that watches progress bars may have held the other just then
    return child


def _child(number: int, count: int, port: int, file: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    names = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    signal.alarm(DEADLINE)
    os.environ.update({name: str(value) for name, value in names.items()})
    try:
        joined = ranks.join()
        # Rank 0 holds the store by which the others still join; under torchrun, its agent does. It must not end before they have.
        file.with_suffix(".joined").touch()
        while len(list(file.parent.glob("*.joined"))) < count:
            time.sleep(0.002)
        found = function(joined, *args)
        file.write_bytes(pickle.dumps(found))
    except BaseException as error:
        traceback.print_exc()
        file.write_bytes(pickle.dumps(error))
    finally:
        os._exit(0)  # whoever waits for this rank finds that it has ended


def _result(file: Path) -> Any:
    return pickle.loads(file.read_bytes()) if file.exists() else Died()
