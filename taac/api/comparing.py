"""`taac.compare` and `taac.report`: methods x environments x seeds, and the verdicts on them."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from taac import configuration
from taac.analysis.report import tables
from taac.analysis.report.page import make_report, write_report
from taac.analysis.report.scores import Options
from taac.api.environments import Environment, Named, named, unknown_elsewhere
from taac.api.run import Run
from taac.api.session import session
from taac.api.settings import make_request, written
from taac.campaigns.campaign import Campaign, View
from taac.campaigns.comparison import Comparison, check_folders, given_seeds
from taac.campaigns.launchers import local
from taac.checking.trial import check_new
from taac.errors import TaacError
from taac.runs import layout
from taac.runs.terminal import printable

Bounds: TypeAlias = "tuple[float, float] | Mapping[str, tuple[float, float]] | str | None"


@dataclasses.dataclass(repr=False, eq=False)
class Report:
    """A comparison of runs, as `taac report` writes it. A notebook shows its tables."""

    content: dict[str, Any]  # everything in it, as plain values; what report.json holds
    files: list[Path]  # the files written: tables, a page, figures

    @property
    def verdicts(self) -> list[str]:
        """A line for each pair of methods on each task: the difference with its interval, and the verdict."""
        return [printable(tables.verdict_line(pair)) for pair in self.content["pairs"]]

    @property
    def warnings(self) -> list[str]:
        """What limits the comparison: runs left out, few seeds."""
        return [printable(text) for text in self.content["warnings"]]

    @property
    def markdown(self) -> str:
        """The tables, without the figures."""
        return tables.markdown(self.content, [])

    def _repr_markdown_(self) -> str:
        return self.markdown

    def __repr__(self) -> str:
        return "\n".join([*(f"warning: {text}" for text in self.warnings), *self.verdicts, f"in {self.files[0].parent}"])


@dataclasses.dataclass(repr=False, eq=False)
class Compared:
    """The runs of a comparison."""

    root_dir: Path  # the folder of all of them
    runs: list[Run]  # ordered by seed, environment, method

    def report(self, **options: Any) -> Report:
        """Compares them; see `taac.report`."""
        return report(self.root_dir, **options)

    def __repr__(self) -> str:
        return f"Compared({str(self.root_dir)!r}: {len(self.runs)} runs)"


def compare(
    methods: Sequence[str] | str,
    environments: Sequence[Environment] | Environment,
    *,
    root_dir: str | Path,
    seeds: int | Sequence[int] | None = None,
    num_env_steps: float | None = None,
    jobs: int = 0,
    settings: Mapping[str, Any] | None = None,
    gin_files: Sequence[str | Path] | str | Path = (),
    extend: bool = False,
    progress: bool = True,
    **named_settings: Any,
) -> Compared:
    """Trains every method on every environment with every seed, as `taac compare` does. Called again, continues.

        compared = taac.compare(["sac", "taac"], "Pendulum-v1", root_dir="runs/compare", seeds=5, num_env_steps=20_000)
        compared.report(baseline="sac")

    Each run has a process of its own, so environments must be importable: ids, `module:Class`, and classes and functions of
    modules. Each run is in `root_dir/<environment>/<method>/seed_<n>`.

    Args:
        methods, environments: one or several, as in `train`.
        root_dir: the folder of all runs.
        seeds: their number, or the seeds themselves; 5 by default.
        num_env_steps, settings, named_settings, gin_files: of every run, as in `train`. A gin file may also be that of a
            comparison: what it binds of `Comparison` besides methods and tasks holds, and `seeds` wins over it.
        jobs: how many runs at a time, each on one thread; 0 for as many as there are cores.
        extend: trains runs that were begun with fewer environment steps on to `num_env_steps`.
        progress: shows how many runs are finished.

    Raises:
        TaacError: something is wrong with a run that is asked for: then none is started. Or runs have failed.
    """
    several = [environments] if isinstance(environments, str) or callable(environments) else environments
    places = [named(e) for e in (several if isinstance(several, Sequence) else [several])]
    own: dict[str, tuple[str, ...]] = {}  # settings of each environment
    for place in places:
        if place.name is None:
            raise TaacError("environments are missing: give ids, such as 'Pendulum-v1', or classes or functions of a module")
        if place.make is not None:
            raise TaacError(
                f"the environment {place.name} is known to this program only, and each run of a comparison has a process of its "
                "own: put it in a module and give 'module:Class'"
            )
        params = tuple(text.replace("=", " = ", 1) for text in written(place.settings)[0])
        if own.setdefault(place.name, params) != params:
            raise TaacError(
                f"two of the environments are {place.name} with different settings, but the folders of runs have its name alone: "
                "compare them in two calls, with a root_dir each"
            )
    if not (isinstance(jobs, (int, np.integer)) and jobs >= 0):
        raise TaacError(f"jobs must be an integer, 0 or more, got {jobs!r}")
    given = given_seeds(None if seeds is None else _plain_seeds(seeds))
    with session():
        common = make_request(Named(None, {}), None, num_env_steps, None, gin_files, settings, named_settings)
        imports = configuration.load(common.gin_files, of_compare=True).imports
        for name in own:
            if why := unknown_elsewhere(name, imports):
                raise TaacError(f"each run of a comparison has a process of its own: {why}")
        bound = configuration.build(Comparison)
        task_params = {**bound.task_params, **{name: (*bound.task_params.get(name, ()), *own[name]) for name in own if own[name]}}
        names = (methods,) if isinstance(methods, str) else tuple(methods)
        if not all(isinstance(name, str) for name in names):
            raise TaacError(f"methods must be names, such as ['sac', 'taac'], or .gin files, got {methods!r:.200}")
        comparison = configuration.build(lambda: Comparison(names, tuple(own), task_params=task_params, **given))
        comparison.check(bound, common)
        runs = comparison.plan(root_dir, common, extend)
        check_folders(runs)
        check_new(runs, here=True)
        for note in tables.note_on_seeds(len(comparison.methods), len(comparison.seeds)) if progress else ():
            print(note, file=sys.stderr)
        found = {run.folder for run in runs if run.finished()}  # which may be a stranger's
        record = Path(root_dir, layout.COMPARISON)
        work = Campaign(runs, local.LocalProcesses(_search_path()), jobs or local.cores(), record)
        with View() as view:
            end = work.run(view.show if progress else lambda state: None)
    if end.failed:
        run, why = next(iter(end.failed.items()))
        raise TaacError(f"{len(end.failed)} of {len(runs)} runs failed, see {record}; the first is {run.name}: {why}")
    return Compared(Path(root_dir), [Run(run.folder, trust=run.folder not in found) for run in runs])


def _plain_seeds(seeds: Any) -> int | tuple[int, ...]:
    if isinstance(seeds, (int, np.integer)):
        return int(seeds)
    listed = tuple(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str) else (None,)
    if not all(isinstance(seed, (int, np.integer)) for seed in listed):
        raise TaacError(f"seeds must be a number of seeds, or the seeds themselves, integers, got {seeds!r:.200}")
    return tuple(map(int, listed))


def _search_path() -> dict[str, str]:
    """Lets the processes of runs import what this one can import."""
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path)}


def report(
    root_dir: str | Path,
    *,
    output_dir: str | Path | None = None,
    baseline: str | None = None,
    paired: bool = False,
    bounds: Bounds = None,
    last_evaluations: int = 3,
    at_step: int | None = None,
    allow_mixed: bool = False,
    group_by: Sequence[str] | str = (),
    anchors: str | Path | None = None,
    published: str | Path | None = None,
) -> Report:
    """Compares the runs below a folder, and writes tables, figures and a page, as `taac report` does.

    Args:
        root_dir: the folder with runs below it.
        output_dir: the folder of the report; by default `root_dir`.
        baseline: compares every method with this one only.
        paired: compares runs with the same seed; methods must have the same seeds, 6 or more for a verdict.
        bounds: the lowest and the highest possible return, or these by task. None: those that task files or anchors
            declare; "none": none.
        last_evaluations: the final return is the mean of so many last evaluations.
        at_step: compares at this environment step; by default where the first finished run ended.
        allow_mixed: compares runs even if budgets, versions, update ratios, or settings of environment or evaluations differ.
        group_by: settings to show in the names of methods.
        anchors, published: JSON files with more normalisation anchors, and with published returns.

    Raises:
        TaacError: there are no usable runs, or an option is wrong.
    """
    for name, number in (("last_evaluations", last_evaluations), ("at_step", 1 if at_step is None else at_step)):
        if not (isinstance(number, (int, np.integer)) and number >= 1):
            raise TaacError(f"{name} must be an integer, 1 or more, got {number!r:.200}")
    if output_dir is not None and Path(output_dir).exists() and not Path(output_dir).is_dir():
        raise TaacError(f"output_dir must be a folder, got the file {output_dir}")
    with session():
        options = Options(
            last=last_evaluations, paired=paired, baseline=baseline, bounds=_bounds(bounds), allow_mixed=allow_mixed,
            group_by=tuple(group_by.split(",")) if isinstance(group_by, str) else tuple(group_by), at_step=at_step,
            anchors=Path(anchors) if anchors else None, published=Path(published) if published else None,
        )  # fmt: skip
        content = make_report(Path(root_dir), options)
        return Report(content, write_report(content, Path(output_dir or root_dir)))


def _bounds(bounds: Bounds) -> tuple[str, ...]:
    if isinstance(bounds, str) and bounds == "none":  # an array of two numbers is compared with nothing
        return ("none",)
    by_task: Mapping[str, Any] = bounds if isinstance(bounds, Mapping) else {} if bounds is None else {"": bounds}
    found = []
    for task, given in by_task.items():
        if isinstance(given, str) or not isinstance(given, Iterable) or len(pair := tuple(given)) != 2:
            raise TaacError(f"bounds must be (lowest, highest), or these by task, or 'none', got {given!r:.200}")
        found.append(f"{f'{task}=' if task else ''}{pair[0]},{pair[1]}")
    return tuple(found)
