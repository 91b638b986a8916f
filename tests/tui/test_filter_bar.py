"""Filtering on the screen: while it is typed, as a chip, when it is wrong."""

from __future__ import annotations

from textual import events
from textual.widgets import Input

from tests.tui import fakes
from tests.tui.running import console, running, screen_text


async def test_a_filter_narrows_while_it_is_typed_and_stays_as_a_chip() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, screen):
        prefill, decode = (p.table for p in screen.panes[:2])
        await pilot.press("slash", *"role:d", "space", *"wait")
        await pilot.press("greater_than_sign", *"10")
        await pilot.pause()
        assert decode.keys == ["10.0.2.22:30001"]
        assert prefill.keys == []
        assert "no worker passes the filter" in screen_text(app)
        assert "1 of 7 workers" in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert "/ role:d wait>10" in screen_text(app)
        assert prefill.has_focus or decode.has_focus
        await pilot.press("escape")
        await pilot.pause()
        assert len(prefill.keys) + len(decode.keys) == 7
        assert "of 7 workers" not in screen_text(app)


async def test_letters_right_after_the_slash_are_no_keys_any_more() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, screen):
        for key, character in (("slash", "/"), ("q", "q"), ("f", "f")):
            app.post_message(events.Key(key, character))
        await pilot.pause()
        assert app.screen is screen
        assert app.is_running
        assert screen.query_one(Input).has_focus


async def test_a_wrong_filter_says_why_and_changes_nothing() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, screen):
        await pilot.press("slash", *"rol:d")
        await pilot.pause()
        assert "rol:d: no field rol; did you mean role?" in screen_text(app)
        await pilot.press("enter")
        assert screen.query_one(Input).has_focus
        await pilot.press("escape")
        await pilot.pause()
        assert len(screen.panes[0].table.keys) == 3


async def test_escape_while_typing_keeps_the_filter_before() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, screen):
        await pilot.press("slash", *"21", "enter", "slash", *"xyz", "escape")
        await pilot.pause()
        assert screen.panes[1].table.keys == ["10.0.2.21:30001"]


async def test_marks_that_the_filter_hides_are_counted() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, _):
        await pilot.press("m", "m", "slash", *"1.11", "enter")
        await pilot.pause()
        assert "1 marked are hidden" in screen_text(app)
