"""The demo without the console: ``python -m pdtop.simulator --scenario burst``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pdtop.simulator.demo import ENGINES, run
from pdtop.simulator.scenarios import SCENARIOS


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pdtop.simulator", description="a demo cluster, headless")
    parser.add_argument("--prefill", type=int, default=3)
    parser.add_argument("--decode", type=int, default=4)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenario", choices=SCENARIOS, default="steady")
    parser.add_argument("--engine", choices=ENGINES, default="embedded")
    parser.add_argument("--duration", type=float)
    parser.add_argument("--dir", type=Path)
    args = parser.parse_args(argv)
    return run(
        prefill=args.prefill,
        decode=args.decode,
        rate=args.rate,
        seed=args.seed,
        scenario=args.scenario,
        engine=args.engine,
        headless=True,
        duration=args.duration,
        directory=args.dir,
    )


if __name__ == "__main__":
    sys.exit(main())
