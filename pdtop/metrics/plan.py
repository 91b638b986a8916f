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

from pdtop.metrics.catalogue import SGLANG_PREFIXES, WORKER_METRICS, Metric, spellings
from pdtop.metrics.exposition import Layout, Pick, Series, pick

_REPEATING = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
_NOT_IDENTITY = _REPEATING | {"dp_rank"}
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
    labels = [dict(series.labels) for series in layout.series]
    return Plan(
        values=values,
        histograms=histograms,
        counters=_named_counters(layout, families),
        model_name=_first(labels, "model_name"),
        # The scheduler's word first: after a role switch the tokenizer's families keep the old role.
        engine_type=_first([one for one in labels if "tp_rank" in one], "engine_type")
        or _first(labels, "engine_type"),
        ranks=tuple(sorted(ranks, key=_rank_order)) or ("",),
    )


_SHARD_FAMILIES = frozenset(
    text for one in WORKER_METRICS if one.per_shard for name in one.names for text in spellings(name)
)


def lowest_ranks(series: Sequence[Series]) -> list[int]:
    """The series worth keeping: of a histogram that every TP and PP rank repeats, only the lowest rank's."""
    lowest: dict[tuple[str, Labels], tuple[int, int]] = {}
    keys: dict[Labels, tuple[Labels, tuple[int, int]]] = {}
    for family, part, labels, _ in series:
        if part and family not in _SHARD_FAMILIES:
            if labels not in keys:
                keys[labels] = (tuple([pair for pair in labels if pair[0] not in _REPEATING]), _shard(labels))
            key, shard = keys[labels]
            lowest[family, key] = min(shard, lowest.get((family, key), shard))
    if all(shard == (0, 0) for _, shard in keys.values()):
        return list(range(len(series)))
    return [
        index
        for index, (family, part, labels, _) in enumerate(series)
        if not part or family in _SHARD_FAMILIES or lowest[family, keys[labels][0]] == keys[labels][1]
    ]


def _family_of(metric: Metric, families: Mapping[str, object]) -> str | None:
    """The newest name of the concept that the page has."""
    return next((text for name in metric.names for text in spellings(name) if text in families), None)


def _where(series: Sequence[Series], indexes: Iterable[int], metric: Metric) -> list[int]:
    return [index for index in indexes if all(pair in series[index].labels for pair in metric.where)]


def _totals(layout: Layout, indexes: list[int]) -> list[int]:
    """Without the scheduler's series per priority, where there is one over all of them (priority "").

    The tokenizer's counters and histograms have no rank and no total: there "" is only one priority more.
    """
    priorities = {index: _label(layout.series[index], "priority") for index in indexes}
    first = indexes[0] if indexes else 0
    tokenizer = first < layout.windowed and _label(layout.series[first], "tp_rank") is None
    if tokenizer or "" not in priorities.values():
        return indexes
    return [index for index in indexes if not priorities[index]]


def _values(series: Sequence[Series], indexes: Iterable[int]) -> tuple[Value, ...]:
    groups: dict[tuple[str, Labels], list[int]] = defaultdict(list)
    for index in indexes:
        groups[_dp_rank(series[index]), _identity(series[index])].append(index)
    values = [Value(dp_rank, tuple(at)) for (dp_rank, _), at in groups.items()]
    return tuple(sorted(values, key=lambda value: _rank_order(value.dp_rank)))


def _histograms(series: Sequence[Series], indexes: Iterable[int], per_shard: bool) -> tuple[Buckets, ...]:
    groups: dict[tuple[str, Labels], dict[tuple[int, int], list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for index in indexes:
        one = series[index]
        groups[_dp_rank(one), _identity(one)][_shard(one.labels)].append(index)
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


def _label(series: Series, name: str) -> str | None:
    return next((value for label, value in series.labels if label == name), None)


def _dp_rank(series: Series) -> str:
    """The DP rank's text; vLLM calls it ``engine``."""
    if series.family.startswith("vllm:"):
        return _label(series, "engine") or ""
    return _label(series, "dp_rank") or ""


def _identity(series: Series) -> Labels:
    return tuple([pair for pair in series.labels if pair[0] not in _NOT_IDENTITY])


def _shard(labels: Labels) -> tuple[int, int]:
    """PP rank, then TP rank; what is no number counts as 0."""
    ranks = {"pp_rank": 0, "tp_rank": 0}
    for name, value in labels:
        if name in ranks and value.isdecimal() and len(value) < 10:
            ranks[name] = int(value)
    return ranks["pp_rank"], ranks["tp_rank"]


def _rank_order(dp_rank: str) -> tuple[int, str]:
    return (int(dp_rank) if dp_rank.isdecimal() and len(dp_rank) < 10 else 0, dp_rank)


def _first(labels: Iterable[Mapping[str, str]], name: str) -> str:
    return next((one[name] for one in labels if one.get(name)), "")
