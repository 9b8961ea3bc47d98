"""Reads and checks gin files. Knows no configurable of the package; `taac.registry` does.

gin itself accepts bindings of the wrong type, and bindings that nothing uses. Here both are errors. They are raised before
any work is done, and report the file, the line and the nearest existing name.
"""

from taac.configuration.binding import TASK_MACROS, Binding
from taac.configuration.config import Config, build, operative_config
from taac.configuration.reading import ReadFile, load, load_untrusted, read_held
from taac.configuration.run_request import RunRequest
from taac.configuration.shipped import search_path

__all__ = [
    "TASK_MACROS", "Binding", "Config", "ReadFile", "RunRequest", "build", "load", "load_untrusted", "operative_config",
    "read_held", "search_path",
]  # fmt: skip
