"""Where each concept of a worker stands in a page's values: the rank rules, applied once a layout.

SGLang 0.5.23, measured on pages of TP, PP, DP and attention-DP workers: of the scheduler's series with a
``priority`` the empty one is the total; inside one ``dp_rank`` the other ranks repeat what one of them counts
(of gauges and counters the largest is taken, of histograms the lowest PP, then TP rank); across ``dp_rank``
requests, tokens, counters and buckets are added. Only what each shard counts for itself is added over all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import NamedTuple

from pdtop.metrics.catalogue import SGLANG_PREFIXES, WORKER_METRICS, Metric, spellings
from pdtop.metrics.exposition import Layout, Pick, Series, pick

_REPEATING = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
_BARE_PREFIXES = (*SGLANG_PREFIXES, "vllm:")

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One number of one DP rank: the positions that repeat it, one per remaining rank."""

    dp_rank: str
    at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Buckets:
    """One histogram of one DP rank. ``sum_at`` and ``count_at`` are -1 where the page has none."""

    dp_rank: str
    labels: Labels
    bounds: tuple[float, ...]
    pick: Pick  # takes the buckets out of the values, in the order of the bounds
    sum_at: int
    count_at: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker's page holds, by concept. ``counters`` has every counter by its name without prefix."""

    values: Mapping[str, tuple[Value, ...]]
    histograms: Mapping[str, tuple[Buckets, ...]]
    counters: Mapping[str, tuple[Value, ...]]
    model_name: str
    engine_type: str
    ranks: tuple[str, ...]


def make_plan(layout: Layout) -> Plan:
    """Find every concept of the catalogue in ``layout``."""
    families: dict[str, list[int]] = defaultdict(list)
    for index, series in enumerate(layout.series):
        families[series.family].append(index)
    values: dict[str, tuple[Value, ...]] = {}
    histograms: dict[str, tuple[Buckets, ...]] = {}
    ranks: set[str] = set()
    for metric in WORKER_METRICS:
        family = _family_of(metric, families)
        if family is None:
            continue
        chosen = _totals(layout, _where(layout.series, families[family], metric))
        plain = [index for index in chosen if not layout.series[index].part]
        if plain:
            values[metric.concept] = _values(layout.series, plain)
            ranks.update(value.dp_rank for value in values[metric.concept])
        if len(plain) < len(chosen):
            parts = [index for index in chosen if layout.series[index].part]
            histograms[metric.concept] = _histograms(layout.series, parts, metric.per_shard)
            ranks.update(one.dp_rank for one in histograms[metric.concept])
    ranks.discard("")
    labels = {series.labels: None for series in layout.series}
    return Plan(
        values=values,
        histograms=histograms,
        counters=_named_counters(layout, families),
        model_name=_first(labels, "model_name"),
        # The scheduler's word first: after a role switch the tokenizer's families keep the old role.
        engine_type=_first([one for one in labels if _label(one, "tp_rank")], "engine_type")
        or _first(labels, "engine_type"),
        ranks=tuple(sorted(ranks, key=_rank_order)) or ("",),
    )


_HTTP_FAMILIES = tuple(prefix + "http_" for prefix in SGLANG_PREFIXES)
_SHARD_FAMILIES = frozenset(
    text for one in WORKER_METRICS if one.per_shard for name in one.names for text in spellings(name)
)


def worth_keeping(series: Sequence[Series]) -> list[int]:
    """Of a histogram that every TP and PP rank repeats, only the lowest rank's; no counters of HTTP routes
    and statuses, which make every worker's page another one."""
    lowest: dict[tuple[str, str, Labels], tuple[int, int]] = {}
    for family, part, labels, _ in series:
        if part and family not in _SHARD_FAMILIES:
            dp_rank, shard, identity, _ = _place(labels, family.startswith("vllm:"))
            known = lowest.get((family, dp_rank, identity))
            if known is None or shard < known:
                lowest[family, dp_rank, identity] = shard
    kept: list[int] = []
    for index, (family, part, labels, _) in enumerate(series):
        if part and family not in _SHARD_FAMILIES:
            dp_rank, shard, identity, _ = _place(labels, family.startswith("vllm:"))
            if lowest[family, dp_rank, identity] == shard:
                kept.append(index)
        elif not family.startswith(_HTTP_FAMILIES):
            kept.append(index)
    return kept


def _family_of(metric: Metric, families: Mapping[str, object]) -> str | None:
    """The newest name of the concept that the page has."""
    return next((text for name in metric.names for text in spellings(name) if text in families), None)


def _where(series: Sequence[Series], indexes: Iterable[int], metric: Metric) -> list[int]:
    return [index for index in indexes if all(pair in series[index].labels for pair in metric.where)]


def _totals(layout: Layout, indexes: list[int]) -> list[int]:
    """Without the scheduler's series per priority, where there is one over all of them (priority "").

    The tokenizer's counters and histograms have no rank and no total: there "" is only one priority more.
    """
    priorities = [_place_of(layout.series[index]).priority for index in indexes]
    if "" not in priorities:
        return indexes
    if indexes[0] < layout.windowed and _label(layout.series[indexes[0]].labels, "tp_rank") is None:
        return indexes
    return [index for index, priority in zip(indexes, priorities, strict=True) if not priority]


def _values(series: Sequence[Series], indexes: Iterable[int]) -> tuple[Value, ...]:
    groups: dict[tuple[str, Labels], list[int]] = {}
    for index in indexes:
        place = _place_of(series[index])
        groups.setdefault((place.dp_rank, place.identity), []).append(index)
    values = [Value(dp_rank, tuple(at)) for (dp_rank, _), at in groups.items()]
    return tuple(sorted(values, key=lambda value: _rank_order(value.dp_rank)))


def _histograms(series: Sequence[Series], indexes: Iterable[int], per_shard: bool) -> tuple[Buckets, ...]:
    groups: dict[tuple[str, Labels], dict[tuple[int, int], list[int]]] = {}
    for index in indexes:
        dp_rank, shard, identity, _ = _place_of(series[index])
        groups.setdefault((dp_rank, identity), {}).setdefault(shard, []).append(index)
    found: list[Buckets] = []
    for (dp_rank, labels), shards in groups.items():
        for shard in sorted(shards) if per_shard else [min(shards)]:
            found.append(buckets_of(series, shards[shard], dp_rank, labels))
    return tuple(sorted(found, key=lambda one: _rank_order(one.dp_rank)))


def buckets_of(series: Sequence[Series], indexes: Iterable[int], dp_rank: str, labels: Labels) -> Buckets:
    """The parts of one histogram put together; without a ``+Inf`` bucket the count stands for it."""
    at: dict[float, int] = {}
    others = {"sum": -1, "count": -1}
    for index in indexes:
        part, bound = series[index].part, series[index].le
        if bound is None:
            others[part] = index
        else:
            at.setdefault(bound, index)
    if inf not in at and others["count"] >= 0:
        at[inf] = others["count"]
    bounds = tuple(sorted(at))
    return Buckets(
        dp_rank,
        labels,
        _one_of(bounds),
        pick(tuple([at[bound] for bound in bounds])),
        others["sum"],
        others["count"],
    )


def _named_counters(layout: Layout, families: Mapping[str, list[int]]) -> dict[str, tuple[Value, ...]]:
    named: dict[str, tuple[Value, ...]] = {}
    for family, indexes in families.items():
        if indexes[0] < layout.growing and not layout.series[indexes[0]].part:
            prefix = next((prefix for prefix in _BARE_PREFIXES if family.startswith(prefix)), "")
            named[family.removeprefix(prefix)] = _values(layout.series, _totals(layout, indexes))
    return named


@lru_cache(maxsize=256)
def _one_of(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """The same bounds as one object, since all workers have them."""
    return bounds


class _Place(NamedTuple):
    """Whose series it is: DP rank, PP and TP rank, the labels that remain; its priority, if it has one."""

    dp_rank: str
    shard: tuple[int, int]
    identity: Labels
    priority: str | None


def _place_of(series: Series) -> _Place:
    return _place(series.labels, series.family.startswith("vllm:"))


@lru_cache(maxsize=4096)
def _place(labels: Labels, vllm: bool) -> _Place:
    named = dict(labels)
    dp_label = "engine" if vllm else "dp_rank"
    return _Place(
        dp_rank=named.get(dp_label, ""),
        shard=(_rank(named.get("pp_rank", "")), _rank(named.get("tp_rank", ""))),
        identity=tuple([pair for pair in labels if pair[0] not in _REPEATING and pair[0] != dp_label]),
        priority=named.get("priority"),
    )


def _rank(text: str) -> int:
    """What is no number counts as 0."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _rank_order(dp_rank: str) -> tuple[int, str]:
    return _rank(dp_rank), dp_rank


def _label(labels: Labels, name: str) -> str | None:
    return next((value for label, value in labels if label == name), None)


def _first(label_sets: Iterable[Labels], name: str) -> str:
    """The first value of the label that is not empty."""
    return next((value for labels in label_sets for label, value in labels if label == name and value), "")
