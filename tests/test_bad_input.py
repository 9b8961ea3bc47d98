"""Bad input that no other test covers, each with its message; and whatever text a gin file may hold."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from taac import configuration
from taac.commands import flags as command_flags
from taac.errors import TaacError
from taac.training import experiment

TASK, METHOD = "gin/tasks/simple_control.gin", "gin/methods/sac.gin"


def built(*params, method=METHOD):
    loaded = configuration.load([TASK, method], ["create_environment.env_name = 'Pendulum-v1'", "hidden_layers = (8,)", *params])
    configuration.build(experiment.create_experiment).close()
    loaded.check_used()


@pytest.mark.parametrize(
    "param, message",
    [
        ("Intervals.checkpoint_interval = -5", "Intervals.checkpoint_interval must be 1 or more, got -5"),
        ("Evaluator.evaluation_episodes = 0", "Evaluator.evaluation_episodes must be 1 or more, got 0"),
        ("Trainer.batch_size = 0", "Trainer.batch_size must be 1 or more with ReplayBuffer, got 0"),
        ("Evaluator.max_evaluation_steps = 0", "Evaluator.max_evaluation_steps must be 1 or more, got 0"),
        ("Trainer.segment_length = 200000", "replay_length|ReplayBuffer.length|initial_collect_steps"),
        ("create_environment.step_timeout = 'long'", "wrong type"),
        ("create_environment.env_kwargs = {'gravity': 1}", r"with arguments \{'gravity': 1\}"),
        ("create_experiment.evaluation_envs = 0", "create_experiment.evaluation_envs must be 1 or more, got 0"),
        ("create_environment.action_repeat_gamma = 0.0", r"action_repeat_gamma must be in \(0, 1\], got 0.0"),
        ("create_environment.wrappers = (@NoSuchWrapper,)", "NoSuchWrapper"),
        ("Learner.matmul = 'fast'", "Learner.matmul.*wrong type"),
        ("create_experiment.load_from = 'nowhere'", "load_from|nowhere"),
    ],
)
def test_values_that_are_refused(param, message):
    with pytest.raises(TaacError) as error:
        built(param)
        trainer = configuration.build(experiment.create_experiment)  # what a run is to start from is read when it begins
        try:
            trainer.begin()
        finally:
            trainer.close()
    assert re.search(message, str(error.value)), error.value


@pytest.mark.parametrize(
    "method, params, message",
    [
        (
            "temporl",
            ["TempoRLAlgorithm.max_skip = 4"],
            r"segment_length must be 5 or more frames \(.*TempoRLAlgorithm.max_skip = 4 steps\), got 4",
        ),
        (
            "tla",
            ["TlaAlgorithm.slow_steps = 6"],
            r"segment_length must be 13 or more frames \(.*TlaAlgorithm.slow_steps = 6\), got 11",
        ),
        ("sac_chunk", ["Trainer.segment_length = 7"], r"must be 6 frames \(.*chunk_length = 5 actions\), got 7: no others"),
        ("sac_chunk", ["SacAlgorithm.td_loss = @TDLoss()"], "SacChunkAlgorithm.td_loss must be @OneStepTDLoss"),
        (
            "sac_recurrent",
            ["RecurrentSacAlgorithm.burn_in = 3", "Trainer.segment_length = 4"],
            r"segment_length must be 5 or more frames \(RecurrentSacAlgorithm.burn_in = 3, .*\), got 4",
        ),
        ("sac_recurrent", ["GRUMemory.output_size = 0"], "GRUMemory.output_size must be 1 or more, got 0"),
    ],
)
def test_segments_and_memories_that_are_too_short_for_a_method(method, params, message):
    """Durations beyond the segment's end would be acted on, and never be trained."""
    with pytest.raises(TaacError, match=message):
        built(*params, method=f"gin/methods/{method}.gin")


@pytest.mark.parametrize("path", ["run\nrm -rf x", "run\r", "a\x1b[2J", "r\udcff", "a\u2028b"])
def test_folders_that_no_line_can_name(path):
    with pytest.raises(TaacError, match=r"--root_dir .* holds line ends, control characters or bytes that are not UTF-8"):
        command_flags.checked_path("--root_dir", path)
    assert command_flags.checked_path("--root_dir", name := "Läufe/實驗　1 $(x)'") == name


@pytest.mark.parametrize("code, message", [("1 / 0", "ZeroDivisionError: division by zero"), ("def", "SyntaxError")])
def test_a_module_that_cannot_be_imported(tmp_path, monkeypatch, code, message):
    name = f"taac_test_broken_{message[:3].lower()}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.gin").write_text(f"\nimport {name}\n")
    with pytest.raises(TaacError, match=rf"mine.gin:2: cannot import '{name}': {message}"):
        configuration.load([str(tmp_path / "mine.gin")])


def test_a_file_name_that_is_none():
    with pytest.raises(TaacError, match=r"--gin_param: include: 'aaa.*' is not a file name: .*too long"):
        configuration.load([], [f"include '{'a' * 5000}'"])


# Fuzz ----------------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[1]
WHOLE = "".join((ROOT / name).read_text(encoding="utf-8") for name in (TASK, METHOD, "gin/base.gin", "gin/common.gin"))
PIECES = st.one_of(
    st.sampled_from(
        ["gamma", "Trainer.batch_size", "%gamma", "@SacAlgorithm", "@SacAlgorithm()", "include '", "import ", "=", "\n", "(",
         ")", "[", "{", "'", '"', '"""', "\\", "#", "/", ".", ":", "@", "%", "1e999", "-", "\t", "  ", "\r", "\x00", "\ufeff",
         "Trainer:\n  batch_size = 3\n", "train/Trainer.batch_size = 1", "None", "True", "1" * 5000, "(" * 300, "é", "\u2028"]
    ),
    st.text(string.printable, max_size=8),
    st.text(max_size=4),
)  # fmt: skip


@st.composite
def mutated(draw):
    """The shipped files with some stretches of text replaced; or pieces alone."""
    text = draw(st.sampled_from(["", WHOLE]))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.integers(0, 40)))
        text = text[:start] + draw(PIECES) + text[stop:]
    return text


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=mutated())
@example(text="gamma = " + "(" * 300)
@example(text="gamma = " + "-" * 5000 + "1")
@example(text="gamma = " + "1" * 5000)
@example(text="gamma = '\x00'")
@example(text="import os.path.nothing")
@example(text="import .")
@example(text="include '" + "a" * 5000 + "'")
@example(text="@")
@example(text="a" * 9 + "/" * 9 + " = 3")
@example(text="gamma = @gamma()")
@example(text="gamma = %gamma/lam")
@example(text="a = [%a]")
@example(text="gamma = {[]: 3}")
@example(text="Trainer.batch_size = \ud800")
def test_whatever_a_gin_file_holds_is_taken_or_refused(text, tmp_path):
    path = tmp_path / "fuzz.gin"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for files, params in (([str(path)], []), ([TASK], [text])):
        try:
            loaded = configuration.load(files, params)
            loaded.check_macros()
        except TaacError as error:
            assert str(error)
