"""Did two requests with one long prefix meet the same prefill worker? By the answers, else by counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

REQUESTS = 2


class Verdict(StrEnum):
    SAME = "same node"
    DIFFERENT = "different nodes: threshold too low, load too uneven, or the prefix was not shared"
    SAME_BY_COUNTERS = "same node (from counters)"
    DIFFERENT_BY_COUNTERS = "different nodes (from counters)"
    OTHER_TRAFFIC = "cannot tell: other traffic"
    NOTHING_KNOWN = "cannot tell: no answer names its worker and nobody counts requests"
    NOT_COUNTED = "cannot tell: the counters did not see both requests"


@dataclass(frozen=True, slots=True)
class Tried:
    """Two requests with one prefix. ``workers``: who served each, as its answer names it; None: it does not.

    ``growth``: what each prefill worker's request counter grew by meanwhile, None where it does not tell.
    """

    workers: Sequence[str | None]
    growth: Mapping[str, float | None]


def verdict(tried: Tried) -> Verdict:
    """Names in the answers go first. Counters prove something only if exactly these two requests were
    counted and every worker tells; more of them is somebody else's traffic."""
    named = [worker for worker in tried.workers if worker]
    if len(named) == REQUESTS:
        return Verdict.SAME if len(set(named)) == 1 else Verdict.DIFFERENT
    known = [count for count in tried.growth.values() if count is not None]
    total = sum(known)
    if total > REQUESTS:
        return Verdict.OTHER_TRAFFIC
    if not known or len(known) < len(tried.growth):
        return Verdict.NOTHING_KNOWN
    if total < REQUESTS:
        return Verdict.NOT_COUNTED
    return Verdict.SAME_BY_COUNTERS if max(known) == REQUESTS else Verdict.DIFFERENT_BY_COUNTERS
