"""The public terminal cases, each as a test: hostile text, the cursor, the terminal after the end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pdtop.cluster.model import Backlog, Finding, Role, Severity, Snapshot
from pdtop.operations.model import Drain
from pdtop.tui.columns import COLUMNS
from pdtop.tui.screens.worker import WorkerScreen
from pdtop.tui.sorting import Sort
from tests.tui import fakes
from tests.tui.fake_gate import FakeGate, drain_plan
from tests.tui.fakes import FakeSource
from tests.tui.running import console, running, screen_text, settled, toasts
from tests.tui.terminal import Terminal, modes

# s55: a model name that looks like markup ----------------------------------------------------------------

MARKUP = "[/qwen] [red]x"


def marked_up() -> Snapshot:
    """A decode worker whose name, model, finding and cluster all look like markup."""
    base = fakes.moment()
    worker = base.workers[3]
    worker = replace(worker, name=MARKUP, identity=replace(worker.identity, model=MARKUP))
    finding = Finding(
        Severity.WARNING, "transfer_stalled", MARKUP, worker=worker.key, pool=Role.DECODE,
        evidence=MARKUP, fix=MARKUP,
    )  # fmt: skip
    return replace(base, cluster=MARKUP, workers=(*base.workers[:3], worker), findings=(finding,))


async def test_s55_in_table_cell_header_and_strip() -> None:
    app = console(marked_up())
    async with running(app):
        lines = screen_text(app).splitlines()
        assert lines[0].startswith(f" {MARKUP} ")
        assert f"D {MARKUP}  {MARKUP}" in lines[1]
        assert any(line.startswith(f"  {MARKUP} ") for line in lines)


async def test_s55_in_the_detail_view_and_the_list_of_findings() -> None:
    app = console(marked_up())
    async with running(app) as (pilot, _):
        await pilot.press("f")
        await pilot.pause()
        assert screen_text(app).count(MARKUP) >= 4
        app.open_worker("10.0.2.21:30001")
        await pilot.pause()
        assert isinstance(app.screen, WorkerScreen)
        assert screen_text(app).count(MARKUP) >= 3


async def test_s55_in_a_toast_the_palette_and_the_theme_of_a_toast() -> None:
    app = console(marked_up())
    async with running(app, (120, 60)) as (pilot, _):
        app.say(f"drain of {MARKUP} failed", "error")
        app.notify(f"{MARKUP} again")
        await pilot.press("tab", "y")
        await pilot.pause()
        said = screen_text(app)
        assert f"drain of {MARKUP} failed" in said
        assert f"{MARKUP} again" in said
        assert f"copied: {MARKUP}" in said
        await pilot.press("colon", *"qwen")
        await pilot.pause(0.3)
        assert f"worker D {MARKUP}" in screen_text(app)


async def test_s55_in_a_confirm_question() -> None:
    app = console(marked_up(), gate=FakeGate())
    async with running(app) as (pilot, _):
        plan = drain_plan(title=f"Drain {MARKUP}", rows=(("Now", f"Now {MARKUP}"),), cluster=MARKUP)
        app.desk.ask(plan)
        await settled(pilot)
        said = screen_text(app)
        assert f"Drain {MARKUP}" in said
        assert f"Now {MARKUP}" in said
        assert said.count(MARKUP) >= 4


# s56: the cursor stays on its worker ---------------------------------------------------------------------


def frame(**backlogs: float) -> Snapshot:
    template = fakes.moment().workers[3]
    workers = tuple(
        replace(template, key=name, name=name, backlog=Backlog(total, False, {"queue": total}))
        for name, total in backlogs.items()
    )
    return fakes.snapshot_of(workers)


FRAMES = (frame(D1=9, D2=5, D3=1), frame(D3=12, D1=9, D2=5), frame(D3=12, D2=8, D4=2))


async def test_s56_the_cursor_stays_on_d2() -> None:
    source = FakeSource(FRAMES[0])
    app = console(source)
    async with running(app) as (pilot, screen):
        table = screen.panes[1].table
        table.focus()
        table.sort_by(Sort(COLUMNS["backlog"]))
        assert table.select("D2")
        for number, snapshot in enumerate(FRAMES, 1):
            source.push(snapshot)
            await pilot.pause()
            assert table.cursor_key == "D2", number
            row = [line for line in screen_text(app).splitlines() if line.startswith("▌")]
            assert len(row) == 1
            assert "D2" in row[0]
        assert table.keys == ["D3", "D2", "D4"]


async def test_s56_a_vanished_worker_stays_greyed_and_the_cursor_jumps_nowhere() -> None:
    source = FakeSource(FRAMES[1])
    app = console(source)
    async with running(app) as (pilot, screen):
        table = screen.panes[1].table
        table.focus()
        table.sort_by(Sort(COLUMNS["backlog"]))
        table.select("D1")
        source.push(FRAMES[2])
        await pilot.pause()
        assert table.cursor_key == "D1"
        assert table.is_gone("D1")
        assert "gone" in next(line for line in screen_text(app).splitlines() if line.startswith("▌"))
        await pilot.press("enter", "y", "Y", "m")  # nothing happens to anybody else
        assert app.screen is screen
        assert app.clipboard == ""
        assert table.marked == set()


async def test_s56_a_question_about_a_vanished_worker_closes_with_a_notice_and_nothing_is_sent() -> None:
    source = FakeSource(FRAMES[0])
    gate = FakeGate()
    app = console(source, gate=gate)
    async with running(app) as (pilot, screen):
        table = screen.panes[1].table
        table.sort_by(Sort(COLUMNS["backlog"]))
        app.desk.ask(Drain(("D1",)))
        await settled(pilot)
        source.push(FRAMES[1])
        await pilot.pause()
        assert len(app.screen_stack) == 3, "still asked"
        assert table.keys == ["D1", "D2", "D3"], "the order waits while something is asked"
        source.push(FRAMES[2])
        await pilot.pause()
        assert app.screen_stack[-1] is screen
        assert gate.started == []
        assert "D1 is gone from the cluster; nothing was done" in toasts(app)


@pytest.mark.parametrize(
    ("keys", "answer"),
    [(("enter",), False), (("escape",), False), (("n",), False), (("right", "enter"), True)],
)
async def test_a_question_is_answered_with_no_unless_yes_is_chosen(
    keys: tuple[str, ...], answer: bool
) -> None:
    gate = FakeGate()
    app = console(FRAMES[0], gate=gate)
    async with running(app) as (pilot, screen):
        app.desk.ask(Drain(("D1",)))
        await settled(pilot)
        await pilot.press(*keys)
        await pilot.pause()
        assert app.screen is screen
        assert bool(gate.started) is answer


# s57: the terminal after the end -------------------------------------------------------------------------

MODULE = "tests.tui.console_process"

#: Private modes that have to be off at the end: mouse in all forms, alternate screen, paste, focus, resize.
OFF = ("1000", "1002", "1003", "1006", "1015", "1016", "1049", "2004", "1004", "2048", "2026")


@contextmanager
def started(folder: Path, *, arguments: tuple[str, ...] = (), **options: object) -> Iterator[Terminal]:
    terminal = Terminal(MODULE, [str(folder), *arguments], **options)  # type: ignore[arg-type]
    try:
        terminal.read_until(rb"PREFILL.*DECODE")
        yield terminal
    finally:
        terminal.close()


def assert_restored(terminal: Terminal) -> None:
    left = modes(terminal.output)
    assert [m for m in OFF if left.get(m)] == []
    assert left["25"], "the cursor is shown"
    assert terminal.attributes() == terminal.before, "echo and line mode are back"


def keys(data: bytes) -> Callable[[Terminal], None]:
    return lambda terminal: terminal.send(data)


def kill(number: signal.Signals) -> Callable[[Terminal], None]:
    return lambda terminal: terminal.process.send_signal(number)


EXITS: dict[str, tuple[Callable[[Terminal], None], int, str]] = {
    "q": (keys(b"q"), 0, ""),
    "Ctrl+C": (keys(b"\x03"), 130, ""),
    "SIGINT": (kill(signal.SIGINT), 130, "pdtop: ended by SIGINT"),
    "SIGTERM": (kill(signal.SIGTERM), 143, "pdtop: ended by SIGTERM"),
    "SIGHUP": (kill(signal.SIGHUP), 129, "pdtop: ended by SIGHUP"),
    "exception in poller": (kill(signal.SIGUSR1), 1,
                            "pdtop: internal error: RuntimeError: poller failed [/x]; "),
    "exception in the screen": (kill(signal.SIGUSR2), 1, "pdtop: internal error: AttributeError: "),
}  # fmt: skip


@pytest.mark.parametrize("way", EXITS)
def test_s57_the_terminal_is_restored(tmp_path: Path, way: str) -> None:
    end, code, line = EXITS[way]
    with started(tmp_path) as terminal:
        end(terminal)
        assert terminal.wait() == code
        assert_restored(terminal)
        after = terminal.output.rpartition(b"\x1b[0m")[2].decode().strip()
        assert after.startswith(line)
        assert len(after.splitlines()) <= 1
        if code == 1:
            log = tmp_path / "crash.log"
            assert str(log) in after
            assert "Traceback" in log.read_text()
            assert log.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "events").read_text().splitlines()[-1] == "stopped" or code == 1


@pytest.mark.parametrize("ignored", [(), (signal.SIGHUP,)], ids=["SIGHUP as usual", "SIGHUP ignored"])
def test_s57_when_the_terminal_goes_away_the_process_goes_too(
    tmp_path: Path, ignored: tuple[signal.Signals, ...]
) -> None:
    with started(tmp_path, ignore=ignored) as terminal:
        terminal.hang_up()
        assert terminal.process.wait(15) == 129


def test_s57_a_stalled_terminal_stops_neither_polling_nor_the_end(tmp_path: Path) -> None:
    with started(tmp_path, arguments=("--workers", "64", "--every", "0.02"), size=(160, 50)) as terminal:

        def published() -> int:
            return (tmp_path / "events").read_text().count("ready")

        before, deadline = published(), time.monotonic() + 20
        while published() < before + 100:  # nobody reads what the console writes meanwhile
            assert time.monotonic() < deadline
            time.sleep(0.05)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(15) == 143
        terminal.read(1.0)
        assert_restored(terminal)


def test_s57_without_mouse_it_is_never_switched_on(tmp_path: Path) -> None:
    with started(tmp_path, arguments=("--no-mouse",)) as terminal:
        terminal.send(b"q")
        assert terminal.wait() == 0
        assert b"\x1b[?1000h" not in terminal.output
        assert b"\x1b[?1003h" not in terminal.output


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_without_a_screen_is_refused(tmp_path: Path, term: str) -> None:
    terminal = Terminal(MODULE, [str(tmp_path)], environ={"TERM": term})
    try:
        assert terminal.wait() == 2
        assert terminal.output.decode().strip() == f"pdtop: TERM={term} has no screen; use: pdtop snapshot"
    finally:
        terminal.close()
