"""How long to wait before the next try: longer each time, not the same for many, anew after a good run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Seconds to wait after each failure. ``chance`` gives numbers from 0 to 1.

    A run of ``calm_s`` seconds counts as good: what failed before it is forgotten.
    """

    chance: Callable[[], float]
    first_s: float = 0.2
    longest_s: float = 30.0
    calm_s: float = 60.0
    failures: int = 0

    def failed(self, ran_s: float = 0.0) -> float:
        """One more failure, after it ran so long."""
        if ran_s >= self.calm_s:
            self.failures = 0
        wait = min(self.longest_s, self.first_s * 2.0**self.failures)
        self.failures += 1
        return wait * (0.8 + 0.4 * self.chance())

    def forget(self) -> None:
        self.failures = 0
