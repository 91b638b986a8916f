"""How much of the traffic is within a latency target, as exactly as the buckets allow."""

from __future__ import annotations

from dataclasses import dataclass

from pdtop.cluster.model import Goodput, Latency
from pdtop.config.schema import Slo
from pdtop.metrics.distribution import Share


@dataclass(frozen=True, slots=True)
class Within:
    """``share`` says what is certain; ``good_per_s`` is by its best estimate, None without a window."""

    target_s: float
    share: Share
    good_per_s: float | None

    @property
    def best(self) -> float:
        """Interpolated inside a bucket; beyond the last bound only what is certain."""
        return best(self.share)


def best(share: Share) -> float:
    return share.interpolated if share.interpolated is not None else share.low


def within(latency: Latency | None, target_s: float, seconds: float | None) -> Within | None:
    """Share of observations within ``target_s``; None if nothing was observed or it is not known."""
    distribution = latency.distribution if latency is not None else None
    share = distribution.share_within(target_s) if distribution is not None else None
    if distribution is None or share is None:
        return None
    good = best(share) * distribution.count / seconds if seconds else None
    return Within(target_s, share, good)


def goodput(slo: Slo, ttft: Latency | None, tpot: Latency | None) -> Goodput | None:
    """Shares within the operator's targets; None if there is no target."""
    if slo.ttft_p99_ms is None and slo.tpot_p99_ms is None:
        return None
    ttft_s = slo.ttft_p99_ms / 1000 if slo.ttft_p99_ms is not None else None
    tpot_s = slo.tpot_p99_ms / 1000 if slo.tpot_p99_ms is not None else None
    return Goodput(ttft_s, tpot_s, _share(ttft, ttft_s), _share(tpot, tpot_s))


def _share(latency: Latency | None, target_s: float | None) -> float | None:
    found = within(latency, target_s, None) if target_s is not None else None
    return found.best if found is not None else None
