"""Whether a worker that answers is still alive behind its answers.

SGLang serves ``/metrics`` and ``/v1/loads`` from the HTTP process: with a hung scheduler both go on answering
200 with old values (measured on 0.5.23). Two signs tell: in ``/v1/loads`` a rank's timestamp falls behind the
answer's own (idle up to 1.2 s, busy 0.4 s, hung: growing), and ``scheduler_process_cpu_seconds_total``, which
moves every second whether idle or busy, stands still.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdtop.cluster.readings import Loads

LOADS_LAG_S = 5.0
CPU_STILL_S = 3.0


@dataclass(frozen=True, slots=True)
class Frozen:
    """Frozen since about ``since`` (the poller's clock), and the sign in words."""

    since: float
    reason: str


def lagging(loads: Loads, at: float) -> Frozen | None:
    """The rank that fell furthest behind, if it is too far; ``at`` is when the answer came."""
    if loads.timestamp is None:
        return None
    worst = max(
        (
            (loads.timestamp - rank.timestamp, rank.dp_rank)
            for rank in loads.ranks
            if rank.reported and rank.timestamp is not None
        ),
        default=(0.0, ""),
    )
    lag, rank = worst
    if lag <= LOADS_LAG_S:
        return None
    which = f"rank {rank} of " if len(loads.ranks) > 1 else ""
    return Frozen(at - lag, f"{which}/v1/loads is {lag:.0f} s behind: its scheduler hangs")


class Heartbeat:
    """Watches the scheduler's CPU seconds over successful scrapes."""

    __slots__ = ("_newest_at", "_since", "_value")

    def __init__(self) -> None:
        self._value: float | None = None
        self._since = 0.0
        self._newest_at = 0.0

    def beat(self, at: float, cpu_seconds: float | None) -> None:
        """One successful scrape; None: this release does not export it."""
        if cpu_seconds is None or cpu_seconds != self._value:
            self._value = cpu_seconds
            self._since = at
        self._newest_at = at

    @property
    def frozen(self) -> Frozen | None:
        still = self._newest_at - self._since
        if self._value is None or still < CPU_STILL_S:
            return None
        return Frozen(self._since, f"scheduler CPU time stands still for {still:.0f} s: its scheduler hangs")
