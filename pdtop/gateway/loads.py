"""How loaded a worker is: the router's own count at once, and what the worker says of others' requests.

A request of ours that the worker counts, too, is counted once: of what a worker reports, the most that can
be ours is taken off, and what is left came from others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pdtop.config.schema import LoadWeights

#: A report older than this (seconds) says nothing about now.
FRESH_S = 3.0

#: A rank whose own clock stands still for so long (seconds) is stuck: idle ones report each second.
STUCK_S = 5.0


@dataclass(frozen=True, slots=True)
class Report:
    """What ``/v1/loads`` said, all ranks added. ``behind_s``: age of the oldest rank's numbers."""

    at: float  # the router's clock
    running: float
    waiting: float
    pending_tokens: float
    kv_use: float | None  # mean over the ranks
    behind_s: float
    ours: int = 0  # most requests of ours that can be in it

    @property
    def stuck(self) -> bool:
        return self.behind_s > STUCK_S


def load_of(weights: LoadWeights, inflight: int, tokens: float, report: Report | None) -> float:
    """Load in the units of ``[load]``. ``report`` is None if there is no fresh one.

    ``inflight`` and ``tokens`` (pending input on prefill, expected output on decode) are this router's own.
    """
    if weights.measure == "requests":
        return float(inflight)
    others = max(0.0, report.running + report.waiting - report.ours) if report else 0.0
    requests = inflight + others
    waiting = min(requests, report.waiting) if report else 0.0
    load = (requests - waiting) * weights.running + waiting * weights.backlog
    if weights.measure == "tokens":
        pending = max(tokens, report.pending_tokens) if report else tokens
        load += pending / 1000 * weights.per_1000_tokens
        if report and report.kv_use is not None:
            load += report.kv_use * weights.kv_use
    return load


def read_report(body: object, at: float) -> Report | None:
    """One answer of ``/v1/loads``; None if it has no rank that has reported yet."""
    entries = body.get("loads") if isinstance(body, Mapping) else None
    if not isinstance(body, Mapping) or not isinstance(entries, list):
        return None
    ranks = [e for e in entries if isinstance(e, Mapping) and _number(e, "timestamp") != 0.0]
    if not ranks:
        return None
    answered = _epoch(body.get("timestamp"))
    behind = max(
        (answered - stamp for e in ranks if answered and (stamp := _number(e, "timestamp"))), default=0.0
    )
    uses = [use for e in ranks if (use := _number(e, "token_usage")) is not None]
    return Report(
        at=at,
        running=sum(_number(e, "num_running_reqs") or 0.0 for e in ranks),
        waiting=sum((_number(e, "num_waiting_reqs") or 0.0) + _sending(e) for e in ranks),
        pending_tokens=sum(_number(e, "num_waiting_uncached_tokens") or 0.0 for e in ranks),
        kv_use=sum(uses) / len(uses) if uses else None,
        behind_s=max(0.0, behind),
    )


def _sending(entry: Mapping[str, object]) -> float:
    """Prefill: requests whose KV is being sent; they are not among those that wait."""
    section = entry.get("disaggregation")
    return (_number(section, "prefill_inflight_queue_reqs") or 0.0) if isinstance(section, Mapping) else 0.0


def _number(entry: Mapping[str, object], name: str) -> float | None:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e15 else None


def _epoch(text: object) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except ValueError:
        return None
