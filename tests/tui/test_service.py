"""Beside a service the console can be armed; that somebody else tells the routers stands on the screen."""

from __future__ import annotations

import pytest

from pdtop.operations.model import LockHolder, View
from tests.tui import fakes
from tests.tui.fake_gate import FakeGate
from tests.tui.running import console, press, running, screen_text, toasts

SERVICE = LockHolder("anna", "jump-1", 4711, fakes.NOW, service=True)
TOLD = "◌ service  anna@jump-1's service tells the routers"


@pytest.mark.parametrize("read_only", [True, False])
async def test_that_a_service_tells_the_routers_stands_on_the_screen(read_only: bool) -> None:
    app = console(fakes.moment(), gate=FakeGate(View(read_only=read_only, holder=SERVICE)))
    async with running(app, (80, 24)) as (pilot, screen):
        assert TOLD in screen_text(app)
        await press(pilot, "u")
        said = ["read-only: W arms this console (or start it with --write)"] if read_only else []
        assert toasts(app) == said
        assert (app.screen is screen) is read_only
