"""A router's metrics page as numbers by concept and by worker, for every family of router names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from weakref import WeakKeyDictionary

from pdtop.metrics.catalogue import (
    R_ACTIVE_WORKERS,
    R_BREAKER,
    R_DECODE_DISPATCHES,
    R_DISPATCHES,
    R_ERRORS,
    R_FAILURES,
    R_HEALTH,
    R_HTTP_INFLIGHT,
    R_INFLIGHT,
    R_LOAD,
    R_OUTCOMES,
    R_PREFILL_DISPATCHES,
    R_REQUESTS,
    R_RETRIES,
    R_SELECTIONS,
    ROUTER_FAMILIES,
    ROUTER_METRICS,
    ROUTER_PREFIXES,
)
from pdtop.metrics.distribution import Distribution, merge
from pdtop.metrics.exposition import Layout, PageReader
from pdtop.metrics.plan import Buckets, Labels, buckets_of
from pdtop.metrics.worker_page import LARGEST, counts_of, distribution

_PREFIXES = tuple(ROUTER_PREFIXES)


@dataclass(frozen=True, slots=True)
class RouterWorker:
    """What the router's page says of one worker; counters as they stand (in a window: what they grew by).

    ``breaker``: 0 closed, 1 open, 2 half-open. ``removed``: the router has let it go but still shows its
    series. ``role`` is "" unless the page tells. ``outcomes`` are dispatches with a known end.
    """

    worker: str
    role: str
    removed: bool
    inflight: float | None
    health: bool | None
    breaker: int | None
    load: float | None
    requests: float | None
    outcomes: float | None
    failures: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A Prometheus summary: the router's own quantiles (since when, only it knows), cannot be merged."""

    quantiles: tuple[tuple[float, float], ...]
    count: float | None
    sum: float | None

    def quantile(self, q: float) -> float | None:
        """The router's own ``q`` quantile, if it exports that one."""
        return next((value for own, value in self.quantiles if own == q), None)


@dataclass(frozen=True, slots=True)
class RouterPlan:
    """Where each concept stands: (worker or "", labels, position in the values)."""

    values: Mapping[str, tuple[tuple[str, Labels, int], ...]]
    histograms: Mapping[str, tuple[Buckets, ...]]
    workers: tuple[str, ...]
    names: Mapping[str, str]  # concept -> exported family


@dataclass(frozen=True, slots=True)
class RouterNumbers:
    """One read of a router's page.

    ``family`` is ``smg`` (smg 1.13.0, sglang-router 0.3.2, the demo's router), ``sgl_router``,
    ``vllm_router`` or "" if the page is none of theirs; ``series`` counts the router's series on it.
    """

    at: float
    lines: int
    bad_lines: int
    duplicates: int
    size: int
    family: str
    series: int
    complete: bool
    layout: Layout
    values: Sequence[float]
    plan: RouterPlan

    @property
    def pids(self) -> frozenset[str]:
        """Routers export none."""
        return frozenset()

    @property
    def workers(self) -> tuple[str, ...]:
        """Every worker with a series on the page, as the page names it; removed ones too."""
        return self.plan.workers

    def by_worker(self, concept: str) -> Mapping[str, float]:
        """The concept for each worker that has it, other labels added; -1 means unknown and is left out."""
        totals: dict[str, float] = {}
        for worker, _, at in self.plan.values.get(concept, ()):
            value = self.values[at]
            if worker and 0 <= value <= LARGEST:
                totals[worker] = totals.get(worker, 0.0) + value
        return totals

    def worker(self, name: str) -> RouterWorker | None:
        """All that the page says of one worker; None if nothing."""
        return next(iter(self.each_worker([name])), None)

    def each_worker(self, names: Sequence[str] | None = None) -> tuple[RouterWorker, ...]:
        """All workers of the page (or the named ones that are on it), in the page's naming, sorted."""
        wanted = self.workers if names is None else [name for name in names if name in self.workers]
        states = {worker: self.values[at] for worker, _, at in self.plan.values.get(R_HEALTH, ())}
        columns = {
            concept: self.by_worker(concept)
            for concept in (R_INFLIGHT, R_BREAKER, R_LOAD, R_DISPATCHES, R_OUTCOMES, R_FAILURES)
        }
        roles = {worker: "prefill" for worker, _, _ in self.plan.values.get(R_PREFILL_DISPATCHES, ())}
        roles |= {worker: "decode" for worker, _, _ in self.plan.values.get(R_DECODE_DISPATCHES, ())}
        return tuple(
            RouterWorker(
                worker=name,
                role=roles.get(name, ""),
                removed=states.get(name) == -1,
                inflight=columns[R_INFLIGHT].get(name),
                health={1.0: True, 0.0: False}.get(states.get(name, -1.0)),
                breaker=_breaker(columns[R_BREAKER].get(name)),
                load=columns[R_LOAD].get(name),
                requests=columns[R_DISPATCHES].get(name),
                outcomes=columns[R_OUTCOMES].get(name),
                failures=columns[R_FAILURES].get(name, 0.0 if name in columns[R_OUTCOMES] else None),
            )
            for name in wanted
        )

    def counter(self, concept: str) -> float | None:
        """The concept over all workers and labels; -1 counts as unknown."""
        known = [
            value
            for _, _, at in self.plan.values.get(concept, ())
            if 0 <= (value := self.values[at]) <= LARGEST
        ]
        return sum(known) if known else None

    def gauge(self, concept: str) -> float | None:
        """The same for gauges."""
        return self.counter(concept)

    def named_counter(self, name: str) -> float | None:
        """A counter by its full exported name, if it is in the catalogue."""
        concept = next((concept for concept, family in self.plan.names.items() if family == name), None)
        return None if concept is None else self.counter(concept)

    @property
    def requests(self) -> float | None:
        """Requests the router has taken; None if it does not count them."""
        return self.counter(R_REQUESTS)

    @property
    def errors(self) -> float | None:
        return self.counter(R_ERRORS)

    @property
    def retries(self) -> float | None:
        """Retries. One counts once for prefill and once for decode, so the larger is the number."""
        by_pool = self.by_label(R_RETRIES, "worker_type")
        return max(by_pool.values()) if by_pool else None

    @property
    def http_inflight(self) -> float | None:
        return self.counter(R_HTTP_INFLIGHT)

    @property
    def active_workers(self) -> float | None:
        """Workers that the router counts as active, where it says so."""
        return self.counter(R_ACTIVE_WORKERS)

    def by_label(self, concept: str, label: str) -> Mapping[str, float]:
        """The concept by the values of one label ("" where it is missing)."""
        totals: dict[str, float] = {}
        for _, labels, at in self.plan.values.get(concept, ()):
            if 0 <= (value := self.values[at]) <= LARGEST:
                key = _label(labels, label)
                totals[key] = totals.get(key, 0.0) + value
        return totals

    def selections(self) -> Mapping[tuple[str, str], float]:
        """Selections by pool (``prefill``, ``decode``, "" where not told) and policy."""
        totals: dict[tuple[str, str], float] = {}
        for _, labels, at in self.plan.values.get(R_SELECTIONS, ()):
            if -LARGEST <= (value := self.values[at]) <= LARGEST:
                key = (_label(labels, "worker_type"), _label(labels, "policy"))
                totals[key] = totals.get(key, 0.0) + value
        return totals

    def metric(self, concept: str) -> str | None:
        """The exported family that the concept was read from."""
        return self.plan.names.get(concept)

    def histogram(self, concept: str) -> Distribution | None:
        """Everything added, since the router's start; None if absent or unusable."""
        return self._merged(self.plan.histograms.get(concept, ()))

    def histogram_split(self, concept: str) -> Mapping[str, Distribution]:
        """By ``streaming``; no router of today splits so."""
        return self.histograms_by(concept, "streaming")

    def histograms_by(self, concept: str, label: str = "endpoint") -> Mapping[str, Distribution]:
        """By the values of ``label``; unusable ones are left out."""
        groups: dict[str, list[Buckets]] = {}
        for one in self.plan.histograms.get(concept, ()):
            if value := _label(one.labels, label):
                groups.setdefault(value, []).append(one)
        merged = {value: self._merged(group) for value, group in groups.items()}
        return {value: one for value, one in merged.items() if one is not None}

    def summary(self, concept: str) -> Summary | None:
        """Where the page has a summary instead of a histogram. Quantiles of several routes do not add up, so
        there are none unless one route has all observations."""
        if dict(self.layout.kinds).get(self.plan.names.get(concept, "")) != "summary":
            return None
        parts = [
            (one.labels, self.values[one.count_at], self.values[one.sum_at] if one.sum_at >= 0 else 0.0)
            for one in self.plan.histograms.get(concept, ())
            if one.count_at >= 0 and -LARGEST <= self.values[one.count_at] <= LARGEST
        ]
        busy = [labels for labels, count, _ in parts if count > 0]
        quantiles = [
            (quantile, self.values[at])
            for _, labels, at in self.plan.values.get(concept, ())
            if (quantile := _quantile(labels)) is not None
            and -LARGEST <= self.values[at] <= LARGEST
            and len(busy) == 1
            and tuple(pair for pair in labels if pair[0] != "quantile") == busy[0]
        ]
        total = sum(part[2] for part in parts)
        return Summary(
            tuple(sorted(quantiles)),
            sum(part[1] for part in parts) if parts else None,
            total if parts and -LARGEST <= total <= LARGEST else None,
        )

    def with_values(self, values: Sequence[float]) -> RouterNumbers:
        """The same page holding other values, e.g. what each series grew by."""
        return replace(self, values=values)

    def trusts(self, concept: str) -> bool:
        """Whether the page has the histogram, and every part of it makes sense."""
        histograms = self.plan.histograms.get(concept, ())
        return bool(histograms) and all(counts_of(self.values, one) is not None for one in histograms)

    def _merged(self, histograms: Iterable[Buckets]) -> Distribution | None:
        parts: list[Distribution] = []
        for one in histograms:
            part = distribution(self.values, one)
            if part is None or one.bounds == (inf,):
                return None
            parts.append(part)
        return merge(parts)


class RouterPageReader:
    """Reads the metrics pages of one router."""

    __slots__ = ("_reader",)

    def __init__(self) -> None:
        self._reader = PageReader(ROUTER_FAMILIES, prefixes=_PREFIXES)

    def read(self, body: bytes, at: float, *, truncated: bool = False) -> RouterNumbers:
        """Read one page; never raises."""
        page = self._reader.read(body, truncated=truncated)
        named = page.named[:-1]
        series = max(named)
        return RouterNumbers(
            at=at,
            lines=page.lines,
            bad_lines=page.bad_lines,
            duplicates=page.duplicates,
            size=page.size,
            family=ROUTER_PREFIXES[_PREFIXES[named.index(series)]] if series else "",
            series=sum(named),
            complete=not truncated and not page.bad_lines,
            layout=page.layout,
            values=page.values,
            plan=_plan(page.layout),
        )


_plans: WeakKeyDictionary[Layout, RouterPlan] = WeakKeyDictionary()


def _plan(layout: Layout) -> RouterPlan:
    plan = _plans.get(layout)
    if plan is None:
        plan = _plans[layout] = _make_plan(layout)
    return plan


def _make_plan(layout: Layout) -> RouterPlan:
    families: dict[str, list[int]] = {}
    for index, series in enumerate(layout.series):
        families.setdefault(series.family, []).append(index)
    values: dict[str, tuple[tuple[str, Labels, int], ...]] = {}
    histograms: dict[str, tuple[Buckets, ...]] = {}
    names: dict[str, str] = {}
    for metric in ROUTER_METRICS:
        family = next((name.text for name in metric.names if name.text in families), None)
        if family is None:
            continue
        names[metric.concept] = family
        plain: list[tuple[str, Labels, int]] = []
        parts: dict[Labels, list[int]] = {}
        for index in families[family]:
            series = layout.series[index]
            if series.part:
                parts.setdefault(series.labels, []).append(index)
            elif all(pair in series.labels for pair in metric.where):
                plain.append((_label(series.labels, "worker"), series.labels, index))
        if plain:
            values[metric.concept] = tuple(plain)
        if parts:
            histograms[metric.concept] = tuple(
                buckets_of(layout.series, indexes, "", labels) for labels, indexes in parts.items()
            )
    if R_DISPATCHES not in values:  # sglang-router 0.3.2 counts per worker only how they ended
        both = values.get(R_PREFILL_DISPATCHES, ()) + values.get(R_DECODE_DISPATCHES, ())
        values[R_DISPATCHES] = both or values.get(R_OUTCOMES, ())
    workers = {worker for entries in values.values() for worker, _, _ in entries if worker}
    return RouterPlan(values, histograms, tuple(sorted(workers)), names)


def _label(labels: Labels, name: str) -> str:
    return next((value for label, value in labels if label == name), "")


def _quantile(labels: Labels) -> float | None:
    try:
        return float(_label(labels, "quantile"))
    except ValueError:
        return None


def _breaker(state: float | None) -> int | None:
    return int(state) if state in (0.0, 1.0, 2.0) else None
