from taac.api import *  # noqa: F403

API: list[str]
__version__: str
