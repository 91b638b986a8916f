"""Reads Prometheus text 0.0.4 and OpenMetrics 1.0 pages into numbers, fast while a page keeps its layout.

A target's page has the same lines at every scrape, only the values differ. The first read takes every line
apart (:mod:`pdtop.metrics.dissection`) and keeps a template: comments as they are, and of each sample all
that stands before its value. While a page fits the template exactly, reading it is one split and one
``float`` a sample; a page that differs anywhere is taken apart again, so both ways give the same result.

One bad line is counted and costs nothing else. Nothing here raises, whatever the bytes are.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any
from weakref import WeakValueDictionary

from pdtop.metrics.dissection import Dissection, Series, dissect

__all__ = ["Layout", "Page", "PageReader", "Prune", "Series"]

#: Pages with more lines are taken apart at every scrape: a hostile page must not fill the memory.
_TEMPLATE_LINES = 100_000
#: Texts shared between targets; beyond this number the pool is emptied (sharing is lost, nothing else).
_POOL_SIZE = 50_000

Prune = Callable[[Sequence[Series]], Iterable[int]]
_Pick = Callable[[Sequence[Any]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Layout:
    """What a page holds, apart from the values; one object for all targets whose pages hold the same.

    ``series`` begins with those that only grow while the process lives (``growing`` of them: counters,
    buckets, counts), then come sums (up to ``windowed``), then everything else. ``kinds`` has the declared
    type of each family, "" where the page gives none.
    """

    series: tuple[Series, ...]
    growing: int
    windowed: int
    kinds: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """One page. ``values`` stand in the order of ``layout.series``; NaN and ±Inf are still in them.

    ``named`` counts the series, wanted or not, whose names begin with each of the reader's prefixes.
    """

    layout: Layout
    values: array[float]
    lines: int
    bad_lines: int
    duplicates: int
    size: int
    named: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    """How the lines of one target's page looked; see :func:`_fit`."""

    lines: int
    fixed_at: _Pick
    fixed: tuple[bytes, ...]
    samples_at: _Pick
    heads: tuple[bytes, ...]
    surplus: int  # size of a page that fits, less the size of its values' texts joined by one byte
    kept: _Pick
    page: Page  # the page it was made from


class PageReader:
    """Reads the pages of one target. ``wanted`` are family names as on the page (counters with ``_total``).

    ``prefixes``: series whose names begin so are counted in ``Page.named``. ``counters_of``: every counter
    with one of these prefixes is wanted too. ``prune`` picks, by index, the series worth keeping.
    """

    __slots__ = ("_counters_of", "_prefixes", "_prune", "_template", "_wanted")

    def __init__(
        self,
        wanted: frozenset[str],
        *,
        prefixes: tuple[str, ...] = (),
        counters_of: tuple[str, ...] = (),
        prune: Prune | None = None,
    ) -> None:
        self._wanted = wanted
        self._prefixes = prefixes
        self._counters_of = counters_of
        self._prune = prune
        self._template: _Template | None = None

    def read(self, body: bytes, *, truncated: bool = False) -> Page:
        """Read one page. ``truncated``: the body ended early, so an unfinished last line is left out."""
        if truncated:
            body = body[: body.rfind(b"\n") + 1]
        lines = body.split(b"\n")
        if self._template is not None:
            values = _fit(self._template, lines, len(body))
            if values is not None:
                was = self._template.page
                return Page(
                    was.layout, values, was.lines, was.bad_lines, was.duplicates, len(body), was.named
                )
        found = dissect(lines, self._wanted, self._prefixes, self._counters_of)
        kept = _in_order(found, self._prune)
        page = Page(
            layout=_layout(found, kept),
            values=array("d", [found.numbers[sample] for sample, _ in kept.all]),
            lines=len(lines) if lines[-1] else len(lines) - 1,
            bad_lines=found.bad_lines,
            duplicates=found.duplicates,
            size=len(body),
            named=found.named,
        )
        self._template = _template(lines, found, kept, page)
        return page


def _fit(template: _Template, lines: list[bytes], size: int) -> array[float] | None:
    """The values of a page that fits the template exactly, else None.

    Every fixed line must be the same, every sample must begin with its head (``removeprefix`` leaves a line
    that does not as it is, and then the total size is wrong) and the rest of it must be a number.
    """
    if len(lines) != template.lines or template.fixed_at(lines) != template.fixed:
        return None
    texts = list(map(bytes.removeprefix, template.samples_at(lines), template.heads))
    joined = b" ".join(texts)
    if len(joined) + template.surplus != size or b"_" in joined:  # float() would take 1_000
        return None
    try:
        numbers = list(map(float, texts))
    except ValueError:
        return None
    return array("d", template.kept(numbers))


@dataclass(frozen=True, slots=True)
class _Kept:
    """Kept series, each with its sample's number: in the layout's order."""

    all: list[tuple[int, Series]]
    growing: int
    windowed: int


def _in_order(found: Dissection, prune: Prune | None) -> _Kept:
    series = found.series
    if prune is not None:
        series = [series[index] for index in prune([one for _, one in series])]
    counters = found.counters
    growing: list[tuple[int, Series]] = []
    sums: list[tuple[int, Series]] = []
    rest: list[tuple[int, Series]] = []
    for entry in series:
        part = entry[1].part
        if part == "sum":
            sums.append(entry)
        elif part or entry[1].family in counters:
            growing.append(entry)
        else:
            rest.append(entry)
    return _Kept(growing + sums + rest, len(growing), len(growing) + len(sums))


_LayoutKey = tuple[tuple[Series, ...], tuple[tuple[str, str], ...], int]
_layouts: WeakValueDictionary[_LayoutKey, Layout] = WeakValueDictionary()


def _layout(found: Dissection, kept: _Kept) -> Layout:
    series = tuple(one for _, one in kept.all)
    kinds = tuple(sorted(found.kinds.items()))
    return _one_layout(series, kept.growing, kept.windowed, kinds)


def sublayout(layout: Layout, indexes: Sequence[int]) -> Layout:
    """The layout of only these series (ascending indexes)."""
    return _one_layout(
        tuple([layout.series[index] for index in indexes]),
        sum(index < layout.growing for index in indexes),
        sum(index < layout.windowed for index in indexes),
        layout.kinds,
    )


def _one_layout(
    series: tuple[Series, ...], growing: int, windowed: int, kinds: tuple[tuple[str, str], ...]
) -> Layout:
    key = (series, kinds, growing)
    layout = _layouts.get(key)
    if layout is None:
        layout = _layouts[key] = Layout(series, growing, windowed, kinds)
    return layout


_pool: dict[bytes, bytes] = {}


def _shared(texts: list[bytes]) -> tuple[bytes, ...]:
    """The same texts, as objects that other targets use too."""
    if len(_pool) > _POOL_SIZE:
        _pool.clear()
    return tuple(map(_pool.setdefault, texts, texts))


def _template(lines: list[bytes], found: Dissection, kept: _Kept, page: Page) -> _Template | None:
    if found.irregular or len(lines) > _TEMPLATE_LINES:
        return None
    fixed = _shared([lines[at] for at in found.fixed])
    heads = _shared(found.heads)
    return _Template(
        lines=len(lines),
        fixed_at=_pick(tuple(found.fixed)),
        fixed=fixed,
        samples_at=_pick(tuple(found.samples)),
        heads=heads,
        # Newlines stand between lines, one less than there are; the same goes for the joined texts.
        surplus=sum(map(len, fixed)) + sum(map(len, heads)) + len(lines) - max(len(heads), 1),
        kept=_pick(tuple([sample for sample, _ in kept.all])),
        page=page,
    )


@lru_cache(maxsize=128)
def _pick(indexes: tuple[int, ...]) -> _Pick:
    """``itemgetter`` that gives a tuple for any number of indexes; shared, since targets look alike."""
    if not indexes:
        return lambda _: ()
    if len(indexes) == 1:
        only = indexes[0]
        return lambda items: (items[only],)
    return itemgetter(*indexes)
