"""What a worker's answers mean: metrics page, loads, health, identity."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime

from pdtop.cluster.answers import KeyUse, content_type, line_words, status_words, trouble
from pdtop.cluster.model import Identity, Role, State
from pdtop.cluster.readings import (
    Answer,
    HealthReading,
    InfoReading,
    LoadRank,
    Loads,
    LoadsReading,
    MetricsReading,
)
from pdtop.metrics.worker_page import WorkerNumbers, WorkerPageReader
from pdtop.routers.values import json_of, list_of, mapping_of, number_of, text_of, whole_of

MAX_RANKS = 4096
_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE, "null": Role.UNIFIED}

#: Launch arguments that are shown. Everything else that ``/server_info`` says is dropped at once: it holds
#: ``api_key``, ``admin_api_key`` and the whole command line in clear text (SGLang 0.5.23).
SHOWN_FLAGS = (
    "attn_dp_size",
    "ep_size",
    "moe_dense_tp_size",
    "nnodes",
    "node_rank",
    "enable_dp_attention",
    "load_balance_method",
    "disaggregation_ib_device",
    "disaggregation_decode_enable_radix_cache",
    "disaggregation_decode_extra_slots",
    "disaggregation_decode_allocation_policy",
    "num_reserved_decode_tokens",
    "max_queued_requests",
    "max_prefill_tokens",
    "chunked_prefill_size",
    "mem_fraction_static",
    "context_length",
    "page_size",
    "kv_cache_dtype",
    "quantization",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "moe_a2a_backend",
    "deepep_mode",
    "schedule_policy",
    "schedule_conservativeness",
    "enable_priority_scheduling",
    "disable_radix_cache",
    "enable_hierarchical_cache",
    "hicache_ratio",
    "disable_cuda_graph",
    "disable_overlap_schedule",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_num_draft_tokens",
    "enable_metrics",
    "enable_metrics_for_all_schedulers",
    "decode_log_interval",
    "enable_pd_role_switch",
    "weight_version",
    "device",
)


def metrics_reading(answer: Answer, reader: WorkerPageReader, keys: KeyUse) -> MetricsReading:
    """A worker's ``/metrics``. ``reader`` is that worker's own: it remembers the page's layout."""

    def reading(
        state: State, reason: str = "", fix: str = "", numbers: WorkerNumbers | None = None
    ) -> MetricsReading:
        return MetricsReading(answer.at, state, answer.status, reason, fix, numbers, answer.seconds)

    found = trouble(answer, keys)
    if found is not None:
        if answer.status == 404 and found.state is State.HTTP_ERROR:
            words = f"{status_words(404)}: no /metrics"
            return reading(State.METRICS_DISABLED, words, "start the worker with --enable-metrics")
        return reading(found.state, found.reason, found.fix)
    if not answer.body and answer.failure is None:
        return reading(State.NOT_METRICS, "200, but the page is empty", _WRONG_PAGE)
    numbers = reader.read(answer.body, answer.at, truncated=answer.truncated)
    if numbers.engine_series == 0 and not (answer.failure is not None and _begins_well(answer.body)):
        kind = content_type(answer)
        if not numbers.bad_lines:
            words = "200, but none of the engine's metrics among those on the page"
        elif "html" in kind or answer.body[:200].lstrip().lower().startswith((b"<!doctype", b"<html")):
            words = "200, but it is a web page"
        else:
            words = f"200, but no metrics ({kind or 'no content type'})"
        return reading(State.NOT_METRICS, words, _WRONG_PAGE)
    if answer.failure is not None:
        words = f"{answer.detail}; {numbers.lines} lines were read"
        return reading(State.PARTIAL, words, "", numbers if numbers.engine_series else None)
    if numbers.bad_lines or numbers.duplicates:
        return reading(State.OK_WITH_WARNINGS, line_words(numbers), "", numbers)
    return reading(State.OK, "", "", numbers)


def _begins_well(body: bytes) -> bool:
    """True if it may be the beginning of a worker's page."""
    return body.startswith(b"#") or b"sglang" in body[:4096]


_WRONG_PAGE = "see whether this is the worker's own port: the metrics are on it, at /metrics"


def loads_reading(answer: Answer, keys: KeyUse) -> LoadsReading:
    """``/v1/loads`` (SGLang 0.5.8 on) or ``/get_load`` (up to 0.5.20)."""
    found = trouble(answer, keys)
    if found is not None:
        supported = answer.status not in (404, 405, 501)
        return LoadsReading(answer.at, found.state, answer.status, found.reason, supported=supported)
    loads = parse_loads(answer.body) if answer.failure is None else None
    if loads is None:
        state = answer.failure or State.HTTP_ERROR
        return LoadsReading(answer.at, state, answer.status, answer.detail or "200, but no loads in it")
    return LoadsReading(answer.at, State.OK, answer.status, loads=loads)


def parse_loads(body: bytes) -> Loads | None:
    """Every form of the loads answer; None if it is none of them.

    ``/get_load`` up to 0.5.2 has one number, the tokens; from 0.5.3 ``num_reqs`` counts waiting ones too.
    """
    whole = json_of(body)
    if isinstance(whole, list):
        ranks = tuple(_get_load_rank(mapping_of(entry)) for entry in whole[:MAX_RANKS])
        return Loads(None, None, Role.UNKNOWN, ranks)
    top = mapping_of(whole)
    if "loads" in top:
        entries = [mapping_of(entry) for entry in list_of(top["loads"])[:MAX_RANKS]]
        modes = (mapping_of(entry.get("disaggregation")).get("mode") for entry in entries)
        role = next(
            (_ROLES[mode] for mode in modes if isinstance(mode, str) and mode in _ROLES), Role.UNKNOWN
        )
        return Loads(
            _epoch(top.get("timestamp")),
            text_of(top.get("version"), 40),
            role,
            tuple(_rank(entry) for entry in entries),
        )
    tokens = number_of(top.get("load"))
    if tokens is None:
        return None
    return Loads(None, None, Role.UNKNOWN, (LoadRank("", None, None, None, used_tokens=tokens),))


def _get_load_rank(entry: Mapping[str, object]) -> LoadRank:
    requests, waiting = number_of(entry.get("num_reqs")), number_of(entry.get("num_waiting_reqs"))
    running = None if requests is None or waiting is None else max(requests - waiting, 0.0)
    tokens = number_of(entry.get("num_tokens"))
    return LoadRank(_rank_text(entry.get("dp_rank")), None, running, waiting, used_tokens=tokens)


def _rank(entry: Mapping[str, object]) -> LoadRank:
    parts = mapping_of(entry.get("disaggregation"))
    queues = mapping_of(entry.get("queues"))
    bootstrap = parts.get("prefill_bootstrap_queue_reqs", parts.get("prefill_prealloc_queue_reqs"))
    return LoadRank(
        dp_rank=_rank_text(entry.get("dp_rank")),
        timestamp=number_of(entry.get("timestamp")),
        running=number_of(entry.get("num_running_reqs")),
        waiting=number_of(entry.get("num_waiting_reqs")),
        queue=number_of(queues.get("waiting")),
        bootstrap=number_of(bootstrap),
        inflight=number_of(parts.get("prefill_inflight_queue_reqs")),
        prealloc=number_of(parts.get("decode_prealloc_queue_reqs")),
        transfer=number_of(parts.get("decode_transfer_queue_reqs")),
        retracted=number_of(parts.get("decode_retracted_queue_reqs", queues.get("retracted"))),
        used_tokens=number_of(entry.get("num_used_tokens")),
        capacity_tokens=number_of(entry.get("max_total_num_tokens")) or None,  # 0: not reported yet
        max_running=number_of(entry.get("max_running_requests")) or None,
        token_usage=number_of(entry.get("token_usage")),
        gen_throughput=number_of(entry.get("gen_throughput")),
        cache_hit_rate=number_of(entry.get("cache_hit_rate")),
    )


def _rank_text(value: object) -> str:
    number = whole_of(value)
    return str(number) if number is not None else (text_of(value, 20) or "")


def _epoch(value: object) -> float | None:
    """ISO 8601 with an offset, or epoch seconds; without an offset the moment is not known."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return moment.timestamp() if moment.tzinfo is not None else None
    return number_of(value)


def health_reading(answer: Answer, endpoint: str) -> HealthReading:
    """``/ready`` or ``/health``: 200 is ready, 503 is not, all else leaves it open. Neither wants a key."""
    found = trouble(answer, KeyUse())
    if answer.status == 200 and answer.failure in (None, State.PARTIAL):
        return HealthReading(answer.at, endpoint, True, State.OK)
    if answer.status == 503:
        words = (
            "starting, draining or its scheduler does not answer"
            if endpoint == "/health"
            else ("starting, paused, unhealthy or draining")
        )
        return HealthReading(answer.at, endpoint, False, State.HTTP_ERROR, f"{status_words(503)}: {words}")
    state, reason = (found.state, found.reason) if found else (State.HTTP_ERROR, "")
    return HealthReading(answer.at, endpoint, None, state, f"{endpoint}: {reason}")


def info_reading(answer: Answer, keys: KeyUse) -> InfoReading:
    """``/server_info``, ``/get_server_info`` or ``/model_info``. Secrets are left behind here."""
    found = trouble(answer, keys)
    if found is not None:
        return InfoReading(answer.at, found.state, reason=found.reason)
    info = mapping_of(json_of(answer.body)) if answer.failure is None else {}
    if not info.keys() & {"model_path", "served_model_name", "version", "disaggregation_mode"}:
        reason = answer.detail or "200, but not what a worker says of itself"
        return InfoReading(answer.at, answer.failure or State.HTTP_ERROR, reason=reason)
    first = mapping_of(next(iter(list_of(info.get("internal_states"))), None))
    mode = first.get("disaggregation_mode", info.get("disaggregation_mode"))  # the top keeps the start's role
    role = _ROLES.get(mode, Role.UNKNOWN) if isinstance(mode, str) else Role.UNKNOWN
    return InfoReading(answer.at, State.OK, role, _identity(info, first), fingerprint=_fingerprint(info))


def _identity(info: Mapping[str, object], first: Mapping[str, object]) -> Identity:
    version = text_of(info.get("version"), 40)
    dp_size = dp_ranks(version, whole_of(info.get("dp_size")), whole_of(info.get("attn_dp_size")))
    running = whole_of(info.get("max_running_requests"))
    per_rank = whole_of(first.get("effective_max_running_requests_per_dp"))
    if per_rank is not None and dp_size is not None:
        running = per_rank * dp_size
    tokens = whole_of(info.get("max_total_num_tokens"))
    flags = {name: shown for name in SHOWN_FLAGS if (shown := _flag(info.get(name))) is not None}
    return Identity(
        version=version,
        model=text_of(info.get("served_model_name")) or text_of(info.get("model_path")),
        tp_size=whole_of(info.get("tp_size")),
        pp_size=whole_of(info.get("pp_size")),
        dp_size=dp_size,
        transfer_backend=text_of(info.get("disaggregation_transfer_backend"), 40),
        bootstrap_port=whole_of(info.get("disaggregation_bootstrap_port")),
        max_running_requests=running,
        kv_capacity_tokens=tokens * (dp_size or 1) if tokens is not None else None,
        flags=flags,
    )


def dp_ranks(version: str | None, dp_size: int | None, attn_dp_size: int | None) -> int | None:
    """Number of DP ranks: ``dp_size * attn_dp_size`` from 0.5.22 on, before that ``dp_size`` alone.

    ``attn_dp_size`` is new in 0.5.22, so a release whose version cannot be read goes by its presence.
    """
    if dp_size is None:
        return None
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", version or "", re.ASCII)
    if numbers and tuple(map(int, numbers.groups())) < (0, 5, 22):
        return dp_size
    return dp_size * attn_dp_size if attn_dp_size else dp_size


def _flag(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else str(value)[:40]
    return text_of(value, 80)


def _fingerprint(info: Mapping[str, object]) -> str:
    """Equal only for one and the same process under two names; "" where a release does not tell enough.

    The start-up times are floats of that very start; seed, host and port make it safer still.
    """
    if not isinstance(info.get("startup_time"), dict):
        return ""
    parts = {name: info.get(name) for name in ("startup_time", "random_seed", "host", "port", "version")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]
