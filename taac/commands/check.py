"""`taac check`: builds an experiment without training, examines an environment, or explains a batch that stopped a run."""

from __future__ import annotations

from pathlib import Path

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError


def define_flags() -> None:
    flags.define_experiment()
    flags.define_root_dir("The folder that `taac train` would be given: only its name is looked at.")
    absl_flags.DEFINE_string(
        "env_name", None, "Check this environment for everything that training needs; report faults and how to fix them."
    )
    absl_flags.DEFINE_string(
        "batch", None, "Explain the file diverged-N.json that a run left behind when a number that was not finite stopped it."
    )


def run() -> None:
    names = (
        "task", "method", "gin_file", "gin_param", "set", "num_env_steps", "seed", "root_dir", "env_name", "batch",
    )  # fmt: skip
    given = [f"--{name}" for name in names if flags.FLAGS[name].present]
    if len(given) > 1 and {"--env_name", "--batch"} & set(given):
        raise TaacError(
            "use only one of --env_name, --batch and an experiment (--task and --method, with settings), got "
            f"{' and '.join(given)}"
        )
    if flags.FLAGS.batch:
        _batch(Path(flags.FLAGS.batch))
    elif flags.FLAGS.env_name:
        _environment(flags.FLAGS.env_name)
    else:
        request = flags.read_request()
        if flags.FLAGS.root_dir:
            flags.root_dir()
        request.files()  # refuses what is missing or unknown before anything is imported
        from taac import registry
        from taac.checking.description import describe

        registry.register()
        for line in describe(request):
            print(line)


def _batch(path: Path) -> None:
    from taac.runs import inspection, terminal

    for line in inspection.describe(inspection.read(path)):
        print(terminal.printable(line))


def _environment(env_name: str) -> None:
    from taac.environments.examine import examine
    from taac.networks import ObservationEncoder

    findings = examine(env_name, ObservationEncoder)
    for finding in findings:
        print(f"{'  ok  ' if finding.ok else 'FIX   '}{finding.about}")
        if finding.advice:
            print(f"      {finding.advice}")
    wrong = sum(not finding.ok for finding in findings)
    if wrong:
        raise TaacError(f"environment '{env_name}': {wrong} of {len(findings)} findings are faults")
    print(f"environment '{env_name}' can be trained on")
