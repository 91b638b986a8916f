"""The order of rows: stable, missing values last either way, names as the second key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pdtop.cluster.model import Worker
from pdtop.tui.columns import NAME, Column
from pdtop.tui.pool_view import PoolView

_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Sort:
    """By which column, and whether the largest comes first. Without a column: the order of the config."""

    column: Column | None = None
    largest_first: bool = True

    def by(self, column: Column) -> Sort:
        """The sort after a choice of ``column``: choosing the same one again turns it round."""
        if self.column is not None and self.column.id == column.id:
            return Sort(self.column, not self.largest_first)
        return Sort(column, largest_first=column.id != NAME.id)

    def turned(self) -> Sort:
        """The other way round."""
        return Sort(self.column, not self.largest_first)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key under which ``host-9`` comes before ``host-10``."""
    parts = _DIGITS.split(name.casefold())
    return tuple((0, int(p), "") if p.isdecimal() and p.isascii() else (1, 0, p) for p in parts if p)


def ordered(workers: Iterable[Worker], sort: Sort, view: PoolView) -> list[Worker]:
    """``workers`` in the order of ``sort``."""
    if sort.column is None:
        return list(workers)
    by_name = sorted(workers, key=lambda w: natural(w.name))
    if sort.column.id == NAME.id:
        return by_name[::-1] if sort.largest_first else by_name
    value = sort.column.sort
    numbers: list[tuple[float, Worker]] = []
    words: list[tuple[str, Worker]] = []
    missing: list[Worker] = []
    for worker in by_name:
        found = value(worker, view)
        if found is None or found != found:
            missing.append(worker)
        elif isinstance(found, str):
            words.append((found, worker))
        else:
            numbers.append((found, worker))
    # ``sorted`` with ``reverse`` keeps the order of equal keys, so names stay ascending both ways.
    by_number = sorted(numbers, key=lambda pair: pair[0], reverse=sort.largest_first)
    by_word = sorted(words, key=lambda pair: pair[0], reverse=sort.largest_first)
    return [w for _, w in by_number] + [w for _, w in by_word] + missing


def frozen(previous: Sequence[str], workers: Iterable[Worker]) -> list[Worker]:
    """``workers`` in the order of the keys ``previous``; new ones at the end."""
    place = {key: index for index, key in enumerate(previous)}
    return sorted(workers, key=lambda w: place.get(w.key, len(place)))
