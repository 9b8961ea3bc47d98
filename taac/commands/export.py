"""`taac export`: writes a run's greedy policy to a file that runs without this package."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError, first_line


def define_flags() -> None:
    flags.define_saved_agent("Export")
    flags.define_switch_threshold()
    absl_flags.DEFINE_string("output", None, "A new .onnx or .pt2 file.")
    absl_flags.DEFINE_integer("check_steps", 1000, "Steps at which the file must act as the agent does.", lower_bound=1)
    absl_flags.DEFINE_integer("seed", 0, "Seed of the environment of the check.", lower_bound=0, upper_bound=2**32 - 1)


def run() -> None:
    given = flags.FLAGS

    from taac import registry
    from taac.deployment import policy_files
    from taac.deployment.exported_policy import ExportedPolicy
    from taac.playing.pictures import new_file
    from taac.playing.saved_agent import load_saved
    from taac.runs import layout

    path = new_file("--output", given.output, *policy_files.FORMATS)
    if path is None:
        raise TaacError("--output is missing; it is a new file that ends with .onnx or .pt2")
    policy_files.check_packages(path)
    registry.register()
    saved = load_saved(flags.root_dir(), best=given.best, trusted=given.trust, switch_threshold=given.switch_threshold)
    with contextlib.closing(saved.environment) as environment:
        policy = ExportedPolicy(saved.agent, environment)
        settings = environment_settings(layout.read_bindings(Path(flags.root_dir())))
        about = {"method": saved.method, "env_steps": saved.env_steps, "environment_settings": settings}
        if (threshold := saved.agent.algorithm.switch_threshold) is not None:
            about["switch_threshold"] = threshold
        policy_files.write(policy, path, policy_files.metadata(policy, environment, about))
        try:
            parity = policy_files.check(policy_files.load(path), policy, environment, given.check_steps, given.seed)
        except BaseException as error:
            os.unlink(path)  # a file that acts differently must not be used
            if isinstance(error, TaacError) or not isinstance(error, Exception):
                raise
            raise TaacError(f"this policy cannot be run from {path.suffix}: {first_line(error)[:400]}") from error
    print(f"{path}: {', '.join(policy.names.inputs)} -> {', '.join(policy.names.outputs)}")
    ties = f" (but for {parity.ties} steps at which rounding decides)" if parity.ties else ""
    print(
        f"checked over {parity.steps} steps and {parity.episodes} ends of episodes: the same choices{ties}, numbers within "
        f"{parity.largest_difference:.2g}; a step takes {parity.microseconds:.0f} us, of the live agent "
        f"{parity.live_microseconds:.0f} us"
    )


def environment_settings(bound: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of `create_environment` by their names alone, and those of the wrappers that they name."""
    found = {name.partition(".")[2]: value for name, value in bound.items() if name.startswith("create_environment.")}
    wrappers = re.findall(r"@(?:\w+/)*([\w.]+)", " ".join(found.values()))
    return found | {name: value for name, value in bound.items() if name.rpartition("/")[2].rpartition(".")[0] in wrappers}
