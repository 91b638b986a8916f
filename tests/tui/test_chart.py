"""Charts: columns, scale, gaps, axis, the newest value."""

from __future__ import annotations

import pytest

from pdtop.tui import text
from pdtop.tui.lines import line_width
from pdtop.tui.tones import Line, Tone
from pdtop.tui.widgets.chart import GUTTER, Chart, chart_lines, scale, ticks_per_column


def words(lines: list[Line]) -> list[str]:
    return ["".join(w for w, _ in line) for line in lines]


def drawn(chart: Chart, width: int = 27, rows: int = 2, tick: int = 0, **more: bool) -> list[str]:
    return words(chart_lines(chart, width, rows, tick=tick, interval_s=6.0, **more))


def test_a_whole_chart() -> None:
    points = (0.0, 1.0, 2.0, None, None, 4.0, 8.0, 10.0)
    assert drawn(Chart("Backlog", points, text.count, floor=10.0, unit="requests")) == [
        "Backlog         10 requests",
        "    10┤                  ▅█",
        "      │            ▁▂▃  ▆██",
        "     0┴────────1m───────now",
    ]


def test_zero_is_a_low_bar_and_a_gap_is_nothing() -> None:
    bottom = drawn(Chart("Running", (0.0, None, 0.0), text.count, floor=10.0))[2]
    assert bottom == "      │                 ▁ ▁"


def test_a_newest_point_that_is_a_gap_is_unknown_not_the_last_value() -> None:
    title = chart_lines(Chart("TTFT p50", (0.2, None), text.seconds), 30, 2, tick=0, interval_s=1.0)[0]
    assert "".join(w for w, _ in title).split() == ["TTFT", "p50", "–"]
    assert (text.UNKNOWN, Tone.MUTED) in title


@pytest.mark.parametrize(("points", "what"), [((), "no data yet"), ((None, None), "no data")])
def test_a_chart_without_values_says_so(points: tuple[None, ...], what: str) -> None:
    lines = drawn(Chart("TPOT p50", points, text.seconds), rows=3)
    assert lines[2].removeprefix("      │").strip() == what


def test_finished_columns_stay_while_the_newest_grows() -> None:
    """Ten ticks to a column: within a column only the newest one may change."""
    values = [float(v % 7) for v in range(400)]

    def plot(tick: int) -> list[str]:
        chart = Chart("Backlog", tuple(values[: tick + 1][-300:]), text.count, floor=10.0)
        return [line[GUTTER:] for line in words(chart_lines(chart, 37, 4, tick=tick, interval_s=1.0))[1:5]]

    before, after, later = plot(321), plot(325), plot(330)
    assert [line[1:-1] for line in before] == [line[1:-1] for line in after]
    assert [line[3:-1] for line in after] == [line[2:-2] for line in later]


@pytest.mark.parametrize(
    ("points", "cells", "interval_s", "ticks"),
    [(10, 60, 1.0, 2), (120, 60, 1.0, 2), (121, 60, 1.0, 5), (900, 60, 1.0, 15), (900, 90, 1.0, 10),
     (450, 90, 2.0, 5), (5000, 90, 1.0, 56)],
)  # fmt: skip
def test_the_shortest_span_that_holds_all_points_fills_the_width(
    points: int, cells: int, interval_s: float, ticks: int
) -> None:
    assert ticks_per_column(points, cells, interval_s) == ticks


def test_means_for_rates_and_maxima_for_queues() -> None:
    values = tuple(float(v) for v in (0, 10) * 60)
    highest = words(chart_lines(Chart("b", values, text.count, floor=10.0), 67, 1, tick=119, interval_s=1.0))[
        1
    ]
    mean = words(
        chart_lines(Chart("t", values, text.count, floor=10.0, mean=True), 67, 1, tick=119, interval_s=1.0)
    )[1]
    assert highest[GUTTER:] == "█" * 60
    assert mean[GUTTER:] == "▄" * 60


def test_the_scale_moves_in_steps_and_has_a_floor() -> None:
    assert scale((None, 0.3), 10.0) == 10.0
    assert scale((11.0, 3.0), 10.0) == 20.0
    assert scale((None,), 0.5) == 0.5


def test_a_tall_plot_names_its_middle_and_a_fixed_scale_stays() -> None:
    lines = drawn(Chart("KV use", (0.5, 0.5), text.percent, full=1.0), rows=8)
    assert [line[:GUTTER] for line in lines[1:9]] == [
        "  100%┤", "      │", "      │", "      │", "   50%┤", "      │", "      │", "      │",
    ]  # fmt: skip
    assert [line.rstrip()[GUTTER:].strip() for line in lines[1:9]] == ["", "", "", "", *["██"] * 4]


@pytest.mark.parametrize(("value", "shown", "tone"), [(0.5, "50%", Tone.STRONG), (0.9, "▲ 90%", Tone.WARNING),
                                                      (0.97, "✖ 97%", Tone.CRITICAL)])  # fmt: skip
def test_the_newest_value_is_marked_at_its_level(value: float, shown: str, tone: Tone) -> None:
    chart = Chart("KV use", (value,), text.percent, full=1.0, level=(0.85, 0.95))
    assert (shown, tone) in chart_lines(chart, 40, 2, tick=0, interval_s=1.0)[0]


def test_old_numbers_fade() -> None:
    lines = chart_lines(Chart("Running", (3.0,), text.count), 40, 2, tick=0, interval_s=1.0, stale=True)
    assert ("3", Tone.STALE) in lines[0]
    assert all(tone in (Tone.STALE, Tone.MUTED) for line in lines[1:] for _, tone in line)


def test_labels_of_the_axis_keep_their_distance() -> None:
    axis = words(chart_lines(Chart("x", tuple([1.0] * 900), text.count), 97, 2, tick=0, interval_s=1.0))[-1]
    assert axis[GUTTER:].strip("─").replace("─", " ").split() == [
        "14m",
        "12m",
        "10m",
        "8m",
        "6m",
        "4m",
        "2m",
        "now",
    ]


@pytest.mark.parametrize("width", [1, 7, 8, 12, 20, 45, 200])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_every_line_fits(width: int, rows: int) -> None:
    chart = Chart("Generated tokens", tuple(float(v) for v in range(500)), text.si, unit="tok/s")
    lines = chart_lines(chart, width, rows, tick=77, interval_s=1.0)
    assert len(lines) == rows + 2
    assert all(line_width(line) <= max(width, GUTTER + 1) for line in lines[1:])
    if width >= 20:
        assert all(line_width(line) == width for line in lines)
