"""The table of a pool: the cursor belongs to a worker, rows are repainted only where they changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.message import Message
from textual.pilot import Pilot

from pdtop.cluster.model import Backlog, Role, Snapshot, Worker
from pdtop.tui.columns import COLUMNS, chosen, laid_out
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.palette import Look
from pdtop.tui.pool_view import findings_by_worker, pool_view
from pdtop.tui.sorting import Sort
from pdtop.tui.widgets.worker_table import WorkerTable
from tests.tui import fakes


class WatchedTable(WorkerTable):
    """Notes which regions it asks to be repainted; the whole of it is None."""

    def __init__(self) -> None:
        self.asked: list[Region | None] = []
        super().__init__(Look(), id="table")

    def refresh(self, *regions: Region, **kwargs: bool) -> WatchedTable:
        if kwargs.get("repaint", True):
            self.asked += regions or [None]
        return super().refresh(*regions, **kwargs)


class TableApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.table = WatchedTable()
        self.got: list[Message] = []

    def compose(self) -> ComposeResult:
        yield self.table

    def on_mount(self) -> None:
        self.table.focus()

    def on_worker_table_opened(self, message: WorkerTable.Opened) -> None:
        self.got.append(message)

    def on_worker_table_left_by(self, message: WorkerTable.LeftBy) -> None:
        self.got.append(message)


def decode(*names_and_backlogs: tuple[str, float]) -> tuple[Worker, ...]:
    template = fakes.moment().pool_workers(Role.DECODE)[0]
    return tuple(
        replace(
            template,
            key=f"{name}:1",
            name=name,
            backlog=Backlog(total, False, {"queue": total, "prealloc": 0.0, "transfer": 0.0}),
        )
        for name, total in names_and_backlogs
    )


def snapshot(workers: tuple[Worker, ...], number: int = 100) -> Snapshot:
    return fakes.snapshot_of(workers, number=number)


def show(
    table: WorkerTable,
    workers: tuple[Worker, ...],
    *,
    hidden: tuple[Worker, ...] = (),
    keep_order: bool = False,
    width: int = 120,
    number: int = 100,
) -> None:
    now = snapshot((*workers, *hidden), number)
    view = pool_view(
        now, Role.DECODE, (*workers, *hidden), workers, findings_by_worker(now), ConsoleOptions()
    )
    table.show(view, laid_out(chosen(Role.DECODE, "normal", ()), width, 15), keep_order=keep_order)


@asynccontextmanager
async def table_of(
    workers: tuple[Worker, ...], size: tuple[int, int] = (120, 10)
) -> AsyncIterator[tuple[Pilot[None], WatchedTable, TableApp]]:
    app = TableApp()
    async with app.run_test(size=size) as pilot:
        show(app.table, workers, width=size[0])
        await pilot.pause()
        app.table.asked.clear()
        yield pilot, app.table, app


def lines(table: WorkerTable) -> list[str]:
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


def names(table: WorkerTable) -> list[str]:
    return [key.removesuffix(":1") for key in table.keys]


FIVE = decode(("D1", 9), ("D2", 5), ("D3", 1), ("D4", 7), ("D5", 0))
MANY = decode(*((f"w{i}", float(i)) for i in range(64)))


async def test_titles_stay_while_rows_scroll() -> None:
    async with table_of(MANY) as (pilot, table, _):
        await pilot.press("end")
        await pilot.pause()
        shown = lines(table)
        assert shown[0].split()[:2] == ["WORKER", "STATE"]
        assert shown[-1].split()[1] == "w63"
        assert table.cursor_key == "w63:1"
        await pilot.press("home")
        await pilot.pause()
        assert lines(table)[1].split()[1] == "w0"


async def test_cursor_keys() -> None:
    async with table_of(MANY) as (pilot, table, _):
        for keys, row in (
            (("down",), 1),
            (("j", "j"), 3),
            (("k",), 2),
            (("up",), 1),
            (("pagedown",), 9),
            (("pageup",), 1),
            (("G",), 63),
            (("g",), 0),
        ):
            await pilot.press(*keys)
            assert table.cursor_row == row, keys


async def test_beyond_the_ends_the_neighbour_is_asked() -> None:
    async with table_of(FIVE) as (pilot, table, app):
        await pilot.press("up", "end", "down")
        await pilot.pause()
        assert [(m.table is table, m.direction) for m in app.got if isinstance(m, WorkerTable.LeftBy)] == [
            (True, -1),
            (True, 1),
        ]


async def test_enter_and_double_click_open_the_worker() -> None:
    async with table_of(FIVE) as (pilot, table, app):
        await pilot.press("down", "enter")
        await pilot.click("#table", offset=(5, 4))
        await pilot.click("#table", offset=(5, 4))
        await pilot.pause()
        opened = [m.key for m in app.got if isinstance(m, WorkerTable.Opened)]
        assert opened[0] == "D2:1"
        assert set(opened[1:]) <= {"D4:1"}
        assert table.cursor_key == "D4:1"


async def test_one_changed_number_repaints_its_own_cells_only() -> None:
    async with table_of(FIVE) as (_, table, _app):
        changed = (*FIVE[:2], replace(FIVE[2], running=18.0), *FIVE[3:])
        show(table, changed)
        (region,) = table.asked
        assert region is not None
        assert (region.y, region.height, region.width) == (3, 1, 1)


async def test_nothing_changed_repaints_nothing() -> None:
    async with table_of(FIVE) as (_, table, _app):
        show(table, tuple(replace(w, age_s=3.0) for w in FIVE))
        assert table.asked == []


async def test_moving_the_cursor_repaints_two_rows() -> None:
    async with table_of(FIVE) as (pilot, table, _):
        await pilot.press("down")
        assert {r.y for r in table.asked if r is not None} == {1, 2}
        assert None not in table.asked


async def test_rows_out_of_sight_are_not_repainted() -> None:
    async with table_of(MANY) as (_, table, _app):
        show(table, (*MANY[:40], *(replace(w, running=99.0) for w in MANY[40:])))
        assert table.asked == []


async def test_sorting_with_keys() -> None:
    async with table_of(FIVE) as (pilot, table, _):
        table.sort_by(Sort(COLUMNS["backlog_bar"]))
        assert names(table) == ["D1", "D4", "D2", "D3", "D5"]
        await pilot.press("S")
        assert names(table) == ["D5", "D3", "D2", "D4", "D1"]
        await pilot.press("less_than_sign")
        assert table.sort.column is not None
        assert table.sort.column.id == "running"
        await pilot.press("greater_than_sign")
        assert table.sort.column.id == "backlog_bar"
        assert "BACKLOG▾" in lines(table)[0]


async def test_a_click_on_a_title_sorts_and_again_turns_it_round() -> None:
    async with table_of(FIVE) as (pilot, table, _):
        await pilot.click("#table", offset=(36, 0))
        assert names(table) == ["D1", "D4", "D2", "D3", "D5"]
        await pilot.click("#table", offset=(36, 0))
        assert names(table) == ["D5", "D3", "D2", "D4", "D1"]


async def test_the_cursor_stays_on_its_worker_when_the_order_changes() -> None:
    async with table_of(FIVE) as (pilot, table, _):
        await pilot.press("down")
        table.sort_by(Sort(COLUMNS["backlog"]))
        assert table.cursor_key == "D2:1"
        assert table.cursor_row == 2
        show(table, decode(("D1", 1), ("D2", 50), ("D3", 2)))
        assert (table.cursor_key, table.cursor_row) == ("D2:1", 0)


async def test_a_cursor_in_sight_stays_in_sight() -> None:
    async with table_of(MANY) as (pilot, table, _):
        table.sort_by(Sort(COLUMNS["backlog"], largest_first=False))
        show(table, tuple(replace(w, backlog=Backlog(99.0)) if w.name == "w0" else w for w in MANY))
        await pilot.pause()
        assert table.cursor_row == 63
        assert any(line.startswith("▌") and "w0" in line for line in lines(table))


async def test_while_a_question_is_open_the_order_stays() -> None:
    async with table_of(FIVE) as (_, table, _app):
        table.sort_by(Sort(COLUMNS["backlog"]))
        before = names(table)
        show(table, decode(("D1", 0), ("D2", 5), ("D3", 90), ("D4", 7), ("D5", 50)), keep_order=True)
        assert names(table) == before
        assert any("90" in line and "D3" in line for line in lines(table))


async def test_a_filtered_out_worker_is_not_a_vanished_one() -> None:
    async with table_of(FIVE) as (_, table, _app):
        show(table, FIVE[1:], hidden=FIVE[:1])
        assert names(table) == ["D2", "D3", "D4", "D5"]
        assert table.cursor_worker is None
        assert table.cursor_key == "D1:1"
        show(table, FIVE)
        assert table.cursor_row == 0


async def test_a_vanished_worker_is_left_by_the_first_key() -> None:
    async with table_of(FIVE) as (pilot, table, _):
        await pilot.press("down")
        show(table, (FIVE[0], *FIVE[2:]))
        assert table.is_gone("D2:1")
        assert table.cursor_worker is None
        await pilot.press("down")
        assert table.cursor_key == "D3:1"
        assert names(table) == ["D1", "D3", "D4", "D5"]


async def test_marks_are_workers_too() -> None:
    async with table_of(FIVE) as (pilot, table, _):
        await pilot.press("m", "m")
        assert table.marked == {"D1:1", "D2:1"}
        assert table.cursor_key == "D3:1"
        table.sort_by(Sort(COLUMNS["backlog"]))
        assert [line.split()[0] for line in lines(table)[1:6] if "●" in line] == ["●D1", "●D2"]
        await pilot.press("M")
        assert table.marked == set()


async def test_columns_scroll_sideways_and_the_name_stays() -> None:
    async with table_of(FIVE, (80, 10)) as (pilot, table, _):
        assert lines(table)[0].endswith("▸")
        await pilot.press("right", "right")
        shown = lines(table)
        assert shown[0].split()[:3] == ["◂", "WORKER", "BACKLOG"]
        assert shown[1].split()[1] == "D1"
        await pilot.press("left", "h")
        assert lines(table)[0].split()[:2] == ["WORKER", "STATE"]
        await pilot.press("left")
        assert lines(table)[0].split()[:2] == ["WORKER", "STATE"]


@pytest.mark.parametrize(("members", "words"), [((), "no workers"), (FIVE, "no worker passes the filter")])
async def test_an_empty_table_says_why(members: tuple[Worker, ...], words: str) -> None:
    async with table_of(()) as (pilot, table, _):
        show(table, (), hidden=members)
        assert lines(table)[1].strip() == words
        await pilot.press("down", "enter", "m", "end", "pagedown")
        assert table.cursor_key is None


async def test_wide_names_keep_the_columns_aligned() -> None:
    odd = decode(("日本-ワーカー-7", 1.0), ("plain", 1.0), ("e\u0301te\u0301", 1.0))
    async with table_of(odd) as (_, table, _app):
        strips = [table.render_line(y) for y in (1, 2, 3)]
        assert [s.cell_length for s in strips] == [120, 120, 120]
        tails = {s.crop(18, 60).text for s in strips}
        assert len(tails) == 1
