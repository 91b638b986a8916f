"""The raw series of a worker: search, keys, live values, huge and hostile pages."""

from __future__ import annotations

import pytest
from textual.widgets import Input

from pdtop.tui.app import ConsoleApp
from pdtop.tui.lines import line_width
from pdtop.tui.screens.raw_series import LIVE_BYTES, RawSeriesScreen
from pdtop.tui.screens.worker import WorkerScreen
from pdtop.tui.widgets import series_list
from pdtop.tui.widgets.line_view import LineView
from pdtop.tui.widgets.series_list import SeriesList, series_line
from pdtop.tui.worker_raw import RawPage, SeriesLine, number, parsed
from tests.tui import fakes
from tests.tui.opened import PAGE, STALLED, opened, without


def raw_of(app: ConsoleApp) -> RawSeriesScreen:
    assert isinstance(app.screen, RawSeriesScreen)
    return app.screen


SMALL = """# HELP sglang:num_running_reqs running
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",dp_rank="0"} 3.0
sglang:num_running_reqs{model_name="m",dp_rank="1"} NaN
sglang:token_usage{model_name="[red]m"} 0.25

up 1.7e9
broken{ 1
with_escape{a="\\n\x1b[31m"} +Inf
"""


def rows(app: ConsoleApp) -> list[str]:
    series = raw_of(app).query_one(SeriesList)
    return ["".join(s.text for s in series.render_line(y)).rstrip() for y in range(series.size.height)]


def note(app: ConsoleApp) -> str:
    return "".join(w for w, _ in raw_of(app).query_one("#raw-note", LineView).lines[0]).strip()


def detail(app: ConsoleApp) -> list[str]:
    return ["".join(w for w, _ in line) for line in raw_of(app).query_one("#raw-detail", LineView).lines]


@pytest.mark.parametrize("key", ["slash", "r"])
async def test_raw_series(key: str) -> None:
    async with opened(fakes.moment(), pages={STALLED: SMALL}, size=(80, 24)) as (app, pilot, _):
        await pilot.press(key)
        await pilot.pause()
        assert note(app) == "10.0.2.22:30001   6 of 6 series   283B"
        assert rows(app)[:7] == [
            '▌ sglang:num_running_reqs  dp_rank="0" model_name="m"                         3',
            '  sglang:num_running_reqs  dp_rank="1" model_name="m"                       NaN',
            '  sglang:token_usage  model_name="[red]m"                                  0.25',
            "  up                                                                 1700000000",
            "  ▲ not readable  broken{ 1",
            '  with_escape  a=" �[31m"                                                  +Inf',
            "",
        ]


async def test_search_in_names_and_labels() -> None:
    async with opened(fakes.moment(), pages={STALLED: SMALL}) as (app, pilot, _):
        await pilot.press("slash", *"NK", "space", *"run")
        await pilot.pause()
        assert note(app).startswith("10.0.2.22:30001   2 of 6 series")
        await pilot.press("escape")
        assert note(app).startswith("10.0.2.22:30001   6 of 6 series")
        await pilot.press("z")
        assert note(app).startswith("10.0.2.22:30001   0 of 6 series")
        assert detail(app)[1] == " nothing matches"


async def test_keys_of_the_raw_series() -> None:
    async with opened(fakes.moment(), pages={STALLED: PAGE.read_text()}) as (app, pilot, _):
        await pilot.press("slash")
        await pilot.pause()
        series = raw_of(app).query_one(SeriesList)
        total = int(note(app).split()[1])

        async def after(key: str) -> str:
            await pilot.press(key)
            await pilot.pause()
            return detail(app)[1]

        first = detail(app)[1]
        await pilot.press("enter")
        assert app.focused is series
        second = await after("down")
        assert second != first
        assert await after("up") == first
        assert await after("j") == second
        assert await after("k") == first
        last = await after("end")
        assert series.scroll_offset.y == total - series.size.height
        assert await after("pageup") != last
        assert await after("pagedown") == last
        assert await after("home") == first
        assert await after("G") == last
        assert await after("g") == first
        await pilot.press("slash")
        assert isinstance(app.focused, Input)
        await pilot.press("down")
        assert app.focused is series
        await pilot.press("q")
        assert isinstance(app.screen, WorkerScreen)


async def test_a_click_takes_a_row() -> None:
    async with opened(fakes.moment(), pages={STALLED: SMALL}) as (app, pilot, _):
        await pilot.press("slash")
        await pilot.click(SeriesList, offset=(5, 2))
        await pilot.pause()
        assert detail(app)[1:] == [" sglang:token_usage 0.25", ' model_name="[red]m"']


async def test_escape_leaves_when_there_is_no_search() -> None:
    async with opened(fakes.moment(), pages={STALLED: SMALL}) as (app, pilot, _):
        await pilot.press("slash", "x", "escape")
        assert isinstance(app.screen, RawSeriesScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, WorkerScreen)


async def test_values_are_live_and_the_cursor_stays() -> None:
    async with opened(fakes.moment(), pages={STALLED: SMALL}) as (app, pilot, source):
        await pilot.press("slash", "enter", "down")
        source.pages[STALLED] = SMALL.replace(" NaN", " 7.0")
        source.push(fakes.moment(101))
        await pilot.pause()
        assert detail(app)[1] == " sglang:num_running_reqs 7"
        await pilot.press("space")
        source.pages[STALLED] = SMALL
        source.push(fakes.moment(102))
        await pilot.pause()
        assert detail(app)[1] == " sglang:num_running_reqs 7"
        await pilot.press("r")
        assert detail(app)[1] == " sglang:num_running_reqs NaN"


async def test_a_vanished_page_stays() -> None:
    async with opened(fakes.moment(), pages={STALLED: SMALL}) as (app, pilot, source):
        await pilot.press("slash")
        del source.pages[STALLED]
        source.push(without(fakes.moment(), STALLED))
        await pilot.pause()
        assert note(app).startswith("10.0.2.22:30001   6 of 6 series")


async def test_no_page_at_all() -> None:
    async with opened(fakes.moment()) as (app, pilot, _):
        await pilot.press("slash", "a", "enter", "down", "end")
        assert note(app) == "10.0.2.22:30001   no metrics page yet"


async def test_of_a_huge_page_only_rows_in_sight_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = "".join(f'family_{i % 97}{{rank="{i}",le="{i % 7}.0"}} {i}\n' for i in range(84_000))
    assert len(huge) > LIVE_BYTES
    count = 0

    def counting(line: str) -> SeriesLine:
        nonlocal count
        count += 1
        return parsed(line)

    monkeypatch.setattr(series_list, "parsed", counting)
    async with opened(fakes.moment(), pages={STALLED: huge}) as (app, pilot, source):
        await pilot.press("slash", *"_5{", "enter", "end", "home", "pagedown")
        await pilot.pause()
        assert note(app).startswith("10.0.2.22:30001   866 of 84000 series")
        assert note(app).endswith("large page: r reads it again")
        assert count < 30 * 40
        source.pages[STALLED] = SMALL
        source.push(fakes.moment(101))
        await pilot.pause()
        assert "of 84000 series" in note(app)
        await pilot.press("escape", "enter", "r")
        assert "6 of 6 series" in note(app)


async def test_a_page_that_is_still_being_fetched_comes_with_a_later_snapshot() -> None:
    huge = "".join(f"family_{i} 1\n" for i in range(90_000))
    async with opened(fakes.moment()) as (app, pilot, source):
        await pilot.press("slash")
        for number_, text_ in ((101, huge), (102, huge + "new 1\n"), (103, huge + "new 1\n")):
            source.pages[STALLED] = text_
            source.push(fakes.moment(number_))
            await pilot.pause()
        assert "90000 of 90000" in note(app)
        source.pages[STALLED] = huge
        await pilot.press("enter", "r")
        source.pages[STALLED] = huge + "new 1\n"
        source.push(fakes.moment(104))
        await pilot.pause()
        assert "90001 of 90001" in note(app)


def test_every_series_of_a_real_page_is_readable() -> None:
    raw = RawPage(PAGE.read_text())
    assert len(raw) == 722
    series = [parsed(raw.line(i)) for i in range(len(raw))]
    assert not any(s.bad for s in series)
    assert parsed('sglang:cache_hit_rate{model_name="m",le="1"} 5').labels == 'le="1" model_name="m"'
    assert len(raw.search("KV_TRANSFER le=")) == len(raw.search("le= kv_transfer")) > 10


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3.0, "3"), (0.25, "0.25"), (-1.0, "-1"), (1.7e9, "1700000000"), (1e300, "1e+300"),
     (float("nan"), "NaN"), (float("inf"), "+Inf"), (float("-inf"), "-Inf")],
)  # fmt: skip
def test_values_as_exported(value: float, expected: str) -> None:
    assert number(value) == expected


@pytest.mark.parametrize(
    "line", ["{", "a{b=c} 1", "x" * 100_000, "a b c d", "\x00\x9b31m 1", 'a{b="' + "c" * 20_000]
)
def test_no_line_raises_or_does_harm(line: str) -> None:
    series = parsed(line)
    runs = series_line(series, 80)
    assert line_width(runs) <= 80
    assert all(c.isprintable() for words, _ in runs for c in words)


@pytest.mark.parametrize("width", [5, 20, 80, 200])
def test_a_value_is_never_cut(width: int) -> None:
    series = SeriesLine("n" * 60, 'a="' + "b" * 300 + '"', "0.00071549415588")
    assert "0.00071549415588" in "".join(w for w, _ in series_line(series, width))
    if width >= 20:
        assert line_width(series_line(series, width)) <= width + 2
