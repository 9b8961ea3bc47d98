"""Commands and scripts in processes of their own that need not import everything again.

One process imports what `taac` commands import, in some seconds of a core. Each call runs in a fork of it, as a fresh Python
would: with its own arguments, folder, environment, files for output, and an orderly end. Tests of starting itself (which
modules are imported and from where, the entry points) use `subprocess`, and of signals some.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]

SERVER = """
import atexit, gc, json, os, runpy, signal, sys, threading, traceback
from taac import registry
from taac.commands import check, compare, export, list as _, play, plot, report, train
import gymnasium, matplotlib.pyplot, numpy, PIL.Image, torch._dynamo, torch.utils.tensorboard, tqdm
registry.register()
sys.path.remove('')
gc.freeze()  # nor copied for each fork
orders, replies = os.fdopen(os.dup(0)), os.dup(1)
for line in orders:
    order = json.loads(line)
    if not (child := os.fork()):
        orders.close()
        os.close(replies)
        break
    if order["status"]:
        continue  # another process waits for it
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(replies, f"{ended}\\n".encode())
else:
    sys.exit()
if order["status"]:
    with open(order["status"], "w") as status:
        if child := os.fork():
            print(child, file=status, flush=True)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=status, flush=True)
            os._exit(0)
    os.setsid()
for number in order["ignored"]:
    signal.signal(number, signal.SIG_IGN)
for number, path in enumerate((order["in"], order["out"], order["err"])):
    if number == 2 and path == order["out"]:
        os.dup2(1, 2)
        continue
    file = os.open(path, os.O_WRONLY if number else os.O_RDONLY)  # in this order: of pipes, the other side waits
    os.dup2(file, number)
    os.close(file)
os.chdir(order["cwd"])
os.environ.clear()
os.environ.update(order["environment"])
sys.path[:0] = [order["cwd"]]
sys.argv[1:] = order["words"]
code = 0
try:
    if order["code"] is None:
        runpy.run_module("taac", run_name="__main__", alter_sys=True)
    else:
        exec(compile(order["code"], "<string>", "exec"), {"__name__": "__main__"})
except SystemExit as ended:
    code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    if code == 1 and ended.code != 1:
        print(ended.code, file=sys.stderr)
except BaseException:
    traceback.print_exc()
    code = 1
# An orderly end, but for the modules, which take a second to be taken apart.
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", SERVER]
    server = subprocess.Popen(
        words, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True, start_new_session=True
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    server.stdin.close()
    server.stdout.close()
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)  # with a call that is still at work
    server.wait()


def _order(
    words: Sequence[object], cwd: Path, code: str | None, env: Mapping[str, str] | None, **files: object
) -> None:
    """Has the process that forks call `python -m taac WORDS`, or with `code` `python -c CODE WORDS`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} if env is None else dict(env)
    order = {"words": [str(word) for word in words], "cwd": str(Path(cwd).resolve()), "code": code, "environment": environment}
    order |= {"in": os.devnull, "status": None, "ignored": (), **files}
    server = _server()
    server.stdin.write(json.dumps(order) + "\n")
    server.stdin.flush()


class Process:
    """A call that goes on, in a session of its own; with what tests use of `subprocess.Popen`.

    Args:
        code, env: as in `run`.
        asked: its standard input is a pipe, `stdin`; otherwise there is none.
        one_output: standard error goes where standard output does.
        errors: a file for standard error, which is otherwise a pipe.
        ignored: signals that it is begun with ignoring.
    """

    def __init__(
        self,
        words: Sequence[object] = (),
        *,
        cwd: Path,
        code: str | None = None,
        env: Mapping[str, str] | None = None,
        asked: bool = False,
        one_output: bool = False,
        errors: str | None = None,
        ignored: Sequence[int] = (),
    ):
        with tempfile.TemporaryDirectory() as folder:
            status, given, out, err = (os.path.join(folder, name) for name in ("status", "in", "out", "err"))
            for path in (status, given, out, err):
                os.mkfifo(path)
            files = {"out": out, "err": out if one_output else errors or err, "status": status}
            files |= {"in": given} if asked else {}
            _order(words, cwd, code, env, **files, ignored=list(ignored))
            # Without a buffer, which would hide from `select` what is read ahead. `wait` closes it.
            self._status = open(status, "rb", buffering=0)  # noqa: SIM115
            self.args, self.pid, self.returncode = words, int(self._status.readline()), None
            self.stdin = open(given, "w", encoding="utf-8") if asked else None  # noqa: SIM115
            self.stdout = open(out, encoding="utf-8")  # noqa: SIM115
            self.stderr = None if one_output or errors else open(err, encoding="utf-8")  # noqa: SIM115

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        found = ["", ""]

        def read(number: int, file: TextIO) -> None:
            found[number] = file.read()

        files = [(number, file) for number, file in enumerate((self.stdout, self.stderr)) if file is not None]
        threads = [threading.Thread(target=read, args=each, daemon=True) for each in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        for _, file in files:
            file.close()
        self.wait(timeout)
        return found[0], found[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    words: Sequence[object] = (),
    *,
    cwd: Path,
    code: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Calls `python -m taac WORDS`, or with `code` `python -c CODE WORDS`; returns what `subprocess.run` would.

    Args:
        env: the environment; None: that of this process, and the repository on the path.
        timeout: seconds, after which it is killed.
    """
    server, words = _server(), [str(word) for word in words]
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        _order(words, cwd, code, env, out=out.name, err=err.name)
        if not select.select([server.stdout], [], [], timeout)[0]:
            _server.cache_clear()
            _end(server)
            raise subprocess.TimeoutExpired(words, timeout, out.read(), err.read())
        answer = server.stdout.readline()
        assert answer, "the process that forks has died"
        return subprocess.CompletedProcess(words, int(answer), out.read().decode(), err.read().decode())
