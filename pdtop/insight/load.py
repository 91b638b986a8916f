"""How much work a worker has, as one number, and what it costs to give it the next request.

load = running + backlog + tokens/1000 + 10·kv_use, each with its weight from ``[load]``. ``tokens`` are
pending input tokens on prefill and expected remaining output tokens on decode: two workers with equal counts
of requests can differ several times over. Score_D(P) = load_D + transfer cost(P, D).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdtop.config.schema import LoadWeights, Topology


@dataclass(frozen=True, slots=True)
class Work:
    """What one worker has to do; None is not known. ``kv_use`` 0..1."""

    running: float | None
    backlog: float | None
    tokens: float | None = None
    kv_use: float | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker runs, as far as the config file says."""

    host: str | None = None
    rack: str | None = None


def count_load(work: Work) -> float | None:
    """Requests alone; None unless both counts are known."""
    return work.running + work.backlog if work.running is not None and work.backlog is not None else None


def load_score(work: Work, weights: LoadWeights) -> float | None:
    """None unless both counts of requests are known. Tokens or KV use that nobody tells are left out, so
    only scores with the same terms can be compared."""
    if work.running is None or work.backlog is None:
        return None
    score = weights.running * work.running + weights.backlog * work.backlog
    score += weights.per_1000_tokens * (work.tokens or 0.0) / 1000
    return score + weights.kv_use * (work.kv_use or 0.0)


def transfer_cost(topology: Topology, prefill: Place, decode: Place) -> float:
    """Units of load; workers of which the file does not say where they run count as one rack."""
    if prefill.host is not None and prefill.host == decode.host:
        return topology.same_host
    if prefill.rack is not None and decode.rack is not None and prefill.rack != decode.rack:
        return topology.cross_rack
    return topology.same_rack


def scores(
    loads: Mapping[str, float | None], costs: Mapping[str, float], shares: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Score of each decode worker seen from one prefill worker, by key: (load + cost) over its weight.

    Who has no known load or a weight of 0 cannot be chosen and has no score.
    """
    weight = shares or {}
    return {
        key: (load + costs.get(key, 0.0)) / weight.get(key, 1.0)
        for key, load in loads.items()
        if load is not None and weight.get(key, 1.0) > 0
    }


def choose(score_of: Mapping[str, float]) -> str | None:
    """Whose score is the lowest; among equals the first. None without any."""
    return min(score_of, key=lambda key: score_of[key], default=None)
