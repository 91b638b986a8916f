"""Where a number becomes a finding: every threshold of the rules, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Levels:
    """Defaults are deliberately on the calm side: a finding that cries wolf is worse than a late one.

    The KV levels come from real captures of SGLang 0.5.23: a decode pool that cannot take another request
    stood at 79 % use with 34 requests waiting for room, another one at 64 % with 39: a request needs its
    whole prompt (and a reserve for its output) at once.
    """

    kv_warn: float = 0.90
    kv_crit: float = 0.97
    kv_held: float = 0.60  # above this, requests waiting for room are waiting for KV memory
    pile: float = 8.0  # requests; a smaller queue is ordinary traffic
    growing_span_s: float = 30.0  # a backlog has to grow over this long
    slow_answer_s: float = 5.0  # a time-out counts as down once the last good answer is older than this
    breaker_timeout_s: float = 60.0  # of the router: after it a breaker goes from open to half-open
    half_open_timeouts: float = 2.0  # half-open for longer than so many: it will not close by itself
    still_reads: int = 4  # reads in which a transfer queue has not moved
    hot_ratio: float = 1.7  # share over the even share
    affinity_hits: float = 0.3  # a hot prefill worker with this hit rate is hot for its prefixes
    hot_requests: float = 30.0  # dispatches in the window, or a share says nothing
    hot_sigmas: float = 4.0  # beyond what an even random choice would give
    failing_rate: float = 0.05
    failing_ratio: float = 3.0
    failing_requests: float = 3.0
    slow_ratio: float = 1.6  # TPOT p50 over the median of the pool's others
    slow_first_ratio: float = 2.5  # the same for TTFT and queue time, which spread more
    slow_samples: float = 8.0  # a slow decode worker finishes few requests in a window
    rank_gap: float = 0.30  # KV use of the fullest rank over the mean
    rank_full: float = 0.90
    share_within_slo: float = 0.90  # goodput below this is a finding


DEFAULT_LEVELS = Levels()
