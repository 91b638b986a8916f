"""Takes a page of Prometheus text 0.0.4 or OpenMetrics 1.0 apart, line by line; the slow half of the reader.

Tolerant: whitespace anywhere the formats allow it, CR before LF, timestamps, exemplars, bytes that are not
UTF-8, types declared after their samples, no types at all. What is no comment and no sample is a bad line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import NamedTuple

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_LABEL = re.compile(rb"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*(" + _STRING + rb")\s*(,|$)", re.DOTALL)
_HEAD = re.compile(rb'\s*([^\s{"]*)\s*(?:\{([^{}"]*(?:' + _STRING + rb'[^{}"]*)*)\})?', re.DOTALL)
_ESCAPE = re.compile(rb'\\[\\n"]')
_ESCAPES = {b"\\\\": b"\\", b"\\n": b"\n", b'\\"': b'"'}
_SUFFIXES = {"_bucket": "bucket", "_sum": "sum", "_count": "count"}
_PARTS = {"histogram": ("bucket", "sum", "count"), "summary": ("sum", "count")}
_NO_TYPE = ("", "untyped", "unknown")
_NOTHING = b"\xff"  # no line of text begins so

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


@dataclass(slots=True)
class Dissection:
    """A page in parts. ``samples`` and ``fixed`` are line numbers; together they are all lines.

    ``heads`` (what stands before the value) and ``numbers`` go with ``samples``. ``series`` are the wanted
    ones, each with its position among the samples; ``kinds`` and ``counters`` say what their families are.
    ``irregular``: some sample has a timestamp or exemplar behind its value.
    """

    samples: list[int] = field(default_factory=list)
    fixed: list[int] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    series: list[tuple[int, Series]] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    counters: set[str] = field(default_factory=set)
    bad_lines: int = 0
    duplicates: int = 0
    irregular: bool = False
    named: tuple[int, ...] = ()


def dissect(
    lines: list[bytes], wanted: frozenset[str], prefixes: tuple[str, ...], counters_of: tuple[str, ...]
) -> Dissection:
    """Take the lines of a page apart; for the arguments see :class:`pdtop.metrics.exposition.PageReader`."""
    names = _Names(wanted, prefixes, counters_of, {})
    found = _read_lines(lines, names)
    if names.late:  # a type came after samples of its family: with it, names may mean something else
        names = _Names(wanted, prefixes, counters_of, names.types)
        found = _read_lines(lines, names)
    found.named = tuple(
        sum(meaning.count for meaning in names.known.values() if meaning.prefix == index)
        for index in range(len(prefixes))
    )
    for _, series in found.series:
        if series.family not in found.kinds:
            found.kinds[series.family] = names.type_of(series.family)
    found.counters = {
        family
        for family, kind in found.kinds.items()
        if kind == "counter" or (kind in _NO_TYPE and family.endswith("_total"))
    }
    return found


class _Meaning:
    """What a sample's name means on this page. ``family`` is None if it is not wanted."""

    __slots__ = ("count", "family", "part", "prefix")

    def __init__(self, family: str | None, part: str, prefix: int) -> None:
        self.family = family
        self.part = part
        self.prefix = prefix  # index of the known prefix, -1 for none
        self.count = 0  # samples with this name


class _Names:
    """Names and types of one page."""

    def __init__(
        self,
        wanted: frozenset[str],
        prefixes: tuple[str, ...],
        counters_of: tuple[str, ...],
        types: dict[str, str],
    ) -> None:
        self.types = types
        self.known: dict[bytes, _Meaning] = {}
        self._wanted = wanted
        self._prefixes = prefixes
        self._counters_of = counters_of
        self._guessed: set[str] = set()  # families whose type was not known when a sample came
        self.late = False

    def type_of(self, family: str) -> str:
        """The declared type; OpenMetrics declares a counter without its ``_total``."""
        declared = self.types.get(family)
        if declared is None and self.types.get(family.removesuffix("_total")) == "counter":
            return "counter"
        return declared or ""

    def declare(self, line: bytes) -> None:
        """Take a comment line; only ``# TYPE name type`` matters. The first declaration of a family holds."""
        words = line.split(None, 4)
        if len(words) < 4 or words[0] != b"#" or words[1] != b"TYPE":
            return
        family = words[2].decode("utf-8", "replace")
        if family not in self.types:
            self.types[family] = words[3].decode("utf-8", "replace").lower()
            self.late |= family in self._guessed

    def meaning(self, name: bytes) -> _Meaning | None:
        """What ``name`` means; None if it is no valid name."""
        meaning = self.known.get(name)
        if meaning is None and _NAME.fullmatch(name):
            text = name.decode("ascii")
            family, part = self._family(text)
            prefix = next((i for i, p in enumerate(self._prefixes) if text.startswith(p)), -1)
            meaning = self.known[name] = _Meaning(family, part, prefix)
        return meaning

    def _family(self, text: str) -> tuple[str | None, str]:
        base, underscore, suffix = text.rpartition("_")
        part = _SUFFIXES.get(underscore + suffix)
        own = self.type_of(text)
        if part is not None and not own:
            declared = self.type_of(base)
            if part in _PARTS.get(declared, ()):
                return (base if base in self._wanted else None), part
            if declared in _NO_TYPE and base in self._wanted and text not in self._wanted:
                self._guessed |= {text, base}
                return base, part
        if not own:
            self._guessed |= {text, text.removesuffix("_total")}
        if own == "histogram":
            return None, ""
        counter = own == "counter" or (own in _NO_TYPE and suffix == "total")
        wanted = text in self._wanted or (counter and text.startswith(self._counters_of))
        return (text if wanted else None), ""


class _LabelSets:
    """Label texts of one page, each taken apart once; a bucket's bound is kept out of them."""

    def __init__(self) -> None:
        self._parsed: dict[bytes, Labels | None] = {}
        self._order: dict[Labels, bytes] = {}
        self.reordered = False  # the same labels were seen in two spellings

    def parse(self, text: bytes, bound: tuple[int, int]) -> Labels | None:
        """Sorted labels, the one at ``bound`` (see :func:`_bound_at`) blanked; None if malformed."""
        start, end = bound
        if start >= 0:
            text = text[:start] + text[end:]
        if text in self._parsed:
            return self._parsed[text]
        labels = self._parsed[text] = parse_labels(text)
        if labels is not None and self._order.setdefault(labels, text) != text:
            self.reordered = True
        return labels


_NO_BOUND = (-1, -1)


def _bound_at(text: bytes) -> tuple[int, int]:
    """Where the value of ``le`` stands in a label text; -1 if there is none or it takes a real parse to tell.

    Without backslashes quotes only open and close, so a quote that follows no ``=`` closes a value, and
    what follows it is a label.
    """
    if b"\\" in text:
        return _NO_BOUND
    if text.startswith(b'le="'):
        start = 4
    else:
        start = text.find(b'",le="') + 6
        if start == 5 or text[start - 7 : start - 6] == b"=":
            return _NO_BOUND
    end = text.find(b'"', start)
    return (start, end) if end >= 0 else _NO_BOUND


def parse_labels(text: bytes) -> Labels | None:
    """``a="b",c="d"`` as sorted pairs; None if malformed or a name is given twice. A last comma is fine."""
    labels: dict[str, str] = {}
    position, size = 0, len(text)
    while position < size:
        match = _LABEL.match(text, position)
        if match is None:
            return () if not labels and not text.strip() else None
        name = match[1].decode("ascii")
        value = match[2][1:-1]
        if name in labels:
            return None
        if b"\\" in value:
            value = _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], value)
        labels[name] = value.decode("utf-8", "replace")
        position = match.end()
    return tuple(sorted(labels.items()))


def _number(text: bytes) -> float | None:
    try:
        return None if b"_" in text else float(text)  # float() would take 1_000
    except ValueError:
        return None


class _Sample(NamedTuple):
    """One sample line. ``head`` is all that stands before the value; ``bound`` where ``le`` is in it."""

    meaning: _Meaning
    labels: Labels
    number: float
    head: bytes
    bound: tuple[int, int] = _NO_BOUND
    irregular: bool = False


def _read_lines(lines: Sequence[bytes], names: _Names) -> Dissection:
    found = Dissection()
    samples, heads, numbers, series = found.samples, found.heads, found.numbers, found.series
    sets = _LabelSets()
    bounds: dict[bytes, float] = {}
    odd = False
    # Most lines are the next bucket of the histogram before: same text around another bound.
    stem, rear, begin, end = _NOTHING, b"", 0, 0
    meaning, labels = _Meaning(None, "", -1), Labels()
    for at, line in enumerate(lines):
        if line.startswith(stem):
            start = line.rfind(b" ") + 1
            head = line[:start]
            bound = bounds.get(head[begin:end]) if head.endswith(rear) else None
            number = _number(line[start:]) if bound is not None else None
            if number is not None:
                if meaning.family is not None:
                    series.append((len(samples), Series(meaning.family, "bucket", labels, bound)))
                meaning.count += 1
                samples.append(at)
                heads.append(head)
                numbers.append(number)
                continue
        if line.startswith(b"#"):
            if b"TYPE" in line:
                names.declare(line)
            found.fixed.append(at)
            continue
        sample = _plain(line, names, sets)
        if sample is None:
            text = line.strip()
            if not text or text.startswith(b"#"):
                names.declare(text)
                found.fixed.append(at)
                continue
            sample = _any(line, names)
            if sample is None:
                found.fixed.append(at)
                found.bad_lines += 1
                continue
            odd = True
            found.irregular |= sample.irregular
        meaning, labels, number, head, (start, stop) = sample[:5]
        stem, bound = _NOTHING, None
        if start >= 0:
            bound = _bound(head[start:stop])
            if bound is not None and (meaning.family is None or meaning.part == "bucket"):
                bounds[head[start:stop]] = bound
                stem, rear, begin, end = head[:start], head[stop:], start, stop - len(head)
        if meaning.family is not None:
            if meaning.part == "bucket":
                if start < 0:
                    bound = next((_bound(text.encode()) for name, text in labels if name == "le"), None)
                labels = tuple([pair for pair in labels if pair[0] != "le"])
                if bound is not None:
                    series.append((len(samples), Series(meaning.family, "bucket", labels, bound)))
            else:
                if start >= 0:
                    le = head[start:stop].decode("utf-8", "replace")
                    labels = tuple([(name, le if name == "le" else value) for name, value in labels])
                series.append((len(samples), Series(meaning.family, meaning.part, labels, None)))
        meaning.count += 1
        samples.append(at)
        heads.append(head)
        numbers.append(number)
    if odd or sets.reordered or len(set(heads)) < len(heads):
        _drop_duplicates(found)
    return found


def _bound(text: bytes) -> float | None:
    bound = _number(text)
    return None if bound is None or isnan(bound) else bound


def _plain(line: bytes, names: _Names, sets: _LabelSets) -> _Sample | None:
    """A line as the client libraries write it: ``name value`` or ``name{labels} value``; None for others."""
    start = line.rfind(b" ") + 1
    head = line[:start]
    if head.endswith(b"} "):
        name, brace, text = head[:-2].partition(b"{")
        bound = _bound_at(text)
        labels = sets.parse(text, bound) if brace else None
        if bound[0] >= 0:
            bound = (bound[0] + len(name) + 1, bound[1] + len(name) + 1)
    else:
        name, labels, bound = head[:-1], (), _NO_BOUND
    meaning = names.meaning(name) if labels is not None else None
    number = _number(line[start:]) if meaning is not None else None
    if meaning is None or labels is None or number is None:
        return None
    return _Sample(meaning, labels, number, head, bound)


def _any(line: bytes, names: _Names) -> _Sample | None:
    """Any sample line that the formats allow; None if it is none."""
    parts = _HEAD.match(line)
    if parts is None:  # pragma: no cover - every part of the pattern may be empty
        return None
    labels = parse_labels(parts[2] or b"")
    meaning = names.meaning(parts[1])
    value, hash_, _ = line[parts.end() :].partition(b"#")  # what follows it is an exemplar
    words = value.split()
    if labels is None or meaning is None or not words or len(words) > 2 or (hash_ and value[-1:] > b" "):
        return None
    number = _number(words[0])
    if number is None or _number(words[-1]) is None:
        return None
    start = line.index(words[0], parts.end())
    return _Sample(meaning, labels, number, line[:start], irregular=bool(hash_) or len(words) > 1)


def _drop_duplicates(found: Dissection) -> None:
    """Count series that stand on the page more than once, and keep the first of each."""
    first: dict[tuple[bytes, Labels | None], int] = {}
    for position, head in enumerate(found.heads):
        parts = _HEAD.match(head)
        if parts is not None:
            first.setdefault((parts[1], parse_labels(parts[2] or b"")), position)
    found.duplicates = len(found.heads) - len(first)
    if found.duplicates:
        kept = set(first.values())
        found.series = [entry for entry in found.series if entry[0] in kept]
