"""A table that hears late of its new size paints again: what was painted before may be old."""

from __future__ import annotations

import pytest
from textual.geometry import Region

from pdtop.tui.app import ConsoleApp
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.widgets.worker_table import WorkerTable
from tests.tui import fakes


async def test_a_resize_paints_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    app = ConsoleApp(fakes.FakeSource(fakes.calm(1)), ConsoleOptions())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        table = app.screen.query(WorkerTable).first()
        table.render_lines(table.size.region)
        asked: list[tuple[Region, ...]] = []
        monkeypatch.setattr(table, "refresh", lambda *regions, **_: asked.append(regions))
        table.on_resize()
        assert () in asked
