"""The console as a whole: every key it declares, snapshots, pause, themes, keymap, copying, screenshots."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.message import Message
from textual.widgets import Input

from pdtop.cluster.model import Role
from pdtop.tui.app import KEY_OWNERS, ConsoleApp
from pdtop.tui.messages import SnapshotArrived
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.screens.choice import ChoiceScreen
from pdtop.tui.screens.findings import FindingsScreen
from pdtop.tui.screens.help import HelpScreen
from pdtop.tui.screens.overview import OverviewScreen
from pdtop.tui.screens.worker import WorkerScreen
from pdtop.tui.widgets.key_bar import KeyBar
from pdtop.tui.widgets.worker_table import WorkerTable
from tests.tui import fakes
from tests.tui.fake_gate import FakeGate
from tests.tui.fakes import FakeSource
from tests.tui.running import console, running, screen_text, toasts


def shown(app: ConsoleApp) -> type[object]:
    """The class of the screen on top."""
    return type(app.screen)


def sorted_by(table: WorkerTable) -> str | None:
    return table.sort.column.id if table.sort.column is not None else None


def number(app: ConsoleApp) -> int:
    """Of the snapshot on the screen."""
    return app.shown.number


# Keys ----------------------------------------------------------------------------------------------------


def test_every_key_has_an_id_and_says_what_it_does() -> None:
    ids = []
    for group, owner in KEY_OWNERS:
        for binding in owner.__dict__["BINDINGS"]:
            assert binding.id, (group, binding.key)
            assert binding.tooltip, binding.id
            ids.append(binding.id)
    assert len(ids) == len(set(ids))


async def test_the_cursor_walks_through_both_pools() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, screen):
        prefill, decode = (p.table for p in screen.panes[:2])
        await pilot.press("j", "j", "down")
        await pilot.pause()
        assert decode.has_focus
        assert decode.cursor_key == "10.0.2.21:30001"
        await pilot.press("k")
        await pilot.pause()
        assert prefill.has_focus
        assert prefill.cursor_key == "10.0.1.13:30001"
        await pilot.press("tab")
        assert decode.has_focus
        assert screen.selected_worker() is decode.cursor_worker


async def test_enter_opens_the_worker_and_escape_comes_back() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, _):
        await pilot.press("down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, WorkerScreen)
        assert app.screen.key == "10.0.1.12:30001"
        await pilot.press("escape")
        assert shown(app) is OverviewScreen


async def test_a_key_right_after_tab_already_means_the_other_pool() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, _):
        app.simulate_key("tab")
        app.simulate_key("enter")
        await pilot.pause()
        assert isinstance(app.screen, WorkerScreen)
        assert app.screen.key == "10.0.2.21:30001"


async def test_f_lists_the_findings_and_enter_opens_the_worker_concerned() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, _):
        await pilot.press("f")
        await pilot.pause()
        assert isinstance(app.screen, FindingsScreen)
        assert "lower cache_aware_threshold" in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, WorkerScreen)
        assert app.screen.key == "10.0.2.22:30001"
        await pilot.press("escape", "f")
        assert shown(app) is OverviewScreen


async def test_the_findings_list_keeps_its_place_when_others_come_and_go() -> None:
    source = FakeSource(fakes.moment())
    app = console(source)
    async with running(app) as (pilot, _):
        await pilot.press("f", "down")
        _, second, third = fakes.moment().findings
        source.push(replace(fakes.moment(), findings=(third, second)))
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, WorkerScreen)
        assert app.screen.key == "10.0.1.11:30001"


async def test_space_freezes_the_picture_and_polling_goes_on() -> None:
    source = FakeSource(fakes.moment())
    app = console(source)
    async with running(app) as (pilot, _):
        await pilot.press("space")
        assert "PAUSED 0s" in screen_text(app)
        source.push(replace(fakes.calm(150), at=fakes.NOW + 150))
        await pilot.pause()
        assert number(app) == 100
        assert app.source.latest().number == 150
        await pilot.press("space")
        assert number(app) == 150
        assert "PAUSED" not in screen_text(app)


async def test_plus_and_minus_change_the_interval() -> None:
    source = FakeSource(fakes.moment())
    app = console(source)
    async with running(app) as (pilot, _):
        await pilot.press("plus", "equals_sign", "minus")
        assert source.intervals == [2.0, 2.0, 0.5]
        await pilot.pause()
        assert "polling every 0.5s" in toasts(app)
        source.current = replace(source.current, interval_s=30.0)
        app.shown = source.current
        await pilot.press("plus")
        assert source.intervals[-1] == 30.0


async def test_y_copies_the_address_and_capital_y_the_numbers() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, _):
        await pilot.press("down", "y")
        assert app.clipboard == "10.0.1.12:30001"
        await pilot.press("Y")
        entry = json.loads(app.clipboard)
        assert entry["running"] == 3
        assert "nan" not in app.clipboard.lower()
        await pilot.pause()
        assert toasts(app)[0] == "copied: 10.0.1.12:30001"


@pytest.mark.parametrize("key", ["ctrl+s", "f8"])
async def test_a_screenshot_is_a_file_and_the_toast_says_where(tmp_path: Path, key: str) -> None:
    app = console(fakes.moment(), ConsoleOptions(state_dir=tmp_path))
    async with running(app) as (pilot, _):
        await pilot.press(key)
        await pilot.pause()
        (path,) = (tmp_path / "screenshots").glob("pdtop-*.svg")
        assert "10.0.2.22:30001" in path.read_text(encoding="utf-8")
        assert toasts(app) == [f"screenshot: {path}"]


async def test_a_screenshot_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    app = console(fakes.moment(), ConsoleOptions(state_dir=tmp_path / "file"))
    async with running(app) as (pilot, _):
        await pilot.press("f8")
        await pilot.pause()
        assert toasts(app)[0].startswith("no screenshot: Not a directory")


async def test_question_mark_shows_every_declared_key() -> None:
    app = console(fakes.moment())
    async with running(app, (160, 200)) as (pilot, _):
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        said = screen_text(app)
        for row in app.key_rows():
            assert re.search(rf"{re.escape(row.what)}\s+{re.escape(row.id)}", said), row
        await pilot.press("question_mark")
        assert shown(app) is OverviewScreen


@pytest.mark.parametrize(
    ("key", "group"), [("ctrl+l", "Overview"), ("f", "Findings"), ("o", "Operations under way")]
)
async def test_the_help_begins_with_the_keys_of_the_screen(key: str, group: str) -> None:
    app = console(fakes.moment())
    async with running(app, (120, 40)) as (pilot, _):
        await pilot.press(key)
        await pilot.press("question_mark")
        await pilot.pause()
        said = screen_text(app)
        first, second = said.index(group), said.index("Anywhere")
        assert said.index("Keys") < first < second


async def test_a_page_without_findings_says_so() -> None:
    app = console(fakes.calm())
    async with running(app) as (pilot, _):
        await pilot.press("f")
        await pilot.pause()
        assert "✓ nothing wrong" in screen_text(app)


async def test_s_chooses_the_column_to_sort_by() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, screen):
        await pilot.press("tab", "s")
        await pilot.pause()
        assert isinstance(app.screen, ChoiceScreen)
        await pilot.press("down", "down", "down", "down", "enter")  # worker, state, run, backlog
        await pilot.pause()
        table = screen.panes[1].table
        assert sorted_by(table) == "backlog_bar"
        assert table.keys[0] == "10.0.2.22:30001"
        await pilot.press("s", "home", "enter")
        await pilot.pause()
        assert sorted_by(table) is None
        await pilot.press("s", "escape")
        assert shown(app) is OverviewScreen


async def test_capital_t_previews_themes_and_escape_goes_back() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, _):
        await pilot.press("T")
        await pilot.pause()
        await pilot.press("down")
        await pilot.pause()
        assert app.theme == "light"
        await pilot.press("escape")
        await pilot.pause()
        assert app.theme == "dark"
        await pilot.press("T")
        await pilot.pause()
        await pilot.press("up", "enter")
        await pilot.pause()
        assert app.theme == "contrast"
        assert shown(app) is OverviewScreen


@pytest.mark.parametrize("key", ["colon", "ctrl+p"])
async def test_the_palette_finds_workers_screens_themes_and_columns(key: str) -> None:
    app = console(fakes.moment())
    async with running(app, (120, 60)) as (pilot, _):
        await pilot.press(key)
        await pilot.pause()
        assert isinstance(app.screen, CommandPalette)
        said = screen_text(app)
        for words in ("overview", "findings", "columns wide", "theme light", "worker D 10.0.2.22:30001"):
            assert words in said, words
        app.screen.query_one(Input).value = "222"
        await pilot.pause(0.3)
        await pilot.press("enter", "enter")
        await pilot.pause()
        assert isinstance(app.screen, WorkerScreen)
        assert app.screen.key == "10.0.2.22:30001"


async def test_column_presets_by_name() -> None:
    app = console(fakes.moment())
    async with running(app) as (_, screen):
        app.use_columns("wide")
        assert "failures" in [c.id for c in screen.panes[0].table.columns]
        app.use_columns("")
        assert "failures" not in [c.id for c in screen.panes[0].table.columns]


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_leaving(key: str) -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, _):
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running or app._exit


async def test_the_key_line_shows_the_keys_of_the_moment_and_takes_clicks() -> None:
    app = console(fakes.moment())
    async with running(app, (80, 24)) as (pilot, screen):
        bar = screen.query_one(KeyBar)
        said = "".join(w for w, _ in bar.lines[0])
        assert " ".join(said.split()) == (
            "⏎ worker / filter s sort ␣ pause f findings : commands q quit ? keys"
        )
        await pilot.click("#keys", offset=(said.index("findings"), 0))
        await pilot.pause()
        assert isinstance(app.screen, FindingsScreen)
        await pilot.press("escape", "slash")
        await pilot.pause()
        assert "filter" not in "".join(w for w, _ in bar.lines[0])


# Snapshots -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (40, 10), (20, 5)])
async def test_every_moment_is_drawn_at_every_size(size: tuple[int, int]) -> None:
    source = FakeSource(fakes.moment())
    app = console(source)
    async with running(app, size) as (pilot, screen):
        for make in (fakes.moment, fakes.calm, fakes.waiting, fakes.empty, fakes.all_down, fakes.hostile,
                     fakes.ranked):  # fmt: skip
            source.push(make())
            await pilot.pause()
            lengths = {s.cell_length for s in screen._compositor.render_strips()}
            assert lengths == {size[0]}, make.__name__


async def test_every_worker_of_three_and_four_is_seen_at_80x24() -> None:
    app = console(fakes.moment())
    async with running(app, (80, 24)):
        said = screen_text(app)
        assert all(w.name in said.split("WORKER", 1)[1] for w in fakes.moment().workers)


async def test_workers_of_unknown_role_are_shown_too() -> None:
    base = fakes.moment()
    odd = (replace(base.workers[0], role=Role.UNIFIED), replace(base.workers[1], role=Role.UNKNOWN))
    app = console(replace(base, workers=(*odd, *base.workers[2:])))
    async with running(app, (80, 30)) as (_, screen):
        assert screen.panes[2].table.keys == ["10.0.1.11:30001", "10.0.1.12:30001"]
        assert "OTHER" in screen_text(app)


async def test_many_snapshots_make_one_message_and_the_newest_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = FakeSource(fakes.moment())
    app = console(source)
    async with running(app) as (pilot, _):
        posted: list[Message] = []
        post = app.post_message

        def noted(message: Message) -> bool:
            posted.append(message)
            return post(message)

        monkeypatch.setattr(app, "post_message", noted)
        for tick in range(101, 120):
            source.push(fakes.moment(tick))
        assert [type(m) for m in posted] == [SnapshotArrived]
        await pilot.pause()
        assert number(app) == 119


async def test_while_the_terminal_is_behind_frames_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    source = FakeSource(fakes.moment())
    app = console(source)
    async with running(app) as (pilot, _):
        behind = True
        monkeypatch.setattr(app, "_behind", lambda: behind)
        source.push(fakes.moment(101))
        source.push(fakes.moment(102))
        await pilot.pause()
        assert number(app) == 100
        behind = False
        await pilot.pause(0.4)
        assert number(app) == 102


async def test_a_resize_draws_the_overview_anew() -> None:
    app = console(fakes.moment())
    async with running(app, (200, 60)) as (pilot, _):
        assert "TTFT TREND" in screen_text(app)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        said = screen_text(app)
        assert "TTFT99" in said
        assert max(len(line) for line in said.splitlines()) <= 80


async def test_charts_follow_the_cursor() -> None:
    app = console(fakes.moment())
    async with running(app, (200, 60)) as (pilot, _):
        assert "Queue time" in screen_text(app)
        await pilot.press("tab")
        await pilot.press("down")
        await pilot.pause()
        said = screen_text(app)
        assert "TPOT p50" in said
        assert "Queue time" not in said


async def test_leaving_unsubscribes() -> None:
    source = FakeSource(fakes.moment())
    async with running(console(source)):
        assert len(source.callbacks) == 1
    assert source.callbacks == []


# Settings ------------------------------------------------------------------------------------------------


async def test_no_color_means_mono_and_no_colour_is_written() -> None:
    app = console(fakes.moment(), environ={"NO_COLOR": "1"})
    async with running(app) as (_, screen):
        assert app.theme == "mono"
        for strip in screen._compositor.render_strips():
            for segment in strip:
                assert segment.style is None or segment.style.color is None or segment.style.color.is_default
                assert (
                    segment.style is None or segment.style.bgcolor is None or segment.style.bgcolor.is_default
                )


async def test_an_empty_no_color_is_none() -> None:
    app = console(fakes.moment(), environ={"NO_COLOR": ""})
    async with running(app):
        assert app.theme == "dark"


async def test_no_color_in_the_process_does_not_grey_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = console(fakes.moment(), ConsoleOptions(theme="dark"), environ={"X": ""})
    async with running(app) as (_, screen):
        colors = {s.style.color.name for t in screen._compositor.render_strips() for s in t
                  if s.style and s.style.color}  # fmt: skip
        assert "#e5b454" in colors


async def test_bad_themes_and_unknown_names_are_toasts(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\n[colors]\nprimary = "[/x]"\n')
    app = console(fakes.moment(), ConsoleOptions(theme="mine", themes_dir=tmp_path))
    async with running(app) as (pilot, _):
        await pilot.pause()
        assert app.theme == "dark"
        assert toasts(app) == [
            "theme mine.toml: colors.primary: '[/x]' is no colour",
            "no theme mine; there are ansi16, contrast, dark, light, mono",
        ]
        assert "colors.primary: '[/x]'" in screen_text(app)


async def test_the_keymap_gives_actions_other_keys() -> None:
    options = ConsoleOptions(keymap={"app.findings": "F2", "table.down": "n", "no.such": "x"})
    app = console(fakes.moment(), options)
    async with running(app) as (pilot, screen):
        await pilot.press("n")
        assert screen.panes[0].table.cursor_row == 1
        await pilot.press("f")
        assert app.screen is screen
        assert [t for t in toasts(app) if "no.such" in t] == [
            "keymap: no action no.such; press ? for the list"
        ]
        assert {r.id: r.keys for r in app.key_rows()}["table.down"] == "n"


async def test_columns_from_the_config() -> None:
    options = ConsoleOptions(columns={"decode": ("kv", "running")})
    app = console(fakes.moment(), options)
    async with running(app) as (_, screen):
        assert [c.id for c in screen.panes[1].table.columns] == ["name", "kv", "running"]
        assert len(screen.panes[0].table.columns) > 3


async def test_armed_is_seen() -> None:
    app: ConsoleApp = console(fakes.moment(), gate=FakeGate())
    async with running(app) as (_, screen):
        assert isinstance(screen, OverviewScreen)
        assert "ARMED prod-a" in screen_text(app)


async def test_the_mouse_focuses_and_selects() -> None:
    app = console(fakes.moment())
    async with running(app) as (pilot, screen):
        table = screen.panes[1].table
        await pilot.click(f"#{table.id}", offset=(6, 2))
        assert table.has_focus
        assert isinstance(table, WorkerTable)
        assert table.cursor_key == "10.0.2.22:30001"
