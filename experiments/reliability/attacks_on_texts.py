"""What is written into the other files of a run to do harm, and into demonstrations."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.reliability.attacks import READERS, Attack, events_name
from experiments.reliability.sandbox import CELL, ESCAPE, MARKER, SCRIPT, Sandbox
from experiments.reliability.wild_values import Pickled, mutated


def _bad_json(rng: random.Random) -> bytes:
    return rng.choice([
        b"[" * 200_000, b'{"a":' * 100_000, b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"", b"null", b"[1e999]", b"NaN", b'{"a": "\xff"}',
        b"\0" * 1000, b"9" * 10_000, b'{"a": ' + b"9" * 5000 + b"}", b'"' + b"x" * (5 << 20) + b'"', b'{"a": 1, "a": 2} x',
    ])  # fmt: skip


def json_syntax(sandbox: Sandbox, rng: random.Random) -> str:
    names = ("run.json", "checkpoints/240.json", "diverged-240.json", "../../../compare.json")
    path, data = sandbox.run / rng.choice(names), _bad_json(rng)
    path.write_bytes(data)
    return f"{path.name}: {data[:30]!r}"


def run_json(sandbox: Sandbox, rng: random.Random) -> str:
    path = sandbox.run / "run.json"
    tree, about = json.loads(path.read_text()), ""
    for _ in range(rng.randint(1, 3)):
        if not isinstance(tree, dict):
            break
        tree, what = mutated(tree, rng)
        about += what + "; "
    path.write_text(json.dumps(tree))
    return about


def names_in_run_json(sandbox: Sandbox, rng: random.Random) -> str:
    """Method, environment and status are shown by reports and pictures."""
    path = sandbox.run / "run.json"
    nested, long = "$" + "{" * 3000 + "}" * 3000 + "$", "x" * 3_000_000
    key = rng.choice(("method", "environment", "status", "error"))
    value = rng.choice((SCRIPT, CELL, ESCAPE, "$\\frac", "a|b", "_x", "![](x)", nested, long))
    about = {**json.loads(path.read_text()), key: value}
    if rng.random() < 0.5:
        about["versions"] = {value: value}
    path.write_text(json.dumps(about))
    return f"{key} = {value!r}"


def evaluations(sandbox: Sandbox, rng: random.Random) -> str:
    path = sandbox.run / "evaluations.csv"
    rows = list(csv.reader(io.StringIO(path.read_text())))
    value = rng.choice(
        [
            "1e300",
            "nan",
            "-inf",
            "9" * 5000,
            CELL,
            SCRIPT,
            ESCAPE,
            "",
            "\0",
            '"',
            "x" * 200_000,
            "1\n2",
            "-5",
            "1e-320",
            "0x1",
        ]
    )
    row = rng.randrange(len(rows))
    rows[row][rng.randrange(len(rows[row]))] = value
    if rng.random() < 0.3:
        rows.insert(1, rows[1][: rng.randrange(4)] * rng.choice((1, 5000)))
    path.write_text("\r\n".join(",".join(row) for row in rows) + "\r\n")
    return f"{value!r:.40} in row {row}"


def _record(data: bytes) -> bytes:
    from tensorboard.summary.writer.record_writer import RecordWriter

    held = io.BytesIO()
    RecordWriter(held).write(data)
    return held.getvalue()


def event_files(sandbox: Sandbox, rng: random.Random) -> str:
    """Heads without records, records of noise, claims of huge tensors, odd tags, steps and times."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

    def event(tag: str = "evaluation/return", **more: Any) -> bytes:
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=10**6)] * 2)
        claimed = TensorProto(dtype=rng.choice([1, 2, 7, 99]), tensor_shape=shape)
        values = [
            Summary.Value(tag=tag, simple_value=rng.choice([1.0, math.nan, 3e38])),
            Summary.Value(tag=tag + "/tensor", tensor=claimed),
        ]
        return _record(Event(summary=Summary(value=values), **more).SerializeToString())

    head = struct.pack("<Q", 0)
    kinds = {
        "alternating heads": (_record(b"")[:12] + b"\0" * 4 + b"\0" * 16) * 4000,
        "heads alone": (head + b"\0" * 4) * 20_000,
        "noise": rng.randbytes(200_000),
        "records of noise": b"".join(_record(rng.randbytes(rng.randint(0, 60))) for _ in range(2000)),
        "odd steps": b"".join(event(step=s) for s in (2**62, -1, 0, 10**15)),
        "odd times": b"".join(event(step=1, wall_time=t) for t in (math.nan, -1e300, 1e300)),
        "odd tags": b"".join(
            event(t, step=5) for t in (SCRIPT, CELL, ESCAPE, "x" * 100_000, "$\\frac", "a\nb", "../../x")
        ),
        "a huge length": struct.pack("<Q", 2**60) + b"\0" * 8,
        "many tags": b"".join(event(f"evaluation/{i}", step=i) for i in range(3000)),
    }
    name = rng.choice(list(kinds))
    number = rng.choice(
        ["9999999999.host", "1.taac-5-0123456789abcdef", events_name(sandbox.run).split("tfevents.")[1]]
    )
    (sandbox.run / f"events.out.tfevents.{number}").write_bytes(kinds[name])
    return name


_NESTED = "create_environment.max_episode_steps = @x/create_experiment()\nx/create_environment.max_episode_steps = None"
_ON_RAY = f"x/create_experiment.collectors = 1\nx/RemoteCollector.launcher = 'ray'\nx/RemoteCollector.ray_address = '{MARKER}://x'"
CONFIGS: tuple[str, ...] = (
    _NESTED, f"{_NESTED}\n{_ON_RAY}", f"{_NESTED}\nx/create_environment.asynchronous = True",
    "create_environment.env_kwargs = {@create_experiment(): 1}", "create_agent.reward_clip = %m\nm = @x/gin.singleton()",
    "create_environment.env_name = 'Ant-v5'\ncreate_environment.env_kwargs = {'xml_file': '/dev/stdin'}",
    f"import {MARKER}", f"from . import {MARKER}", "include 'CANARY/.bashrc'", "include '/dev/zero'", "include 'config.gin'",
    f"create_environment.env_name = '{MARKER}:Evil-v0'", f"create_environment.env_kwargs = {{'config': {{'x': '{MARKER}.X'}}}}",
    "create_experiment.load_from = ('CANARY:actor',)", "create_experiment.demonstrations = 'CANARY/run.json'",
    "x = " + "(" * 100_000, "x = " + "[" * 5_000 + "]" * 5_000, "gamma = 0x" + "f" * 100_000, "gamma = " + "9" * 5000,
    "gamma = %gamma", "a = %b\nb = %a\ngamma = %a", "gamma = 1e999", "gamma = @create_agent()", "gamma = 'x'", "gamma = None",
    "create_agent.algorithm_ctor = @create_agent", "create_agent.algorithm_ctor = @open", "create_agent.algorithm_ctor = 3",
    "SacAlgorithm.td_loss = @SacAlgorithm()", "create_environment.wrappers = (@create_environment,)",
    "create_agent.reward_signals = (@create_agent,)", "hidden_layers = (-5,)", "hidden_layers = 'x'", "hidden_layers = (2.5,)",
    "hidden_layers = ((((3,),),),)", "create_environment.max_episode_steps = -1", "create_environment.num_envs = 'many'",
    "create_environment.env_name = 3", "create_environment.env_name = 'Pendulum-v1\\n'",
    f"create_environment.env_name = '{ESCAPE}'",
    f"create_environment.env_name = '{SCRIPT}'", "create_environment.env_kwargs = {'render_mode': 'human'}", "\0", "=", "@", "%",
    "Trainer.hooks = {'after_evaluation': @create_agent}", "x = '" + "x" * (5 << 20) + "'", "\x1b[2J = 3",
    "x = 1 +", "x.y.z/w = 3",
    "create_environment.env_kwargs = {'g': 1e308}", "create_environment.env_kwargs = {'nothing': 1}", "a" * 100_000 + " = 1",
    "m0 = 1\n" + "".join(f"m{i + 1} = [%m{i}, %m{i}]\n" for i in range(30)), "x = " + "'x' \\\n" * 50_000 + "'y'",
    "\n" * 900_000, "create_agent.algorithm_ctor = @" + "a/" * 400_000,
)  # fmt: skip


def config(sandbox: Sandbox, rng: random.Random) -> str:
    path, line = sandbox.run / "config.gin", rng.choice(CONFIGS).replace("CANARY", str(sandbox.canary / "home"))
    text = path.read_text()
    path.write_text(f"{line}\n{text}" if rng.random() < 0.3 else f"{text}\n{line}\n")
    return f"{line!r:.80}"


def demonstrations(sandbox: Sandbox, rng: random.Random) -> str:
    """A file of demonstrations: bombs, pickles, wrong types, shapes and values."""
    path = sandbox.demonstrations
    with np.load(path) as held:
        arrays = dict(held)
    name = rng.choice(sorted(arrays))
    how = rng.choice(
        ["bomb", "pickle", "claim", "nan", "great", "dtype", "shape", "extra", "gone", "noise", "npy", "text"]
    )
    if how == "bomb":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for key in arrays:
                with file.open(f"{key}.npy", "w") as member:
                    np.lib.format.write_array_header_1_0(
                        member, {"descr": "|u1", "fortran_order": False, "shape": (1 << 28,)}
                    )
                    for _ in range(256):
                        member.write(bytes(1 << 20))
        return how
    if how in ("noise", "npy"):
        path.write_bytes(
            rng.randbytes(10_000) if how == "noise" else np.lib.format.MAGIC_PREFIX + b"\1\0" + b"\0" * 100
        )
        return how
    change: dict[str, Callable[[np.ndarray], Any]] = {
        "pickle": lambda a: np.array([Pickled()], dtype=object), "nan": lambda a: np.full(a.shape, np.nan, np.float32),
        "great": lambda a: np.full(a.shape, 3e38, np.float32),
        "dtype": lambda a: a.astype("complex64") if a.dtype.kind != "U" else a,
        "shape": lambda a: a.reshape(-1)[: a.size // 2], "text": lambda a: np.array(["[" * 100_000]),
        "claim": lambda a: a, "extra": lambda a: a, "gone": lambda a: a,
    }  # fmt: skip
    arrays[name] = change[how](arrays[name])
    if how == "extra":
        arrays["more"] = np.zeros(3)
    if how == "gone":
        del arrays[name]
    np.savez(path, **arrays)
    if how == "claim":  # an array's shape is more than its bytes
        path.write_bytes(path.read_bytes().replace(b"'shape': (", b"'shape': (9", 1))
    return f"{name}: {how}"


TEXTS = (
    Attack("JSON that is none: deep, no text, huge numbers", (*READERS, "check"), json_syntax),
    Attack("run.json: wild values", ("train", "play", "plot", "report", "compare"), run_json),
    Attack(
        "run.json: names that are markup, formulas, control characters",
        ("plot", "report", "compare", "pictures"),
        names_in_run_json,
    ),
    Attack("evaluations.csv: wild values", ("train", "plot", "report"), evaluations),
    Attack("event files", ("train", "plot", "report"), event_files),
    Attack("config.gin: modules, constructors, depth, sizes", ("train", "play", "report", "compare"), config),
    Attack("demonstrations: bombs, pickles, shapes, values", ("demonstrations",), demonstrations),
)
