"""What is configurable is known by being defined: in a room of the package, or in a module that a gin file imports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

def run(code, *words, cwd=ROOT):
    paths = f"import sys; sys.path[:0] = ['', {str(ROOT)!r}]\n"
    result = subprocess.run([sys.executable, "-c", paths + code, *words], capture_output=True, text=True, cwd=cwd)
    return result.stderr if result.returncode else ""


def test_every_module_that_announces_something_is_imported():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "taac").rglob("*.py")
        if re.search(r"^@gin\.configurable", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(modules) > 20
    code = "from taac import registry; registry.register(); import sys; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert modules - set(imported.split()) == set()


@pytest.mark.slow
def test_a_foreign_environment_is_refused_even_if_nobody_registered(tmp_path):
    (tmp_path / "config.gin").write_text("create_environment.env_name = 'evil:Env-v0'")
    load = "from taac import configuration; import taac.environments.create\nconfiguration.load(['config.gin'])\n"
    untrusted = "configuration.load_untrusted(configuration.ReadFile('config.gin', open('config.gin').read()))"
    assert "imports the module" in run(load + untrusted, cwd=tmp_path)


def test_reading_before_registering_says_what_to_do():
    message = run("from taac import configuration; configuration.load([], ['Learner.learning_rate = 1e-3'])")
    assert "'Learner' is not known: call taac.registry.register() before `load`" in message


def test_help_loads_neither_torch_nor_gin():
    code = (
        "from absl import flags\nfrom taac.commands.main import main\n"
        "for words in (['--help'], ['report', '--help'], ['train', '--help'], ['compare', '--help']):\n"
        "    before = set(flags.FLAGS)\n"
        "    try:\n        main(['taac', *words])\n"
        "    except SystemExit as end:\n        assert not end.code\n"
        "    [delattr(flags.FLAGS, name) for name in set(flags.FLAGS) - before]\n"
        "assert not {'torch', 'gin', 'gymnasium'} & set(sys.modules)"
    )
    assert run(code) == ""
