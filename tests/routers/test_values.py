"""Values out of a stranger's JSON."""

from __future__ import annotations

import pytest

from pdtop.routers.values import number_of


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0.0),
        (2.5, 2.5),
        (2**53, 2.0**53),
        (-1, None),
        (1e308, None),  # the sum of two would overflow
        (10**400, None),
        (float("nan"), None),
        (float("inf"), None),
        (True, None),
        ("3", None),
        (None, None),
    ],
)
def test_numbers_are_in_bounds_or_unknown(value: object, number: float | None) -> None:
    assert number_of(value) == number
