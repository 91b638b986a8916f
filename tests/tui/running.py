"""The whole console in a test: a frozen clock, a fake source, nothing of the machine's own settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from textual.pilot import Pilot

from pdtop.cluster.model import Snapshot
from pdtop.tui.app import ConsoleApp
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.screens.overview import OverviewScreen
from tests.tui.fakes import FakeSource

if TYPE_CHECKING:
    from pdtop.operations.gate import Gate

#: How much later than its snapshot the picture is taken.
LATER_S = 0.4


def console(
    snapshot: Snapshot | FakeSource,
    options: ConsoleOptions | None = None,
    environ: Mapping[str, str] | None = None,
    gate: Gate | None = None,
) -> ConsoleApp:
    source = snapshot if isinstance(snapshot, FakeSource) else FakeSource(snapshot)
    at = source.current.at
    settings = options or ConsoleOptions(state_dir=Path("/nonexistent"))
    return ConsoleApp(source, settings, gate, environ=environ or {}, clock=lambda: at + LATER_S)


@asynccontextmanager
async def running(
    app: ConsoleApp, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[Pilot[None], OverviewScreen]]:
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, OverviewScreen)
        yield pilot, screen


def screen_text(app: ConsoleApp) -> str:
    """Everything that stands on the screen, line by line."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


def toasts(app: ConsoleApp) -> list[str]:
    return [n.message for n in app._notifications]


async def settled(pilot: Pilot[None]) -> None:
    """Until what was read off the loop has arrived and is shown."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press ``keys``, each after what the one before has set off."""
    for key in keys:
        await pilot.press(key)
        await settled(pilot)
