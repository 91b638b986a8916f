"""Pictures of the overview and of what stands on top of it, at three sizes, in every theme."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest
from textual.app import App
from textual.pilot import Pilot

from pdtop.cluster.model import Snapshot
from pdtop.tui.app import ConsoleApp
from pdtop.tui.options import ConsoleOptions
from tests.tui import fakes
from tests.tui.running import console

SIZES = [(80, 24), (120, 40), (200, 60)]
by_size = pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
Before = Callable[[Pilot[None]], Awaitable[None]]


class Compare(Protocol):
    """The fixture of pytest-textual-snapshot."""

    def __call__(self, app: App[None], *, terminal_size: tuple[int, int], run_before: Before) -> bool: ...


def picture(snapshot: Snapshot, theme: str = "") -> ConsoleApp:
    return console(snapshot, ConsoleOptions(theme=theme, state_dir=Path("/nonexistent")))


def after(*keys: str) -> Before:
    async def press(pilot: Pilot[None]) -> None:
        await pilot.pause()
        if keys:
            await pilot.press(*keys)
        await pilot.pause()

    return press


@by_size
def test_normal(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(picture(fakes.calm()), terminal_size=size, run_before=after())


@by_size
def test_findings(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(picture(fakes.moment()), terminal_size=size, run_before=after("tab", "down"))


@by_size
def test_paused(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(picture(fakes.moment()), terminal_size=size, run_before=after("space"))


@by_size
def test_mono(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(picture(fakes.moment(), "mono"), terminal_size=size, run_before=after("down"))


@pytest.mark.parametrize("theme", ["light", "contrast", "ansi16"])
def test_themes(snap_compare: Compare, theme: str) -> None:
    assert snap_compare(
        picture(fakes.moment(), theme), terminal_size=(120, 40), run_before=after("tab", "down")
    )


@by_size
def test_all_down(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(picture(fakes.all_down()), terminal_size=size, run_before=after())


def test_no_data_yet(snap_compare: Compare) -> None:
    assert snap_compare(picture(fakes.waiting()), terminal_size=(120, 40), run_before=after())


def test_hostile_text(snap_compare: Compare) -> None:
    assert snap_compare(picture(fakes.hostile()), terminal_size=(120, 40), run_before=after())


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_64_workers(snap_compare: Compare, size: tuple[int, int]) -> None:
    app = picture(fakes.calm(100, 27, 37))
    assert snap_compare(app, terminal_size=size, run_before=after("G"))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("help", ("question_mark",)),
        ("sort", ("s",)),
        ("themes", ("T",)),
        ("list", ("f",)),
        ("filter", ("slash", *"role:d", "enter")),
        ("wrong filter", ("slash", *"rol:d")),
        ("sorted and marked", ("tab", "m", "m", "greater_than_sign", "greater_than_sign")),
    ],
)
def test_on_top(snap_compare: Compare, name: str, keys: tuple[str, ...]) -> None:
    assert snap_compare(picture(fakes.moment()), terminal_size=(100, 30), run_before=after(*keys))
