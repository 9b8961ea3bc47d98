"""What is written into checkpoints to do harm; their checksums are right."""

from __future__ import annotations

import json
import math
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import torch

from experiments.reliability.attacks import Attack
from experiments.reliability.sandbox import ESCAPE, SCRIPT, Sandbox
from experiments.reliability.wild_values import Pickled, mutated
from taac.errors import NotFiniteError
from taac.runs import files, inspection, tensor_files
from taac.runs.tensor_files import make_manifest, read_manifest

RESUMING = ("train", "play")


def _newest(sandbox: Sandbox) -> Path:
    return max((sandbox.run / "checkpoints").glob("*.json"), key=lambda p: int(p.stem))


def manifest(sandbox: Sandbox, rng: random.Random) -> str:
    """One value of a manifest; its checksum is right."""
    path = _newest(sandbox)
    content, about = mutated(read_manifest(path), rng)
    if not isinstance(content, dict):
        content = {"state": content}
    path.write_bytes(make_manifest(content))
    return about


def claims(sandbox: Sandbox, rng: random.Random) -> str:
    """A manifest that names files elsewhere, or claims sizes and numbers that are not."""
    path = _newest(sandbox)
    content = read_manifest(path)
    entry = rng.choice([content["tensors"], *content["frames"]])
    key, value = rng.choice([
        ("name", "../../../../canary/home/240.safetensors"), ("name", str(sandbox.canary / "home" / "240.safetensors")),
        ("name", "/dev/zero"), ("bytes", 10**15), ("bytes", -1), ("name", "240.json"), ("blake2b", ""),
    ])  # fmt: skip
    entry[key] = value
    state = content["state"]
    counts = [(state["collector"], name) for name in ("env_steps", "decisions", "episodes", "num_restarts")]
    counts += [(state["learner"], "num_updates"), (state["update_ratio"], "transitions")]
    for part, name in rng.sample(counts, 2):
        if name not in part:
            raise KeyError(f"checkpoints have no {name}: this attack is none any more")
        part[name] = rng.choice([-1, 10**18, 10**30, 1.5])
    path.write_bytes(make_manifest(content))
    return f"{key} = {value}"


def _sign(path: Path, data: bytes) -> None:
    """Writes the tensors of a manifest, and the manifest so that it agrees."""
    content = read_manifest(path)
    (path.parent / content["tensors"]["name"]).write_bytes(data)
    content["tensors"].update(bytes=len(data), blake2b=files.digest(data))
    path.write_bytes(make_manifest(content))


def tensors(sandbox: Sandbox, rng: random.Random) -> str:
    """One tensor of a checkpoint: other numbers, type or shape; checksums are right."""
    path = _newest(sandbox)
    held = tensor_files.unpack(path.with_suffix(".safetensors").read_bytes(), path)
    name = rng.choice(sorted(held))
    old = held[name]
    how = rng.choice(
        ["nan", "inf", "great", "negative", "longer", "empty", "float64", "int64", "uint8", "gone", "bool"]
    )
    filled = lambda value, other: torch.full_like(old, value if old.is_floating_point() else other)  # noqa: E731
    changed: dict[str, Callable[[], torch.Tensor]] = {
        "nan": lambda: filled(math.nan, 1), "inf": lambda: filled(math.inf, 0), "great": lambda: filled(1e38, 100),
        "negative": lambda: -old if old.dtype != torch.bool else ~old,
        "longer": lambda: torch.cat([old.reshape(-1), old.reshape(-1)]),
        "empty": lambda: old.reshape(-1)[:0], "float64": lambda: old.double(), "int64": lambda: old.nan_to_num().long(),
        "uint8": lambda: old.nan_to_num().to(torch.uint8), "bool": lambda: old.bool(),
    }  # fmt: skip
    if how == "gone":
        del held[name]
    else:
        held[name] = changed[how]()
    _sign(path, tensor_files.pack(held))
    return f"{name}: {how}"


def safetensors_headers(sandbox: Sandbox, rng: random.Random) -> str:
    """A safetensors file whose header claims what is not there; checksums are right."""
    path, name = _newest(sandbox), "x"
    shape, offsets = rng.choice(
        [([10**6, 10**6], [0, 8]), ([2], [0, 2**62]), ([-1], [0, 8]), ([2], [8, 0]), ([2] * 3000, [0, 8])]
    )
    header = json.dumps(
        {name: {"dtype": rng.choice(["F32", "F99", "I64"]), "shape": shape, "data_offsets": offsets}}
    ).encode()
    length = rng.choice([len(header), len(header), 2**62, 0])
    _sign(path, struct.pack("<Q", length) + header + b"\0" * 8)
    return f"shape {shape!r:.30}, offsets {offsets}, header of {length}"


def pickles(sandbox: Sandbox, rng: random.Random) -> str:
    data = pickle.dumps(Pickled())
    name = rng.choice(
        ["checkpoints/240.safetensors", "checkpoint.pt", "checkpoints/240.json", "run.json", "diverged-240.json"]
    )
    if name.endswith(".safetensors"):
        _sign(_newest(sandbox), data)
    else:
        (sandbox.run / name).write_bytes(data)
    if name == "checkpoint.pt":
        for path in (sandbox.run / "checkpoints").glob("*.json"):
            path.unlink()
    return name


def batch(sandbox: Sandbox, rng: random.Random) -> str:
    """What a run that diverged left behind, with one value or tensor changed."""
    evidence = {"sampled/x": torch.tensor([math.nan, 1.0]), f"loss {ESCAPE}": torch.zeros(3, 2, dtype=torch.bool)}
    path = inspection.write(sandbox.run, 240, NotFiniteError(ESCAPE + SCRIPT, evidence))
    content, about = mutated(read_manifest(path), rng) if rng.random() < 0.8 else (read_manifest(path), "as it is")
    path.write_bytes(make_manifest(content if isinstance(content, dict) else {"x": content}))
    return about


CHECKPOINTS = (
    Attack("manifest: wild values, the checksum right", RESUMING, manifest),
    Attack("manifest: files elsewhere and huge claims, the checksum right", RESUMING, claims),
    Attack("tensors: other numbers, types and shapes, checksums right", RESUMING, tensors),
    Attack("safetensors: headers that claim what is not there", RESUMING, safetensors_headers),
    Attack("pickles", ("train", "play", "report", "check"), pickles),
    Attack("the batch of a run that diverged", ("check",), batch),
)
