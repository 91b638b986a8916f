"""Makes the pictures of the README from the seeded demo: ``python screenshots/make.py [NAME...]``.

Starts the simulated cluster, lets the console watch it for a while, and saves what it shows as SVG.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from pdtop.cluster.launch import start, watch_file
from pdtop.simulator import demo
from pdtop.simulator.scenarios import Scenario
from pdtop.tui.app import ConsoleApp
from pdtop.tui.options import ConsoleOptions

FOLDER = Path(__file__).parent
SEED = 7


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: what the cluster does, for how long it was watched, and the keys pressed then."""

    name: str
    scenario: Scenario
    size: tuple[int, int]
    seconds: float = 45.0
    keys: tuple[str, ...] = ()
    theme: str = ""


PICTURES = (
    Picture("overview-120x40", "slow-decode", (120, 40)),
    Picture("overview-80x24", "slow-decode", (80, 24)),
    Picture("overview-200x60", "burst", (200, 60)),
    Picture("worker-120x40", "transfer-stall", (120, 40), keys=("end", "enter")),
    Picture("light-120x40", "hot-prefix", (120, 40), theme="light"),
)


async def take(picture: Picture, config: Path) -> None:
    """Watch the running demo and save the picture."""
    watched = watch_file(config)
    monitor = start(replace(watched, targets=replace(watched.targets, cluster="demo")))
    app = ConsoleApp(monitor, ConsoleOptions(theme=picture.theme))
    try:
        async with app.run_test(size=picture.size) as pilot:
            await asyncio.sleep(picture.seconds)
            for key in picture.keys:
                await pilot.press(key)
            await asyncio.sleep(1.5)
            path = FOLDER / f"{picture.name}.svg"
            path.write_text(app.export_screenshot(title="pdtop"), encoding="utf-8")
            print(path)
    finally:
        monitor.stop()


def main() -> None:
    wanted = set(sys.argv[1:])
    for picture in PICTURES:
        if wanted and picture.name not in wanted:
            continue
        with demo.start(3, 4, None, SEED, picture.scenario) as (running, _children):
            asyncio.run(take(picture, Path(running.config)))


if __name__ == "__main__":
    main()
