"""The commands as Python functions: train, load, compare, report, check. `import taac` offers all that is here.

No gin is needed. Settings are keyword arguments with the names that `--set` knows, and are checked in the same way. A program
that uses gin itself keeps its bindings: every call begins without any, and restores what it found.
"""

from taac.api.agent import Controller, State, TrainedAgent, load
from taac.api.run import Evaluation, Run
from taac.api.training import train
from taac.errors import Interrupted, TaacError
from taac.training.stop_when import StopWhen

__all__ = [
    "Controller", "Evaluation", "Interrupted", "Run", "State", "StopWhen", "TaacError", "TrainedAgent", "load", "train",
]  # fmt: skip
