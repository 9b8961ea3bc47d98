"""Copies the raw results of a campaign's runs that have ended into this repository.

    python -m experiments.results.collect --root_dir DIR --name simple_control

Copies `evaluations.csv`, `config.gin` and `run.json` of each run below DIR that is finished or has diverged to
`experiments/results/NAME/<task>/<method>/seed_<n>/`, and adds `rollouts.csv`: the return while exploring, from the run's
TensorBoard summaries. Checkpoints and event files stay where they are. In `run.json`, the folder of the campaign becomes `DIR`
and the machine's name of its system is left out. `taac report --root_dir experiments/results/NAME` reads the copies as it
reads any other run.

A run that diverged is a result, and a bad one: without it, its method would be judged by its survivors. Other runs that are not
finished are listed and left out; resume them.

`--method NAME` keeps runs of one method under another name, in the folder and in run.json, if they differ in a setting, as in
`experiments/results/sac_variants`. config.gin has what was set.

To go on with a campaign in another folder or on another machine, copy `experiments/results/NAME/*/` to DIR and call the
campaign's command again with the code of its commit: it trains what is missing. Runs kept under another name by `--method` first
need the folder's name that the command gives them.

A run that is already here and differs is an error: results are added, not replaced (`--replace` replaces them). Afterwards, write
`experiments/results/NAME/campaign.json` if there is none (`experiments/results/page.py` describes it), and call `make results`.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shlex
import sys
from pathlib import Path

from taac.analysis.readers import run_records
from taac.analysis.readers.run_records import Record
from taac.errors import TaacError
from taac.runs import layout

HERE = Path(__file__).resolve().parent
ROLLOUTS = "rollouts.csv"
TAG = "rollout/return"
PLACEHOLDER = "DIR"
ENDED = ("finished", "diverged")  # the statuses of runs that are results


def collect(
    root: Path, target: Path, replace: bool = False, method: str | None = None
) -> tuple[list[Record], list[Record]]:
    """Copies finished and diverged runs below `root` to `target`. Returns the records that were copied, and those left out.

    Args:
        root, target: folder of a comparison, and of a campaign here.
        replace: whether runs that are here and differ are replaced.
        method: name under which the runs are kept; None: that of their method.

    Raises:
        TaacError: there is no run below `root`; a finished run has a problem other than divergence, or no task or seed;
            `method` is given and there are runs of several methods; or `target` holds a run with other content and `replace`
            is false. Nothing is written then.
    """
    records = run_records.find(root)
    ended = [r for r in records if r.status in ENDED]
    methods = sorted({r.method for r in ended})
    if method is not None and len(methods) > 1:
        raise TaacError(f"--method {method} would mix the methods {', '.join(methods)}; use a --root_dir with one of them")
    texts: dict[Path, str] = {}
    for record in ended:
        problems = [problem for problem in record.problems if not problem.startswith("diverged: ")]
        if problems or record.task is None or record.seed is None:
            raise TaacError(f"{record.folder}: {'; '.join(problems) or 'its task or seed is unknown'}")
        folder = layout.run_folder(target, record.task, method or record.method, record.seed)
        for name, text in raw_texts(root / record.folder, root, record, method).items():
            if folder / name in texts:
                raise TaacError(f"{record.folder}: another run below {root} has the same task, method and seed")
            texts[folder / name] = text
    if not replace:
        for path, text in texts.items():
            if path.exists() and path.read_text(encoding="utf-8") != text:
                raise TaacError(f"{path} exists and differs; remove it, or use --replace")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if replace and path.name == layout.RUN and path.with_name(ROLLOUTS) not in texts:
            path.with_name(ROLLOUTS).unlink(missing_ok=True)  # of a run that is replaced
    return ended, [r for r in records if r.status not in ENDED]


def raw_texts(folder: Path, root: Path, record: Record, method: str | None = None) -> dict[str, str]:
    """Returns the content of the files to keep, by name."""
    kept = {name: (folder / name).read_text(encoding="utf-8") for name in (layout.EVALUATIONS, layout.CONFIG)}
    about = layout.read_run(folder)
    about["command"] = without_root(about.get("command", ""), root)
    about.get("platform", {}).pop("system", None)
    if any(word.startswith("/") for word in shlex.split(about["command"])):
        raise TaacError(f"{record.folder}/{layout.RUN} names a folder of this machine in its command; it would be published")
    if method is not None:
        about["method"] = method
    kept[layout.RUN] = json.dumps(about, indent=1) + "\n"
    returns = record.scalars.get(TAG)
    if returns is not None:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(("env_steps", "return_mean"))
        rows.writerows((int(step), f"{value:.6g}") for step, value in zip(returns.env_steps, returns.value))
        kept[ROLLOUTS] = text.getvalue()
    elif (folder / ROLLOUTS).exists():  # a run that was copied back from here
        kept[ROLLOUTS] = (folder / ROLLOUTS).read_text(encoding="utf-8")
    for name, text in kept.items():
        if str(root.resolve()) in text or str(Path.home()) + "/" in text:
            raise TaacError(f"{record.folder}/{name} names a folder of this machine; it would be published")
    return kept


def without_root(command: str, root: Path) -> str:
    """Replaces the campaign's folder in a command by DIR, also where its run folders were copied to `root` from elsewhere."""
    command = re.sub(re.escape(str(root.resolve())) + r"(?=/|\s|$)", PLACEHOLDER, command)
    copied = r"(?<=--root_dir )/\S*?((?:/[^/\s]+){2}/seed_\d+)?(?=\s|$)"
    return re.sub(copied, lambda found: PLACEHOLDER + (found[1] or ""), command)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--root_dir", type=Path, required=True, help="folder of `taac compare`")
    flags.add_argument("--name", required=True, help="name of the campaign, a folder of experiments/results")
    flags.add_argument("--method", help="name under which the runs are kept")
    flags.add_argument("--replace", action="store_true", help="replace runs that are here and differ")
    return flags


def main() -> None:
    options = parser().parse_args()
    if not re.fullmatch(r"\w+", options.name):
        sys.exit(f"--name must be letters, digits and underscores, got {options.name!r}")
    if options.method is not None and not re.fullmatch(r"\w+", options.method):
        sys.exit(f"--method must be letters, digits and underscores, got {options.method!r}")
    try:
        copied, left = collect(options.root_dir, HERE / options.name, options.replace, options.method)
    except TaacError as error:
        sys.exit(f"experiments.results.collect: {error}")
    print(f"copied {len(copied)} run(s), {sum(r.diverged is not None for r in copied)} of them diverged")
    for record in left:
        print(f"left out: {record.folder}, {record.status} at step {record.last_step}")


if __name__ == "__main__":
    main()
