"""Plays a policy that `taac export` wrote, with numpy, onnxruntime and gymnasium alone.

    taac export --root_dir runs/demo --output car.onnx
    python experiments/onnx_policy.py car.onnx

A policy with a memory, such as TAAC's trajectory, gets back at every step the state that it returned at the last one.
Where `first` is true it begins with its initial state, whatever is passed in.
"""

import json
import sys

import gymnasium
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["taac"])
environment = gymnasium.make(about["environment"])
names = list(about["inputs"])
states = [name for name in names if f"next_{name}" in about["outputs"]]

for episode in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
    inputs = {name: np.zeros((1, *kind["shape"][1:]), kind["dtype"]) for name, kind in about["inputs"].items()}
    inputs["first"][:] = True
    observation, _ = environment.reset(seed=episode)
    total, decisions, length, ended = 0.0, 0, 0, False
    while not ended:
        inputs["observation"][0] = observation
        outputs = dict(zip(about["outputs"], session.run(None, inputs)))
        observation, reward, terminated, truncated, _ = environment.step(outputs["action"][0])
        inputs["first"][:] = False
        inputs.update({name: outputs[f"next_{name}"] for name in states})
        total, length, ended = total + float(reward), length + 1, terminated or truncated
        decisions += int(outputs["switch"].any())
    print(f"episode {episode + 1}: return {total:.2f}, length {length}, decisions {decisions}")
