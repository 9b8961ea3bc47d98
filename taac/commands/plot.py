"""`taac plot`: draws a run's curves to PNG and CSV."""

from __future__ import annotations

from pathlib import Path

from taac.commands import flags


def define_flags() -> None:
    flags.define_root_dir("The folder of the run.")


def run() -> None:
    folder = Path(flags.root_dir())

    from taac.analysis import plots

    picture, table = plots.plot_run(folder)
    print(table)
    print(picture)
