"""The name of a run's method: what its gin files bind, or the name of the method file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from taac import configuration
from taac.configuration import Binding, Config
from taac.configuration.reading import find_file

_BINDING = ("", "taac.training.experiment.create_experiment", "method")


def load(gin_files: Sequence[str], gin_params: Sequence[str] = ()) -> Config:
    """Reads a configuration and binds `create_experiment.method`, so that `config.gin` keeps the name.

    A binding in one of the given files or parameters decides. Without one, the last given file in a folder `methods` gives its
    name, even if it includes a file that binds another: `methods/mine.gin` that includes `gin/methods/taac.gin` is "mine".

    Raises:
        TaacError: as in `configuration.load`.
    """
    loaded = configuration.load(gin_files, gin_params)
    bound = loaded.bindings.get(_BINDING)
    if bound is not None and _is_given(bound, gin_files):
        return loaded
    name = next((Path(file).stem for file in reversed(gin_files) if Path(file).parent.name == "methods"), None)
    if name is None or (bound is not None and bound.value == name):
        return loaded
    return configuration.load(gin_files, [*gin_params, f"create_experiment.method = {name!r}"])


def _is_given(binding: Binding, gin_files: Sequence[str]) -> bool:
    """Returns whether a binding is in a file that was named on the command line, or on the command line itself."""
    file = Path(binding.where.rpartition(":")[0])
    return binding.where == "--gin_param" or file.resolve() in {find_file(name).resolve() for name in gin_files}
