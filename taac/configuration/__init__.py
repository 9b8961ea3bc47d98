"""Configuration: reading and checking gin files. Knows no configurable of the package; `taac.registry` does.

gin itself accepts a binding of the wrong type, and one that nothing uses. Here each is an error, raised before any work
is done, that names file, line and the nearest real name.
"""

from taac.configuration.binding import Binding
from taac.configuration.config import Config, build, operative_config
from taac.configuration.macros import TASK_MACROS
from taac.configuration.names import nearest
from taac.configuration.reading import load, search_path

__all__ = ["TASK_MACROS", "Binding", "Config", "build", "load", "nearest", "operative_config", "search_path"]
