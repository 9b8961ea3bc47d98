"""All benchmarks, one after another: `make bench`.

    python -m experiments.benchmarks [--quick] [--peers_python PYTHON] [--out FOLDER]

Prints the table of goals and all figures, and writes them as `bench.md` and `bench.json`.
"""

from __future__ import annotations

import argparse
from typing import Any

from experiments.benchmarks import common, floor, memory, rollout, startup, training, updates


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    given, rest = flags.parse_known_args()

    def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
        """Returns the flags given here, and the defaults of what is a benchmark's own."""
        own = parser.parse_args([])
        return common.defaults(argparse.Namespace(**{**vars(own), **vars(given)}))

    if rest:
        flags.error(
            f"unknown flags {rest}; each benchmark by itself takes more: python -m experiments.benchmarks.updates"
        )
    options = options_of(flags)
    peak = floor.run(options)
    results: list[dict[str, Any]] = [updates.run(options_of(updates.parser()), peak["peak"])]
    results.append(training.run(options_of(training.parser())))
    results.append(rollout.run(options))
    results.append(startup.run(options))
    results.append(memory.run(options_of(memory.parser())))
    common.write([*results, peak], options, "bench")


if __name__ == "__main__":
    main()
