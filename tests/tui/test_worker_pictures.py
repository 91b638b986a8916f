"""Pictures of the worker screen and of the raw series at three sizes."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from textual.app import App
from textual.pilot import Pilot

from pdtop.cluster.model import Snapshot, Worker
from pdtop.tui.app import ConsoleApp
from pdtop.tui.options import ConsoleOptions
from tests.tui import fakes
from tests.tui.fakes import FakeSource
from tests.tui.opened import HOT, PAGE, SIZES, STALLED


@pytest.fixture(autouse=True)
def _leaves_with_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console leaves with nothing; the screenshot machinery takes the picture out through the exit."""
    monkeypatch.setattr(ConsoleApp, "exit", App.exit)


def console(snapshot: Snapshot, theme: str = "", pages: dict[str, str] | None = None) -> ConsoleApp:
    drawn = replace(snapshot, workers=tuple(replace(w, trends=trends_of(w)) for w in snapshot.workers))
    options = ConsoleOptions(theme=theme)
    return ConsoleApp(FakeSource(drawn, pages), options, environ={}, clock=lambda: fakes.NOW + 101)


def trends_of(worker: Worker) -> dict[str, tuple[float | None, ...]]:
    """Fifteen minutes: a calm, a rise, a gap where nothing was read."""
    peaks = {
        "ttft": 1.6,
        "tpot": 0.044,
        "queue_time": 3.5,
        "tokens": 2400.0,
        "running": 17.0,
        "backlog": 44.0,
        "kv": 0.9,
    }

    def at(tick: int, peak: float) -> float | None:
        wave = 0.4 + 0.08 * math.sin(tick / 23) + (0.45 * ((tick - 600) / 300) if tick > 600 else 0.0)
        return None if 380 <= tick < 440 else peak * wave

    return {
        name: tuple(at(tick, peak) for tick in range(900))
        for name, peak in peaks.items()
        if name in worker.trends
    }


def after(*keys: str, key: str = STALLED) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def run(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, ConsoleApp)
        app.open_worker(key)
        await pilot.pause()
        await pilot.press(*keys)

    return run


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_decode_worker(size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(console(fakes.ranked()), terminal_size=size, run_before=after())


@pytest.mark.parametrize("theme", ["dark", "mono"])
def test_prefill_worker(theme: str, snap_compare: Callable[..., bool]) -> None:
    app = console(fakes.moment(), theme)
    assert snap_compare(app, terminal_size=(120, 40), run_before=after(key=HOT))


def test_dead_worker(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(console(fakes.all_down()), terminal_size=(80, 24), run_before=after())


def test_lower_half_of_the_page(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(console(fakes.ranked()), terminal_size=(80, 24), run_before=after("end"))


@pytest.mark.parametrize("size", SIZES[:2], ids=lambda s: f"{s[0]}x{s[1]}")
def test_raw_series(size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    app = console(fakes.moment(), pages={STALLED: PAGE.read_text()})
    assert snap_compare(app, terminal_size=size, run_before=after("slash", *"kv", "enter", "down", "down"))
