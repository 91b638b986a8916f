"""Makes the pictures of the README from the seeded demo: ``python screenshots/make.py [NAME...]``.

Starts the simulated cluster, lets the console watch it and operate on it, and saves what it shows as SVG.
``NAME`` is a picture (``overview-120x40``) or a story, whose pictures are made together: ``ops-drain`` (about
three minutes) and ``ops-tune`` (about seven: before and after need minutes on both sides).
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from unittest.mock import patch

from textual.pilot import Pilot
from textual.widgets import Button, Input

from pdtop.cluster.launch import start, watch_file
from pdtop.operations.arming import Arming
from pdtop.operations.model import DrainState, Phase, View
from pdtop.operations.operator import Operator
from pdtop.simulator import demo
from pdtop.simulator.scenarios import Scenario
from pdtop.tui.app import ConsoleApp
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.screens.question import QuestionScreen

FOLDER = Path(__file__).parent
SEED = 7
#: An operator's moment is shown in a small and in a comfortable terminal.
SIZES = ((80, 24), (120, 40))
#: What is waited for comes sooner, or there is no picture.
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: what the cluster does, for how long it was watched, and the keys pressed then."""

    name: str
    scenario: Scenario
    size: tuple[int, int]
    seconds: float = 45.0
    keys: tuple[str, ...] = ()
    theme: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """A console with its gate over a running demo."""

    app: ConsoleApp
    pilot: Pilot[None]
    gate: Operator
    config: Path

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.app.workers.wait_for_complete()
        await asyncio.sleep(0.3)

    async def until(self, what: str, reached: Callable[[], object]) -> None:
        """Wait for ``reached``; raises TimeoutError with ``what``."""
        for _ in range(round(PATIENCE_S * 10)):
            if reached():
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{what}: {self.gate.view()}")

    async def until_view(self, what: str, reached: Callable[[View], object]) -> None:
        await self.until(what, lambda: reached(self.gate.view()))

    async def quiet(self) -> None:
        """Until nothing is under way; then forget what has ended."""
        await self.until_view("an end of all operations", lambda v: all(o.ended for o in v.operations))
        self.gate.dismiss()
        await asyncio.sleep(1.5)

    async def question(self) -> QuestionScreen:
        """The question that stands on the screen, when its plan is made."""
        await self.until("a question", lambda: isinstance(self.app.screen, QuestionScreen))
        screen = cast(QuestionScreen, self.app.screen)
        await self.until("a plan", lambda: screen.plan is not None)
        await self.app.workers.wait_for_complete()
        return screen

    async def confirm(self) -> None:
        """Yes, with what must be typed for it."""
        screen = await self.question()
        if screen.plan is not None:
            for field, word in zip(
                screen.query(".override").results(Input), screen.plan.overrides, strict=True
            ):
                field.value = word
        await asyncio.sleep(0.3)
        screen.query_one("#yes", Button).focus()
        await self.press("enter")

    async def save(self, name: str) -> None:
        """The same moment at both sizes."""
        for width, height in SIZES:
            await self.pilot.resize_terminal(width, height)
            await asyncio.sleep(0.5)
            write(self.app, f"{name}-{width}x{height}")


@dataclass(frozen=True, slots=True)
class Story:
    """What an operator does, and the pictures on the way."""

    name: str
    scenario: Scenario
    play: Callable[[Stage], Awaitable[None]]
    rate: float | None = None  # requests a second; None: as the demo has it


async def drain_story(stage: Stage) -> None:
    """One decode worker is slow: it is drained. Then prefill workers, up to the last one; one comes back."""
    await asyncio.sleep(60)
    await stage.press("tab", "end")
    await stage.save("ops-armed")
    await stage.press("d")
    await stage.question()
    await stage.save("ops-drain-question")
    await stage.confirm()
    await stage.until_view("a drain", lambda v: any(d.left and d.left < 12 for d in v.drains))
    await stage.save("ops-draining")
    await stage.until_view("its end", lambda v: all(d.state is DrainState.DRAINED for d in v.drains))
    await asyncio.sleep(1.5)
    await stage.save("ops-drained")
    await stage.press("tab", "home", "m", "m", "d")
    await stage.confirm()
    await stage.until_view("two more drains", lambda v: len(v.drains) == 3)
    await stage.until_view("their end", lambda v: all(o.phase is Phase.ENDED for o in v.operations))
    await stage.press("end", "d")
    await stage.question()
    await stage.save("ops-refused")
    await stage.press("escape", "home", "U")
    await stage.confirm()
    await stage.quiet()
    await stage.press("l", "end")
    await stage.save("ops-log")


async def tune_story(stage: Stage) -> None:
    """One prefill worker has most of the load: affinity gives way sooner. Then others edit the file, too."""
    await asyncio.sleep(200)
    await stage.press("t", "down", "e", *["backspace"] * 4, *"0.3", "enter")
    await stage.confirm()
    await stage.quiet()
    await asyncio.sleep(170)
    await stage.save("ops-tuning")

    await stage.press("down", "minus", "enter")
    await stage.question()
    edit(stage.config, r"load_balance_threshold = .*", "load_balance_threshold = 0.6")
    await stage.confirm()
    await stage.until("their side", lambda: isinstance(stage.app.screen, QuestionScreen))
    await stage.question()
    await stage.save("ops-conflict")
    await stage.press("enter", "escape", "escape")
    await stage.quiet()

    edit(stage.config, r"bootstrap_port = \d+", "bootstrap_port = 8998")
    edit(stage.config, r"port = \d+", "port = 30000")
    await asyncio.sleep(8)
    await stage.press("c")
    await stage.save("ops-drift")


PICTURES = (
    Picture("overview-120x40", "slow-decode", (120, 40)),
    Picture("overview-80x24", "slow-decode", (80, 24)),
    Picture("overview-200x60", "burst", (200, 60)),
    Picture("worker-120x40", "transfer-stall", (120, 40), keys=("end", "enter")),
    Picture("light-120x40", "hot-prefix", (120, 40), theme="light"),
)
STORIES = (
    Story("ops-drain", "slow-decode", drain_story),
    Story("ops-tune", "hot-prefix", tune_story, rate=2.4),  # so that the hot worker keeps up, just
)


def edit(config: Path, pattern: str, replacement: str) -> None:
    """Somebody edits the file by hand: the first line that matches."""
    text = config.read_text(encoding="utf-8")
    config.write_text(re.sub(pattern, replacement, text, count=1), encoding="utf-8")


def write(app: ConsoleApp, name: str) -> None:
    path = FOLDER / f"{name}.svg"
    path.write_text(app.export_screenshot(title="pdtop"), encoding="utf-8")
    print(path, flush=True)


async def take(picture: Picture, config: Path) -> None:
    """Watch the running demo and save the picture."""
    monitor = start(watch_file(config))
    app = ConsoleApp(monitor, ConsoleOptions(theme=picture.theme))
    try:
        async with app.run_test(size=picture.size) as pilot:
            await asyncio.sleep(picture.seconds)
            for key in picture.keys:
                await pilot.press(key)
            await asyncio.sleep(1.5)
            write(app, picture.name)
    finally:
        monitor.stop()


@asynccontextmanager
async def operated(config: Path) -> AsyncIterator[Stage]:
    """An armed console. Who operates is not whoever makes the pictures."""
    monitor = start(watch_file(config))
    with (
        tempfile.TemporaryDirectory() as state,
        patch("pdtop.operations.origin._user", return_value="anna"),
        patch("socket.gethostname", return_value="jump-1"),
    ):
        gate = Operator(monitor, path=config, arming=Arming(False, "--write"), root=Path(state))
        app = ConsoleApp(monitor, ConsoleOptions(state_dir=Path(state)), gate)
        try:
            async with app.run_test(size=SIZES[-1]) as pilot:
                yield Stage(app, pilot, gate, config)
        finally:
            gate.close()
            monitor.stop()


async def play(story: Story, config: Path) -> None:
    async with operated(config) as stage:
        await story.play(stage)


def main() -> None:
    wanted = set(sys.argv[1:])
    for one in (*PICTURES, *STORIES):
        if wanted and one.name not in wanted:
            continue
        rate = one.rate if isinstance(one, Story) else None
        with (
            tempfile.TemporaryDirectory() as parent,  # the cluster is called after the folder in it
            demo.start(3, 4, rate, SEED, one.scenario, Path(parent) / "demo") as (running, _children),
        ):
            config = running.config
            asyncio.run(take(one, config) if isinstance(one, Picture) else play(one, config))


if __name__ == "__main__":
    main()
