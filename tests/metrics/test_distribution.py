"""Quantiles as PromQL takes them, and what must be said instead of a number."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtop.metrics.distribution import Distribution, Quantile, Share, merge

BOUNDS = (0.1, 0.5, 1.0, inf)


def histogram(*counts: float, total: float = 0.0, bounds: tuple[float, ...] = BOUNDS) -> Distribution:
    return Distribution(bounds, counts, total)


@pytest.mark.parametrize(
    ("counts", "q", "expected"),
    [
        ((20, 60, 90, 100), 0.5, Quantile(0.1 + 0.4 * 30 / 40)),
        ((20, 60, 90, 100), 0.9, Quantile(1.0)),
        ((20, 60, 90, 100), 0.99, Quantile(1.0, at_least=True)),
        ((20, 60, 90, 100), 0.1, Quantile(0.05, below=0.1)),
        ((0, 0, 0, 0), 0.5, None),
        ((10, 5, 10, 20), 0.5, Quantile(0.1, below=0.1)),  # buckets are raised to their running maximum
        ((0, 0, 0, 7), 0.5, Quantile(1.0, at_least=True)),
        ((0, 0, 4, 4), 0.0, Quantile(0.5)),
    ],
)
def test_quantile(counts: tuple[float, ...], q: float, expected: Quantile | None) -> None:
    found = histogram(*counts).quantile(q)
    if expected is None or found is None:
        assert found is expected
        return
    assert found.value == pytest.approx(expected.value)
    assert (found.at_least, found.below) == (expected.at_least, expected.below)


def test_without_finite_bounds_nothing_is_known() -> None:
    assert histogram(5, bounds=(inf,)).quantile(0.5) is None
    assert histogram(bounds=()).quantile(0.5) is None


def test_mean_and_count() -> None:
    assert (histogram(1, 2, 3, 4, total=6).mean, histogram(1, 2, 3, 4).count) == (1.5, 4)
    assert histogram(0, 0, 0, 0, total=6).mean is None
    assert histogram(1, 2, 3, 4, total=nan).mean is None


@pytest.mark.parametrize(
    ("target", "share"),
    [
        (0.5, Share(0.6, 0.6, 0.6)),
        (0.75, Share(0.6, 0.9, 0.75)),
        (0.05, Share(0.0, 0.2, 0.1)),
        (3.0, Share(0.9, 1.0, None)),
        (inf, Share(1.0, 1.0, 1.0)),
    ],
)
def test_share_within(target: float, share: Share) -> None:
    found = histogram(20, 60, 90, 100).share_within(target)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((share.low, share.high))
    assert found.interpolated == (None if share.interpolated is None else pytest.approx(share.interpolated))
    assert found.exact == (share.low == share.high)
    assert histogram(0, 0, 0, 0).share_within(target) is None


def test_share_above_a_bound() -> None:
    assert histogram(20, 60, 90, 100).share_above(1.0) == pytest.approx(0.1)
    assert histogram(20, 60, 90, 100).share_above(0.7) is None
    assert histogram(0, 0, 0, 0).share_above(1.0) is None


def test_merge_adds_before_any_quantile() -> None:
    merged = merge([histogram(1, 2, 3, 4, total=1), histogram(10, 20, 30, 40, total=2)])
    assert merged == histogram(11, 22, 33, 44, total=3)
    assert merge([]) is None
    assert merge([histogram(1, 2, 3, 4), histogram(1, 2, bounds=(0.2, inf))]) is None


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_rise(counts: list[int], one: float, other: float) -> None:
    total = [float(sum(counts[: i + 1])) for i in range(4)]
    low, high = (histogram(*total).quantile(q) for q in sorted((one, other)))
    if low is not None and high is not None:
        assert low.value <= high.value + 1e-12
