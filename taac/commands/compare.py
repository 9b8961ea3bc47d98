"""`taac compare`: runs methods x tasks x seeds, here or on a cluster. Called again, it continues where it stopped."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError
from taac.runs import layout

if TYPE_CHECKING:
    from taac.campaigns.comparison import Comparison
    from taac.campaigns.launchers import Launcher
    from taac.campaigns.launchers.slurm import SlurmArray
    from taac.configuration import RunRequest

SLURM = {"partition": "string", "time": "string", "mem": "string", "cpus": "integer", "gres": "string"}


def define_flags() -> None:
    flags.define_root_dir("Where the runs go: <root_dir>/<task>/<method>/seed_<n>.")
    absl_flags.DEFINE_multi_string(
        "gin_file", [], "A comparison, such as experiments/simple_control.gin; flags override its bindings."
    )
    absl_flags.DEFINE_multi_string("gin_param", [], 'A gin binding for every run, such as "num_env_steps = 20000".')
    flags.define_settings()
    absl_flags.DEFINE_list("methods", None, "Methods as in `taac train`, separated by commas: sac,taac,taac+gamma=0.98.")
    absl_flags.DEFINE_list("tasks", None, "Tasks as in `taac train`, separated by commas: Pendulum-v1,Hopper-v5.")
    absl_flags.DEFINE_string("seeds", None, "The number of seeds, 5 by default; or the seeds, separated by commas: 0,7.")
    absl_flags.DEFINE_string("seed", None, "The only seed, instead of --seeds.")
    for one in ("method", "task"):
        absl_flags.DEFINE_alias(one, f"{one}s")
    absl_flags.DEFINE_integer("first_seed", None, "The first seed; 0 by default.", lower_bound=0)
    absl_flags.DEFINE_integer(
        "jobs", 0, "Number of runs at a time, each on one thread; 0 for as many as cores, or as the cluster has room for.",
        lower_bound=0,
    )  # fmt: skip
    absl_flags.DEFINE_enum("launcher", "local", ["local", "ray", "slurm"], "Where to run the runs.")
    absl_flags.DEFINE_string(
        "ray_address", "auto", "The Ray cluster: auto, local (a new one here), <host>:<port> or ray://<host>:<port>."
    )
    absl_flags.DEFINE_float("ray_cpus", 1.0, "Ray: CPUs that each run occupies; a fraction lets several runs share one.")
    absl_flags.DEFINE_float("ray_gpus", 0.0, "Ray: GPUs that each run occupies; a fraction lets several runs share one.")
    for name, kind in SLURM.items():
        getattr(absl_flags, f"DEFINE_{kind}")(f"slurm_{name}", None, f"SLURM: sbatch's option for each run ({name}).")
    absl_flags.DEFINE_multi_string("slurm_setup", None, 'SLURM: a shell line before each run, such as "module load cuda".')
    absl_flags.DEFINE_multi_string("slurm_options", None, 'SLURM: any other option of sbatch, such as "--account=me".')
    absl_flags.DEFINE_bool("extend", False, "Train runs that were begun with fewer environment steps on to --num_env_steps.")
    absl_flags.DEFINE_bool("dry_run", False, "Print each run's command, or the SLURM script, and run nothing.")


def run() -> None:
    root_dir, given = flags.root_dir(), flags.FLAGS

    from taac.analysis.report.tables import note_on_seeds
    from taac.campaigns.campaign import Campaign, View
    from taac.campaigns.comparison import check_folders
    from taac.campaigns.launchers import local, ray_cluster, slurm
    from taac.checking.trial import check_new

    common = flags.read_common_request()
    for kind in ("ray", "slurm"):
        for name in (name for name in given if name.startswith(f"{kind}_") and given[name].present):
            if given.launcher != kind:
                raise TaacError(f"--{name} is for --launcher {kind}, got {given.launcher}")
    comparison, array = read(common)
    runs = comparison.plan(root_dir, common, given.extend)
    check_folders(runs)
    check_new(runs, here=given.launcher == "local")
    for note in note_on_seeds(len(comparison.methods), len(comparison.seeds)):
        print(note, file=sys.stderr)
    if given.dry_run:
        in_slurm = given.launcher == "slurm"
        print(array.script(runs, root_dir, given.jobs) if in_slurm else "\n".join(shlex.join(r.command) for r in runs))
        return
    record = Path(root_dir) / layout.COMPARISON
    if given.launcher == "slurm":
        Campaign(runs, local.LocalProcesses(), record=record).note()  # a report names runs that never begin
        print(slurm.submit(runs, root_dir, array, given.jobs))
        print(f"The same command submits again what is not finished. To compare: taac report --root_dir {shlex.quote(root_dir)}")
        return
    launcher: Launcher
    if given.launcher == "ray":
        launcher, jobs = ray_cluster.RayCluster(given.ray_address, root_dir, given.ray_cpus, given.ray_gpus), given.jobs or None
    else:
        launcher, jobs = local.LocalProcesses(), given.jobs or local.cores()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the runs in order, as Ctrl-C does
    work = Campaign(runs, launcher, jobs, record)
    print(f"{len(runs)} runs{f', {jobs} at a time' if jobs else ''}: {work.state()}", flush=True)
    with View() as view:
        end = work.run(view.show)
    print(f"{root_dir}: {len(end.finished)} of {len(runs)} runs finished")
    if end.failed:
        raise TaacError(f"{len(end.failed)} of {len(runs)} runs failed, see {record}; the same command runs them again")


def read(common: RunRequest) -> tuple[Comparison, SlurmArray]:
    """Reads the comparison and the resources of a SLURM task from gin files, overridden by flags. Checks every run's settings."""
    from taac import configuration, registry
    from taac.campaigns.comparison import Comparison, given_seeds, parse_seeds
    from taac.campaigns.launchers.slurm import SlurmArray

    given = flags.FLAGS
    registry.register()
    configuration.load(given.gin_file, of_compare=True)
    bound = configuration.build(Comparison)
    if given.seed is not None and given.seeds is not None:
        raise TaacError(f"--seed {given.seed} and --seeds {given.seeds} are both given; give one of them")
    # The number of --seed is a seed, as in the other commands.
    text = given.seeds if given.seed is None else given.seed if "," in given.seed else f"{given.seed},"
    chosen = given_seeds(parse_seeds(text), given.first_seed)
    lists = {name: given[name].value for name in ("methods", "tasks")}
    names: dict[str, Any] = {name: tuple(filter(None, words)) for name, words in lists.items() if words is not None}
    comparison = configuration.build(lambda: Comparison(**names, **chosen))
    resources = flags.given_values({name: f"slurm_{name}" for name in (*SLURM, "setup", "options")})
    array = configuration.build(lambda: SlurmArray(**resources))
    comparison.check(bound, common)
    return comparison, array
