"""A slice of the fuzzing of readers, and that it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BEGINNING = (
    "import json, os\nfrom hypothesis import strategies as st\nfrom experiments.reliability import fuzz, fuzz_files\n"
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


def outcomes(code, *kinds):
    """Of fuzzing in a process of its own, which has its memory bounded and is watched."""
    code += f"\nprint(json.dumps([fuzz.run(kind, DRAWS) for kind in {kinds or 'fuzz_files.KINDS'}]))"
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + code], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_every_reader_returns_or_refuses():
    found = outcomes("DRAWS = 3")
    assert [failure for *_, failure in found if failure] == []
    assert len(found) == 8 and all(draws >= 3 and read + refused == draws for _, draws, read, refused, *_ in found)


BAD = {
    "lambda: 1 / 0": "ZeroDivisionError",
    "lambda: open(folder / 'new', 'w').close()": "for writing",
    "lambda: (folder / 'f').rename(folder / 'g')": "os.rename",
    "lambda: os.system('true')": "os.system",
    "lambda: bytearray(8 << 30)": "MemoryError",
    "lambda: exec(compile('1', str(folder / 'module.py'), 'exec'))": "exec",
    "endless": "took more than",
    "stubborn": "took more than",
    "[setattr(fuzz, 'WAIT', 2), waiting][1]": "took more than",
}
READERS = """
DRAWS, fuzz.SECONDS = 5, 0.5

def endless():
    while True:
        pass

def stubborn():
    while True:
        try:
            endless()
        except BaseException:
            pass

def waiting():
    os.read(os.pipe()[0], 1)
"""


@pytest.mark.slow
def test_what_a_reader_must_not_do_is_found():
    code = READERS
    for number, reader in enumerate(BAD):
        write = 'fuzz_files.writes(folder / "f", st.binary(max_size=3))'
        code += f"fuzz_files.KINDS[{number}] = lambda folder: ({write}, {reader})\n"
    found = outcomes(code, *range(len(BAD)))
    assert [told in failure for told, (*_, failure) in zip(BAD.values(), found, strict=True)] == [True] * len(BAD), (
        found
    )
