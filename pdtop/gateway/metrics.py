"""The router's own metrics, under the names that smg uses, so that one reader reads both."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from pdtop.gateway.pool import Backend
from pdtop.gateway.reload import OUTCOMES, Reload

_BREAKER = {"closed": 0, "open": 1, "half_open": 2}
_DURATIONS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0),
    *(90.0, 120.0, 180.0, 240.0),
)
#: Finer than smg's below one second: a PD time to first token lives there.
_TTFT = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.5, 2.0, 2.5),
    *(4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0),
)
_TPOT = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 1.0, 2.5),
)


class RouterMetrics:
    """A registry of its own: several routers can live in one process."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        self._of_workers: dict[str, set[tuple[Counter, tuple[str, ...]]]] = {}
        worker = ("worker",)
        self._active = Gauge("smg_worker_requests_active", "Requests in flight", worker, registry=registry)
        self._health = Gauge("smg_worker_health", "1 healthy, 0 not", worker, registry=registry)
        self._breaker = Gauge(
            "smg_worker_cb_state", "0 closed, 1 open, 2 half-open", worker, registry=registry
        )
        self._run = Gauge(
            "smg_worker_cb_consecutive_failures", "Failures in a row", worker, registry=registry
        )
        self._pool_size = Gauge(
            "smg_worker_pool_size",
            "Workers",
            ("worker_type", "connection_mode", "model"),
            registry=registry,
        )
        self.dispatched = Counter(
            "smg_worker_requests", "Requests dispatched", ("worker", "model"), registry=registry
        )
        self.outcomes = Counter(
            "smg_worker_cb_outcomes", "Outcomes of dispatches", ("worker", "outcome"), registry=registry
        )
        self.selections = Counter(
            "smg_worker_selection",
            "Selections by pool and policy",
            ("worker_type", "connection_mode", "model", "policy"),
            registry=registry,
        )
        self.selected = Counter(
            "smg_worker_selected",
            "Selections of each worker and why: affinity, load, pair, only one, turn, chance, hash",
            ("worker", "worker_type", "policy", "reason"),
            registry=registry,
        )
        self._weight = Gauge("smg_worker_weight", "Weight in force", worker, registry=registry)
        self._draining = Gauge(
            "smg_worker_draining", "1: gets no new requests, finishes its old ones", worker, registry=registry
        )
        self._load = Gauge("smg_worker_load_score", "Load in the units of [load]", worker, registry=registry)
        self.matched = Histogram(
            "smg_cache_aware_match_ratio",
            "Share of the prompt that the chosen prefill worker was sent before",
            buckets=[i / 10 for i in range(11)],
            registry=registry,
        )
        self.transfer_cost = Histogram(
            "smg_pd_transfer_cost",
            "Cost of the chosen pairs by [topology]",
            buckets=(0.0, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0),
            registry=registry,
        )
        self._reloads = Counter(
            "smg_config_reload", "Readings of config.toml by outcome", ("outcome",), registry=registry
        )
        self._reload_ok = Gauge(
            "smg_config_last_reload_successful",
            "0: the file is bad, the last good one counts",
            registry=registry,
        )
        self._reloaded_at = Gauge(
            "smg_config_last_reload_success_timestamp_seconds",
            "When the settings in force were read",
            registry=registry,
        )
        for outcome in OUTCOMES:
            self._reloads.labels(outcome)
        self._reload_ok.set(1)
        self._reloaded_at.set_to_current_time()
        self.checks = Counter(
            "smg_worker_health_checks", "Health probes", ("worker_type", "result"), registry=registry
        )
        self.errors = Counter(
            "smg_worker_errors",
            "Failed dispatches",
            ("worker_type", "connection_mode", "error_type"),
            registry=registry,
        )
        self.retries = Counter(
            "smg_worker_retries", "Retries", ("worker_type", "endpoint"), registry=registry
        )
        routed = ("router_type", "backend_type", "connection_mode", "model", "endpoint")
        self.requests = Counter(
            "smg_router_requests", "Requests routed", (*routed, "streaming"), registry=registry
        )
        self.request_errors = Counter(
            "smg_router_request_errors", "Requests that failed", (*routed, "error_type"), registry=registry
        )
        self.duration = Histogram(
            "smg_router_request_duration_seconds",
            "Time to the end, of streams to their start",
            routed,
            buckets=_DURATIONS,
            registry=registry,
        )
        self.http = Counter("smg_http_requests", "HTTP requests", ("method", "path"), registry=registry)
        self.responses = Counter(
            "smg_http_responses",
            "HTTP responses",
            ("path", "status_code", "error_code"),
            registry=registry,
        )
        self.connections = Gauge("smg_http_connections_active", "HTTP requests in flight", registry=registry)
        pd = ("backend_type", "model", "runtime")
        self.ttft = Histogram(
            "smg_pd_ttft_seconds",
            "Prefill dispatch to decode's first byte",
            pd,
            buckets=_TTFT,
            registry=registry,
        )
        self.prefill = Histogram(
            "smg_pd_prefill_duration_seconds",
            "Prefill dispatch to its end",
            pd,
            buckets=_TTFT,
            registry=registry,
        )

        self.tpot = Histogram(
            "smg_pd_tpot_seconds",
            "Time per token after the first; by stream events where the worker does not count its tokens",
            (*pd, "counted"),
            buckets=_TPOT,
            registry=registry,
        )

    def count(self, counter: Counter, worker: str, *labels: str) -> None:
        """One more in a series of a worker (its first label): it will go with the worker."""
        series = (worker, *labels)
        self._of_workers.setdefault(worker, set()).add((counter, series))
        counter.labels(*series).inc()

    def reloaded(self, reload: Reload) -> None:
        self._reloads.labels(reload.outcome).inc()
        self._reload_ok.set(1 if reload.ok else 0)
        if reload.ok:
            self._reloaded_at.set(reload.at)

    def page(self, backends: Iterable[tuple[Backend, float]], now: float) -> bytes:
        """The page as text 0.0.4. Each worker with its load; what is known of it is taken at this moment."""
        gauges = (
            self._active,
            self._health,
            self._breaker,
            self._run,
            self._weight,
            self._draining,
            self._load,
        )
        for gauge in (*gauges, self._pool_size):
            gauge.clear()  # a worker that is gone has no series
        gone = set(self._of_workers)
        sizes: dict[tuple[str, str], int] = {}
        for backend, load in backends:
            values = (
                backend.inflight,
                1 if backend.probes.healthy else 0,
                _BREAKER[backend.breaker.state(now)],
                backend.breaker.failures,
                backend.weight,
                1 if backend.draining else 0,
                load,
            )
            for gauge, value in zip(gauges, values, strict=True):
                gauge.labels(backend.url).set(value)
            gone.discard(backend.url)
            pool = (backend.role, backend.model)
            sizes[pool] = sizes.get(pool, 0) + 1
        for (role, model), size in sizes.items():
            self._pool_size.labels(role, "http", model).set(size)
        for worker in gone:
            for counter, series in self._of_workers.pop(worker):
                counter.remove(*series)
        return generate_latest(self._registry)
