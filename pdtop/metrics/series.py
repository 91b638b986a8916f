"""A bounded history of one number, one point a tick, gaps kept as gaps."""

from __future__ import annotations

from array import array
from math import isfinite, nan


class Series:
    """Ring buffer of ``capacity`` points that are ``step_s`` seconds apart; 4 bytes a point."""

    __slots__ = ("_count", "_next", "_points", "step_s")

    def __init__(self, capacity: int = 900, step_s: float = 1.0) -> None:
        if capacity < 1 or not step_s > 0:
            raise ValueError("capacity and step_s must be positive")
        self.step_s = step_s
        self._points = array("f", [nan]) * capacity
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        """Points held, gaps included."""
        return self._count

    @property
    def capacity(self) -> int:
        return len(self._points)

    def append(self, value: float | None) -> None:
        """Add the newest point; None (or anything that is not finite) is a gap."""
        usable = value is not None and isfinite(value) and abs(value) < 3.4e38
        self._points[self._next] = value if usable and value is not None else nan
        self._next = (self._next + 1) % len(self._points)
        self._count = min(self._count + 1, len(self._points))

    @property
    def newest(self) -> float | None:
        """The newest point; None if it is a gap or there is none."""
        value = self._points[self._next - 1]
        return value if value == value else None  # NaN, the gap, is the only value unequal to itself

    def tail(self, count: int) -> tuple[float | None, ...]:
        """The newest ``count`` points (fewer if there are fewer), oldest first."""
        count = max(0, min(count, self._count))
        start = self._next - count
        held = self._points[start:] if start < 0 else array("f")
        held += self._points[max(start, 0) : self._next]
        return tuple([value if value == value else None for value in held])
