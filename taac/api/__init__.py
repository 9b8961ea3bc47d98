"""The commands as Python functions: train, load, evaluate, compare, report, check. `import taac` offers all that is here.

No gin is needed. Settings are keyword arguments with the names that `--set` knows, and are checked in the same way. A program
that uses gin itself keeps its bindings: every call begins without any, and restores what it found.
"""

from taac.api.agent import Controller, State, TrainedAgent, load
from taac.api.comparing import Compared, Report, compare, report
from taac.api.evaluating import evaluate
from taac.api.run import Evaluation, Run
from taac.api.training import Checked, check, train
from taac.errors import Interrupted, TaacError
from taac.playing.conditions import Points
from taac.training.hooks import StopWhen

__all__ = [
    "Checked", "Compared", "Controller", "Evaluation", "Interrupted", "Points", "Report", "Run", "State", "StopWhen",
    "TaacError", "TrainedAgent", "check", "compare", "evaluate", "load", "report", "train",
]  # fmt: skip
