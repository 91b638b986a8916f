"""The order of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdtop.cluster.model import Backlog, Role, Worker
from pdtop.tui.columns import COLUMNS
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.pool_view import PoolView, findings_by_worker, pool_view
from pdtop.tui.sorting import Sort, frozen, natural, ordered
from tests.tui import fakes

MOMENT = fakes.moment()
DECODE = MOMENT.pool_workers(Role.DECODE)


def view(workers: tuple[Worker, ...] = DECODE) -> PoolView:
    return pool_view(MOMENT, Role.DECODE, workers, workers, findings_by_worker(MOMENT), ConsoleOptions())


def order(sort: Sort, workers: tuple[Worker, ...] = DECODE) -> list[str]:
    return [w.name.split(":")[0][-2:] for w in ordered(workers, sort, view(workers))]


@pytest.mark.parametrize(
    ("column", "largest_first", "expected"),
    [
        ("backlog", True, ["22", "21", "23", "24"]),
        ("backlog", False, ["23", "24", "21", "22"]),
        ("name", False, ["21", "22", "23", "24"]),
        ("name", True, ["24", "23", "22", "21"]),
        ("state", True, ["22", "24", "21", "23"]),
        ("ttft", True, ["22", "21", "23", "24"]),
        ("ttft", False, ["23", "21", "22", "24"]),
        ("hit", True, ["21", "22", "23", "24"]),
        ("router", True, ["24", "21", "22", "23"]),
    ],
)
def test_orders(column: str, largest_first: bool, expected: list[str]) -> None:
    assert order(Sort(COLUMNS[column], largest_first)) == expected


def test_without_a_column_the_order_is_the_configs() -> None:
    assert order(Sort(), DECODE[::-1]) == ["24", "23", "22", "21"]


def test_missing_values_come_last_both_ways_and_equal_ones_go_by_name() -> None:
    workers = tuple(
        replace(DECODE[0], key=name, name=name, backlog=Backlog(total))
        for name, total in (("w10", 3.0), ("w9", 3.0), ("wa", None), ("w1", 7.0), ("w8", float("nan")))
    )
    up = [w.name for w in ordered(workers, Sort(COLUMNS["backlog"], largest_first=False), view(workers))]
    down = [w.name for w in ordered(workers, Sort(COLUMNS["backlog"]), view(workers))]
    assert up == ["w9", "w10", "w1", "w8", "wa"]
    assert down == ["w1", "w9", "w10", "w8", "wa"]


def test_every_column_sorts_whatever_is_missing() -> None:
    empty = Worker("x", "x", Role.DECODE, None)
    for column in COLUMNS.values():
        workers = (empty, *DECODE, *MOMENT.pool_workers(Role.PREFILL))
        assert len(ordered(workers, Sort(column), view(workers))) == 8


def test_choosing_the_same_column_again_turns_it_round() -> None:
    sort = Sort().by(COLUMNS["backlog"])
    assert sort.largest_first
    assert not sort.by(COLUMNS["backlog"]).largest_first
    assert sort.by(COLUMNS["kv"]).largest_first
    assert not sort.by(COLUMNS["name"]).largest_first


def test_numbers_in_names_count_as_numbers() -> None:
    names = ["host-10", "host-9", "host-9a", "Host-1", "10.0.2.9:30", "10.0.2.21:30"]
    assert sorted(names, key=natural) == [
        "10.0.2.9:30",
        "10.0.2.21:30",
        "Host-1",
        "host-9",
        "host-9a",
        "host-10",
    ]


def test_a_frozen_order_stays_and_newcomers_go_last() -> None:
    keys = [w.key for w in DECODE]
    newcomer = replace(DECODE[0], key="new", name="new")
    shuffled = (newcomer, DECODE[3], DECODE[1], DECODE[0], DECODE[2])
    assert [w.key for w in frozen(keys, shuffled)] == [*keys, "new"]
