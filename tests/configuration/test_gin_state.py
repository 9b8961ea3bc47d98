"""gin's private parts: one file uses them, they are there, and they still do what that file takes them to do."""

from __future__ import annotations

import tokenize
from pathlib import Path

import gin
import pytest

from taac.configuration import gin_state
from taac.errors import TaacError


def test_what_they_do():
    """Each private name as it is used, on a binding, a reference, a macro and an import; changes of meaning are found here."""
    text = (
        "import json\nrate = 2.0\nreward/LinearSchedule.start = %rate\n"
        "Learner.learning_rate = @reward/LinearSchedule()\ninclude 'other.gin'\n"
    )
    statements = list(gin_state.statements(text))
    kinds = [type(statement) for statement in statements]
    assert kinds == [gin_state.Import, *[gin_state.Binding] * 3, gin_state.Include]
    imported, macro, start, rate, included = statements
    assert (imported.module, imported.location.line_num, included.filename) == ("json", 1, "other.gin")
    assert (macro.scope, macro.selector, macro.arg_name, macro.value) == ("", "rate", "", 2.0)
    assert (start.scope, start.selector, start.arg_name) == ("reward", "LinearSchedule", "start")
    assert [gin_state.macro_of(r) for r in gin_state.references([start.value, rate.value])] == ["rate", None]
    assert rate.value.evaluate and rate.value.scopes == ["reward"] and isinstance(rate.value, gin_state.Reference)

    found = gin_state.match("LinearSchedule")
    assert found.selector.endswith(".LinearSchedule") and gin_state.match("NoSuchThing") is None
    assert gin_state.wrapped(found.selector).__name__ == "LinearSchedule" and found.selector in gin_state.configurables()
    gin_state.check_bindable("reward", found.selector, "start")
    with pytest.raises(ValueError):
        gin_state.check_bindable("", found.selector, "no_such_parameter")
    with pytest.raises(ValueError, match="No configurable matching"):
        list(gin_state.statements("Learner.roles = @NoSuchThing()"))
    with pytest.raises((SyntaxError, tokenize.TokenError)):  # which of them depends on the Python
        list(gin_state.statements("x = ("))

    gin_state.clear()
    assert gin_state.used() == {} and gin_state.imports() == set()
    gin_state.import_module(imported)
    gin_state.install([(("rate", gin_state.MACRO, "value"), 2.0), (("reward", found.selector, "start"), start.value),
                       (("reward", found.selector, "end"), 1.0), (("reward", found.selector, "updates"), 5)])  # fmt: skip
    assert gin_state.imports() == {"json"}
    with gin.config_scope("reward"):
        assert gin.get_configurable("LinearSchedule")()(0) == 2.0
    assert gin_state.used_macros() == {"rate"}
    assert gin_state.used()["reward", found.selector]["updates"] == 5
    assert "import json" in gin.operative_config_str()


def everything():
    return gin.config_str(), gin.operative_config_str(), gin_state.imports(), gin.config_is_locked()


def test_what_is_done_in_isolation_leaves_nothing_behind():
    gin_state.clear()
    gin.parse_config("import json\nx = 2.0\nLinearSchedule.start = %x\nLinearSchedule.end = 1.0\nLinearSchedule.updates = 5")
    gin.get_configurable("LinearSchedule")()
    gin.finalize()
    before = everything()
    with gin_state.isolated():
        assert gin.config_str() == gin.operative_config_str() == "" and not gin_state.imports()
        with gin.unlock_config():
            gin.parse_config("import csv\nLinearSchedule.start = 3.0\nLinearSchedule.end = 2.0\nLinearSchedule.env_steps = 9")
        gin.get_configurable("LinearSchedule")()
    assert everything() == before and "LinearSchedule.updates = 5" in before[1] and before[3]


def test_what_is_carried_takes_the_place_of_what_another_process_had(tmp_path, monkeypatch):
    gin_state.clear()
    gin.parse_config("import json\nmine = 1.0\nLearner.epsilon = %mine")
    held, expected, folder = gin_state.portable(), gin.config_str(), Path.cwd()
    gin_state.clear()
    gin.parse_config("Learner.max_grad_norm = 2.0")
    gin.finalize()
    monkeypatch.chdir(tmp_path)
    held.install()
    assert gin.config_str() == expected and Path.cwd() == folder
    with pytest.raises(TaacError, match="cannot install the configuration"):
        held._replace(bindings="NoSuchThing.x = 1").install()
