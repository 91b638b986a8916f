"""What the worker page is made from: one worker, its past, and what else in a snapshot concerns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdtop.cluster.model import Finding, Role, Snapshot, Worker
from pdtop.operations.model import DrainProgress, LogEntry, Readmission
from pdtop.tui.charts import Points
from pdtop.tui.headline import worst_first
from pdtop.tui.options import ConsoleOptions


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as the page shows it. ``gone``: the cluster no longer has it, these are its last numbers."""

    worker: Worker
    snapshot: Snapshot
    options: ConsoleOptions
    series: Mapping[str, Points] = field(default_factory=dict)
    interval_s: float = 1.0
    place: int | None = None  # from 0, in the order that the keys walk
    gone: bool = False
    drain: DrainProgress | None = None
    readmission: Readmission | None = None
    events: tuple[LogEntry, ...] = ()  # of the audit log, newest first

    @property
    def findings(self) -> list[Finding]:
        """Those about this worker, worst first."""
        return worst_first(tuple(f for f in self.snapshot.findings if f.worker == self.worker.key))

    @property
    def stale(self) -> bool:
        return self.gone or self.worker.stale


def walk(snapshot: Snapshot) -> list[str]:
    """Worker keys in the order of the pools on the first screen."""
    first = (Role.PREFILL, Role.DECODE)
    chosen = [w.key for role in first for w in snapshot.workers if w.role is role]
    return chosen + [w.key for w in snapshot.workers if w.role not in first]


def neighbour(order: list[str], key: str, place: int, step: int) -> str | None:
    """The worker ``step`` places from ``key``, in a circle; from ``place`` if ``key`` is no longer there."""
    if not order:
        return None
    if key in order:
        return order[(order.index(key) + step) % len(order)]
    # Its successor has moved up into the place of a vanished worker.
    return order[(place if step > 0 else place - 1) % len(order)]
