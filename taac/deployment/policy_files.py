"""Writes an exported policy as an ONNX file or a `torch.export` archive, and checks it against the live policy."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from taac import nest
from taac.acting.rollout import Rollout
from taac.algorithms.algorithm import reset_where_first
from taac.data_structures import AlgStep
from taac.deployment.exported_policy import ExportedPolicy
from taac.environments.single import package_of
from taac.environments.spaces import action_adapter, observation_spec, to_arrays
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError
from taac.runs import durable, provenance

FORMATS = (".onnx", ".pt2")
PACKAGES = {".onnx": ("onnx", "onnxscript", "onnxruntime")}
METADATA = "taac"  # the key of the metadata in the file
TOLERANCE = 1e-5  # of actions and states, between a file and the live agent, relative to their size if that is above 1
TIE = 1e-3  # distance of a switching probability from its threshold: errors of Q are divided by a small temperature there
ROUNDING = 1e-6  # relative changes that a choice must withstand to be compared
MAX_BATCH = 65536
Step = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


class Parity(NamedTuple):
    """The result of a check against the live policy."""

    steps: int
    episodes: int
    ties: int  # steps at which rounding decides a choice, and it fell differently
    largest_difference: float  # of floats: actions and state
    microseconds: float  # a step of the file's policy, median
    live_microseconds: float  # a step of the live agent, median


def check_packages(path: Path) -> None:
    """Raises TaacError if a package that a format needs is not installed; says how to install it."""
    missing = [name for name in PACKAGES.get(path.suffix, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise TaacError(f"{path.suffix} files need {', '.join(missing)}: pip install 'taac[onnx]', or write a .pt2 file")


def metadata(policy: ExportedPolicy, environment: VectorEnvironment, about: dict[str, Any]) -> dict[str, Any]:
    """Describes a policy in plain JSON values: its environment, spaces, inputs, outputs and versions."""
    versions, package = provenance.versions(), package_of(environment.name)
    return {
        **about,
        "environment": f"{package.module}:{environment.name}" if package else environment.name,  # as `gymnasium.make` knows it
        **environment.described_spaces(),
        "inputs": {
            name: {"dtype": str(leaf.dtype).removeprefix("torch."), "shape": ["batch", *leaf.shape[1:]]}
            for name, leaf in zip(policy.names.inputs, policy.example(1))
        },
        "outputs": list(policy.names.outputs),
        "versions": {name: versions[name] for name in ("taac", "python", "torch", "numpy", "gymnasium")},
    }


def write(policy: ExportedPolicy, path: Path, about: dict[str, Any]) -> None:
    """Traces a policy for any batch size and writes it, atomically, with metadata as JSON under the key "taac".

    Raises TaacError if it holds something that cannot be traced or that ONNX lacks.
    """
    inputs = policy.example(2)
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    try:
        with torch.no_grad():
            shapes = ({0: batch}, tuple({0: batch} for _ in inputs[1:]))
            program = torch.export.export(policy, inputs, dynamic_shapes=shapes)
        if path.suffix == ".onnx":
            content = _onnx(program, policy, about)
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "No complete tensor found", UserWarning)  # views of a tensor
                torch.export.save(program, file := io.BytesIO(), extra_files={METADATA: json.dumps(about)})
            content = file.getvalue()
    except Exception as error:  # any kind: they come from the tracer and its passes
        reason = " ".join(str(error).split())
        raise TaacError(f"this policy cannot be exported to {path.suffix}: {type(error).__name__}: {reason[:400]}") from error
    durable.write(path, content)


def _onnx(program: torch.export.ExportedProgram, policy: ExportedPolicy, about: dict[str, Any]) -> bytes:
    names = policy.names
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of every package that it could serve and does not find
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about deprecated parts that torch itself uses
        made = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=list(names.inputs), output_names=list(names.outputs)
        )
    assert made is not None
    proto = made.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(about)
    return proto.SerializeToString()


def load(path: Path) -> Step:
    """Returns a function from inputs to outputs, numpy arrays in the order of `Names`, on one thread."""
    if path.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]
        return lambda arrays: session.run(None, dict(zip(names, arrays)))
    module = torch.export.load(str(path)).module()

    def step(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        with torch.inference_mode():
            return [out.numpy() for out in module(*(torch.from_numpy(array) for array in arrays))]

    return step


def check(step: Step, policy: ExportedPolicy, environment: VectorEnvironment, steps: int, seed: int) -> Parity:
    """Lets the live agent play greedily, and compares what the file's policy does at every step.

    Both get the live agent's state at each step, and their next states are compared too. With a state of its own the file's
    rounding adds up along TAAC's curves, to about 1e-5 after 200 steps without a switch.

    A step at which they differ counts as a tie if rounding decides what the live agent chooses there (`_is_tie`): two ways to
    multiply the same matrices may then differ in the choice.

    Args:
        step: the file's policy.
        environment: of one environment.
        steps: number of frames.

    Raises:
        TaacError: a switch or another choice differs, or a number by more than `TOLERANCE`. An action's size is the
            greatest bound of its space, because an action near 0 is rounded as coarsely as one at the bound.
    """
    _, to_environment = action_adapter(environment.action_space)
    bounds = nest.flatten(observation_spec(environment.action_space))  # in the environment's scale
    sizes = [float(np.abs([bound.minimum, bound.maximum]).max()) for bound in bounds]
    sizes += [1.0] * (len(policy.names.outputs) - len(sizes))
    rollout = Rollout(environment, policy.agent)
    rollout.reset(seed)
    state = [leaf.numpy() for leaf in nest.flatten(policy.initial)]
    largest, episodes, ties, times = 0.0, 0, 0, (np.zeros(steps), np.zeros(steps))
    for i in range(steps):
        seen = rollout.time_step
        whole = nest.map_structure(nest.array, seen.observation)
        observation = to_arrays(policy.observation_spec, whole)  # without what the policy does not read
        inputs = [seen.is_first().numpy(), *nest.flatten(observation), *state]
        start = time.perf_counter()
        found = step(inputs)
        middle = time.perf_counter()
        live = rollout.act(policy.agent.predict_step)
        times[0][i], times[1][i] = middle - start, time.perf_counter() - middle
        tensors = [live.decided, *nest.flatten(live.output), *nest.flatten(live.state)]
        expected = [*nest.flatten(to_environment(live.output)), *(tensor.numpy() for tensor in tensors)]
        try:
            differences = [_difference(*e) for e in zip(policy.names.outputs, found, expected, sizes, strict=True)]
        except TaacError as error:
            if not bool(seen.is_last().any()):  # there the action is ignored, and agents that join have no FIRST in the file
                if not _is_tie(rollout, live):
                    raise TaacError(f"{error}, at step {i} of the check") from None
                ties += 1
        else:
            largest = max(largest, *differences)
        rollout.step(lambda *_, live=live: live)
        episodes += int(seen.is_last().any())
        state = expected[-len(state) :]
    return Parity(steps, episodes, ties, largest, *(float(np.median(of)) * 1e6 for of in times))


def _is_tie(rollout: Rollout, live: AlgStep) -> bool:
    """Returns whether rounding decides what the agent chooses.

    Its probability of switching is within `TIE` of its threshold, or it chooses otherwise where all numbers differ by `ROUNDING`.
    """
    probability = live.switch_probability
    if isinstance(probability, torch.Tensor):
        threshold = rollout.agent.algorithm.switch_threshold
        if threshold is not None and bool(((probability - threshold).abs() < TIE).any()):
            return True
    time_step, state = rollout.time_step, reset_where_first(rollout.state, rollout.agent.initial_state(1), rollout.time_step)
    agent = copy.deepcopy(rollout.agent)
    original = [parameter.clone() for parameter in agent.parameters()]
    generator = torch.Generator().manual_seed(0)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x * (1 + ROUNDING * torch.randn(x.shape, generator=generator)) if x.is_floating_point() else x

    for _ in range(8):
        with torch.no_grad():
            for parameter, value in zip(agent.parameters(), original):
                parameter.copy_(rounded(value))
        seen = time_step._replace(observation=nest.map_structure(rounded, time_step.observation))
        other = agent.predict_step(seen, state)
        choices = [(step.decided, *nest.flatten((step.output, step.state))) for step in (live, other)]
        if any(not x.is_floating_point() and not torch.equal(x, y) for x, y in zip(*choices)):
            return True
    return False


def _difference(name: str, found: np.ndarray, expected: np.ndarray, size: float) -> float:
    """Returns the greatest difference, relative to the size of what is expected, at least 1 and `size`."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise TaacError(f"'{name}' of the file is {found.dtype} {found.shape}, expected {expected.dtype} {expected.shape}")
    if not np.issubdtype(expected.dtype, np.floating):
        if not np.array_equal(found, expected):
            raise TaacError(f"'{name}' of the file is {found.tolist()} where the live agent's is {expected.tolist()}")
        return 0.0
    size = max(1.0, size, float(np.abs(expected).max(initial=0.0)))
    difference = float(np.abs(found - expected).max(initial=0.0)) / size
    if not difference <= TOLERANCE:
        raise TaacError(f"'{name}' of the file differs from the live agent's by {difference:.3g}")
    return difference
