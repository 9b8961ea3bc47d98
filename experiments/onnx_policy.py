"""Plays a policy that `taac export` wrote, with numpy, onnxruntime and gymnasium alone.

    taac export --root_dir runs/demo --output car.onnx
    python experiments/onnx_policy.py car.onnx

The environment is a registered id, `module:Id`, `module:Class` or `module:function`, with the module in the working directory or
installed. Wrappers and repeated actions of the training are not made here, but named: put
them around the environment.
A policy with a memory, such as TAAC's trajectory, gets back at every step the state that it returned at the last one.
Where `first` is true it begins with its initial state, whatever is passed in.
"""

import importlib
import json
import os
import sys

import gymnasium
import numpy as np
import onnxruntime


def make(name, steps):
    module, _, of_module = name.partition(":")
    found = getattr(importlib.import_module(module), of_module, None) if of_module else None
    if not callable(found):
        return gymnasium.make(name, max_episode_steps=steps)
    return found() if steps is None else gymnasium.wrappers.TimeLimit(found(), steps)


def parts(name, value):
    """Yields the arrays of an observation by the names that the policy's inputs have."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else None
    if items is None:
        yield name, value
    for key, part in items or ():
        yield from parts(f"{name}.{as_named(key)}", part)


def as_named(key):
    """Returns a key as the policy's names have it."""
    return key.strip("/").replace("/", ".") if isinstance(key, str) else key


def action_in(space, name, outputs):
    """Returns the environment's action, of which each array is an output of the policy."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: action_in(part, f"{name}.{as_named(key)}", outputs) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(action_in(part, f"{name}.{i}", outputs) for i, part in enumerate(space.spaces))
    return outputs[name][0]


sys.path.append(os.getcwd())
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1  # more would wait for each other, at each of many small products
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["taac"])
settings = about.get("environment_settings", {})
steps = settings.get("max_episode_steps", "None")
environment = make(about["environment"], None if steps == "None" else int(steps))
usually = {"wrappers": "()", "evaluation_wrappers": "None", "action_repeat": "1", "env_kwargs": "None", "frame_stack": "1"}
for name, usual in usually.items():
    if settings.get(name, usual) != usual:
        print(f"trained with {name} = {settings[name]}, which this environment lacks", file=sys.stderr)
if settings.get("frame_stack", "1") != "1" or settings.get("action_repeat_chosen", "False") != "False":
    sys.exit("stacks of pictures and durations that the policy chooses are made by taac: play this policy with taac play")
names = list(about["inputs"])
states = [name for name in names if f"next_{name}" in about["outputs"]]

for episode in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
    inputs = {name: np.zeros((1, *kind["shape"][1:]), kind["dtype"]) for name, kind in about["inputs"].items()}
    inputs["first"][:] = True
    observation, _ = environment.reset(seed=episode)
    total, decisions, length, ended = 0.0, 0, 0, False
    while not ended:
        given = dict(parts("observation", observation))
        if missing := [name for name in names if name.startswith("observation") and name not in given]:
            sys.exit(f"the environment returns no {', '.join(missing)}: a wrapper of the training is missing")
        for name in given.keys() & inputs.keys():  # acting may read a part alone
            inputs[name][0] = given[name]
        outputs = dict(zip(about["outputs"], session.run(None, inputs)))
        observation, reward, terminated, truncated, _ = environment.step(action_in(environment.action_space, "action", outputs))
        inputs["first"][:] = False
        inputs.update({name: outputs[f"next_{name}"] for name in states})
        total, length, ended = total + float(np.sum(reward)), length + 1, terminated or truncated
        decisions += int(outputs["switch"].any())
    print(f"episode {episode + 1}: return {total:.2f}, length {length}, decisions {decisions}")
