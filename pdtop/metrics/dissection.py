"""Takes a page of Prometheus text 0.0.4 or OpenMetrics 1.0 apart, line by line; the slow half of the reader.

Tolerant: whitespace anywhere the formats allow it, CR before LF, timestamps, exemplars, bytes that are not
UTF-8, types declared after their samples, no types at all. What is no comment and no sample is a bad line.

What stands before a sample's value means the same on every page with the same types, and workers of one kind
have nearly the same lines; so what was once taken apart is remembered for all targets.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isnan
from typing import NamedTuple

_NOT_FIRST = string.digits.encode()
_IN_NAMES = (string.ascii_letters + string.digits + "_:").encode()
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_LABEL = re.compile(rb"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*(" + _STRING + rb")\s*(,|$)", re.DOTALL)
_HEAD = re.compile(rb'\s*([^\s{"]*)\s*(?:\{([^{}"]*+(?:' + _STRING + rb'[^{}"]*+)*+)\})?', re.DOTALL)
_BETWEEN = re.compile(r",([a-zA-Z_][a-zA-Z0-9_]*)=")
_ESCAPE = re.compile(rb'\\[\\n"]')
_ESCAPES = {b"\\\\": b"\\", b"\\n": b"\n", b'\\"': b'"'}
_PARTS = {"histogram": ("bucket", "sum", "count"), "summary": ("sum", "count")}
_NO_TYPE = ("", "untyped", "unknown")
_NOTHING = b"\xff"  # no line of text begins so

# Bounds on what is remembered, so that hostile pages cost time and nothing else.
_MEMORY_BYTES = 64_000_000  # in all; then everything is forgotten
_MEMORY_PER_SAMPLE = 500  # about what one takes beyond its text
_LONG_PAGE = 20_000  # lines; the samples of longer pages are not remembered
_LONG_TEXT = 2_000  # bytes; nor are longer texts

Labels = tuple[tuple[str, str], ...]


class Series(NamedTuple):
    """One series of a wanted family.

    ``labels`` are sorted; a bucket's bound is in ``le``, not among them. ``part`` is "" for the value itself
    (a summary's quantiles too), else ``bucket``, ``sum`` or ``count``.
    """

    family: str
    part: str
    labels: Labels
    le: float | None


class Meaning(NamedTuple):
    """What a sample's name means. ``family`` is None if it is not wanted, ``kind`` its declared type,
    ``prefix`` the place of the name's prefix among those asked for (the last place: none of them)."""

    family: str | None
    part: str
    kind: str
    prefix: int


class _Spelling:
    """A way to write labels with these names; the same object for the same way."""

    __slots__ = ("names",)

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names


class _Known(NamedTuple):
    """A sample without its value: ``head`` is the text before it. ``series`` is None if not wanted, ``key``
    tells it from others across pages."""

    head: bytes
    name: bytes
    meaning: Meaning
    spelling: _Spelling
    series: Series | None
    key: object


class Dialect:
    """What is wanted of pages, and what their samples were found to be. One for all readers alike.

    For the arguments see :class:`pdtop.metrics.exposition.PageReader`.
    """

    def __init__(
        self, wanted: frozenset[str], prefixes: tuple[str, ...], counters_of: tuple[str, ...], ordinal: str
    ) -> None:
        self.prefixes = tuple(prefix.encode() for prefix in prefixes)
        self.ordinal = ordinal
        self.known: dict[bytes, _Known] = {}
        self._bytes = 0
        self._wanted = {family.encode(): family for family in wanted}
        self._counters_of = tuple(prefix.encode() for prefix in counters_of)
        self._parts = {
            f"{family}_{part}".encode(): (family, part, family.encode())
            for family in wanted
            for part in _PARTS["histogram"]
        }
        self._meanings: dict[tuple[bytes, str, str], Meaning] = {}

    def part_of(self, name: bytes) -> bytes | None:
        """The wanted family that ``name`` would be a part of, if it is a histogram or summary."""
        part = self._parts.get(name)
        return None if part is None else part[2]

    def meaning(self, name: bytes, own: str, whole: str) -> Meaning:
        """What ``name`` means, its own type being ``own`` and ``whole`` that of what it may be a part of.

        The same object for the same arguments.
        """
        key = (name, own, whole)
        meaning = self._meanings.get(key)
        if meaning is None:
            meaning = self._find_meaning(name, own, whole)
            if len(name) < _LONG_TEXT:
                self._make_room(len(name))
                self._meanings[key] = meaning
        return meaning

    def remember(self, known: _Known) -> None:
        """Keep a sample for other pages."""
        if len(known.head) < _LONG_TEXT:
            self._make_room(len(known.head))
            self.known[known.head] = known

    def _make_room(self, size: int) -> None:
        self._bytes += size + _MEMORY_PER_SAMPLE
        if self._bytes > _MEMORY_BYTES:
            self.known.clear()
            self._meanings.clear()
            self._bytes = size + _MEMORY_PER_SAMPLE

    def _find_meaning(self, name: bytes, own: str, whole: str) -> Meaning:
        starts = map(name.startswith, self.prefixes)
        prefix = next((place for place, starts_so in enumerate(starts) if starts_so), len(self.prefixes))
        if not own and name in self._parts:
            family, part, _ = self._parts[name]
            if whole in _NO_TYPE or part in _PARTS.get(whole, ()):
                return Meaning(family, part, whole, prefix)
        if own != "histogram":
            if name in self._wanted:
                return Meaning(self._wanted[name], "", own, prefix)
            counter = own == "counter" or (own in _NO_TYPE and name.endswith(b"_total"))
            if counter and name.startswith(self._counters_of):
                return Meaning(name.decode(), "", own, prefix)
        return Meaning(None, "bucket" if name.endswith(b"_bucket") else "", "", prefix)


@dataclass(slots=True)
class Dissection:
    """A page in parts. ``samples`` and ``fixed`` are line numbers; together they are all lines.

    ``heads`` (what stands before the value) and ``numbers`` go with ``samples``. ``series`` are the wanted
    ones, ``places`` their positions among the samples, ``keys`` texts that tell them apart across pages.
    ``named`` counts samples by prefix; ``ordinals`` are the values that were replaced by their order.
    ``irregular``: some sample has a timestamp or exemplar behind its value.
    """

    samples: list[int] = field(default_factory=list)
    fixed: list[int] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    keys: list[object] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    named: list[int] = field(default_factory=list)
    ordinals: dict[str, str] = field(default_factory=dict)
    bad_lines: int = 0
    duplicates: int = 0
    irregular: bool = False


def dissect(lines: Sequence[bytes], dialect: Dialect) -> Dissection:
    """Take the lines of a page apart."""
    remembering = len(lines) <= _LONG_PAGE
    page = _Page(dialect, {}, remembering=remembering)
    try:
        found = _read_lines(lines, page)
    except ValueError:
        found = None
    if found is None or page.late:
        # Some value is no number; or a type came after samples of its family, and with it their names may
        # mean something else.
        page = _Page(dialect, page.types, remembering=remembering)
        found = _read_lines(lines, page, strict=True)
    return found


class _Run(NamedTuple):
    """What the buckets of one histogram have before and behind their bounds, and what they are."""

    stem: bytes
    rear: bytes
    name: bytes
    meaning: Meaning
    spelling: _Spelling
    labels: Labels


_NO_LABELS = _Spelling(())
_NO_MEANING = Meaning(None, "", "", 0)


class _Page:
    """Names, types and labels of one page."""

    def __init__(self, dialect: Dialect, types: dict[bytes, str], *, remembering: bool) -> None:
        self.dialect = dialect
        self.types = types
        self._remembering = remembering
        self._run = _Run(_NOTHING, b"", b"", _NO_MEANING, _NO_LABELS, ())
        self.meanings: dict[bytes, Meaning] = {}
        self.ordinals: dict[str, str] = {}
        self.late = False  # a type was declared after samples of its family
        self._guessed: set[bytes] = set()  # families whose type was not known when a sample came

    def declare(self, line: bytes) -> None:
        """Take a comment line; only ``# TYPE name type`` matters. The first declaration of a family holds."""
        words = line.split(None, 4)
        if len(words) >= 4 and words[1] == b"TYPE" and words[0] == b"#" and words[2] not in self.types:
            self.types[words[2]] = words[3].decode("utf-8", "replace").lower()
            self.late |= words[2] in self._guessed

    def meaning(self, name: bytes) -> Meaning | None:
        """What ``name`` means on this page; None if it is no valid name."""
        meaning = self.meanings.get(name)
        if meaning is None and name[:1].translate(None, _NOT_FIRST) and not name.translate(None, _IN_NAMES):
            whole = self.dialect.part_of(name)
            own, of_whole = self._type_of(name), "" if whole is None else self._type_of(whole)
            meaning = self.meanings[name] = self.dialect.meaning(name, own, of_whole)
        return meaning

    def _type_of(self, family: bytes) -> str:
        """The declared type; OpenMetrics declares a counter without its ``_total``."""
        declared = self.types.get(family, "")
        if not declared:
            self._guessed.add(family)
            if family.endswith(b"_total"):
                self._guessed.add(family[:-6])
                return "counter" if self.types.get(family[:-6]) == "counter" else ""
        return declared

    def bucket(self, line: bytes) -> tuple[_Known, bytes] | None:
        """A further bucket of the histogram before: the same text around another bound. Most lines are."""
        stem, rear, name, meaning, spelling, labels = self._run
        if not line.startswith(stem):
            return None
        stop = line.find(b'"', len(stem))  # a bound has no quote in it
        bound = _bound(line[len(stem) : stop])
        if bound is None or not line.startswith(rear, stop):
            return None
        start = stop + len(rear)
        return self._known(line[:start], name, meaning, spelling, labels, bound), line[start:]

    def plain(self, line: bytes) -> tuple[_Known, bytes] | None:
        """A line as the client libraries write it: ``name value`` or ``name{labels} value``."""
        start = line.rfind(b" ") + 1
        head = line[:start]
        name, _, text = head.partition(b"{")
        if text:
            if not text.endswith(b"} "):
                return None
            text = text[:-2]
        else:
            name = name[:-1]
        meaning = self.meaning(name)
        if meaning is None:
            return None
        begin, end = _bound_at(text) if meaning.part == "bucket" else (-1, -1)
        bound = _bound(text[begin:end]) if begin >= 0 else None
        if bound is not None:
            spelling, labels = parse_labels(text[:begin] + text[end:])
        elif head.endswith(b"} "):
            spelling, labels = parse_labels(text)
        else:
            spelling, labels = _NO_LABELS, ()
        if labels is None or (bound is None and meaning.part == "bucket"):
            return None
        if bound is not None:
            labels = _without_bound(labels)
            stem, rear = head[: len(name) + 1 + begin], head[len(name) + 1 + end :]
            self._run = _Run(stem, rear, name, meaning, spelling, labels)
        return self._known(head, name, meaning, spelling, labels, bound), line[start:]

    def any(self, line: bytes) -> tuple[_Known, bytes, bool] | None:
        """Any sample line that the formats allow. Whether something is behind the value comes with it."""
        parts = _HEAD.match(line)
        if parts is None:  # pragma: no cover - every part of the pattern may be empty
            return None
        labels, meaning = _parse_labels(parts[2] or b""), self.meaning(parts[1])
        value, exemplar, _ = line[parts.end() :].partition(b"#")
        words = value.split()
        if labels is None or meaning is None or not 1 <= len(words) <= 2 or (exemplar and value[-1:] > b" "):
            return None
        if _number(words[0]) is None or _number(words[-1]) is None:
            return None
        bound = None
        if meaning.part == "bucket":
            bound = next((_bound(text.encode()) for name, text in labels if name == "le"), None)
            labels = _without_bound(labels)
        head = line[: line.index(words[0], parts.end())]
        known = self._known(head, parts[1], meaning, None, labels, bound)
        return known, words[0], bool(exemplar) or len(words) > 1

    def _known(
        self,
        head: bytes,
        name: bytes,
        meaning: Meaning,
        spelling: _Spelling | None,
        labels: Labels,
        le: float | None,
    ) -> _Known:
        """Put a sample together; ``le`` is the bound of a bucket. It is remembered if it means the same on
        other pages and is written in the usual way (has a ``spelling``)."""
        series = None
        if meaning.family is not None and (le is not None or meaning.part != "bucket"):
            series = Series(meaning.family, meaning.part, self._with_ordinal(labels), le)
            if series.labels is not labels:
                return _Known(head, name, meaning, spelling or _NO_LABELS, series, series)
        known = _Known(head, name, meaning, spelling or _NO_LABELS, series, head)
        if self._remembering and spelling is not None:
            self.dialect.remember(known)
        return known

    def _with_ordinal(self, labels: Labels) -> Labels:
        """The labels with one value replaced by its order of appearance, if the dialect wants it so."""
        ordinal = self.dialect.ordinal
        for name, value in labels:
            if name == ordinal:
                order = self.ordinals.setdefault(value, str(len(self.ordinals)))
                return tuple([(key, order if key == ordinal else other) for key, other in labels])
        return labels


def _bound_at(text: bytes) -> tuple[int, int]:
    """Where the value of ``le`` stands in a label text; -1 if there is none or it takes a real parse to tell.

    Without backslashes quotes only open and close, so a quote that follows no ``=`` closes a value, and
    what follows it is a label.
    """
    if text.startswith(b'le="'):
        start = 4
    else:
        start = text.find(b'",le="') + 6
        if start == 5 or text[start - 7 : start - 6] == b"=":
            return -1, -1
    end = text.find(b'"', start)
    return (start, end) if end >= 0 and text.find(b"\\") < 0 else (-1, -1)


def parse_labels(text: bytes) -> tuple[_Spelling, Labels | None]:
    """``a="b",c="d"`` as sorted pairs, with the way they are written; None if malformed or a name is given
    twice. A last comma is fine."""
    if len(text) < _LONG_TEXT:
        return _parse_labels_once(text)
    labels = _parse_labels(text)
    return _Spelling(tuple([name for name, _ in labels or ()])), labels


@lru_cache(maxsize=4096)
def _parse_labels_once(text: bytes) -> tuple[_Spelling, Labels | None]:
    pieces = ("," + text.decode("utf-8", "replace")).split('"')
    between = tuple(pieces[::2])  # all of the text that is no value
    names, in_order = _label_names(between)
    if names is None or len(pieces) == 2 * len(between) or text.find(b"\\") >= 0:
        labels = _parse_labels(text)
        return _spelling(between, tuple([name for name, _ in labels or ()])), labels
    pairs = zip(names, pieces[1::2], strict=True)
    return _spelling(between, names), tuple(pairs) if in_order else tuple(sorted(pairs))


@lru_cache(maxsize=1024)
def _spelling(between: tuple[str, ...], names: tuple[str, ...]) -> _Spelling:
    return _Spelling(tuple(sorted(names)))


@lru_cache(maxsize=1024)
def _label_names(between: tuple[str, ...]) -> tuple[tuple[str, ...] | None, bool]:
    """The names in what stands around the values, and whether they are in order; None if it is not all
    ``,name=`` or a name stands there twice."""
    matches = [_BETWEEN.fullmatch(text) for text in between[:-1]]
    names = tuple([match[1] for match in matches if match is not None])
    if len(set(names)) < len(between) - 1 or between[-1]:
        return None, False
    return names, names == tuple(sorted(names))


def _parse_labels(text: bytes) -> Labels | None:
    """The same for any spacing and with escapes."""
    labels: dict[str, str] = {}
    position, size = 0, len(text)
    while position < size:
        match = _LABEL.match(text, position)
        if match is None:
            return () if not labels and not text.strip() else None
        name = match[1].decode("ascii")
        value = _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], match[2][1:-1])
        if name in labels:
            return None
        labels[name] = value.decode("utf-8", "replace")
        position = match.end()
    return tuple(sorted(labels.items()))


def _number(text: bytes) -> float | None:
    try:
        return float(text) if text.find(b"_") < 0 else None  # float() would take 1_000
    except ValueError:
        return None


def _bound(text: bytes) -> float | None:
    return _bound_once(text) if len(text) < 64 else None


@lru_cache(maxsize=4096)
def _bound_once(text: bytes) -> float | None:
    bound = _number(text)
    return None if bound is None or isnan(bound) else bound


def _without_bound(labels: Labels) -> Labels:
    return tuple([pair for pair in labels if pair[0] != "le"])


def _read_lines(lines: Sequence[bytes], page: _Page, *, strict: bool = False) -> Dissection:
    """Read all lines. Not ``strict``, values are looked at only in the end: ValueError if one is bad."""
    found = Dissection(named=[0] * (len(page.dialect.prefixes) + 1), ordinals=page.ordinals)
    samples, heads, series, places, keys = found.samples, found.heads, found.series, found.places, found.keys
    named, kinds = found.named, found.kinds
    memory, meanings = page.dialect.known, page.meanings
    spellings: set[_Spelling] = set()
    texts: list[bytes] = []
    odd = False
    for at, line in enumerate(lines):
        if line.startswith(b"#"):
            if line[2:6] != b"HELP":
                page.declare(line)
            found.fixed.append(at)
            continue
        start = line.rfind(b" ") + 1
        text = line[start:]
        known = memory.get(line[:start])
        if known is None or (meanings.get(known.name) or page.meaning(known.name)) is not known.meaning:
            sample = page.bucket(line) or page.plain(line)
            known, text = sample or (None, text)
        if known is None or (strict and _number(text) is None):
            unusual = page.any(line)
            if unusual is None:
                found.fixed.append(at)
                words = line.strip()
                if words.startswith(b"#"):
                    page.declare(words)
                elif words:
                    found.bad_lines += 1
                continue
            odd = True
            known, text, irregular = unusual
            found.irregular |= irregular
        head, _, meaning, spelling, one, key = known
        spellings.add(spelling)
        named[meaning.prefix] += 1
        if one is not None:
            series.append(one)
            places.append(len(samples))
            keys.append(key)
        samples.append(at)
        heads.append(head)
        texts.append(text)
    found.numbers = list(map(float, texts))
    if not strict and b"_" in b" ".join(texts):
        raise ValueError("float() takes 1_000, the formats do not")
    reordered = len({spelling.names for spelling in spellings}) < len(spellings)
    if odd or reordered or len(set(heads)) < len(heads):
        _drop_duplicates(found)
    kinds.update((one.family, one.kind) for one in meanings.values() if one.family is not None)
    return found


def _drop_duplicates(found: Dissection) -> None:
    """Count series that stand on the page more than once, and keep the first of each."""
    first: dict[tuple[bytes, Labels | None], int] = {}
    for position, head in enumerate(found.heads):
        parts = _HEAD.match(head)
        if parts is not None:
            first.setdefault((parts[1], _parse_labels(parts[2] or b"")), position)
    found.duplicates = len(found.heads) - len(first)
    if found.duplicates:
        kept = set(first.values())
        usable = [index for index, place in enumerate(found.places) if place in kept]
        found.series = [found.series[index] for index in usable]
        found.places = [found.places[index] for index in usable]
        found.keys = [found.keys[index] for index in usable]
