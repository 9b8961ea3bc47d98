import os
import tempfile

import pytest
import torch

from taac.errors import TaacError
from taac.machine import compiled, program_cache
from taac.machine.compiled import CompiledFunction
from taac.machine.program_cache import KEPT, VARIABLE, own_folder, remove_unused, use_program_cache
from tests.machine.test_compiled import needs_compiler

NOW = 1_000_000_000


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An empty temporary folder, and no folder named by the environment."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.delenv("LOGNAME", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    yield tmp_path
    os.environ.pop(VARIABLE, None)


def write(folder, name, size, read, written):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (NOW - read, NOW - written))
    return path


def test_programs_are_kept_in_a_folder_of_the_users_own(temporary):
    use_program_cache()
    assert os.environ[VARIABLE] == str(own_folder()) and own_folder().parent == temporary
    assert own_folder().stat().st_mode & 0o777 == 0o700
    use_program_cache()  # again: it is there


def test_a_folder_that_the_environment_names_is_left_alone(temporary, monkeypatch):
    named = temporary / "named"
    old = write(named, "old.so", 10, 2 * KEPT, 2 * KEPT)
    monkeypatch.setenv(VARIABLE, str(named))
    monkeypatch.setattr(program_cache, "MOST_BYTES", 0)
    use_program_cache()
    assert os.environ[VARIABLE] == str(named) and old.exists() and not own_folder().exists()


def test_the_folder_that_torch_sets_with_the_first_optimizer_is_nobodys_choice(temporary, monkeypatch):
    from torch._inductor.runtime.runtime_utils import default_cache_dir

    monkeypatch.setenv(VARIABLE, default_cache_dir())
    use_program_cache()
    assert os.environ[VARIABLE] == str(own_folder())


def test_the_programs_of_somebody_else_are_refused(temporary, monkeypatch):
    (temporary / "theirs").mkdir()
    own_folder().symlink_to(temporary / "theirs")
    with pytest.raises(TaacError, match=f"not a folder of this user. Name another by {VARIABLE}"):
        use_program_cache()
    assert VARIABLE not in os.environ
    own_folder().unlink()
    own_folder().mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(TaacError, match="not a folder of this user"):
        use_program_cache()


def test_a_folder_that_cannot_be_made_is_named(temporary):
    own_folder().write_text("a file")
    with pytest.raises(TaacError, match=r"no folder for compiled programs.*taac_programs_"):
        use_program_cache()


@pytest.mark.parametrize(
    "most_bytes, left",
    [
        (400, {"unused", "read today", "written today", "just a day"}),  # 400 are not too many
        (399, {"read today", "written today", "just a day"}),
        (1, {"read today", "written today", "just a day"}),  # what was used today stays
    ],
)
def test_what_was_not_used_for_a_day_is_removed_where_there_is_too_much(tmp_path, most_bytes, left):
    write(tmp_path, "a/unused", 100, KEPT + 1, KEPT + 1)
    write(tmp_path, "a/read today", 100, 10, 9 * KEPT)
    write(tmp_path, "b/written today", 100, 9 * KEPT, 10)
    write(tmp_path, "b/just a day", 100, KEPT, KEPT)
    remove_unused(tmp_path, most_bytes, NOW)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == left


@pytest.mark.slow
@needs_compiler
def test_torch_compiles_again_what_it_misses(temporary):
    from torch._inductor.utils import clear_caches

    def compiled():
        clear_caches()  # what this process remembers
        return CompiledFunction(lambda x: x * 3 + 1, torch.nn.Module())(torch.ones(2)).tolist()

    assert compiled() == [4.0, 4.0]
    libraries = list(own_folder().rglob("*.so"))
    for library in libraries:
        os.utime(library, (0, 0))
    remove_unused(own_folder(), 0)
    assert libraries and not any(library.exists() for library in libraries)
    assert list(own_folder().rglob("*.cpp"))  # what torch notes of a program stays
    assert compiled() == [4.0, 4.0] and list(own_folder().rglob("*.so"))


def test_half_a_program_is_named_with_the_folder_to_remove(temporary, monkeypatch):
    """A compiler that is killed while it writes may leave one, and torch loads what is there at every later call."""

    def loads(*_):
        raise ImportError("x.main.so: file too short")

    monkeypatch.setattr(compiled, "compile_graph", loads)
    with pytest.raises(TaacError, match=f"file too short.*half a program may be left in {own_folder()}: remove that folder"):
        CompiledFunction(lambda x: x + 1, torch.nn.Module())(torch.zeros(1))
