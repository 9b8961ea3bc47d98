"""Signals that wait. What else is in `taac.machine.processes` is tested where it is used."""

from __future__ import annotations

import gc
import subprocess
import sys

from taac.machine.processes import settled_heap

INTERRUPTED_WHILE_COMPILING = """
import os, signal, subprocess, sys
from taac.machine.processes import interruptions_held

told = []
signal.signal(signal.SIG, lambda *_: told.append("told"))
compiler = "import os, signal; os.killpg(0, signal.SIG); print('compiled', flush=True)"
with interruptions_held():
    done = subprocess.run([sys.executable, "-c", compiler])
    print(told, done.returncode, flush=True)
print(told, signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
done = subprocess.run([sys.executable, "-c", compiler], stderr=subprocess.DEVNULL)
print(done.returncode != 0)
"""


def test_a_signal_to_the_group_waits_for_the_compiler():
    """The compiler finishes, this process gets the signal afterwards, and later children are interrupted as usual."""
    code = INTERRUPTED_WHILE_COMPILING.replace("signal.SIG,", "signal.SIGINT,").replace("signal.SIG)", "signal.SIGINT)")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, start_new_session=True, check=True
    )
    assert done.stdout.splitlines() == ["compiled", "[] 0", "['told'] set()", "True"]


def test_the_heap_is_settled_once_and_left_as_it_was():
    """What the caller excluded stays excluded: here, conftest.py has excluded what all tests import."""
    before = gc.get_freeze_count()
    assert before > 10_000
    try:
        with settled_heap():
            assert gc.get_freeze_count() == before
        assert gc.get_freeze_count() == before
        gc.unfreeze()
        with settled_heap():
            assert gc.get_freeze_count() > 10_000
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()
