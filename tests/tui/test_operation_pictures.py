"""Pictures of operating: armed, asked, refused, under way, drained, tuning, drift, audit, conflict."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from textual.app import App
from textual.pilot import Pilot

from pdtop.cluster.model import Snapshot
from pdtop.config.save import Conflict
from pdtop.operations.model import Drain, DrainState, View
from pdtop.tui.app import ConsoleApp
from pdtop.tui.options import ConsoleOptions
from tests.tui import fakes, scenes
from tests.tui.fake_gate import FakeGate, drain_plan, draining, last_of_pool, operation, refused
from tests.tui.running import console, settled

Before = Callable[[Pilot[None]], Awaitable[None]]
Compare = Callable[..., bool]

by_size = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda s: f"{s[0]}x{s[1]}")
TO_THE_STALLED = ("tab", "down")


@pytest.fixture(autouse=True)
def _one_clock_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The audit log shows local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def _leaves_with_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console leaves with nothing; the screenshot machinery takes the picture out through the exit."""
    monkeypatch.setattr(ConsoleApp, "exit", App.exit)


def picture(gate: FakeGate, snapshot: Snapshot | None = None, theme: str = "") -> ConsoleApp:
    return console(snapshot or fakes.moment(), ConsoleOptions(theme=theme), gate=gate)


def after(*keys: str) -> Before:
    async def press(pilot: Pilot[None]) -> None:
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await settled(pilot)
        await settled(pilot)

    return press


@by_size
def test_armed(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(picture(FakeGate()), terminal_size=size, run_before=after())


@pytest.mark.parametrize("theme", ["mono", "contrast", "light", "ansi16"])
def test_armed_in_every_theme(snap_compare: Compare, theme: str) -> None:
    assert snap_compare(picture(FakeGate(), theme=theme), terminal_size=(80, 24), run_before=after())


@by_size
def test_arming(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(picture(FakeGate(armed=False)), terminal_size=size, run_before=after("W"))


@by_size
def test_drain_question(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(picture(FakeGate()), terminal_size=size, run_before=after(*TO_THE_STALLED, "d"))


def test_drain_question_without_colour(snap_compare: Compare) -> None:
    app = picture(FakeGate(), theme="mono")
    assert snap_compare(app, terminal_size=(80, 24), run_before=after(*TO_THE_STALLED, "d"))


@by_size
def test_typed_override(snap_compare: Compare, size: tuple[int, int]) -> None:
    gate = FakeGate()
    gate.plans[Drain] = last_of_pool()
    keys = (*TO_THE_STALLED, "d", "tab", *"10.0.2.22:30001")
    assert snap_compare(picture(gate), terminal_size=size, run_before=after(*keys))


@by_size
def test_refused(snap_compare: Compare, size: tuple[int, int]) -> None:
    gate = FakeGate()
    gate.plans[Drain] = refused()
    assert snap_compare(picture(gate), terminal_size=size, run_before=after(*TO_THE_STALLED, "d"))


@by_size
def test_conflict(snap_compare: Compare, size: tuple[int, int]) -> None:
    conflict = Conflict("prefill.cache_aware_threshold", 0.3, 0.35, 0.4)
    gate = FakeGate()
    gate.plans[Drain] = drain_plan(
        title="Set prefill.cache_aware_threshold", conflicts=(conflict,), effects=(), guards=(), diff="",
        rows=(("Now", "0.35"), ("New", "0.4")),
    )  # fmt: skip
    assert snap_compare(picture(gate), terminal_size=size, run_before=after("d"))


@by_size
def test_drain_in_progress(snap_compare: Compare, size: tuple[int, int]) -> None:
    gate = FakeGate(View(read_only=False, drains=(draining(),), operations=(operation(),)))
    assert snap_compare(picture(gate), terminal_size=size, run_before=after(*TO_THE_STALLED))


@by_size
def test_drained(snap_compare: Compare, size: tuple[int, int]) -> None:
    drained = draining(state=DrainState.DRAINED, left=0.0, eta_s=None)
    gate = FakeGate(View(read_only=False, drains=(drained,), operations=(scenes.DONE,)))
    assert snap_compare(picture(gate), terminal_size=size, run_before=after(*TO_THE_STALLED))


@by_size
def test_drain_on_the_worker_screen(snap_compare: Compare, size: tuple[int, int]) -> None:
    gate = FakeGate(scenes.busy())
    gate.entries = scenes.ENTRIES
    keys = (*TO_THE_STALLED, "down", "down", "enter")
    assert snap_compare(picture(gate), terminal_size=size, run_before=after(*keys))


@by_size
def test_operations(snap_compare: Compare, size: tuple[int, int]) -> None:
    app = picture(FakeGate(scenes.busy()))
    assert snap_compare(app, terminal_size=size, run_before=after("o", "down"))


@by_size
def test_deadline(snap_compare: Compare, size: tuple[int, int]) -> None:
    app = picture(FakeGate(scenes.busy()))
    assert snap_compare(app, terminal_size=size, run_before=after("o", "enter"))


@by_size
@pytest.mark.parametrize("changed", [False, True], ids=["before and after", "changed"])
def test_tuning(snap_compare: Compare, size: tuple[int, int], changed: bool) -> None:
    gate = FakeGate(scenes.busy())
    gate.tunable = scenes.FIELDS
    keys = ("t", "down", "plus") if changed else ("t", "down")
    assert snap_compare(picture(gate), terminal_size=size, run_before=after(*keys))


@by_size
def test_weight(snap_compare: Compare, size: tuple[int, int]) -> None:
    app = picture(FakeGate())
    assert snap_compare(app, terminal_size=size, run_before=after(*TO_THE_STALLED, "w", "minus"))


@by_size
def test_drift(snap_compare: Compare, size: tuple[int, int]) -> None:
    app = picture(FakeGate(scenes.busy()), scenes.drifted())
    assert snap_compare(app, terminal_size=size, run_before=after("c"))


@by_size
def test_audit(snap_compare: Compare, size: tuple[int, int]) -> None:
    gate = FakeGate(scenes.busy())
    gate.entries = scenes.ENTRIES
    assert snap_compare(picture(gate), terminal_size=size, run_before=after("l"))


@by_size
def test_hostile_text(snap_compare: Compare, size: tuple[int, int]) -> None:
    gate = FakeGate(scenes.hostile())
    assert snap_compare(picture(gate, fakes.hostile()), terminal_size=size, run_before=after("o"))
