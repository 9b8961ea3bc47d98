"""How long training stands still while a checkpoint is written: buffers as large as the tasks', frame after frame."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from taac import specs
from taac.data_structures import Experience
from taac.replay import ReplayBuffer
from taac.runs.checkpoint import Checkpoints
from taac.runs.frame_chunks import FrameChunks
from taac.specs import TensorSpec

NETWORKS = 6 * 2 * 80_000  # parameters: an actor, two critics and their targets, with Adam's moments


class Buffer(NamedTuple):
    """A replay buffer to try."""

    name: str
    observation: TensorSpec
    action: int
    num_envs: int
    length: int
    interval: int  # frames of each environment between checkpoints
    frames: int  # added in all


BUFFERS = (
    Buffer("Hopper-v5 (1M steps)", TensorSpec((11,)), 3, 1, 1_000_000, 100_000, 1_250_000),
    Buffer("CarRacing-v3 (11 GB)", TensorSpec((96, 96, 3), torch.uint8), 3, 4, 100_000, 2_000, 7_000),
)


def campaign(folder: Path, given: argparse.Namespace, buffers: tuple[Buffer, ...] = BUFFERS) -> list[dict[str, Any]]:
    return [_one(folder / "checkpoints", buffer) for buffer in buffers]


def _one(folder: Path, buffer: Buffer) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    spec = Experience(specs.time_step_spec(buffer.observation, TensorSpec((buffer.action,)), None), ())
    replay = ReplayBuffer(spec, buffer.num_envs, buffer.length)
    frame = specs.zeros(spec, buffer.num_envs)
    chunks, kept = FrameChunks(replay), Checkpoints(folder)
    state = {"networks": torch.zeros(NETWORKS)}
    parts, checkpoints = [], []
    for number in range(1, buffer.frames + 1):
        replay.add(frame)
        start = time.perf_counter()
        if number % buffer.interval == 0:
            kept.save(number, {**state, "replay": replay.state_dict()}, chunks)
            checkpoints.append(time.perf_counter() - start)
        elif chunks.moved_on():
            kept.follow(chunks)
            parts.append(time.perf_counter() - start)
    written = sum(p.stat().st_size for p in folder.iterdir())
    return {
        "buffer": buffer.name,
        "bytes": replay.frame_bytes * replay.size,
        "on the disk": written,
        "checkpoints": checkpoints,
        "parts": parts,
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| buffer | bytes held | checkpoints | longest, s | median, s | parts between | longest, s | median, s |",
        "|---" * 8 + "|",
    ]
    for row in rows:
        cells = [row["buffer"], f"{row['bytes'] / 1e6:.0f} MB"]
        for name in ("checkpoints", "parts"):
            cells += [str(len(row[name])), f"{max(row[name]):.2f}", f"{sorted(row[name])[len(row[name]) // 2]:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def failures(rows: list[dict[str, Any]]) -> int:
    """Checkpoints and parts that took a second or more."""
    return sum(seconds >= 1.0 for row in rows for seconds in (*row["checkpoints"], *row["parts"]))
