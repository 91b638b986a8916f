"""What is believed of one worker: healthy by probes, breaker by the outcomes of real requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Failures in a row that open a breaker, how long it stays open, successes that close it again.
BREAKER_FAILURES = 5
BREAKER_OPEN_S = 10.0
BREAKER_SUCCESSES = 2

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(slots=True)
class Breaker:
    """Closed, open, half-open: passive, from the outcomes of real requests."""

    failures: int = 0
    successes: int = 0
    opened_at: float | None = None

    def state(self, now: float) -> BreakerState:
        if self.opened_at is None:
            return "closed"
        return "open" if now - self.opened_at < BREAKER_OPEN_S else "half_open"

    def record(self, ok: bool, now: float) -> None:
        if ok:
            self.failures = 0
            self.successes += 1
            if self.opened_at is not None and self.successes >= BREAKER_SUCCESSES:
                self.opened_at = None
            return
        self.successes = 0
        self.failures += 1
        # A half-open breaker opens again at the first failure.
        if self.failures >= BREAKER_FAILURES or self.opened_at is not None:
            self.opened_at = now


@dataclass(slots=True)
class Probes:
    """Healthy until ``down_after`` probes in a row have failed, then until ``up_after`` have succeeded.

    A worker that nobody has probed yet counts as healthy, so that a router serves at once; its very first
    probe decides alone.
    """

    down_after: int
    up_after: int
    healthy: bool = True
    run: int = 0  # probes in a row that speak against the present state
    asked: bool = False

    def record(self, ok: bool) -> None:
        first, self.asked = not self.asked, True
        if ok == self.healthy:
            self.run = 0
            return
        self.run += 1
        if first or self.run >= (self.up_after if ok else self.down_after):
            self.healthy = ok
            self.run = 0
