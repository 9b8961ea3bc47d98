"""Evidence about a number that was not finite: saved by the run that it stopped, explained by `taac check --batch`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from taac.errors import NotFiniteError
from taac.runs import durable, files, tensor_files
from taac.runs.files import Damaged
from taac.runs.tensor_files import make_manifest, read_entry, read_manifest, write_entry


class Inspection(NamedTuple):
    """The saved evidence."""

    message: str  # message of the error that stopped the run
    env_steps: int  # environment steps at that moment
    evidence: dict[str, torch.Tensor]  # tensors by path


def write(folder: Path, env_steps: int, error: NotFiniteError) -> Path:
    """Saves an error and its evidence in two files, JSON and tensors with checksums; returns the path of the JSON file."""
    tree, tensors = tensor_files.encode({"message": str(error), "env_steps": env_steps, "evidence": error.evidence})
    if not files.check_folder(folder):  # a rank after the first has none before its first checkpoint
        folder.mkdir(parents=True)
    entry = write_entry(folder / f"diverged-{env_steps}.safetensors", tensor_files.pack(tensors))
    path = folder / f"diverged-{env_steps}.json"
    durable.write(path, make_manifest({"inspection": tree, "tensors": entry}))
    return path


def read(path: Path) -> Inspection:
    """Returns what `write` saved. Raises Damaged if the file is something else, or not as it was written."""
    content = read_manifest(path)
    try:
        found = Inspection(**tensor_files.decode(content["inspection"], read_entry(path.parent, content["tensors"])))
        if not all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in found.evidence.items()):
            raise TypeError("evidence that is not tensors")
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(
            f"{path} holds no batch; expected a file diverged-N.json, which a run writes when it stops because a number is "
            f"not finite ({error!r})"
        ) from error
    return found


def describe(found: Inspection) -> list[str]:
    """Returns readable lines: what happened, a table of the fields with their ranges, and where numbers are not finite."""
    lines = [f"at {found.env_steps} environment steps: {found.message}", ""]
    width = min(60, max((len(path) for path in found.evidence), default=0))
    for path, leaf in found.evidence.items():
        shape = f"{list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"
        lines.append(f"{path:<{width}}  {shape:<24} {_range(leaf)}")
    sampled = [path for path in found.evidence if path.startswith("sampled/")]
    spoilt = [path for path, leaf in found.evidence.items() if not bool(leaf.isfinite().all())]
    if not spoilt:
        where = "all of these are finite: only gradients were not"
    elif sampled and not set(spoilt) & set(sampled):
        where = f"the batch as it was sampled is finite: networks or normalisers made the numbers of '{spoilt[0]}'"
    else:
        where = f"the first field that is not finite is '{spoilt[0]}'"
    return [*lines, "", where]


def _range(leaf: torch.Tensor) -> str:
    if not leaf.numel():
        return "empty"
    finite, parts = leaf.isfinite(), []
    if bool(finite.any()):
        values = leaf[finite].double()
        parts.append(f"{values.min().item():.6g} to {values.max().item():.6g}, mean {values.mean().item():.6g}")
    if not bool(finite.all()):
        first = [int(i) for i in torch.unravel_index((~finite).flatten().int().argmax(), leaf.shape)]
        at = f" at {first}" if first else ""
        parts.append(f"NOT FINITE: {int((~finite).sum())} of {leaf.numel()}, the first{at} is {leaf[tuple(first)].item()}")
    return "; ".join(parts)
