"""TensorBoard's writing thread: what it raises reaches the caller, and is printed by nobody else."""

from __future__ import annotations

import sys
import threading

import pytest

from taac.training.summaries import SummaryWriter
from tests import forked

# The folder is full in bytes (RLIMIT_FSIZE), or cannot be written at all.
SCRIPT = """
import pathlib, resource, sys, threading
from taac.training.summaries import SummaryWriter
from tests import forked

def fail():
    raise ZeroDivisionError("of another thread")

writer = SummaryWriter(pathlib.Path(sys.argv[1]))
writer.flush()
other = threading.Thread(target=fail)
other.start(); other.join()
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    if sys.argv[2] == "flush":
        for step in range(1000):
            writer.scalars({"loss/total": 1.0}, step)
            writer.flush()
    else:
        writer.finished(1)
        writer.finished(2)
except OSError as error:
    print("raised", error.errno)
try:
    writer.close()
except OSError:
    pass
print(threading.excepthook is threading.__excepthook__)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limits")
@pytest.mark.parametrize("how", ["flush", "finished"])
def test_a_full_disk_is_raised_once_and_other_threads_are_heard(tmp_path, how):
    ended = forked.run([tmp_path, how], cwd=tmp_path, code=SCRIPT)
    assert ended.stdout.split() == ["raised", "27", "True"], ended  # EFBIG
    assert ended.stderr.count("Traceback") == 1 and "ZeroDivisionError: of another thread" in ended.stderr


def test_a_writer_that_cannot_begin_leaves_the_hook_alone(tmp_path):
    (tmp_path / "file").write_text("")
    before = threading.excepthook
    with pytest.raises(OSError):
        SummaryWriter(tmp_path / "file")
    assert threading.excepthook is before
    writer = SummaryWriter(tmp_path / "new")
    assert threading.excepthook is not before
    writer.close()
    assert threading.excepthook is before
