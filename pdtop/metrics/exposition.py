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

from pdtop.metrics.dissection import Dialect, Dissection, Labels, Series, dissect

__all__ = ["Labels", "Layout", "Page", "PageReader", "Pick", "Prune", "Series", "pick", "sublayout"]

# A hostile page must not fill the memory or take all the time.
_MOST_LINES = 200_000  # what follows them is one bad line
_TEMPLATE_LINES = 100_000  # longer pages are taken apart at every scrape
_SHARED_LINES = 5_000  # what longer pages need is not kept for others

Prune = Callable[[Sequence[Series]], Iterable[int]]
Pick = Callable[[Sequence[Any]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Layout:
    """What a page holds, apart from the values; one object for all targets whose pages hold the same.

    ``series`` begins with those that only grow while the process lives (``growing`` of them: counters,
    buckets, counts), then come sums (up to ``windowed``), then everything else; each part is sorted, whatever
    the order on the page. ``kinds`` has the declared type of each family, "" where the page gives none.
    """

    series: tuple[Series, ...]
    growing: int
    windowed: int
    kinds: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """One page. ``values`` stand in the order of ``layout.series``; NaN and ±Inf are still in them.

    ``named`` counts the series, wanted or not, whose names begin with each of the reader's prefixes, and the
    rest. ``ordinals`` are the label values that were replaced by their order of appearance.
    """

    layout: Layout
    values: array[float]
    lines: int
    bad_lines: int
    duplicates: int
    size: int
    named: tuple[int, ...]
    ordinals: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class _Arrangement:
    """A layout, and which of a page's wanted series it consists of (by index)."""

    layout: Layout
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    """How the lines of one target's page looked; see :func:`_fit`."""

    lines: int
    fixed_at: Pick
    fixed: tuple[bytes, ...]
    samples_at: Pick
    heads: tuple[bytes, ...]
    surplus: int  # size of a page that fits, less the size of its values' texts joined by one byte
    kept: Pick
    arrangement: _Arrangement
    page: Page  # the page it was made from


class PageReader:
    """Reads the pages of one target. ``wanted`` are family names as on the page (counters with ``_total``).

    ``prefixes``: series whose names begin so are counted in ``Page.named``. ``counters_of``: every counter
    with one of these prefixes is wanted too. ``ordinal``: a label whose values differ between targets that
    are otherwise alike; they are replaced by their order. ``prune`` picks, by index, the series to keep.
    """

    __slots__ = ("_dialect", "_prune", "_template")

    def __init__(
        self,
        wanted: frozenset[str],
        *,
        prefixes: tuple[str, ...] = (),
        counters_of: tuple[str, ...] = (),
        ordinal: str = "",
        prune: Prune | None = None,
    ) -> None:
        self._dialect = _dialect(wanted, prefixes, counters_of, ordinal)
        self._prune = prune
        self._template: _Template | None = None

    def read(self, body: bytes, *, truncated: bool = False) -> Page:
        """Read one page. ``truncated``: the body ended early, so an unfinished last line is left out."""
        if truncated:
            body = body[: body.rfind(b"\n") + 1]
        lines = body.split(b"\n", _MOST_LINES)
        if self._template is not None:
            values = _fit(self._template, lines, len(body))
            if values is not None:
                was = self._template.page
                return Page(
                    was.layout,
                    values,
                    was.lines,
                    was.bad_lines,
                    was.duplicates,
                    len(body),
                    was.named,
                    was.ordinals,
                )
        found = dissect(lines, self._dialect)
        arrangement = _arrange(found, self._prune)
        places = tuple([found.places[index] for index in arrangement.order])
        page = Page(
            layout=arrangement.layout,
            values=array("d", map(found.numbers.__getitem__, places)),
            lines=len(lines) if lines[-1] else len(lines) - 1,
            bad_lines=found.bad_lines,
            duplicates=found.duplicates,
            size=len(body),
            named=tuple(found.named),
            ordinals=frozenset(found.ordinals),
        )
        self._template = _template(lines, found, places, arrangement, page)
        return page


@lru_cache(maxsize=16)
def _dialect(
    wanted: frozenset[str], prefixes: tuple[str, ...], counters_of: tuple[str, ...], ordinal: str
) -> Dialect:
    """One for all readers that want the same."""
    return Dialect(wanted, prefixes, counters_of, ordinal)


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


#: Arrangements and layouts in use, by what they were made from.
_arrangements: WeakValueDictionary[tuple[object, ...], _Arrangement] = WeakValueDictionary()
_layouts: WeakValueDictionary[tuple[object, ...], Layout] = WeakValueDictionary()


def _arrange(found: Dissection, prune: Prune | None) -> _Arrangement:
    key = (tuple(found.keys), tuple(found.kinds.items()), prune)
    arrangement = _arrangements.get(key)
    if arrangement is None:
        arrangement = _arrangements[key] = _new_arrangement(found, prune)
    return arrangement


def _new_arrangement(found: Dissection, prune: Prune | None) -> _Arrangement:
    growing: list[int] = []
    sums: list[int] = []
    rest: list[int] = []
    for index in range(len(found.series)) if prune is None else prune(found.series):
        family, part, _, _ = found.series[index]
        kind = found.kinds[family]
        if part == "sum":
            sums.append(index)
        elif part or kind == "counter" or (family.endswith("_total") and kind not in ("gauge", "summary")):
            growing.append(index)
        else:
            rest.append(index)
    for group in (growing, sums, rest):
        group.sort(key=found.series.__getitem__)
    order = tuple(growing + sums + rest)
    series = tuple([found.series[index] for index in order])
    kinds = tuple(sorted(found.kinds.items()))
    key = (series, kinds, len(growing))
    layout = _layouts.get(key)
    if layout is None:
        layout = _layouts[key] = Layout(series, len(growing), len(growing) + len(sums), kinds)
    return _Arrangement(layout, order)


def sublayout(layout: Layout, indexes: Sequence[int]) -> Layout:
    """The layout of only these series (ascending indexes)."""
    return Layout(
        series=tuple([layout.series[index] for index in indexes]),
        growing=sum([index < layout.growing for index in indexes]),
        windowed=sum([index < layout.windowed for index in indexes]),
        kinds=layout.kinds,
    )


def _template(
    lines: list[bytes], found: Dissection, places: tuple[int, ...], arrangement: _Arrangement, page: Page
) -> _Template | None:
    if found.irregular or len(lines) > _TEMPLATE_LINES:
        return None
    fixed = tuple([lines[at] for at in found.fixed])
    if len(lines) < _SHARED_LINES:
        fixed = _same(fixed)
    heads = tuple(found.heads)
    return _Template(
        lines=len(lines),
        fixed_at=pick(tuple(found.fixed)),
        fixed=fixed,
        samples_at=pick(tuple(found.samples)),
        heads=heads,
        # Newlines stand between lines, one less than there are; the same goes for the joined texts.
        surplus=sum(map(len, fixed)) + sum(map(len, heads)) + len(lines) - max(len(heads), 1),
        kept=pick(places),
        arrangement=arrangement,
        page=page,
    )


@lru_cache(maxsize=128)
def _same(lines: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The same lines as one object for all targets that have them."""
    return lines


def pick(indexes: tuple[int, ...]) -> Pick:
    """``itemgetter`` that gives a tuple for any number of indexes; shared, since targets look alike."""
    return _shared_pick(indexes) if len(indexes) < _SHARED_LINES else itemgetter(*indexes)


@lru_cache(maxsize=512)
def _shared_pick(indexes: tuple[int, ...]) -> Pick:
    if not indexes:
        return lambda _: ()
    if len(indexes) == 1:
        only = indexes[0]
        return lambda items: (items[only],)
    return itemgetter(*indexes)
