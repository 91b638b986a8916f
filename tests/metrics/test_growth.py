"""Growth looked up where somebody asks."""

from __future__ import annotations

from array import array
from math import isnan
from operator import itemgetter

import pytest

from pdtop.metrics.growth import Growth

GROWTH = Growth(array("d", [1.0, 2.0, 3.0]), array("d", [1.0, 5.0, 10.0]), 4)


def test_growing_series_have_their_growth_and_others_none() -> None:
    assert len(GROWTH) == 4
    assert GROWTH[:3] == [0.0, 3.0, 7.0]
    assert isnan(GROWTH[3])
    assert isnan(GROWTH[-1])
    assert GROWTH[-2] == 7.0


def test_it_ends_where_the_page_does() -> None:
    assert len(list(GROWTH)) == 4
    for index in (4, -5):
        with pytest.raises(IndexError):
            GROWTH[index]


def test_several_at_once() -> None:
    assert GROWTH.take(itemgetter(2, 1)) == (7.0, 3.0)
