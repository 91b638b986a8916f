"""The bodies of ``/v1/loads`` as SGLang 0.5.23 writes them, as JSON and as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pdtop.simulator.engine import Gauges, Role

#: Names that ``include=`` knows; anything else is an internal server error, as in the original.
KNOWN_SECTIONS = frozenset({"core", "memory", "spec", "lora", "disagg", "queues", "all"})
ALL_SECTIONS = frozenset({"memory", "disagg", "queues"})


@dataclass(slots=True)
class Work:
    """What one rank has done since its start, and its last KV transfer."""

    computed_tokens: int = 0
    decoded_tokens: int = 0
    transfer_gb_s: float = 0.0
    transfer_ms: float = 0.0


def load_entry(
    role: Role, dp_rank: int, g: Gauges, work: Work, sections: frozenset[str], limit: int
) -> dict[str, object]:
    """One rank's entry. On prefill ``num_running_reqs`` is always 0 and inflight is not in waiting."""
    prefill = role == "prefill"
    moments = [float(g.passes), float(work.decoded_tokens), round(g.busy_s * 1e6), 0.0, 0.0, 0.0]
    load: dict[str, object] = {
        "timestamp": g.at,
        "dp_rank": dp_rank,
        "num_running_reqs": 0 if prefill else g.running,
        "num_waiting_reqs": g.queue + g.bootstrap + g.prealloc + g.transfer + g.retracted,
        "num_waiting_uncached_tokens": 0,
        "num_used_tokens": g.used_tokens,
        "num_total_tokens": g.used_tokens + g.queued_prompt_tokens,
        "num_active_tokens": g.sequence_tokens,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": g.capacity_tokens,
        "max_running_requests": limit,
        "token_usage": round(g.usage, 4),
        "gen_throughput": round(g.gen_throughput, 2),
        "cache_hit_rate": round(g.cache_hit_rate, 4),
        "utilization": -1.0 if prefill else 0.0,
        "total_prefill_uncached_tokens": work.computed_tokens,
        "total_prefill_busy_us": int(g.busy_s * 1e6) if prefill else 0,
        "decode_moments": None if prefill else moments,
    }
    if "memory" in sections:
        load["memory"] = {
            "weight_gb": 35.31,
            "kv_cache_gb": round(g.capacity_tokens * 160 / 2**20, 3),
            "graph_gb": 0.0,
            "token_capacity": g.capacity_tokens,
        }
    if "disagg" in sections:
        load["disaggregation"] = {
            "mode": role,
            "prefill_bootstrap_queue_reqs": g.bootstrap,
            "prefill_inflight_queue_reqs": g.inflight,
            "decode_prealloc_queue_reqs": g.prealloc,
            "decode_transfer_queue_reqs": g.transfer,
            "decode_retracted_queue_reqs": g.retracted,
            "kv_transfer_speed_gb_s": work.transfer_gb_s,
            "kv_transfer_latency_ms": work.transfer_ms,
        }
    if "queues" in sections:
        load["queues"] = {
            "waiting": g.queue,
            "grammar": 0,
            "paused": 0,
            "retracted": g.retracted,
            "prealloc_ready": 0,
        }
    return load


def loads_answer(now: float, version: str, entries: Sequence[Mapping[str, object]]) -> dict[str, object]:
    return {
        "timestamp": datetime.fromtimestamp(now, UTC).isoformat(),
        "version": version,
        "accelerator": None,
        "num_accelerators": 1,
        "loads": list(entries),
    }


def loads_text(entries: Iterable[Mapping[str, object]]) -> str:
    """``format=prometheus``: every number as a gauge with a ``dp_rank``; texts and lists are left out."""
    series: dict[str, list[str]] = {}
    for entry in entries:
        for name, value in _numbers(entry):
            series.setdefault(name, []).append(f'sglang_{name}{{dp_rank="{entry["dp_rank"]}"}} {value}\n')
    return "".join(f"# TYPE sglang_{name} gauge\n{''.join(lines)}" for name, lines in series.items())


def _numbers(entry: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, float]]:
    for name, value in entry.items():
        if isinstance(value, Mapping):
            section = "disagg" if name == "disaggregation" else name
            yield from _numbers(value, f"{section}_")
        elif isinstance(value, int | float) and name != "dp_rank":
            yield prefix + name, value
