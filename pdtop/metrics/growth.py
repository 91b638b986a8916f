"""The growth of a page's series between two reads: subtracted where somebody looks, at a tenth of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import nan
from operator import sub
from typing import overload

from pdtop.metrics.exposition import Pick


class Growth(Sequence[float]):
    """What each of ``size`` series grew by. ``first`` and ``last`` hold those that grow, which come first;
    the others have no growth (NaN). Neither may change afterwards.
    """

    __slots__ = ("_first", "_last", "_size")

    def __init__(self, first: array[float], last: array[float], size: int) -> None:
        self._first = first
        self._last = last
        self._size = size

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> list[float]: ...
    def __getitem__(self, index: int | slice) -> float | list[float]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._size))]
        if index < 0:
            index += self._size
        if 0 <= index < len(self._last):
            return self._last[index] - self._first[index]
        if 0 <= index < self._size:
            return nan
        raise IndexError(index)

    def take(self, pick: Pick) -> tuple[float, ...]:
        """Those that ``pick`` picks, all of which must be growing ones."""
        return tuple(map(sub, pick(self._last), pick(self._first)))
