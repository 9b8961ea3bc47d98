"""The commands whose times are measured are those that the README shows."""

from __future__ import annotations

import pytest

from experiments import command_times
from taac.commands.main import COMMANDS


def test_the_commands_are_those_of_the_readme():
    found = command_times.commands((command_times.ROOT / "README.md").read_text(encoding="utf-8"))
    assert [words[1] for words in found] == ["train", "play", "plot", "compare", "report"]
    assert all(words[0] == "taac" and words[1] in COMMANDS and not set("#\\") & set("".join(words)) for words in found)


def test_comments_prompts_other_programs_and_the_reader_s_own_modules_are_left_out():
    shown = ". .venv/bin/activate\n# taac no\ntaac a \\\n    'b c' # d\ntensorboard\ntaac check --env_name my_module:M\n"
    text = f"taac no\n\n```\n{shown}```\n```py\ntaac no\n```\n```\ntaac e\n```\n"
    assert command_times.commands(text) == [["taac", "a", "b c"], ["taac", "e"]]


def test_a_command_is_measured_and_one_that_fails_says_what_it_printed(tmp_path):
    used, seconds = command_times.measure(["taac", "--help"], tmp_path)
    assert used > 0 and seconds > 0
    with pytest.raises(RuntimeError, match=r"ended with 2: taac: no command 'trian'"):
        command_times.measure(["taac", "trian"], tmp_path)
