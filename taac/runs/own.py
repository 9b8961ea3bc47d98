"""Which runs are the user's own, so that `taac play` may import what they imported, from any working directory.

A run is sealed when it begins or resumes. run.json then holds `imports`, the folder of
each module, and `seal`, an HMAC-SHA256 over these, config.gin and the run folder's path. Its key is 32 random bytes in a file
that only the user can read, so nobody else can make a seal that verifies. One that does says that this user trained exactly
this config.gin in exactly this folder, and where its modules were. What the modules hold later is the user's own code.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import importlib.util
import json
import os
import secrets
import stat
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from taac.errors import TaacError
from taac.runs import durable, files, layout

_KEY_BYTES = 32
_CHECKED = hasattr(os, "getuid")  # owners and permissions exist


class NotOwn(TaacError):
    """A run is not known to be the user's own. The message is a clause that says why."""


# Sealing -------------------------------------------------------------------------------------------------------------


def sealed(folder: Path, config: str, modules: Iterable[str]) -> dict[str, Any]:
    """Returns `imports` and `seal` for the run.json of a run. The seal is None if there can be no key, as without a home.

    Args:
        folder: the run folder.
        config: the text of its config.gin.
        modules: what the configuration imports. They have been imported.
    """
    try:
        names = sorted({module.partition(".")[0] for module in modules} - {"taac"})
        imports = {name: _folder_of(name) for name in names}
        key = _read_key(_key_file(), create=True)
    except (NotOwn, OSError):
        return {"imports": None, "seal": None}
    return {"imports": imports, "seal": _seal(key, folder, config, imports)}


def check(folder: Path, config: str) -> dict[str, str]:
    """Returns the folder of each module that an own run imported. Imports nothing.

    Args:
        folder: the run folder.
        config: the text of its config.gin, the very text that is parsed afterwards.

    Raises:
        NotOwn: the run has no seal or another one, or its modules are elsewhere now or could be somebody else's.
    """
    try:
        about = layout.read_run(folder)
    except (OSError, files.Damaged) as error:
        raise NotOwn(f"its {layout.RUN} cannot be read: {error}") from error
    imports, seal = about.get("imports"), about.get("seal")
    if not isinstance(imports, dict) or not isinstance(seal, str) or not all(isinstance(f, str) for f in imports.values()):
        raise NotOwn("it has no seal: an earlier version or another program wrote it, or it had no place for a key")
    key = _read_key(_key_file(), create=False)
    if not hmac.compare_digest(_seal(key, folder, config, imports).encode(), seal.encode("utf-8", "replace")):
        raise NotOwn(
            "its seal is not yours for this folder: it was trained by another user or on another machine, or it has been "
            "changed, moved or copied since"
        )
    for name, place in imports.items():
        _check_place(name, Path(place))
    return imports


def import_from(imports: Mapping[str, str]) -> None:
    """Makes the modules of `check` importable.

    Raises:
        NotOwn: another module of that name would be imported.
    """
    sys.path += [place for place in dict.fromkeys(imports.values()) if place not in sys.path]
    for name, place in imports.items():
        found = _folder_of(name)
        if not os.path.samefile(found, place) and not (_is_installed(found) and _is_installed(place)):
            raise NotOwn(f"its module '{name}' was imported from {place}, and now another would be, from {found}")


def _seal(key: bytes, folder: Path, config: str, imports: Mapping[str, str]) -> str:
    content = ["taac run", 1, str(folder.resolve()), config, dict(imports)]
    return hmac.new(key, json.dumps(content, sort_keys=True).encode(), hashlib.sha256).hexdigest()


# Modules -------------------------------------------------------------------------------------------------------------


def _folder_of(name: str) -> str:
    """The folder from which a top-level module is imported. Does not import it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise NotOwn(f"its module '{name}' cannot be found: {error}") from error
    if spec is None:
        raise NotOwn(f"its module '{name}' cannot be found")
    if spec.submodule_search_locations:  # a package
        return os.path.dirname(os.path.abspath(next(iter(spec.submodule_search_locations))))
    if not spec.has_location or not spec.origin:
        raise NotOwn(f"its module '{name}' is in no folder")
    return os.path.dirname(os.path.abspath(spec.origin))


def _is_installed(place: str) -> bool:
    """Whether modules in a folder belong to this Python itself."""
    own = (sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    return any(os.path.realpath(place) == os.path.realpath(folder) for folder in own)


def _check_place(name: str, place: Path) -> None:
    """Refuses a folder in which somebody else could have put a module."""
    if not place.is_absolute() or not place.is_dir():
        raise NotOwn(f"its module '{name}' was imported from {place}, which is gone")
    if _is_installed(str(place)) or not _CHECKED:
        return
    for path in (place, place / name, place / name / "__init__.py", place / f"{name}.py"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            about = path.stat()
            if about.st_uid not in (0, os.getuid()) or about.st_mode & stat.S_IWOTH:
                raise NotOwn(f"{path}, from which its module '{name}' would be imported, is not yours alone to write")


# The key -------------------------------------------------------------------------------------------------------------


def _key_file() -> Path:
    """`taac/key` in $XDG_STATE_HOME, by default ~/.local/state."""
    given = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise NotOwn("you have no home folder to keep a key in") from error
    return base / "taac" / "key"


def _read_key(path: Path, create: bool) -> bytes:
    if create and not os.path.lexists(path):
        _make_key(path)
    try:
        descriptor = files.open_file(path, os.O_RDONLY)
    except OSError as error:
        raise NotOwn(f"there is no key of yours at {path}") from error
    with os.fdopen(descriptor, "rb") as file:
        about, key = os.fstat(descriptor), file.read(_KEY_BYTES + 1)
    if _CHECKED and (about.st_uid != os.getuid() or about.st_mode & 0o077):
        raise NotOwn(f"the key {path} is not yours, or not yours alone to read (chmod 600)")
    if len(key) != _KEY_BYTES:
        raise NotOwn(f"the key {path} is damaged; remove it, and the next run makes another")
    return key


def _make_key(path: Path) -> None:
    """Creates the key, whole or not at all. If another process does so at the same time, its key stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = durable.temporary(path)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)  # unlike a rename, it replaces nothing
    finally:
        os.unlink(beside)
