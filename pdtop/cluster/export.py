"""A snapshot for other programs: one JSON object (described by ``snapshot.schema.json``) or CSV rows.

Units are in the names: ``_s`` seconds, ``_ms`` milliseconds, ``_per_s`` a second; shares and rates of use are
ratios 0..1. ``null`` (an empty cell in CSV) is "not known". Text from outside has its control characters
replaced, so that it can be printed.
"""

from __future__ import annotations

import csv
import json
from importlib.resources import files
from io import StringIO
from math import isfinite
from typing import Any

from pdtop.cluster.model import (
    Backlog,
    Goodput,
    Identity,
    Latency,
    PageFacts,
    Pool,
    Rank,
    Router,
    RouterOpinion,
    Snapshot,
    Worker,
)
from pdtop.cluster.words import clean, observed, worst_first
from pdtop.metrics.distribution import Quantile

#: Raised whenever a field goes or changes its meaning; new fields do not raise it.
SCHEMA = 1

Json = dict[str, Any]

#: Whole numbers up to here are the same in every JSON reader.
_EXACT = 2**53


def to_dict(snapshot: Snapshot) -> Json:
    """The snapshot as plain JSON values; every field is always there and no number is NaN or infinite."""
    routers = [_router(router) for router in snapshot.routers]
    return {
        "schema": SCHEMA,
        "cluster": clean(snapshot.cluster),
        "at": _number(snapshot.at, digits=15),
        "number": snapshot.number,
        "window_s": _number(snapshot.window_s),
        "interval_s": _number(snapshot.interval_s),
        "read_only": snapshot.read_only,
        "config_error": clean(snapshot.config_error),
        "notices": [clean(notice) for notice in snapshot.notices],
        "router": routers[0] if routers else None,
        "routers": routers,
        "pools": {"prefill": _pool(snapshot.prefill), "decode": _pool(snapshot.decode)},
        "ttft_ms": _latency(snapshot.ttft),
        "tpot_ms": _latency(snapshot.tpot),
        "ttft_parts": {
            "prefill_ms": _latency(snapshot.ttft_prefill_part),
            "decode_ms": _latency(snapshot.ttft_decode_part),
        },
        "goodput": _goodput(snapshot.goodput),
        "workers": [_worker(worker) for worker in snapshot.workers],
        "findings": [
            {
                "severity": finding.severity.value,
                "worker": _text(finding.worker),
                "pool": finding.pool.value if finding.pool is not None else None,
                "router": _text(finding.router),
                "kind": clean(finding.kind),
                "text": clean(finding.text),
                "evidence": clean(finding.evidence),
                "fix": clean(finding.fix),
                "since_s": _number(finding.since_s),
            }
            for finding in worst_first(snapshot.findings)
        ],
        "drift": [
            {
                "worker": clean(drift.worker),
                "kind": clean(drift.kind),
                "text": clean(drift.text),
                "router": _text(drift.router),
                "fix": clean(drift.fix),
            }
            for drift in snapshot.drift
        ],
    }


def dumps(snapshot: Snapshot) -> str:
    """:func:`to_dict` in one line of ASCII."""
    return json.dumps(to_dict(snapshot), allow_nan=False, separators=(",", ":"))


def schema() -> Json:
    """The JSON Schema (draft 2020-12) of what :func:`to_dict` gives."""
    text = files("pdtop.cluster").joinpath("snapshot.schema.json").read_text(encoding="utf-8")
    loaded: Json = json.loads(text)
    return loaded


# Parts of the object -------------------------------------------------------------------------------------


def _router(router: Router) -> Json:
    return {
        "name": clean(router.name),
        "url": clean(router.url),
        "engine": clean(router.engine),
        "version": _text(router.version),
        "state": router.state.value if router.state is not None else None,
        "reason": clean(router.reason),
        "fix": clean(router.fix),
        "ready": router.ready,
        "ready_reason": clean(router.ready_reason),
        "metrics_state": router.metrics_state.value if router.metrics_state is not None else None,
        "control": router.control,
        "age_s": _number(router.age_s),
        "list_stale": router.list_stale,
        "workers": router.workers,
        "requests_per_s": _number(router.requests_per_s),
        "errors_per_s": _number(router.errors_per_s),
        "retries_per_s": _number(router.retries_per_s),
        "inflight": _number(router.inflight),
        "max_over_mean": _number(router.max_over_mean),
        "duration_ms": _latency(router.duration),
        "known_limits": [clean(limit) for limit in router.known_limits],
    }


def _pool(pool: Pool) -> Json:
    return {
        "usable": pool.usable,
        "usable_unknown": pool.usable_unknown,
        "total": pool.total,
        "draining": pool.draining,
        "running": _number(pool.running),
        "running_unknown": pool.running_unknown,
        "backlog": _backlog(pool.backlog),
        "inflight": _number(pool.inflight),
        "kv_use": _number(pool.kv_use),
        "kv_use_worst": _number(pool.kv_use_worst),
        "hit_rate": _number(pool.hit_rate),
        "tokens_per_s": _number(pool.tokens_per_s),
        "requests_per_s": _number(pool.requests_per_s),
        "ttft_ms": _latency(pool.ttft),
        "tpot_ms": _latency(pool.tpot),
        "queue_ms": _latency(pool.queue_time),
        "policy": clean(pool.policy),
    }


def _worker(worker: Worker) -> Json:
    opinions = [_opinion(opinion) for opinion in worker.opinions]
    return {
        "worker": clean(worker.key),
        "name": clean(worker.name),
        "role": worker.role.value,
        "state": worker.state.value if worker.state is not None else None,
        "reason": clean(worker.reason),
        "fix": clean(worker.fix),
        "usable": worker.usable,
        "unusable_because": clean(worker.unusable_because),
        "draining": worker.draining,
        "running": _number(worker.running),
        "backlog": _backlog(worker.backlog),
        "inflight": _number(worker.inflight),
        "retracted": _number(worker.retracted),
        "kv_use": _number(worker.kv_use),
        "kv_use_worst_rank": _worst_rank(worker),
        "hit_rate": _number(worker.hit_rate),
        "tokens_per_s": _number(worker.tokens_per_s),
        "prompt_tokens_per_s": _number(worker.prompt_tokens_per_s),
        "generated_tokens_per_s": _number(worker.generated_tokens_per_s),
        "requests_per_s": _number(worker.requests_per_s),
        "ttft_ms": _latency(worker.ttft),
        "tpot_ms": _latency(worker.tpot),
        "queue_ms": _latency(worker.queue_time),
        "share": _number(worker.share),
        "weight": _number(worker.weight),
        "router": opinions[0] if opinions else None,
        "routers": opinions,
        "ranks": [_rank(rank) for rank in worker.ranks],
        "version": _text(worker.identity.version),
        "model": _text(worker.identity.model),
        "identity": _identity(worker.identity),
        "page": _page(worker.page),
        "age_s": _number(worker.age_s),
        "stale": worker.stale,
        "source": clean(worker.source),
        "resets": worker.resets,
    }


def _opinion(opinion: RouterOpinion) -> Json:
    return {
        "router": clean(opinion.router),
        "listed": opinion.listed,
        "health": opinion.health.value if opinion.health is not None else None,
        "breaker": opinion.breaker.value if opinion.breaker is not None else None,
        "breaker_since_s": _number(opinion.breaker_since_s),
        "inflight": _number(opinion.inflight),
        "load": _number(opinion.load),
        "requests_per_s": _number(opinion.requests_per_s),
        "share": _number(opinion.share),
        "failure_rate": _number(opinion.failure_rate),
        "weight": _number(opinion.weight),
        "role": opinion.role.value if opinion.role is not None else None,
        "bootstrap_port": opinion.bootstrap_port,
        "model": _text(opinion.model),
    }


def _rank(rank: Rank) -> Json:
    return {
        "rank": clean(rank.dp_rank),
        "running": _number(rank.running),
        "backlog": _backlog(rank.backlog),
        "kv_use": _number(rank.kv_use),
        "hit_rate": _number(rank.hit_rate),
        "tokens_per_s": _number(rank.tokens_per_s),
        "age_s": _number(rank.age_s),
    }


def _worst_rank(worker: Worker) -> Json | None:
    value = _number(worker.kv_use_worst)
    return None if value is None else {"rank": _text(worker.kv_worst_rank), "value": value}


def _identity(identity: Identity) -> Json:
    return {
        "tp_size": identity.tp_size,
        "pp_size": identity.pp_size,
        "dp_size": identity.dp_size,
        "transfer_backend": _text(identity.transfer_backend),
        "bootstrap_port": identity.bootstrap_port,
        "max_running_requests": identity.max_running_requests,
        "kv_capacity_tokens": identity.kv_capacity_tokens,
        "flags": {clean(name): clean(value) for name, value in identity.flags.items()},
        "role": identity.role.value,
    }


def _page(page: PageFacts | None) -> Json | None:
    if page is None:
        return None
    return {
        "lines": page.lines,
        "bad_lines": page.bad_lines,
        "duplicates": page.duplicates,
        "bytes": page.bytes,
    }


def _backlog(backlog: Backlog) -> Json:
    return {
        "total": _number(backlog.total),
        "lower_bound": backlog.lower_bound,
        "parts": {clean(name): _number(value) for name, value in backlog.parts.items()},
    }


def _goodput(goodput: Goodput | None) -> Json | None:
    if goodput is None:
        return None
    return {
        "ttft_target_ms": _ms(goodput.ttft_target_s),
        "tpot_target_ms": _ms(goodput.tpot_target_s),
        "ttft_share": _number(goodput.ttft_share),
        "tpot_share": _number(goodput.tpot_share),
        "worst": _number(goodput.worst),
    }


def _latency(latency: Latency | None) -> Json | None:
    if latency is None:
        return None
    return {
        "p50": _quantile(observed(latency, 0.5)),
        "p99": _quantile(observed(latency, 0.99)),
        "mean": _ms(latency.mean),
        "count": _number(latency.count),
        "source": clean(latency.source),
        "metric": clean(latency.metric),
        "approximate": latency.approximate,
    }


# Values --------------------------------------------------------------------------------------------------


def _quantile(quantile: Quantile | None) -> float | Json | None:
    """Milliseconds, or the bound if only that is known."""
    if quantile is None:
        return None
    name = "at_least" if quantile.at_least else "below" if quantile.below is not None else ""
    value = _ms(quantile.value if quantile.below is None or quantile.at_least else quantile.below)
    return {name: value} if name and value is not None else value


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else _number(seconds * 1000)


def _number(value: float | None, digits: int = 12) -> float | None:
    """``value`` without binary noise, whole numbers without a point; None if it is no finite number."""
    if value is None or isinstance(value, int):
        return value
    rounded = float(f"{value:.{digits}g}")
    if not isfinite(rounded):
        return None
    return int(rounded) if rounded.is_integer() and abs(rounded) < _EXACT else rounded


def _text(text: str | None) -> str | None:
    return None if text is None else clean(text)


# CSV -----------------------------------------------------------------------------------------------------

#: Column and the path of its value in a worker's object; ``at`` and ``cluster`` stand before them.
#: New columns go at the end.
_COLUMNS = (
    ("worker", "worker"),
    ("role", "role"),
    ("state", "state"),
    ("reason", "reason"),
    ("usable", "usable"),
    ("unusable_because", "unusable_because"),
    ("draining", "draining"),
    ("stale", "stale"),
    ("age_s", "age_s"),
    ("running", "running"),
    ("backlog", "backlog.total"),
    ("backlog_lower_bound", "backlog.lower_bound"),
    ("backlog_queue", "backlog.parts.queue"),
    ("backlog_bootstrap", "backlog.parts.bootstrap"),
    ("backlog_prealloc", "backlog.parts.prealloc"),
    ("backlog_transfer", "backlog.parts.transfer"),
    ("inflight", "inflight"),
    ("retracted", "retracted"),
    ("kv_use", "kv_use"),
    ("kv_use_worst", "kv_use_worst_rank.value"),
    ("kv_use_worst_rank", "kv_use_worst_rank.rank"),
    ("hit_rate", "hit_rate"),
    ("tokens_per_s", "tokens_per_s"),
    ("prompt_tokens_per_s", "prompt_tokens_per_s"),
    ("generated_tokens_per_s", "generated_tokens_per_s"),
    ("requests_per_s", "requests_per_s"),
    ("ttft_p50_ms", "ttft_ms.p50"),
    ("ttft_p99_ms", "ttft_ms.p99"),
    ("tpot_p50_ms", "tpot_ms.p50"),
    ("tpot_p99_ms", "tpot_ms.p99"),
    ("queue_p50_ms", "queue_ms.p50"),
    ("queue_p99_ms", "queue_ms.p99"),
    ("share", "share"),
    ("weight", "weight"),
    ("router_health", "router.health"),
    ("router_breaker", "router.breaker"),
    ("router_inflight", "router.inflight"),
    ("router_load", "router.load"),
    ("version", "version"),
    ("model", "model"),
    ("source", "source"),
    ("resets", "resets"),
)

COLUMNS = ("at", "cluster", *(name for name, _ in _COLUMNS))


def to_csv(snapshot: Snapshot) -> str:
    """A header row and one row a worker; an empty cell is "not known", a bound ``>=60000`` or ``<100``."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    first = (_cell(_number(snapshot.at, digits=15)), _cell(clean(snapshot.cluster)))
    for worker in map(_worker, snapshot.workers):
        writer.writerow((*first, *(_cell(_at(worker, path)) for _, path in _COLUMNS)))
    return out.getvalue()


def _at(value: Any, path: str) -> Any:
    """What lies at the dotted ``path``; None where it ends early."""
    for step in path.split("."):
        if value is None:
            return None
        value = value.get(step)
    return value


def _cell(value: str | float | Json | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return f">={value['at_least']}" if "at_least" in value else f"<{value['below']}"
    if isinstance(value, str):  # a spreadsheet must not take outside text for a formula
        return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
    return str(value)
