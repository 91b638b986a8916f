"""What a pool's table needs beside one worker: scales, targets, findings by worker; built once a snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pdtop.cluster.model import Finding, Pool, Role, Snapshot, Worker
from pdtop.tui.charts import Points, fold
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.text import nice_ceiling

#: Ticks folded into one sparkline glyph. Folding makes a sparkline move every few seconds, not every tick.
TICKS_PER_GLYPH = 5

#: Smallest full scale by trend: calm values stay low bars instead of filling the cell with noise.
_FLOORS = {"ttft": 0.5, "tpot": 0.05, "queue_time": 0.5, "tokens": 1000.0, "backlog": 5.0}

#: Rates are averaged inside a glyph; for latencies and queues the worst is what counts.
_MEAN = frozenset({"tokens", "running", "kv"})


class Scales:
    """Full scales of a pool's sparklines, found anew with every new glyph only.

    Going through all points of 256 workers was the busiest part of a snapshot; in between, a value beyond
    the scale is a full block, as it will be anyway.
    """

    def __init__(self) -> None:
        self._glyph = -1
        self._values: dict[str, float] = {}

    def of(self, trend: str, tick: int, workers: tuple[Worker, ...]) -> float:
        """What the highest glyph stands for at ``tick``."""
        if tick // TICKS_PER_GLYPH != self._glyph:
            self._glyph, self._values = tick // TICKS_PER_GLYPH, {}
        full = self._values.get(trend)
        if full is None:
            highest = _highest(w.trends.get(trend, ()) for w in workers)
            full = self._values[trend] = nice_ceiling(highest, _FLOORS[trend])
        return full


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool's workers and what their cells are judged and scaled by."""

    role: Role
    everyone: tuple[Worker, ...]
    workers: tuple[Worker, ...]  # those of them whom the filter lets through
    pool: Pool | None
    options: ConsoleOptions
    tick: int  # the snapshot's number: anchors the sparklines
    findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()  # keys of workers that are empty after a drain
    ttft_target_s: float | None = None
    tpot_target_s: float | None = None
    backlog_full: float = 8.0
    scales: Scales = field(default_factory=lambda: Scales(), compare=False, repr=False)

    def findings_of(self, worker: Worker) -> tuple[Finding, ...]:
        return self.findings.get(worker.key, ())

    def full_scale(self, trend: str) -> float:
        """What the highest glyph of a sparkline stands for, the same in the whole pool."""
        return self.scales.of(trend, self.tick, self.everyone)


def findings_by_worker(snapshot: Snapshot) -> dict[str, tuple[Finding, ...]]:
    """The findings that are about one worker, by its key."""
    by_worker: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in snapshot.findings:
        if finding.worker is not None:
            by_worker[finding.worker].append(finding)
    return {key: tuple(found) for key, found in by_worker.items()}


def pool_view(
    snapshot: Snapshot,
    role: Role,
    everyone: tuple[Worker, ...],
    workers: tuple[Worker, ...],
    findings: Mapping[str, tuple[Finding, ...]],
    options: ConsoleOptions,
    scales: Scales | None = None,
    drained: frozenset[str] = frozenset(),
) -> PoolView:
    """The view of ``workers``; scales come from ``everyone``, so that a filter does not change them."""
    goodput = snapshot.goodput
    return PoolView(
        role=role,
        everyone=everyone,
        workers=workers,
        pool={Role.PREFILL: snapshot.prefill, Role.DECODE: snapshot.decode}.get(role),
        options=options,
        tick=snapshot.number,
        findings=findings,
        drained=drained,
        ttft_target_s=goodput.ttft_target_s if goodput else None,
        tpot_target_s=goodput.tpot_target_s if goodput else None,
        scales=scales or Scales(),
        backlog_full=nice_ceiling(max((w.backlog.total or 0.0 for w in everyone), default=0.0), 10.0),
    )


def _highest(trends: Iterable[Points]) -> float:
    # ``filter`` leaves out gaps and zeros at C speed.
    return max((max(filter(None, points), default=0.0) for points in trends), default=0.0)


def folded(points: Points, tick: int, name: str, glyphs: int) -> Points:
    """The points of a sparkline of ``glyphs`` cells for the trend ``name``."""
    return fold(points, tick, TICKS_PER_GLYPH, glyphs, mean=name in _MEAN)
