"""The console with one worker's screen open, for the tests of that screen and of what it opens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from pdtop.cluster.model import Snapshot
from pdtop.tui.app import ConsoleApp
from pdtop.tui.options import ConsoleOptions
from tests.tui import fakes
from tests.tui.fakes import FakeSource

STALLED = "10.0.2.22:30001"
HOT = "10.0.1.11:30001"
PAGE = Path(__file__).parents[1] / "fixtures/real/sglang-0.5.23+smg-1.13.0/1p1d-load/decode0.metrics.txt"
SIZES = [(80, 24), (120, 40), (200, 60)]


def without(snapshot: Snapshot, key: str) -> Snapshot:
    return replace(
        snapshot, number=snapshot.number + 1, workers=tuple(w for w in snapshot.workers if w.key != key)
    )


@asynccontextmanager
async def opened(
    snapshot: Snapshot,
    key: str = STALLED,
    size: tuple[int, int] = (120, 40),
    pages: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[ConsoleApp, Pilot[None], FakeSource]]:
    source = FakeSource(snapshot, pages)
    app = ConsoleApp(source, ConsoleOptions(), environ={}, clock=lambda: fakes.NOW + 101)
    async with app.run_test(size=size) as pilot:
        app.open_worker(key)
        await pilot.pause()
        yield app, pilot, source
