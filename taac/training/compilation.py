"""Whether a run is compiled, where `create_agent.compile = "auto"` leaves that open."""

from __future__ import annotations

import sys

from taac.algorithms.agent import Agent
from taac.learning.learner import Learner
from taac.machine import traced_attributes
from taac.machine.compiled import find_compiler
from taac.ops.schedules import Schedule

# Compiling takes about 20 seconds of another process, up to a minute for methods with a memory, once for each machine, method and
# size of networks, and 1 from then on. It saves 3 ms of an update of SAC and 7 ms of TAAC's, with two layers of 256 units and
# batches of 256, without AMX (experiments/benchmarks/README.md).
FEWEST_UPDATES = 10_000
NO_COMPILER = "not compiled: no C++ compiler was found. With one, an update takes about three quarters of the time"


def compile_if_it_pays(learner: Learner, updates: int, batch_size: int | Schedule) -> str:
    """Compiles a learner's updates and its agent's acting, if the configuration leaves it open and it pays.

    Depends on the configuration and on whether there is a compiler, not on any measurement, so that a run decides the same
    wherever it is resumed. Returns what was decided for so many updates of the whole run, and why, as a sentence.
    """
    agent = learner.agent
    if not agent.may_compile:
        return f"create_agent.compile = {agent.compiled}"
    if (reason := _reason_not_to_compile(agent, updates, batch_size)) is not None:
        return f"not compiled: {reason}"
    if find_compiler() is None:
        return NO_COMPILER
    learner.compile_programs()
    return f"compiled, because it pays with {updates} updates"


def _reason_not_to_compile(agent: Agent, updates: int, batch_size: int | Schedule) -> str | None:
    """Returns what in the configuration speaks against compiling."""
    if agent.device.type != "cpu":
        return "create_agent.compile = 'auto' compiles on the CPU only"
    if updates < FEWEST_UPDATES:
        return f"{updates} updates are too few to pay for it ({FEWEST_UPDATES})"
    if isinstance(batch_size, Schedule):
        return "each batch size would be compiled"
    if agent.agents is not None and agent.agents.masked:
        return "agents join and leave, so batches have many sizes"
    classes = {type(part) for part in traced_attributes.parts(agent)}
    if own := sorted(c.__qualname__ for c in classes if c.__module__.split(".")[0] not in _KNOWN):
        return f"{', '.join(own)} may read values that change. Bind create_agent.compile = True if it reads tensors only"
    return None


_KNOWN = {"taac", "torch", "numpy", "gymnasium", *sys.stdlib_module_names}
