"""What the keys of operations do: arming, the question, overrides, conflicts, marks, the gate's answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.message import Message
from textual.widgets import Button

from pdtop.config.save import Conflict
from pdtop.operations.model import (
    Choice,
    Drain,
    DrainState,
    LockHolder,
    Outcome,
    Phase,
    Undo,
    Undrain,
    View,
)
from pdtop.tui.app import ConsoleApp
from pdtop.tui.screens.arm import ArmScreen
from pdtop.tui.screens.question import QuestionScreen
from pdtop.tui.widgets.key_bar import KeyBar
from tests.tui import fakes, scenes
from tests.tui.fake_gate import (
    DRAINING,
    STALLED,
    FakeGate,
    drain_plan,
    draining,
    last_of_pool,
    operation,
    refused,
)
from tests.tui.fakes import FakeSource
from tests.tui.opened import without
from tests.tui.running import console, press, running, screen_text, settled, toasts


def armed(gate: FakeGate) -> bool:
    return not gate.current.read_only


def disabled(app: ConsoleApp) -> bool:
    """Whether yes cannot be pressed."""
    return app.screen.query_one("#yes", Button).disabled


def key_line(app: ConsoleApp) -> str:
    return "".join(words for words, _ in app.screen.query_one(KeyBar).lines[0])


# Arming --------------------------------------------------------------------------------------------------


async def test_capital_w_arms_after_a_question_and_disarms_at_once() -> None:
    gate = FakeGate(armed=False)
    app = console(fakes.moment(), gate=gate)
    async with running(app) as (pilot, screen):
        assert "READ-ONLY" in screen_text(app)
        assert "d drain" not in key_line(app)
        assert "W arm" in key_line(app)
        await press(pilot, "W")
        assert isinstance(app.screen, ArmScreen)
        assert app.screen.focused is app.screen.query_one("#no")
        assert "Arm this console for cluster prod-a" in screen_text(app)
        await press(pilot, "enter")
        assert not armed(gate)
        await press(pilot, "W", "right", "enter")
        assert armed(gate)
        assert app.screen_stack[-1] is screen
        assert "ARMED prod-a" in screen_text(app)
        assert "d drain" in key_line(app)
        assert "W disarm" in key_line(app)
        await press(pilot, "W")
        assert not armed(gate)
        assert "READ-ONLY" in screen_text(app)


async def test_why_it_cannot_be_armed_is_said() -> None:
    gate = FakeGate(armed=False)
    gate.why_not_arm = "anna@jump-1 (pid 4711) since 14:02 [/x]"
    app = console(fakes.moment(), gate=gate)
    async with running(app) as (pilot, _):
        await press(pilot, "W", "right", "enter")
        assert toasts(app) == [f"still read-only: {gate.why_not_arm}"]


async def test_who_holds_the_lock_and_since_when_stands_on_the_screen() -> None:
    holder = LockHolder("anna", "jump-1", 4711, fakes.NOW)
    app = console(fakes.moment(), gate=FakeGate(View(holder=holder)))
    async with running(app, (80, 24)) as (pilot, _):
        assert f"{holder.text} operates on this cluster" in screen_text(app)
        await press(pilot, "d")
        assert toasts(app) == [f"read-only: {holder.text} operates on this cluster"]


@pytest.mark.parametrize("key", ["d", "D", "U", "w", "u"])
async def test_read_only_keys_say_how_to_arm(key: str) -> None:
    gate = FakeGate(armed=False)
    app = console(fakes.moment(), gate=gate)
    async with running(app) as (pilot, screen):
        await press(pilot, key)
        assert app.screen is screen
        assert toasts(app) == ["read-only: W arms this console (or start it with --write)"]
        assert gate.asked == []


@pytest.mark.parametrize("key", ["d", "U", "w", "u", "W"])
async def test_without_a_gate_the_keys_say_so(key: str) -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, screen):
        await press(pilot, key)
        assert app.screen is screen
        assert toasts(app) == ["this console only shows: it was started without operations"]
        assert "READ-ONLY" in screen_text(app)


@pytest.mark.parametrize("key", ["t", "c", "l", "o"])
async def test_screens_open_without_a_gate_and_read_only(key: str) -> None:
    for gate in (None, FakeGate(armed=False)):
        app = console(fakes.moment(), gate=gate)
        async with running(app, (80, 24)) as (pilot, screen):
            await press(pilot, key)
            assert len(app.screen_stack) == 3
            await press(pilot, "escape")
            assert app.screen is screen


# The question --------------------------------------------------------------------------------------------


async def test_d_asks_with_cancel_under_the_cursor_and_yes_starts_the_plan() -> None:
    gate = FakeGate()
    app = console(fakes.moment(), gate=gate)
    async with running(app) as (pilot, screen):
        await press(pilot, "tab", "down", "d")
        assert isinstance(app.screen, QuestionScreen)
        assert app.screen.focused is app.screen.query_one("#no")
        said = screen_text(app)
        for words in (
            "Drain decode worker 10.0.2.22:30001 · cluster prod-a",
            "decode: 2 of 3 usable stay, KV 56 % → 81 %",
            "▲ the fullest of the rest comes to 92 % of its KV memory",
            '+   30   [decode.worker."10.0.2.22:30001"]',
            "+   31   drain = true",
            "router-0: DELETE /workers/7f3a, then read back",
        ):
            assert words in said, words
        await press(pilot, "enter")
        assert gate.started == []
        await press(pilot, "d", "right", "enter")
        assert app.screen_stack[-1] is screen
        assert gate.asked == [Drain((STALLED,)), Drain((STALLED,))]
        (started,) = gate.started
        assert started == (drain_plan(), (), False)
        assert "◌ applying  Drain decode worker" in screen_text(app)


async def test_marked_workers_are_meant_before_the_one_under_the_cursor_and_marks_end_with_the_yes() -> None:
    gate = FakeGate()
    app = console(fakes.moment(), gate=gate)
    async with running(app) as (pilot, screen):
        await press(pilot, "m", "tab", "m", "m")
        assert key_line(app).startswith(" 3 marked  ")
        await press(pilot, "d")
        assert gate.asked == [Drain(("10.0.1.11:30001", "10.0.2.21:30001", STALLED))]
        await press(pilot, "escape")
        assert screen.chosen_workers() == ("10.0.1.11:30001", "10.0.2.21:30001", STALLED)
        await press(pilot, "U", "right", "enter")
        assert gate.asked[1:] == [Undrain(("10.0.1.11:30001", "10.0.2.21:30001", STALLED))]
        assert screen.chosen_workers() == ("10.0.2.23:30001",)
        assert "marked" not in key_line(app)


async def test_a_mark_vanishes_with_its_worker() -> None:
    source = FakeSource(fakes.moment())
    app = console(source, gate=FakeGate())
    async with running(app) as (pilot, screen):
        await press(pilot, "tab", "down", "m")
        source.push(without(fakes.moment(), STALLED))
        await settled(pilot)
        source.push(fakes.moment(102))
        await settled(pilot)
        assert screen.panes[1].table.marked == set()


async def test_an_override_must_be_typed_before_the_button_works() -> None:
    gate = FakeGate()
    gate.plans[Drain] = last_of_pool()
    app = console(fakes.moment(), gate=gate)
    async with running(app, (80, 24)) as (pilot, _):
        await press(pilot, "tab", "down", "d")
        assert disabled(app)
        assert "✖ no usable decode worker would be left" in screen_text(app)
        await press(pilot, "tab", *"10.0.2.2")
        assert disabled(app)
        await press(pilot, "enter")
        assert gate.started == []
        await press(pilot, *"2:30001")
        assert not disabled(app)
        await press(pilot, "enter")
        assert gate.started == [], "enter after the name goes to the button only"
        await press(pilot, "enter")
        assert [typed for _, typed, _ in gate.started] == [(STALLED,)]


async def test_a_refused_plan_says_why_and_can_only_be_closed() -> None:
    gate = FakeGate()
    gate.plans[Drain] = refused()
    app = console(fakes.moment(), gate=gate)
    async with running(app, (80, 24)) as (pilot, screen):
        await press(pilot, "d")
        said = screen_text(app)
        assert "✖ refused  anna@jump-1 (pid 4711) since 14:02 operates on this cluster" in said
        assert "to change  wait for anna, or end that pdtop" in said
        assert [str(b.label) for b in app.screen.query(Button)] == ["Close"]
        await press(pilot, "right", "enter")
        assert app.screen is screen
        assert gate.started == []


async def test_nothing_to_do_can_only_be_closed() -> None:
    gate = FakeGate()
    gate.plans[Undo] = drain_plan(nothing_to_do="the audit log holds no change that can be taken back")
    app = console(fakes.moment(), gate=gate)
    async with running(app) as (pilot, _):
        await press(pilot, "u")
        assert "no change that can be taken back" in screen_text(app)
        assert [str(b.label) for b in app.screen.query(Button)] == ["Close"]


async def test_a_conflict_shows_three_sides_and_mine_overrules() -> None:
    gate = FakeGate()
    conflict = Conflict("prefill.cache_aware_threshold", 0.3, 0.35, 0.4)
    gate.answer = operation(phase=Phase.ENDED, outcome=Outcome.REFUSED, conflicts=(conflict,), id="c1")
    app = console(fakes.moment(), gate=gate)
    async with running(app, (80, 24)) as (pilot, screen):
        await press(pilot, "d", "right", "enter")
        said = screen_text(app)
        for words in ("was changed by someone else", "was     0.3", "theirs  0.35", "mine    0.4"):
            assert words in said, words
        assert [str(b.label) for b in app.screen.query(Button)] == ["Keep theirs", "Take mine"]
        await press(pilot, "enter")
        assert app.screen is screen
        assert len(gate.started) == 1
        gate.answer = None
        await press(pilot, "o", "enter", "right", "enter")
        assert [overrule for _, _, overrule in gate.started] == [False, True]


async def test_a_refusal_after_the_question_is_a_toast() -> None:
    gate = FakeGate()
    gate.answer = operation(phase=Phase.ENDED, outcome=Outcome.REFUSED, words="10.0.2.22 is gone [/x]")
    app = console(fakes.moment(), gate=gate)
    async with running(app) as (pilot, _):
        await press(pilot, "d", "right", "enter")
        assert toasts(app) == ["Drain decode worker 10.0.2.22:30001: refused: 10.0.2.22 is gone [/x]"]


async def test_what_ends_badly_later_is_said_once_on_any_screen() -> None:
    gate = FakeGate()
    app = console(fakes.moment(), gate=gate)
    async with running(app) as (pilot, _):
        await press(pilot, "d", "right", "enter", "t")
        assert toasts(app) == []
        for _ in range(2):
            gate.set(operations=(replace(scenes.PARTLY, id="op1"), replace(scenes.PARTLY, id="somebody's")))
            await settled(pilot)
        said = "Drain decode worker 10.0.2.22:30001: partly done: router-1 does not answer"
        assert toasts(app) == [said]


@pytest.mark.parametrize("busy", [False, True], ids=["asks", "another question is open"])
async def test_a_conflict_that_comes_later_asks_unless_a_question_is_open(busy: bool) -> None:
    gate = FakeGate()
    conflict = Conflict("prefill.cache_aware_threshold", 0.3, 0.35, 0.4)
    refused = operation(
        phase=Phase.ENDED, outcome=Outcome.REFUSED, words="whose value?", conflicts=(conflict,)
    )
    app = console(fakes.moment(), gate=gate)
    async with running(app) as (pilot, _):
        await press(pilot, "d", "right", "enter", *(["d"] if busy else ["t"]))
        gate.set(operations=(refused,))
        await settled(pilot)
        assert ("theirs  0.35" in screen_text(app)) is not busy
        assert len(toasts(app)) == busy


async def test_no_danger_on_keys_that_page_or_copy_elsewhere() -> None:
    gate = FakeGate()
    app = console(fakes.moment(), gate=gate)
    async with running(app) as (pilot, screen):
        await press(pilot, "ctrl+d", "ctrl+u", "ctrl+k", "f5", "f2")
        assert app.screen is screen
        assert gate.asked == []


# Under way -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_drain_stands_under_its_row_and_drained_in_it(size: tuple[int, int]) -> None:
    gate = FakeGate(View(read_only=False, drains=(draining(),)))
    app = console(fakes.moment(), gate=gate)
    async with running(app, size) as (pilot, screen):
        lines = screen_text(app).splitlines()
        row = next(i for i, line in enumerate(lines) if line.startswith("  " + DRAINING))
        assert lines[row + 1].startswith("  └ draining 2m10s · 13 left · about 3m")
        gate.set(drains=(replace(draining(), state=DrainState.DRAINED, left=0),))
        await settled(pilot)
        lines = screen_text(app).splitlines()
        assert "◌ drained" in lines[row]
        assert lines[row + 1].startswith("  └ drained: safe to stop · asked by anna@jump-1")
        table = screen.panes[1].table
        await press(pilot, "tab", "end")
        assert table.cursor_key == DRAINING
        gate.set(drains=())
        await settled(pilot)
        assert "└" not in screen_text(app).split("10.0.2.24:30001", 1)[1].splitlines()[1]


async def test_where_there_is_no_room_workers_go_before_words_about_them() -> None:
    drains = tuple(draining(worker=w.key) for w in fakes.moment().workers)
    app = console(fakes.moment(), gate=FakeGate(View(read_only=False, drains=drains)))
    async with running(app, (80, 18)):
        said = screen_text(app)
        assert "└" not in said
        assert all(w.name in said for w in fakes.moment().workers)


async def test_the_cursor_and_clicks_pass_over_the_lines_under_the_rows() -> None:
    drains = tuple(draining(worker=w.key) for w in fakes.moment().workers[:2])
    app = console(fakes.moment(), gate=FakeGate(View(read_only=False, drains=drains)))
    async with running(app) as (pilot, screen):
        table = screen.panes[0].table
        await press(pilot, "down")
        assert table.cursor_key == "10.0.1.12:30001"
        await pilot.click(f"#{table.id}", offset=(6, 2))
        assert table.cursor_key == "10.0.1.11:30001"
        await pilot.click(f"#{table.id}", offset=(6, 5))
        assert table.cursor_key == "10.0.1.13:30001"


async def test_many_views_make_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = FakeGate()
    app = console(fakes.moment(), gate=gate)
    async with running(app) as (pilot, _):
        posted: list[object] = []
        post = app.post_message

        def noted(message: Message) -> bool:
            posted.append(message)
            return post(message)

        monkeypatch.setattr(app, "post_message", noted)
        for left in range(20):
            gate.set(drains=(draining(left=left),))
        assert len(posted) == 1
        await settled(pilot)
        assert "19 left" in screen_text(app)


async def test_an_unchanged_view_costs_nothing_with_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, source = FakeGate(View(read_only=False, drains=(draining(),))), FakeSource(fakes.moment())
    app = console(source, gate=gate)
    async with running(app) as (pilot, _):
        asked: list[str] = []
        for name in ("log", "fields", "view"):
            monkeypatch.setattr(gate, name, lambda *a, name=name: asked.append(name))
        source.push(fakes.moment(101))
        await settled(pilot)
        assert asked == []
        assert "draining 2m11s" in screen_text(app)


async def test_operations_are_listed_answered_and_dismissed() -> None:
    gate = FakeGate(scenes.busy())
    app = console(fakes.moment(), gate=gate)
    async with running(app, (80, 24)) as (pilot, _):
        said = screen_text(app)
        assert "▲ deadline passed  Drain 10.0.2.22:30001" in said
        assert "▲ partly done" in said
        await press(pilot, "o", "enter")
        assert "cancel the drain: bring the worker back" in screen_text(app)
        await press(pilot, "down", "down", "enter")
        assert gate.chosen == [("deadline", Choice.CANCEL)]
        await press(pilot, "x")
        assert gate.dismissed == [], "what has not ended cannot be dismissed"
        await press(pilot, "down", "x")
        assert gate.dismissed == ["partly"]
        await press(pilot, "X")
        assert gate.dismissed == ["partly", None]


async def test_what_was_in_flight_at_the_last_end_is_said() -> None:
    notice = "drain of 10.0.2.22:30001 was under way when pdtop ended"
    app = console(fakes.moment(), gate=FakeGate(View(notices=(notice,))))
    async with running(app) as (pilot, _):
        await settled(pilot)
        assert toasts(app) == [notice]
        await press(pilot, "o")
        assert f"▲ {notice}" in screen_text(app)
