"""A mapping that is computed when it is first looked into: details of a worker that nobody may open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

V = TypeVar("V")


class LazyMapping(Mapping[str, V]):
    """What ``make`` gives, made at the first look. ``make`` is to depend on frozen values only.

    Two threads that look at the same moment may both make it; they get equal mappings.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Mapping[str, V]]) -> None:
        self._make: Callable[[], Mapping[str, V]] | None = make
        self._made: Mapping[str, V] = {}

    def _look(self) -> Mapping[str, V]:
        make = self._make
        if make is not None:
            self._made = make()
            self._make = None  # only now: another thread must not see an empty one
        return self._made

    def __getitem__(self, key: str) -> V:
        return self._look()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._look())

    def __len__(self) -> int:
        return len(self._look())

    def __repr__(self) -> str:
        return f"LazyMapping({dict(self._look())!r})"
