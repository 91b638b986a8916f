"""Frames write few bytes, and still leave on the terminal exactly what a full repaint would."""

from __future__ import annotations

import io

import pytest
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from pdtop.tui.app import ConsoleApp
from pdtop.tui.frames import TightChopsUpdate, TightLayoutUpdate, change, codes, joined, tight
from pdtop.tui.options import ConsoleOptions
from tests.tui import fakes
from tests.tui.fakes import FakeSource
from tests.tui.grid import Grid

CONSOLE = Console(file=io.StringIO(), force_terminal=True, color_system="256")
RED = Style.parse("bold red on black")
DIM = Style.parse("dim red on black")
TRUE = ColorSystem.TRUECOLOR


@pytest.mark.parametrize(
    ("now", "wanted", "sequence"),
    [
        ("", "", ""),
        ("", "bold red", "\x1b[1;31m"),
        ("bold red", "bold red", ""),
        ("bold red", "bold blue", "\x1b[34m"),
        ("red", "bold red", "\x1b[1m"),
        ("bold red on blue", "red on blue", "\x1b[0;31;44m"),
        ("red on blue", "red", "\x1b[49m"),
        ("red on blue", "on blue", "\x1b[39m"),
        ("bold red", "", "\x1b[0m"),
    ],
)
def test_a_style_is_changed_with_as_little_as_it_takes(now: str, wanted: str, sequence: str) -> None:
    start, end = (codes(Style.parse(s or "none"), TRUE) for s in (now, wanted))
    assert change(start, end) == sequence


def test_only_the_cells_of_a_span_are_written() -> None:
    strip = Strip([Segment("0123456789", RED), Segment("abcdefghij", DIM)])
    update = ChopsUpdate([{0: strip}], [(0, 8, 12)], [[20]])
    written = TightChopsUpdate(update.chops, update.spans, update.chop_ends).render_segments(CONSOLE)
    assert written == "\x1b[1;9H\x1b[1;31;40m89\x1b[0;2;31;40mab\x1b[0m"


def test_blanks_do_not_change_the_pen_unless_it_shows() -> None:
    underlined = Style.parse("underline red on black")
    strip = Strip([Segment("a", RED), Segment("  ", DIM), Segment("b", RED), Segment(" ", underlined)])
    written = TightLayoutUpdate([[strip]], Region(0, 0, 5, 1)).render_segments(CONSOLE)
    assert written == "\x1b[1;1H\x1b[1;31;40ma  b\x1b[0;4;31;40m \x1b[0m"


def test_spans_with_a_small_gap_are_one() -> None:
    assert joined([(0, 0, 3), (0, 6, 8), (0, 20, 22), (1, 22, 23)]) == [(0, 0, 8), (0, 20, 22), (1, 22, 23)]


def test_what_is_no_frame_stays_as_it_is() -> None:
    assert tight(None) is None
    assert tight("text") == "text"
    layout = LayoutUpdate([], Region(0, 0, 1, 1))
    assert isinstance(tight(layout), TightLayoutUpdate)


class Recorder(ConsoleApp):
    """Draws every frame into a grid as a terminal would."""

    def __init__(self, source: FakeSource, size: tuple[int, int], theme: str) -> None:
        super().__init__(source, ConsoleOptions(theme=theme), environ={}, clock=lambda: source.current.at)
        self.grid = Grid(*size)
        self.bytes_written = 0

    def _display(self, screen: object, renderable: object) -> None:
        if isinstance(renderable, (ChopsUpdate, LayoutUpdate)) and not self._batch_count:
            frame = tight(renderable)
            assert isinstance(frame, (TightChopsUpdate, TightLayoutUpdate))
            data = frame.render_segments(self.console)
            self.bytes_written += len(data.encode())
            self.grid.feed(data)
        super()._display(screen, renderable)  # type: ignore[arg-type]

    def fresh(self) -> Grid:
        """The grid that a full repaint of this moment gives."""
        grid = Grid(self.grid.width, self.grid.height)
        full = tight(self.screen._compositor.render_full_update())
        assert isinstance(full, TightLayoutUpdate)
        grid.feed(full.render_segments(self.console))
        return grid


KEYS = ("j", "j", "j", "m", "k", "greater_than_sign", "S", "pagedown", "G", "g", "right", "left", "tab", "j")


@pytest.mark.parametrize(("size", "theme"), [((80, 24), "mono"), ((160, 50), "dark")])
async def test_frames_leave_what_a_full_repaint_would(size: tuple[int, int], theme: str) -> None:
    source = FakeSource(fakes.calm(100, 27, 37))
    app = Recorder(source, size, theme)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for step, key in enumerate(KEYS):
            source.push(fakes.calm(101 + step, 27, 37))
            await pilot.pause()
            await pilot.press(key)
            await pilot.pause()
            assert app.grid.looks() == app.fresh().looks(), (step, key)
        for snapshot in (fakes.moment(120), fakes.all_down(121), fakes.hostile(122), fakes.empty()):
            source.push(snapshot)
            await pilot.pause()
            assert app.grid.looks() == app.fresh().looks(), snapshot.number


async def test_a_snapshot_that_changes_nothing_writes_nothing() -> None:
    source = FakeSource(fakes.moment())
    app = Recorder(source, (120, 40), "dark")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.bytes_written = 0
        for _ in range(5):
            source.push(fakes.moment())
            await pilot.pause()
        assert app.bytes_written == 0


@pytest.mark.parametrize(("changing", "most"), [(0.02, 2_000), (1.0, 12_000)])
async def test_64_workers_need_few_bytes(changing: float, most: int) -> None:
    source = FakeSource(fakes.calm(100, 27, 37, changing))
    app = Recorder(source, (160, 50), "dark")
    async with app.run_test(size=(160, 50)) as pilot:
        await pilot.pause()
        app.bytes_written = 0
        for number in range(101, 121):
            source.push(fakes.calm(number, 27, 37, changing))
            await pilot.pause()
        assert app.bytes_written / 20 < most
