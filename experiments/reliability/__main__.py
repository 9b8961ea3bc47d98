"""Kills, damaged files and full disks: what must never cost a run a bit, tried many times.

    python -m experiments.reliability [--parts kills,damage,disk,stall] [--kills 204] [--damages 520] [--seed 0] [--out FOLDER]

Prints tables and writes them as `reliability.md` and `reliability.json`; the exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

PARTS = ("kills", "damage", "disk", "stall")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--parts", default=",".join(PARTS), help="which, by comma")
    flags.add_argument("--kills", type=int, default=204)
    flags.add_argument("--damages", type=int, default=520)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--out", type=Path, default=Path("runs/reliability"))
    given = flags.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in given.parts.split(","):
        part = importlib.import_module(f"experiments.reliability.{name}")
        results = part.campaign(given.out / name, given)
        lines = [f"## {name}", "", *part.table(results), ""]
        print("\n".join(lines), flush=True)
        (given.out / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")
        (given.out / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        failed += part.failures(results)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
