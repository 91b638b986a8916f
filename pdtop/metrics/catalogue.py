"""Which exported names mean which concept, per engine, release and router family; data only.

SGLang names are given without their prefix (``sglang:`` or, where a router or gateway has passed them on,
``sglang_``); names of other engines and of routers are given in full. Newest name first: the first one that
a page has is the one that is read. ``since``/``until`` are the first and last of the compared releases
(0.4.0 to 0.5.23) that have the name; empty = first or newest of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """What a concept is expected to be; the page's own ``# TYPE`` has the last word."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Across(StrEnum):
    """How one number is made of several DP ranks."""

    SUM = "sum"
    MAX = "max"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Name:
    """An exported family name (counters with their ``_total``) and the releases that have it."""

    text: str
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One concept. ``where`` keeps only series with these label values.

    ``roles`` are those that export it; elsewhere its absence is no loss of information. ``per_shard``: each
    TP and PP rank counts its own part, so all of them are added instead of taking one for all.
    """

    concept: str
    kind: Kind
    names: tuple[Name, ...]
    across: Across = Across.SUM
    where: tuple[tuple[str, str], ...] = ()
    roles: frozenset[str] = frozenset({"prefill", "decode", "unified"})
    per_shard: bool = False


PREFILL_ONLY: Final = frozenset({"prefill"})
DECODE_ONLY: Final = frozenset({"decode"})
DISAGGREGATED: Final = frozenset({"prefill", "decode"})
NOT_PREFILL: Final = frozenset({"decode", "unified"})

#: Both spellings of SGLang's prefix; a name without a prefix of its own exists in either.
SGLANG_PREFIXES: Final = ("sglang:", "sglang_")
#: Prefixes that make a page an engine's page.
ENGINE_PREFIXES: Final = (*SGLANG_PREFIXES, "vllm:")

# Gauges of a worker
RUNNING: Final = "running"
QUEUE: Final = "queue"
BOOTSTRAP: Final = "bootstrap"
INFLIGHT: Final = "inflight"
PREALLOC: Final = "prealloc"
TRANSFER: Final = "transfer"
GRAMMAR_QUEUE: Final = "grammar_queue"
RETRACTED: Final = "retracted"
PAUSED: Final = "paused"
TOKEN_USAGE: Final = "token_usage"  # noqa: S105 - no password
KV_USED_TOKENS: Final = "kv_used_tokens"
KV_CAPACITY_TOKENS: Final = "kv_capacity_tokens"
GEN_THROUGHPUT: Final = "gen_throughput"
CACHE_HIT_RATE: Final = "cache_hit_rate"
FWD_OCCUPANCY: Final = "fwd_occupancy"
SPEC_ACCEPT_RATE: Final = "spec_accept_rate"
SPEC_ACCEPT_LENGTH: Final = "spec_accept_length"

# Counters of a worker
REQUESTS: Final = "requests"
PROMPT_TOKENS: Final = "prompt_tokens"
GENERATION_TOKENS: Final = "generation_tokens"
CACHED_TOKENS: Final = "cached_tokens"
REALTIME_PREFILL_COMPUTE: Final = "realtime_prefill_compute"
REALTIME_PREFILL_CACHE: Final = "realtime_prefill_cache"
REALTIME_DECODE: Final = "realtime_decode"
EFFECTIVE_INPUT: Final = "effective_input"
EFFECTIVE_DEVICE_HIT: Final = "effective_device_hit"
EFFECTIVE_HOST_HIT: Final = "effective_host_hit"
EFFECTIVE_STORAGE_HIT: Final = "effective_storage_hit"
ABORTED: Final = "aborted"
TRANSFER_FAILED: Final = "transfer_failed"
BOOTSTRAP_FAILED: Final = "bootstrap_failed"
RETRACTED_TOTAL: Final = "retracted_total"
SCHEDULER_CPU: Final = "scheduler_cpu"
SCHEDULER_IDLE: Final = "scheduler_idle"

# Histograms of a worker; seconds unless the name says otherwise
TTFT: Final = "ttft"
TPOT: Final = "tpot"
ITL: Final = "itl"
TPOT_OLD: Final = "tpot_old"
E2E: Final = "e2e"
QUEUE_TIME: Final = "queue_time"
STAGE: Final = "stage"
KV_TRANSFER_LATENCY_MS: Final = "kv_transfer_latency_ms"
KV_TRANSFER_MB: Final = "kv_transfer_mb"
KV_BOOTSTRAP_MS: Final = "kv_bootstrap_ms"
KV_ALLOC_MS: Final = "kv_alloc_ms"


def _mode(value: str) -> tuple[tuple[str, str], ...]:
    return (("mode", value),)


_REALTIME = (Name("realtime_tokens_total", since="0.5.7"),)
_EFFECTIVE = (Name("prefill_effective_tokens_total", since="0.5.20"),)

WORKER_METRICS: Final[tuple[Metric, ...]] = (
    Metric(RUNNING, Kind.GAUGE, (Name("num_running_reqs"), Name("vllm:num_requests_running"))),
    Metric(QUEUE, Kind.GAUGE, (Name("num_queue_reqs"), Name("vllm:num_requests_waiting"))),
    Metric(
        BOOTSTRAP,
        Kind.GAUGE,
        (
            Name("num_prefill_bootstrap_queue_reqs", since="0.5.12"),
            Name("num_prefill_prealloc_queue_reqs", since="0.4.6.post5", until="0.5.11"),
        ),
        roles=PREFILL_ONLY,
    ),
    Metric(
        INFLIGHT,
        Kind.GAUGE,
        (
            Name("num_prefill_inflight_queue_reqs", since="0.5.2"),
            Name("num_prefill_infight_queue_reqs", since="0.4.6.post5", until="0.5.1"),
        ),
        roles=PREFILL_ONLY,
    ),
    Metric(
        PREALLOC,
        Kind.GAUGE,
        (Name("num_decode_prealloc_queue_reqs", since="0.4.6.post5"),),
        roles=DECODE_ONLY,
    ),
    Metric(
        TRANSFER,
        Kind.GAUGE,
        (Name("num_decode_transfer_queue_reqs", since="0.4.6.post5"),),
        roles=DECODE_ONLY,
    ),
    Metric(GRAMMAR_QUEUE, Kind.GAUGE, (Name("num_grammar_queue_reqs"),)),
    Metric(RETRACTED, Kind.GAUGE, (Name("num_retracted_reqs", since="0.5.2"),), roles=NOT_PREFILL),
    Metric(PAUSED, Kind.GAUGE, (Name("num_paused_reqs", since="0.5.2"),)),
    # The highest use over all pools; full_token_usage is the attention pool alone (and not rounded).
    Metric(
        TOKEN_USAGE,
        Kind.GAUGE,
        (
            Name("token_usage"),
            Name("full_token_usage", since="0.5.10"),
            Name("vllm:kv_cache_usage_perc"),
            Name("vllm:gpu_cache_usage_perc"),
        ),
        across=Across.MAX,
    ),
    Metric(KV_USED_TOKENS, Kind.GAUGE, (Name("kv_used_tokens", since="0.5.11"), Name("num_used_tokens"))),
    Metric(KV_CAPACITY_TOKENS, Kind.GAUGE, (Name("max_total_num_tokens", since="0.5.6"),)),
    Metric(GEN_THROUGHPUT, Kind.GAUGE, (Name("gen_throughput"),)),
    Metric(CACHE_HIT_RATE, Kind.GAUGE, (Name("cache_hit_rate"),), across=Across.MEAN),
    Metric(FWD_OCCUPANCY, Kind.GAUGE, (Name("fwd_occupancy", since="0.5.12"),), across=Across.MEAN),
    Metric(SPEC_ACCEPT_RATE, Kind.GAUGE, (Name("spec_accept_rate"),), across=Across.MEAN),
    Metric(SPEC_ACCEPT_LENGTH, Kind.GAUGE, (Name("spec_accept_length"),), across=Across.MEAN),
    Metric(REQUESTS, Kind.COUNTER, (Name("num_requests_total"), Name("vllm:request_success_total"))),
    Metric(PROMPT_TOKENS, Kind.COUNTER, (Name("prompt_tokens_total"), Name("vllm:prompt_tokens_total"))),
    Metric(
        GENERATION_TOKENS,
        Kind.COUNTER,
        (Name("generation_tokens_total"), Name("vllm:generation_tokens_total")),
    ),
    Metric(CACHED_TOKENS, Kind.COUNTER, (Name("cached_tokens_total"),)),
    Metric(REALTIME_PREFILL_COMPUTE, Kind.COUNTER, _REALTIME, where=_mode("prefill_compute")),
    Metric(REALTIME_PREFILL_CACHE, Kind.COUNTER, _REALTIME, where=_mode("prefill_cache")),
    Metric(REALTIME_DECODE, Kind.COUNTER, _REALTIME, where=_mode("decode")),
    Metric(EFFECTIVE_INPUT, Kind.COUNTER, _EFFECTIVE, where=_mode("input")),
    Metric(EFFECTIVE_DEVICE_HIT, Kind.COUNTER, _EFFECTIVE, where=_mode("device_hit")),
    Metric(EFFECTIVE_HOST_HIT, Kind.COUNTER, _EFFECTIVE, where=_mode("host_hit")),
    Metric(EFFECTIVE_STORAGE_HIT, Kind.COUNTER, _EFFECTIVE, where=_mode("storage_hit")),
    Metric(ABORTED, Kind.COUNTER, (Name("num_aborted_requests_total"),)),
    Metric(TRANSFER_FAILED, Kind.COUNTER, (Name("num_transfer_failed_reqs_total"),), roles=DISAGGREGATED),
    Metric(BOOTSTRAP_FAILED, Kind.COUNTER, (Name("num_bootstrap_failed_reqs_total"),), roles=DISAGGREGATED),
    Metric(
        RETRACTED_TOTAL,
        Kind.COUNTER,
        (
            Name("num_retracted_requests_total", since="0.5.7"),
            Name("total_retracted_reqs", since="0.4.10", until="0.5.2"),
            Name("vllm:num_preemptions_total"),
        ),
    ),
    Metric(SCHEDULER_CPU, Kind.COUNTER, (Name("scheduler_process_cpu_seconds_total", since="0.5.20"),)),
    Metric(SCHEDULER_IDLE, Kind.COUNTER, (Name("scheduler_idle_seconds_total", since="0.5.20"),)),
    Metric(
        TTFT,
        Kind.HISTOGRAM,
        (Name("time_to_first_token_seconds"), Name("vllm:time_to_first_token_seconds")),
        roles=NOT_PREFILL,  # recorded on prefill workers up to 0.4.8 only
    ),
    Metric(
        TPOT,
        Kind.HISTOGRAM,
        (
            Name("request_time_per_output_token_seconds", since="0.5.22"),
            Name("vllm:request_time_per_output_token_seconds"),
        ),
        roles=NOT_PREFILL,
    ),
    Metric(
        ITL,
        Kind.HISTOGRAM,
        (Name("inter_token_latency_seconds", since="0.4.5"), Name("vllm:inter_token_latency_seconds")),
        roles=NOT_PREFILL,
    ),
    Metric(
        TPOT_OLD,
        Kind.HISTOGRAM,
        (
            Name("time_per_output_token_seconds", until="0.4.3"),
            Name("vllm:time_per_output_token_seconds"),
        ),
        roles=NOT_PREFILL,
    ),
    Metric(
        E2E, Kind.HISTOGRAM, (Name("e2e_request_latency_seconds"), Name("vllm:e2e_request_latency_seconds"))
    ),
    Metric(
        QUEUE_TIME,
        Kind.HISTOGRAM,
        (
            Name("queue_time_seconds", since="0.5.3"),
            Name("queue_time_s", since="0.5.2", until="0.5.2"),
            Name("vllm:request_queue_time_seconds"),
            Name("avg_request_queue_latency", since="0.4.6.post5", until="0.5.2"),  # a gauge
        ),
    ),
    Metric(STAGE, Kind.HISTOGRAM, (Name("per_stage_req_latency_seconds", since="0.5.3"),)),
    # Gauges that mostly stayed 0 before 0.5.10.
    Metric(
        KV_TRANSFER_LATENCY_MS,
        Kind.HISTOGRAM,
        (Name("kv_transfer_latency_ms", since="0.5.2"),),
        roles=PREFILL_ONLY,
    ),
    Metric(
        KV_TRANSFER_MB,
        Kind.HISTOGRAM,
        (Name("kv_transfer_total_mb", since="0.5.7"),),
        roles=PREFILL_ONLY,
        per_shard=True,
    ),
    Metric(
        KV_BOOTSTRAP_MS,
        Kind.HISTOGRAM,
        (Name("kv_transfer_bootstrap_ms", since="0.5.5"),),
        roles=DISAGGREGATED,
    ),
    Metric(KV_ALLOC_MS, Kind.HISTOGRAM, (Name("kv_transfer_alloc_ms", since="0.5.5"),), roles=DISAGGREGATED),
)

WORKER: Final[Mapping[str, Metric]] = {metric.concept: metric for metric in WORKER_METRICS}


def spellings(name: Name) -> tuple[str, ...]:
    """The full family names under which ``name`` can stand on a worker's page."""
    if name.text.startswith(ENGINE_PREFIXES):
        return (name.text,)
    return tuple(prefix + name.text for prefix in SGLANG_PREFIXES)


def exported_by(concept: str, role: str) -> bool:
    """Whether a worker of this role exports the concept at all (``prefill``, ``decode``, ``unified``)."""
    return role in WORKER[concept].roles


#: Every family of a worker's page that is turned into numbers.
WORKER_FAMILIES: Final = frozenset(
    text for metric in WORKER_METRICS for name in metric.names for text in spellings(name)
)

# Router concepts per worker (label ``worker``)
R_INFLIGHT: Final = "router_inflight"
R_HEALTH: Final = "router_health"  # 1, 0; -1 = removed (sglang-router 0.3.2 keeps the series)
R_BREAKER: Final = "router_breaker"  # 0 closed, 1 open, 2 half-open
R_LOAD: Final = "router_load"
R_DISPATCHES: Final = "router_dispatches"
R_OUTCOMES: Final = "router_outcomes"  # success + failure
R_FAILURES: Final = "router_failures"
R_PREFILL_DISPATCHES: Final = "router_prefill_dispatches"  # also tells the worker's role
R_DECODE_DISPATCHES: Final = "router_decode_dispatches"
# Router concepts without a worker
R_REQUESTS: Final = "router_requests"
R_ERRORS: Final = "router_errors"
R_RETRIES: Final = "router_retries"
R_RETRIES_EXHAUSTED: Final = "router_retries_exhausted"
R_HTTP_INFLIGHT: Final = "router_http_inflight"
R_ACTIVE_WORKERS: Final = "router_active_workers"
R_SELECTIONS: Final = "router_selections"  # by worker_type and policy
R_DURATION: Final = "router_duration"
R_PD_TTFT: Final = "router_pd_ttft"
R_PD_PREFILL: Final = "router_pd_prefill_duration"

#: Families of router names: ``smg_`` is smg 1.13.0, sglang-router 0.3.2 and the demo's router;
#: ``sgl_router_`` is sgl-router 0.1-0.2; ``vllm_router_`` is the vLLM router.
ROUTER_PREFIXES: Final[Mapping[str, str]] = {
    "smg_": "smg",
    "sgl_router_": "sgl_router",
    "vllm_router_": "vllm_router",
}
_OLD = ("sgl_router_", "vllm_router_")


def _names(smg: tuple[str, ...], old: tuple[str, ...] = ()) -> tuple[Name, ...]:
    texts = [f"smg_{text}" for text in smg] + [prefix + text for text in old for prefix in _OLD]
    return tuple(Name(text) for text in texts)


ROUTER_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        R_INFLIGHT,
        Kind.GAUGE,
        _names(("worker_requests_active",), ("running_requests", "pd_active_decode_requests")),
    ),
    Metric(R_HEALTH, Kind.GAUGE, _names(("worker_health",), ("worker_health",)), across=Across.MAX),
    Metric(R_BREAKER, Kind.GAUGE, _names(("worker_cb_state",), ("cb_state",)), across=Across.MAX),
    Metric(R_LOAD, Kind.GAUGE, _names((), ("worker_load",))),
    Metric(R_DISPATCHES, Kind.COUNTER, _names(("worker_requests_total",), ("processed_requests_total",))),
    Metric(R_OUTCOMES, Kind.COUNTER, _names(("worker_cb_outcomes_total",), ("cb_outcomes_total",))),
    Metric(
        R_FAILURES,
        Kind.COUNTER,
        _names(("worker_cb_outcomes_total",), ("cb_outcomes_total",)),
        where=(("outcome", "failure"),),
    ),
    Metric(R_PREFILL_DISPATCHES, Kind.COUNTER, _names((), ("pd_prefill_requests_total",))),
    Metric(R_DECODE_DISPATCHES, Kind.COUNTER, _names((), ("pd_decode_requests_total",))),
    Metric(
        R_REQUESTS,
        Kind.COUNTER,
        _names(("router_requests_total",), ("pd_requests_total", "requests_total")),
    ),
    Metric(
        R_ERRORS,
        Kind.COUNTER,
        _names(
            ("router_request_errors_total", "worker_errors_total"),
            ("pd_errors_total", "request_errors_total"),
        ),
    ),
    # One retry counts once for prefill and once for decode: decode's are the retries.
    Metric(
        R_RETRIES,
        Kind.COUNTER,
        _names(("worker_retries_total",), ("retries_total",)),
    ),
    Metric(
        R_RETRIES_EXHAUSTED,
        Kind.COUNTER,
        _names(("worker_retries_exhausted_total",), ("retries_exhausted_total",)),
    ),
    Metric(R_HTTP_INFLIGHT, Kind.GAUGE, _names(("admission_inflight", "http_connections_active"))),
    Metric(R_ACTIVE_WORKERS, Kind.GAUGE, _names((), ("active_workers",))),
    Metric(R_SELECTIONS, Kind.COUNTER, _names(("worker_selection_total",), ("policy_decisions_total",))),
    Metric(
        R_DURATION,
        Kind.HISTOGRAM,
        _names(
            ("router_request_duration_seconds",),
            ("pd_request_duration_seconds", "request_duration_seconds"),
        ),
    ),
    Metric(R_PD_TTFT, Kind.HISTOGRAM, _names(("pd_ttft_seconds",))),
    Metric(R_PD_PREFILL, Kind.HISTOGRAM, _names(("pd_prefill_duration_seconds",))),
)

ROUTER: Final[Mapping[str, Metric]] = {metric.concept: metric for metric in ROUTER_METRICS}

#: Every family of a router's page that is turned into numbers.
ROUTER_FAMILIES: Final = frozenset(name.text for metric in ROUTER_METRICS for name in metric.names)
