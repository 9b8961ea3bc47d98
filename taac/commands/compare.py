"""`taac compare`: runs methods x tasks x seeds, some at a time; called again, it goes on where it was."""

from __future__ import annotations

import shlex
import signal

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError


def define_flags() -> None:
    flags.define_root_dir("Where the runs go: <root_dir>/<task>/<method>/seed_<n>.")
    absl_flags.DEFINE_string("methods", None, "Method files in gin/methods, by comma: sac,taac.")
    absl_flags.DEFINE_string("tasks", None, "Environment ids, by comma: Pendulum-v1,Hopper-v5.")
    absl_flags.DEFINE_integer("seeds", 5, "How many seeds.", lower_bound=1)
    absl_flags.DEFINE_integer("first_seed", 0, "The first of them.", lower_bound=0)
    absl_flags.DEFINE_integer(
        "jobs", 0, "Runs at a time, each on one thread; 0: as many as there are cores.", lower_bound=0
    )
    absl_flags.DEFINE_bool("dry_run", False, "Print the command of each run, and run nothing.")
    absl_flags.DEFINE_multi_string("gin_param", [], 'A gin binding for every run, such as "num_env_steps = 20000".')


def run() -> None:
    root_dir = flags.root_dir()

    from taac.environments import single
    from taac.training import campaign, config

    methods = list(dict.fromkeys(campaign.split(flags.FLAGS.methods or "")))
    tasks = list(dict.fromkeys(campaign.split(flags.FLAGS.tasks or "")))
    for name, given in (("methods", methods), ("tasks", tasks)):
        if not given:
            raise TaacError(f"--{name} is missing: for example --methods sac,taac --tasks Pendulum-v1,Hopper-v5")
    for task in tasks:
        single.find_spec(task)
    first, params = flags.FLAGS.first_seed, flags.FLAGS.gin_param
    for method in methods:  # every mistake is found before any run begins
        for task in tasks:
            config.load([f"gin/tasks/{campaign.category(task)}.gin", f"gin/methods/{method}.gin"], params)
    runs = campaign.plan(root_dir, methods, tasks, range(first, first + flags.FLAGS.seeds), params)
    if flags.FLAGS.dry_run:
        for planned in runs:
            print(shlex.join(planned.command))
        return
    work = campaign.Campaign(runs, jobs := flags.FLAGS.jobs or campaign.cores())
    print(f"{len(runs)} runs, {jobs} at a time: {work.state()}")
    shown = View()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to stop the runs in order, as for Ctrl-C
    end = work.run(shown.tell)
    shown.close()
    for failed, why in end.failed.items():
        print(f"failed: {failed.name}: {why}")
    print(f"{root_dir}: {len(end.finished)} of {len(runs)} runs finished")
    if end.failed:
        raise TaacError(f"{len(end.failed)} of {len(runs)} runs failed; the same command tries them again")


class View:
    """One line that is kept up to date on a terminal; elsewhere, a line whenever a run begins or ends."""

    def __init__(self) -> None:
        import sys

        self._file, self._seen = sys.stderr, ""
        self._live = sys.stderr.isatty()

    def tell(self, state: object) -> None:
        line = str(state)
        if self._live:
            self._file.write(f"\r\x1b[K{line}")
        elif line.split(", about")[0] != self._seen.split(", about")[0]:
            self._file.write(f"{line}\n")
        self._seen = line
        self._file.flush()

    def close(self) -> None:
        if self._live:
            self._file.write("\n")
