"""The screens of operations: weights, settings, drift, the log, a worker's events; at every size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdtop.operations.model import Apply, Restart, SetValue, SetWeight, UnsetValue
from tests.tui import fakes, scenes
from tests.tui.fake_gate import FakeGate
from tests.tui.running import console, press, running, screen_text, settled, toasts

SIZES = [(80, 24), (120, 40), (200, 60), (40, 10), (20, 5)]
KEYS = [("d",), ("w",), ("W",), ("t", "e"), ("c",), ("l", "slash"), ("o",), ("enter",)]


async def test_w_edits_the_weight_by_steps_and_exactly() -> None:
    gate = FakeGate()
    app = console(fakes.moment(), gate=gate)
    async with running(app, (80, 24)) as (pilot, _):
        await press(pilot, "tab", "w")
        said = screen_text(app)
        assert "26% of its pool's requests now" in said
        assert "no effect here" in said
        assert "10.0.2.22:30001" in said.split("OTHERS")[1]
        await press(pilot, "minus", "minus", "plus", "enter")
        assert gate.asked == [SetWeight("10.0.2.21:30001", 0.9)]
        await press(pilot, "escape", "w", "backspace", *"nan", "enter")
        assert toasts(app) == ["nan is no weight: a number, 0 or more"]
        await press(pilot, "w", "enter")
        assert len(gate.asked) == 1, "the same weight is no change"


async def test_settings_change_by_step_by_typing_and_by_list() -> None:
    gate = FakeGate()
    gate.tunable = scenes.FIELDS
    app = console(fakes.moment(), gate=gate)
    async with running(app, (80, 24)) as (pilot, _):
        await press(pilot, "t", "down", "plus", "plus")
        assert "0.3 → 0.40" in screen_text(app)
        await press(pilot, "enter", "escape")
        assert gate.asked == [SetValue(("prefill", "cache_aware_threshold"), "0.40")]
        await press(pilot, "escape")
        assert "→" not in screen_text(app)
        await press(pilot, "enter", "backspace", "backspace", "backspace", *"30", "enter", "escape")
        assert gate.asked[1:] == [SetValue(("prefill", "cache_aware_threshold"), "30")]
        await press(pilot, "up", "enter", "home", "enter", "escape")
        assert gate.asked[2:] == [SetValue(("prefill", "policy"), "random")]
        await press(pilot, "x")
        assert gate.asked[3:] == [UnsetValue(("prefill", "policy"))]


async def test_a_started_change_is_no_longer_pending_and_the_new_value_is_read() -> None:
    gate = FakeGate()
    gate.tunable = scenes.FIELDS
    app = console(fakes.moment(), gate=gate)
    async with running(app, (80, 24)) as (pilot, _):
        await press(pilot, "t", "down", "plus", "enter")
        gate.tunable = tuple(
            replace(f, value="0.35") if f.path[-1] == "cache_aware_threshold" else f for f in scenes.FIELDS
        )
        await press(pilot, "right", "enter")
        said = screen_text(app)
        assert "Affinity up to spread       0.35" in said
        assert "→" not in said.split("DECODE")[0]


async def test_drift_applies_prunes_and_restarts_after_questions() -> None:
    gate = FakeGate(scenes.busy())
    app = console(scenes.drifted(), gate=gate)
    async with running(app, (80, 24)) as (pilot, _):
        await press(pilot, "c")
        said = screen_text(app)
        assert "▲ weight: config says 0.5, router-0 says 1" in said
        assert "http://10.0.1.11:30001 8998" in said
        await press(pilot, "a", "escape", "A", "escape", "R")
        assert gate.asked == [Apply(False), Apply(True), Restart()]


async def test_the_log_is_filtered_and_the_worker_screen_shows_its_own_events() -> None:
    gate = FakeGate(scenes.busy())
    gate.entries = scenes.ENTRIES
    app = console(fakes.moment(), gate=gate)
    async with running(app, (120, 40)) as (pilot, screen):
        await press(pilot, "l")
        said = screen_text(app)
        assert "set prefill.cache_aware_threshold  0.3 → 0.35  done" in said
        assert "router-0 DELETE /workers/7f3a 202" in said
        await press(pilot, "slash", *"anna set", "enter")
        assert "▲ drain" not in screen_text(app)
        await press(pilot, "escape", "escape")
        assert app.screen is screen
        await press(pilot, "tab", "down", "enter")
        said = screen_text(app)
        assert "LAST EVENTS" in said
        assert "drain 10.0.2.22:30001  partly done" in said
        assert "set prefill" not in said
        assert "✓ healthy at router-0" in said


async def test_the_palette_has_the_operations_of_the_screen_below_it() -> None:
    gate = FakeGate()
    app = console(fakes.moment(), gate=gate)
    async with running(app, (120, 60)) as (pilot, _):
        await press(pilot, "tab", "down", "colon")
        said = screen_text(app)
        for words in ("drain", "undrain", "tune", "undo", "disarm", "apply", "restart"):
            assert words in said, words


@pytest.mark.parametrize("keys", KEYS, ids=" ".join)
async def test_everything_is_drawn_at_every_size(keys: tuple[str, ...]) -> None:
    gate = FakeGate(scenes.hostile())
    gate.tunable, gate.entries = scenes.FIELDS, scenes.ENTRIES
    app = console(fakes.hostile(), gate=gate)
    async with running(app, SIZES[0]) as (pilot, _):
        await press(pilot, *keys)
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await settled(pilot)
            assert {s.cell_length for s in app.screen._compositor.render_strips()} == {size[0]}, size
