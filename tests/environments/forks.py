"""Worker processes of environments that need not import everything again: forks of one that has imported what they need.

Product code starts a Python for each. So do the tests of commands, of collectors and of a run that is killed, which have
environments in processes of their own too.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import forkserver, popen_forkserver
from types import SimpleNamespace

import gymnasium.vector.async_vector_env as theirs
import numpy as np

import taac.environments.workers  # noqa: F401, for the forks

if "pytest" not in sys.modules:  # in the process that is forked
    os.register_at_fork(after_in_child=np.random.seed)  # as in a Python of its own, no numbers are another's


class _Popen(popen_forkserver.Popen):
    def _launch(self, process):
        known, forkserver.connect_to_new_process = forkserver.connect_to_new_process, _server.connect_to_new_process
        try:
            super()._launch(process)
        finally:
            forkserver.connect_to_new_process = known


class _Process(multiprocessing.context.ForkServerProcess):
    _Popen = staticmethod(_Popen)


class _Context(multiprocessing.context.ForkServerContext):
    Process = _Process


# Beside Python's own, which has torch: what it has imported is no concern of an environment.
_server = forkserver.ForkServer()
_server.set_forkserver_preload([__name__])


def begin():
    """From now on, environments' processes are forks, where there are any."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        own = {"spawn": _Context()}
        theirs.multiprocessing = SimpleNamespace(
            TimeoutError=multiprocessing.TimeoutError, get_context=lambda name: own.get(name) or multiprocessing.get_context(name)
        )
