"""Temporally abstract actor-critic control for PyTorch and Gymnasium.

`taac.train`, `taac.load`, `taac.evaluate`, `taac.compare`, `taac.report` and `taac.check` do in Python what the commands do in a
shell. They are imported at their first use, because they need torch.
"""

import importlib

__version__ = "0.1.0"
# What `taac.api` offers. Not `__all__`: the API reference describes each where it is defined.
API = [
    "Checked", "Compared", "Controller", "Evaluation", "Interrupted", "Points", "Report", "Run", "State", "StopWhen",
    "TaacError", "TrainedAgent", "check", "compare", "evaluate", "load", "report", "train",
]  # fmt: skip


def __getattr__(name):
    if name not in API:
        raise AttributeError(f"module 'taac' has no attribute '{name}'")
    import gin

    with gin.unlock_config():  # a program that uses gin may have locked it, and importing registers configurables
        return getattr(importlib.import_module("taac.api"), name)


def __dir__():
    return [*globals(), *API]
