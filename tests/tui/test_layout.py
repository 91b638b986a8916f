"""How the overview shares its lines out."""

from __future__ import annotations

import pytest

from pdtop.tui.layout import Plan, plan, share


def used(p: Plan, height: int) -> int:
    pools = [t for t in p.tables if t]
    return 2 + p.strip + sum(t + 1 + p.gap for t in pools) + (p.charts_below + p.gap if p.charts_below else 0)


def test_every_worker_of_three_and_four_is_in_sight_at_80x24() -> None:
    p = plan(80, 24, (3, 4, 0))
    assert p.tables == (4, 5, 0)
    assert used(p, 24) <= 24


@pytest.mark.parametrize("size", [(80, 24), (80, 16), (120, 40), (200, 60), (60, 12)])
@pytest.mark.parametrize("rows", [(3, 4, 0), (1, 1, 0), (27, 37, 0), (110, 146, 0), (3, 4, 2), (64, 1, 1)])
def test_it_fits_as_long_as_every_pool_can_have_a_row(size: tuple[int, int], rows: tuple[int, ...]) -> None:
    width, height = size
    p = plan(width, height, rows)
    pools = sum(1 for r in rows if r)
    assert all((t > 0) == (r > 0) for t, r in zip(p.tables, rows, strict=True))
    assert all(t - 1 <= r for t, r in zip(p.tables, rows, strict=True) if t)
    least = 2 + 2 + pools * 3
    assert used(p, height) <= max(height, least + pools)


def test_charts_stand_beside_wide_tables_and_below_short_ones() -> None:
    assert plan(200, 60, (3, 4, 0)).charts_beside == 58
    assert plan(200, 60, (3, 4, 0)).charts_below == 0
    assert plan(120, 40, (3, 4, 0)).charts_below == 12
    assert plan(120, 40, (27, 37, 0)).charts_below == 0


@pytest.mark.parametrize(
    ("room", "rows", "given"),
    [
        (10, (3, 4, 0), (3, 4, 0)),
        (7, (3, 4, 0), (3, 4, 0)),
        (5, (3, 4, 0), (2, 3, 0)),
        (30, (27, 37, 0), (13, 17, 0)),
        (30, (1, 100, 0), (1, 29, 0)),
        (1, (27, 37, 0), (1, 1, 0)),
        (0, (5, 5, 5), (1, 1, 1)),
        (20, (60, 0, 4), (17, 0, 3)),
    ],
)
def test_too_many_rows_are_shared_in_proportion(
    room: int, rows: tuple[int, ...], given: tuple[int, ...]
) -> None:
    assert share(room, rows) == given
