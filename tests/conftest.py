"""Shared by all tests: one thread, no bindings, and seeds that do not depend on the order of tests."""

import gc
import os
import random
import signal
import sys

import gin
import hypothesis
import hypothesis.strategies
import numpy as np
import pytest
import torch
import torch._dynamo  # which the first optimizer imports

from taac import registry
from taac.algorithms import agent
from taac.machine import compiled
from taac.machine.processes import INTERRUPTIONS
from taac.training import compilation
from tests.environments import forks
from tests.ray_nodes import cluster  # noqa: F401, a fixture

torch.set_num_threads(1)
registry.register()
forks.begin()
# Many tests build runs of published lengths and take few of their steps. Compiling these would take 20 minutes in all.
compilation.FEWEST_UPDATES = sys.maxsize
# The same examples every time, however slow the machine is at the moment.
hypothesis.settings.register_profile("taac", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("taac")


def pytest_collection_finish(session):
    """Excludes what is imported from garbage collection, which every training calls: it would take a third of a second each."""
    _nothing()  # hypothesis looks for what refers to its generator, and finds nothing among what is excluded
    gc.collect()
    gc.freeze()


@hypothesis.given(hypothesis.strategies.none())
def _nothing(_):
    pass


@pytest.fixture(autouse=True, scope="session")
def _state_home(tmp_path_factory):
    """The list of own runs is not put into the home of whoever calls the tests."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    yield
    del os.environ["XDG_STATE_HOME"]
    if before is not None:
        os.environ["XDG_STATE_HOME"] = before


@pytest.fixture
def traced_only(monkeypatch):
    """Runs what was traced as it is: all but the compiler, in seconds instead of minutes."""
    monkeypatch.setattr(agent, "check_compiler", lambda device: None)
    monkeypatch.setattr(compiled, "compile_graph", lambda graph, *_: graph)


def _unbind():
    with gin.unlock_config():
        gin.clear_config()  # what one test binds must not reach the next


@pytest.fixture(autouse=True)
def _seed():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    _unbind()
    handlers = [signal.getsignal(number) for number in INTERRUPTIONS]
    yield
    _unbind()  # a fixture of the next module may come first
    assert handlers == [signal.getsignal(number) for number in INTERRUPTIONS], "signals as they were"


# A shell's background job ignores Ctrl-C, and one of nohup's SIGHUP; so would every process that a test starts to send it one.
for number in INTERRUPTIONS:
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
