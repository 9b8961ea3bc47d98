"""What must never cost a run a bit, hang, or touch what is not its own, tried many times.

    python -m experiments.reliability [--parts kills,damage,...] [--kills 6] [--seed 0] [--out FOLDER]
    python -m experiments.reliability --quick

Prints tables and writes them as `PART.md` and `PART.json`; the exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

PARTS = ("kills", "misbehaving", "damage", "disk", "stall")
SIZES = {"kills": (6, 2), "damages": (520, 14), "every": (1, 60)}  # as a rule, and with --quick


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--parts", help=f"which, by comma; all without: {','.join(PARTS)}")
    flags.add_argument("--kills", type=int, help="interruptions of each setting")
    flags.add_argument("--damages", type=int, help="damaged files")
    flags.add_argument("--every", type=int, help="the disk is full at every n-th call")
    flags.add_argument("--quick", action="store_true", help="a slice of each part but stall: minutes")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--out", type=Path, default=Path("runs/reliability"))
    given = flags.parse_args()
    for name, sizes in SIZES.items():
        if getattr(given, name) is None:
            setattr(given, name, sizes[given.quick])
    given.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in given.parts.split(",") if given.parts else PARTS[: -1 if given.quick else None]:
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
