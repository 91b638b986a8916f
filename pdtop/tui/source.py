"""What the screen needs from the engine: snapshots, history, raw pages; the engine never knows the screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from pdtop.cluster.model import Snapshot


class WorkerHistory(Protocol):
    """The kept past of one worker, newest last, one point per tick; None is a gap."""

    @property
    def interval_s(self) -> float:
        """Seconds between two points."""

    @property
    def series(self) -> Mapping[str, tuple[float | None, ...]]:
        """Points by name: ttft, tpot, queue_time, tokens, running, backlog, kv."""


class SnapshotSource(Protocol):
    """Where snapshots come from; every call returns at once and may be made from any thread."""

    def latest(self) -> Snapshot:
        """The newest snapshot; before the first round one without workers."""

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Have ``callback`` called (from the engine's thread) for every new snapshot; returns the way out."""

    def history(self, key: str) -> WorkerHistory | None:
        """The past of one worker; None if it is not watched."""

    def raw_page(self, key: str) -> str | None:
        """The newest metrics page of one worker as text; None if there is none."""

    def set_interval(self, seconds: float) -> None:
        """Poll every ``seconds`` from now on."""

    def stop(self) -> None:
        """End polling; returns when the engine's thread has ended."""
