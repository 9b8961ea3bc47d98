"""The name of a run's method: what its gin files bind, or the name of the method file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from taac.configuration import reading
from taac.configuration.binding import Binding
from taac.configuration.config import Config
from taac.configuration.plain_words import Setting
from taac.configuration.reading import find_file

_BINDING = ("", "taac.training.experiment.create_experiment", "method")


def load(
    gin_files: Sequence[str],
    gin_params: Sequence[str] = (),
    settings: Sequence[Setting] = (),
    method_file: str | None = None,
) -> Config:
    """Reads a configuration and binds `create_experiment.method`, so that `config.gin` keeps the name.

    A binding in one of the given files, parameters or settings decides. Without one, the method file gives its name, even if it
    includes a file that binds another: `methods/mine.gin` that includes `gin/methods/taac.gin` is "mine".

    Args:
        gin_files, gin_params, settings: as in `configuration.load`.
        method_file: one of the files; by default the last one in a folder `methods`.

    Raises:
        TaacError: as in `configuration.load`.
    """
    loaded = reading.load(gin_files, gin_params, settings=settings)
    bound = loaded.bindings.get(_BINDING)
    if bound is not None and _is_given(bound, gin_files):
        return loaded
    of_method = method_file or next((file for file in reversed(gin_files) if Path(file).parent.name == "methods"), None)
    name = None if of_method is None else Path(of_method).stem
    if name is None or (bound is not None and bound.value == name):
        return loaded
    return reading.load(gin_files, [*gin_params, f"create_experiment.method = {name!r}"], settings=settings)


def _is_given(binding: Binding, gin_files: Sequence[str]) -> bool:
    """Returns whether a binding is in a file that was named on the command line, or on the command line itself."""
    file = Path(binding.where.rpartition(":")[0])
    return binding.where.startswith("--") or file.resolve() in {find_file(name).resolve() for name in gin_files}
