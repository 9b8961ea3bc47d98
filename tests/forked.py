"""Commands and scripts in processes of their own that need not import everything again.

One process imports what `taac` commands import, in some seconds of a core. Each call runs in a fork of it, as a fresh Python
would: with its own arguments, folder, environment, files for output, and an orderly end. Tests of starting itself (which
modules are imported and from where, the entry points, signals) use `subprocess`.
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
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SERVER = """
import atexit, gc, json, os, runpy, sys, threading, traceback
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
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(replies, f"{ended}\\n".encode())
else:
    sys.exit()
for number, path in enumerate((os.devnull, order["out"], order["err"])):
    file = os.open(path, os.O_RDWR)
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
    if not hasattr(os, "fork"):
        start = ["-m", "taac"] if code is None else ["-c", code]
        command, env = [sys.executable, *start, *map(str, words)], {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
    server, words = _server(), [str(word) for word in words]
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)} if env is None else dict(env)
        order = {"words": words, "cwd": str(Path(cwd).resolve()), "code": code, "environment": environment}
        server.stdin.write(json.dumps({**order, "out": out.name, "err": err.name}) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], timeout)[0]:
            _server.cache_clear()
            _end(server)
            raise subprocess.TimeoutExpired(words, timeout, out.read(), err.read())
        answer = server.stdout.readline()
        assert answer, "the process that forks has died"
        return subprocess.CompletedProcess(words, int(answer), out.read().decode(), err.read().decode())
