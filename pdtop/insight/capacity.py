"""Whether the split into prefill and decode workers fits the traffic: how long each pool has to work for it.

For a stretch of time with ``input_tokens`` and ``output_tokens`` and the measured speed of one worker of each
kind, ``a`` = input / prefill speed and ``b`` = output / decode speed are seconds of work for a single worker.
Disaggregated, the pools work side by side: ``max(a/m, b/n)``. Unified, every worker does both:
``(a+b)/(m+n)``, which no split can beat; it leaves out what prefill and decode cost each other on one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pdtop.cluster.model import READABLE, Role, Snapshot, Worker

#: Below this part of its time in forward passes a worker's speed says little.
LEAST_BUSY = 0.05


@dataclass(frozen=True, slots=True)
class Split:
    """``m`` prefill and ``n`` decode workers, and the seconds that they need together."""

    m: int
    n: int
    pd: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """Seconds of work. ``bottleneck`` is the pool that needs longer; None: both need the same.

    ``best`` is the best split of as many workers, the present one if none is better.
    """

    a: float
    b: float
    m: int
    n: int
    unified: float
    pd: float
    bottleneck: Role | None
    best: Split

    @property
    def slower_than_unified(self) -> bool:
        return self.pd > self.unified

    @property
    def direction(self) -> str:
        """What the best split asks for: ``more prefill``, ``more decode`` or ``keep``."""
        if self.best.m == self.m:
            return "keep"
        return "more prefill" if self.best.m > self.m else "more decode"


def capacity_of(
    *, input_tokens: float, output_tokens: float, prefill_speed: float, decode_speed: float, m: int, n: int
) -> Capacity:
    """Speeds are tokens per second of one worker.

    Raises:
        ValueError: a pool is empty or has no speed.
    """
    if m < 1 or n < 1:
        raise ValueError("both pools need a worker")
    if prefill_speed <= 0 or decode_speed <= 0:
        raise ValueError("a speed is tokens per second, more than 0")
    a, b = input_tokens / prefill_speed, output_tokens / decode_speed
    slower = None if a / m == b / n else Role.PREFILL if a / m > b / n else Role.DECODE
    return Capacity(a, b, m, n, (a + b) / (m + n), max(a / m, b / n), slower, best_split(a, b, m, n))


def best_split(a: float, b: float, m: int, n: int) -> Split:
    """Of ``m + n`` workers the split that needs the least time; among equals the one nearest to ``m``."""
    splits = [Split(p, m + n - p, max(a / p, b / (m + n - p))) for p in range(1, m + n)]
    return min(splits, key=lambda split: (split.pd, abs(split.m - m)))


def capacity(snapshot: Snapshot, span_s: float) -> Capacity | None:
    """The traffic of this moment, as if it lasted ``span_s``, against the usable workers.

    A worker's speed is what it does while it works: tokens per second over the busy part of its time. Only
    ``fwd_occupancy`` tells that part (SGLang 0.5.12+, with its device timer on); without it, or with a pool
    that hardly works, None: the rate alone is the traffic, not what a worker can do. Decode gets faster with
    larger batches, so a half-empty decode pool looks slower than it could be.
    """
    prefill, decode = (_usable(snapshot, role) for role in (Role.PREFILL, Role.DECODE))
    speeds = _speed(prefill), _speed(decode)
    taken = _total(prefill, lambda w: w.tokens_per_s), _total(decode, lambda w: w.tokens_per_s)
    if speeds[0] is None or speeds[1] is None or taken[0] is None or taken[1] is None:
        return None
    return capacity_of(
        input_tokens=taken[0] * span_s,
        output_tokens=taken[1] * span_s,
        prefill_speed=speeds[0],
        decode_speed=speeds[1],
        m=len(prefill),
        n=len(decode),
    )


def _usable(snapshot: Snapshot, role: Role) -> list[Worker]:
    workers = snapshot.pool_workers(role)
    return [w for w in workers if w.usable is True and w.state in READABLE and not w.stale]


def _speed(workers: Iterable[Worker]) -> float | None:
    """Tokens per busy second over all workers that tell both."""
    told = [
        (w.tokens_per_s, w.fwd_occupancy / 100)
        for w in workers
        if w.tokens_per_s is not None and w.fwd_occupancy is not None and w.fwd_occupancy >= 100 * LEAST_BUSY
    ]
    speed = sum(tokens for tokens, _ in told) / sum(busy for _, busy in told) if told else 0.0
    return speed if speed > 0 else None


def _total(workers: Iterable[Worker], get: Callable[[Worker], float | None]) -> float | None:
    """None unless every worker tells it."""
    values = [get(worker) for worker in workers]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
