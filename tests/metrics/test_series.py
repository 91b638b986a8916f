"""The ring buffer: newest last, gaps stay gaps, memory stays what it was."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtop.metrics.series import Series


def test_newest_last_and_gaps_kept() -> None:
    series = Series(3, 2.0)
    assert (series.tail(5), series.newest, len(series)) == ((), None, 0)
    for value in (1, 2, None, 4):
        series.append(value)
    assert series.tail(2) == (None, 4)
    assert series.tail(9) == (2, None, 4)
    assert (series.newest, len(series), series.capacity, series.step_s) == (4, 3, 3, 2.0)
    series.append(None)
    assert series.newest is None
    assert series.tail(0) == series.tail(-1) == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_what_is_no_number_is_a_gap(value: float) -> None:
    series = Series(2)
    series.append(value)
    assert series.tail(1) == (None,)


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 1000)), max_size=40), st.integers(1, 8), st.integers(0, 10)
)
def test_it_is_the_end_of_a_list(values: list[int | None], capacity: int, count: int) -> None:
    series = Series(capacity)
    for value in values:
        series.append(value)
    kept = values[-capacity:]
    assert series.tail(count) == tuple(kept[len(kept) - min(count, len(kept)) :])


@pytest.mark.parametrize(("capacity", "step"), [(0, 1.0), (5, 0.0), (5, -1.0)])
def test_a_size_must_make_sense(capacity: int, step: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Series(capacity, step)
