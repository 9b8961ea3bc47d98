"""What `fuzz` reads: of each kind of file, a strategy that writes a damaged or hostile one, and all of its readers."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tensorboard.summary.writer.record_writer import RecordWriter

from taac import configuration, registry
from taac.analysis.readers import events, run_records
from taac.analysis.report.text import missing_warnings
from taac.analysis.report.verdicts import load_anchors
from taac.campaigns import time_left
from taac.campaigns.run import Run
from taac.demonstrations import episode_files
from taac.environments.create import create_environment
from taac.errors import TaacError
from taac.runs import files, inspection, layout, tensor_files
from taac.runs.checkpoint import Checkpoints
from taac.runs.run_folder import RunFolder

Drawn = Callable[[], None]  # writes what was drawn
Kind = tuple[st.SearchStrategy[Drawn], Callable[[], object]]

WORDS = [
    "1e999", "-1e300", "1e-320", "nan", "inf", "-0", "9" * 400, "9" * 5000, "0x" + "f" * 9000, "[" * 20_000, "(" * 200,
    "{" * 500, "-" * 2000 + "1", '"', "'", "'''", "\\", "\n", "\r", "\0", "\ud800", "\u2028", "%x", "@x()", "@a/b.c()",
    "x" * 100_000, "{[]: 1}", "import os", "from os import path", "include '/etc/passwd'", "1j", "=", "#", ",", ":", "", " ",
    "True", "None", "lambda: 0", "$", "../../x", "/dev/zero", "1_0", "\ufeff", "b'x'", "'a' 'b'", "1if 1else 2", "%" * 50,
    "@" * 50, "99999999999999999999",
]  # fmt: skip
FLOATS = st.floats() | st.sampled_from([1e308, -1e308, 1e-320, 2.0**63, 2.0**53 + 2, -1.0, 0.5])
ODD = [10**400, -(10**400), 2**63, -(2**63) - 1, "x" * 100_000, "../x", "1.safetensors", "$tensor", []]
NAMES = st.text(max_size=5) | st.sampled_from(["$tensor", "$items", "$tuple"])
TEXTS = st.text(st.characters(codec=None), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | FLOATS | st.integers() | TEXTS | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


# Mutations ---------------------------------------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes changed, put in, taken out, repeated, or the file cut."""
    data = whole
    for _ in range(draw(st.integers(1, 4))):
        at, n = draw(st.integers(0, len(data))), draw(st.integers(0, 40))
        piece = draw(st.binary(max_size=12) | st.sampled_from([b"\0" * 64, b"\xff" * 12, b"\xff", data[at : at + n]]))
        data = (
            data[:at]
            + piece * draw(st.sampled_from([1, 1, 3, 500]))
            + data[at + draw(st.sampled_from([0, len(piece), n])) :]
        )
    return data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data


@st.composite
def reworded(draw: st.DrawFn, text: str) -> bytes:
    """A text with words of it replaced by words that are hard to read."""
    parts = re.split(r"(\W)", text)
    for _ in range(draw(st.integers(1, 4))):
        parts[draw(st.integers(0, len(parts) - 1))] = draw(st.sampled_from(WORDS) | st.text(max_size=5))
    return "".join(parts).encode("utf-8", "surrogatepass")


@st.composite
def revalued(draw: st.DrawFn, content: Any) -> Any:
    """JSON with values of it replaced, taken out, or put under other names."""
    tree = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(1, 3))):
        place: Any = tree
        while isinstance(place, (dict, list)) and place:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            inner = place[key]
            if not isinstance(inner, (dict, list)) or not inner or draw(st.integers(0, 3)) == 0:
                if draw(st.integers(0, 4)) == 0:
                    del place[key]
                else:
                    place[key] = draw(VALUES)
                break
            place = inner
    return draw(VALUES) if draw(st.integers(0, 20)) == 0 else tree


def dumped(tree: Any) -> bytes:
    with _long_numbers():
        return json.dumps(tree).encode()


@contextlib.contextmanager
def _long_numbers() -> Iterator[None]:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def json_bytes(content: Any) -> st.SearchStrategy[bytes]:
    whole = json.dumps(content, indent=1)
    deep = st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe{}", b"", b"NaN", b"[1]" * 3])
    return st.one_of(damaged(whole.encode()), reworded(whole), revalued(content).map(dumped), deep)


def writes(path: Path, contents: st.SearchStrategy[bytes]) -> st.SearchStrategy[Drawn]:
    return contents.map(lambda content: lambda: _put(path, content))


def _put(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def attempts(*readers: Callable[[], object]) -> Callable[[], None]:
    """All readers, each of which may refuse; refuses if one did."""

    def read() -> None:
        refused: TaacError | None = None
        for reader in readers:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    reader()
            except TaacError as error:
                str(error).encode("utf-8", "backslashreplace")
                refused = error
        if refused is not None:
            raise refused

    return read


# Kinds -------------------------------------------------------------------------------------------------------------------

GIN = """\
# Macros:
num_env_steps = 1000
num_envs = 2
gamma = 0.99
hidden_layers = (64, 64)
create_environment.env_name = 'Pendulum-v1'
create_environment.num_envs = %num_envs
create_environment.env_kwargs = {'g': 9.8}
create_environment.wrappers = \\
    ()
create_agent.algorithm_ctor = @SacAlgorithm
create_experiment.seed = 3
Intervals.num_env_steps = %num_env_steps
UpdateRatio.unroll_length = 1
Learner.learning_rate = 3e-4
"""
ABOUT = {
    "status": "finished", "end": "2024-01-01", "resumed": [{"time": "x", "env_steps": 100}], "diverged": None, "error": None,
    "method": "sac", "seed": 3, "environment": "Pendulum-v1", "versions": {"taac": "0.1.0", "torch": None},
}  # fmt: skip
ROW = ",".join("1" for _ in layout.COLUMNS)
TABLE = ",".join(layout.COLUMNS) + "\r\n" + "".join(f"{step}{ROW[1:]}\r\n" for step in (100, 200, 300))


def a_run(folder: Path) -> Path:
    run = folder / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps(ABOUT))
    (run / "config.gin").write_text(GIN)
    (run / "evaluations.csv").write_text(TABLE)
    return run


def _record(run: Path) -> None:
    record = run_records.read(run, run.parent)
    for scalar in record.scalars.values():
        events.flaws(scalar)
    text = json.dumps(
        [record.method, record.task, record.seed, record.status, record.budget, record.problems, record.notes]
    )
    text.encode()
    assert record.update_ratio is None or math.isfinite(record.update_ratio)
    assert len(text) < 100_000, "what is said of a run grows with what is in it"


def _warned(warnings: list[str]) -> None:
    text = json.dumps(warnings, ensure_ascii=False)
    text.encode()
    assert len(text) < 100_000, "what is said of a record grows with what is in it"


def run_json(folder: Path) -> Kind:
    run = a_run(folder)
    planned = Run("Pendulum-v1", "sac", 3, run, ())
    readers = attempts(
        lambda: _record(run), RunFolder(run).read_run, planned.finished, lambda: RunFolder(run).open(GIN)
    )
    return writes(run / "run.json", json_bytes(ABOUT)), readers


def config_gin(folder: Path) -> Kind:
    run = a_run(folder)
    path = run / "config.gin"
    registry.register()
    asked = configuration.load([str(path)])

    def held() -> configuration.ReadFile:
        return configuration.ReadFile(path, files.read_text(path, files.MAX_CONFIG_BYTES))

    readers = attempts(
        lambda: _record(run),
        lambda: configuration.load_untrusted(held()).check_macros(),
        lambda: asked.differences(configuration.read_held(held(), asked.imports)),
        lambda: RunFolder(run).open(GIN),
        lambda: time_left.read_pace(run, 0.0),
    )
    return writes(run / "config.gin", damaged(GIN.encode()) | reworded(GIN)), readers


def evaluations_csv(folder: Path) -> Kind:
    run = a_run(folder)
    readers = attempts(lambda: _record(run), lambda: time_left.read_pace(run, 0.0))
    return writes(run / "evaluations.csv", damaged(TABLE.encode()) | reworded(TABLE)), readers


def event_files(folder: Path) -> Kind:
    from taac.training.summaries import SummaryWriter

    run = a_run(folder)
    writer = SummaryWriter(folder, purge_step=0)
    for step in range(4):
        writer.scalars({"loss/total": 1.0, "rollout/return": float(step)}, step)
    writer.text("config", "text")
    writer.hyper_parameters({"a": 1, "b": "c"})
    writer.close()
    (path,) = folder.glob("events.*")
    whole = path.read_bytes()
    path.unlink()
    found = [path for path in folder.iterdir() if path.is_dir()]  # folders of hyper-parameters, if any
    assert found == [run] or found
    (run / "events.out.tfevents.1").write_bytes(whole)
    payloads = [event.SerializeToString() for event in events._events(whole)]

    def assembled(parts: list[bytes]) -> bytes:
        held = io.BytesIO()
        for part in parts:
            RecordWriter(held).write(part)
        return held.getvalue()

    payload = st.sampled_from(payloads).flatmap(lambda p: damaged(p) | st.just(p)) | st.binary(max_size=80)
    contents = damaged(whole) | st.lists(payload, min_size=1, max_size=5).map(assembled)
    return writes(run / "events.out.tfevents.1", contents), attempts(lambda: _record(run))


def compare_json(folder: Path) -> Kind:
    run = {
        "task": "T",
        "method": "m",
        "seed": 0,
        "folder": "R/T/m/seed_0",
        "log": "l",
        "status": "failed",
        "attempts": 1,
        "error": None,
    }
    content = {"updated": "2024-01-01", "finished": 1, "runs": [run, run]}
    return writes(folder / layout.COMPARISON, json_bytes(content)), attempts(
        lambda: _warned(missing_warnings(folder, []))
    )


def anchors_json(folder: Path) -> Kind:
    content = {
        "version": "1",
        "tasks": {"Hopper-v5": {"y0": 18.0, "y1": 3800.0, "source": "x"}, "T": {"y0": 0, "y1": 1}},
    }
    path = folder / "anchors.json"
    return writes(path, json_bytes(content)), attempts(lambda: load_anchors(path))


def demonstrations(folder: Path) -> Kind:
    environment = create_environment("Pendulum-v1")
    path = folder / "demonstrations.npz"
    frames = 5
    arrays: dict[str, np.ndarray] = {
        "step_type": np.array([0, 1, 1, 1, 2], dtype=np.uint8), "reward": np.zeros(frames, dtype=np.float32),
        "discount": np.ones(frames, dtype=np.float32), "observation": np.zeros((frames, 3), dtype=np.float32),
        "prev_action": np.zeros((frames, 1), dtype=np.float32), "duration": np.array([0, 1, 1, 1, 1], dtype=np.int16),
    }  # fmt: skip
    meta = {
        "format": 1,
        "environment": "Pendulum-v1",
        **environment.described_spaces(),
        "episodes": 1,
        "transitions": 4,
    }

    def file_of(meta: Any, arrays: dict[str, np.ndarray]) -> bytes:
        if isinstance(meta, dict):
            meta = {**meta, "checksum": episode_files._checksum(arrays)}
        held = io.BytesIO()
        np.savez(held, meta=np.frombuffer(dumped(meta), dtype=np.uint8), **arrays)
        return held.getvalue()

    whole = file_of(meta, arrays)
    path.write_bytes(whole)
    assert len(episode_files.read(str(path), environment)) == 1

    @st.composite
    def rearranged(draw: st.DrawFn) -> bytes:
        changed = {name: array.copy() for name, array in arrays.items()}
        for _ in range(draw(st.integers(1, 3))):
            name = draw(st.sampled_from(list(changed)))
            array = changed[name]
            how = draw(st.integers(0, 3))
            if how <= 1 and array.size:
                with np.errstate(all="ignore"):
                    value = draw(FLOATS if array.dtype.kind == "f" else st.integers(-300, 300))
                    array.reshape(-1)[draw(st.integers(0, array.size - 1))] = np.array(value).astype(array.dtype)
            elif how == 2:
                kind = draw(st.sampled_from(["f4", "f8", "i2", "u1", "?", "U3"]))
                with np.errstate(all="ignore"), contextlib.suppress(ValueError):  # "1.0" is no int
                    changed[name] = array[: draw(st.integers(0, frames))].astype(kind)
            else:
                changed[name] = array.reshape(draw(st.sampled_from([(-1,), (1, -1), (-1, 1, 1)])))
        return file_of(meta, changed)

    contents = damaged(whole) | rearranged() | revalued(meta).map(lambda held: file_of(held, arrays))
    return writes(path, contents), attempts(lambda: episode_files.read(str(path), environment))


def manifests(folder: Path) -> Kind:
    import torch

    kept = Checkpoints(folder / "checkpoints")
    kept.save(
        100, {"agent": {"x": torch.zeros(2)}, "counters": {"updates": 3}, "recent": [(1, 2.0)], "evaluation": None}
    )
    path = kept.path / "100.json"
    whole = path.read_bytes()
    content = tensor_files.read_manifest(path)
    tensors = (kept.path / "100.safetensors").read_bytes()

    def read() -> None:
        Checkpoints(kept.path).check_format()
        Checkpoints(kept.path)._remember()
        with contextlib.suppress(TaacError):
            inspection.read(path)
        kept.read(100)

    def with_checksum(held: Any) -> bytes:
        with _long_numbers():
            return tensor_files.make_manifest(held)

    version = tensor_files.FORMAT
    deep = st.sampled_from([b"[" * 50_000, b'{"a":' * 50_000]).map(
        lambda body: (
            json.dumps({"taac_checkpoint": version, "blake2b": tensor_files._digest(version, body)}).encode() + b"\n" + body
        )
    )
    changed = writes(path, damaged(whole) | revalued(content).map(with_checksum) | deep)

    def with_tensors(data: bytes) -> Drawn:
        entry = {"name": "100.safetensors", "bytes": len(data), "blake2b": files.digest(data)}

        def write() -> None:
            _put(kept.path / "100.safetensors", data)
            _put(path, tensor_files.make_manifest({**content, "tensors": entry}))

        return write

    def restored(drawn: Drawn) -> Drawn:
        def write() -> None:
            _put(kept.path / "100.safetensors", tensors)
            drawn()

        return write

    return changed.map(restored) | damaged(tensors).map(with_tensors), attempts(read)


KINDS: dict[str, Callable[[Path], Kind]] = {
    "run.json": run_json,
    "config.gin": config_gin,
    "evaluations.csv": evaluations_csv,
    "event files": event_files,
    "compare.json": compare_json,
    "anchors": anchors_json,
    "demonstrations": demonstrations,
    "checkpoint manifests": manifests,
}
