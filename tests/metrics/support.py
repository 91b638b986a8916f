"""Fixtures of metrics pages, and prometheus-client's parsers as the oracle of the reader."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from pdtop.metrics.catalogue import ENGINE_PREFIXES, WORKER_FAMILIES
from pdtop.metrics.exposition import Page, PageReader, Series

FIXTURES = Path(__file__).parent.parent / "fixtures"

#: A series as the tests compare it: name, labels, bound.
Key = tuple[str, tuple[tuple[str, str], ...], float | None]


def body_of(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def pages() -> Iterator[Path]:
    """Every exposition page among the fixtures that a parser can read whole."""
    for path in sorted((*FIXTURES.rglob("*.txt"), *FIXTURES.rglob("*.txt.gz"))):
        if b"# TYPE" in body_of(path) and path.parent.name != "s11-bad-lines-inside":
            yield path


def short(path: Path) -> str:
    return str(path.relative_to(FIXTURES))


def oracle(text: str) -> tuple[dict[Key, float], frozenset[str], int]:
    """What prometheus-client reads: values, names of families and samples, and repeated series."""
    parse = parse_openmetrics if "# EOF" in text else parse_text
    values: dict[Key, float] = {}
    names: set[str] = set()
    repeated = 0
    for family in parse(text):
        names |= {family.name, f"{family.name}_total"}
        for sample in family.samples:
            names.add(sample.name)
            key = key_of(sample.name, sample.labels)
            repeated += key in values
            values.setdefault(key, float(sample.value))
    return values, frozenset(names), repeated


def key_of(name: str, labels: Mapping[str, str]) -> Key:
    others = tuple(sorted((label, value) for label, value in labels.items() if label != "le"))
    if name.endswith("_bucket") and "le" in labels:
        return name, others, float(labels["le"])
    return name, tuple(sorted(labels.items())), None


def key_of_series(series: Series) -> Key:
    return series.family + (f"_{series.part}" if series.part else ""), series.labels, series.le


def content(page: Page) -> dict[Key, float]:
    """What our reader read, in the oracle's terms."""
    return {key_of_series(one): value for one, value in zip(page.layout.series, page.values, strict=True)}


def same(left: Mapping[Key, float], right: Mapping[Key, float]) -> bool:
    """Equal, NaN being equal to itself."""
    if left.keys() != right.keys():
        return False
    return all(
        value == right[key] or (math.isnan(value) and math.isnan(right[key])) for key, value in left.items()
    )


_unlike = count()


def fresh_reader(wanted: frozenset[str] = WORKER_FAMILIES) -> PageReader:
    """A reader as for a worker, but of all series that are wanted; it shares no memory with other readers."""
    own = wanted | {f"no such family {next(_unlike)}"}
    return PageReader(own, prefixes=ENGINE_PREFIXES, counters_of=ENGINE_PREFIXES)


def equal_pages(left: Page, right: Page) -> bool:
    """Whether two reads gave the same, down to the counts."""
    figures = [(page.lines, page.bad_lines, page.duplicates, page.size, page.named) for page in (left, right)]
    return (
        figures[0] == figures[1]
        and left.layout.kinds == right.layout.kinds
        and same(content(left), content(right))
    )
