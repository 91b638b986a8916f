"""Follows every worker that config.toml says is drained, from whoever's drain and however long ago."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from pdtop.cluster.desired import desired
from pdtop.cluster.model import Snapshot
from pdtop.config.schema import Config
from pdtop.operations.draining import DrainWatch, sample_of
from pdtop.operations.model import DrainProgress, LogEntry


class Drains:
    """One watch for each drained worker. Feed it snapshots; ``now`` is the poller's clock."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._watches: dict[str, DrainWatch] = {}
        self._past: dict[str, LogEntry] = {}

    def recall(self, entries: Iterable[LogEntry]) -> None:
        """Learn from the log, newest first, who drained what and when."""
        for entry in entries:
            if entry.operation == "drain" and entry.change is not None:
                for key in entry.target.split(", "):
                    self._past.setdefault(key, entry)

    def follow(self, config: Config | None, now: float) -> None:
        """Watch what the file says is drained now; what it no longer says is let go."""
        wanted = desired(config) if config is not None else {}
        drained = {key: one for key, one in wanted.items() if one.table.drain}
        for key in self._watches.keys() - drained.keys():
            del self._watches[key]
        for key, one in drained.items():
            if key not in self._watches:
                entry = self._past.get(key)
                self._watches[key] = DrainWatch(
                    key,
                    role=one.role,
                    since=entry.at if entry is not None else self._clock(),
                    stopped_at=now,  # what is read from now on counts, and no reading from before
                    timeout_s=config.console.drain_timeout_secs if config is not None else 1800.0,
                    by=f"{entry.user}@{entry.host}" if entry is not None else "config.toml",
                )

    def started(
        self, keys: Iterable[str], by: str, timeout_s: float, config: Config | None, now: float
    ) -> None:
        """A drain was asked for just now, and no new work comes any more."""
        for key in keys:
            self._past.pop(key, None)
            self._watches.pop(key, None)
        self.follow(config, now)
        for key in keys:
            if (watch := self._watches.get(key)) is not None:
                watch.by, watch.timeout_s = by, timeout_s

    def feed(self, snapshot: Snapshot, now: float) -> None:
        for worker in snapshot.workers:
            if (watch := self._watches.get(worker.key)) is not None:
                watch.feed(sample_of(worker, snapshot, now))

    def get(self, key: str) -> DrainWatch | None:
        return self._watches.get(key)

    def __iter__(self) -> Iterator[DrainWatch]:
        return iter(tuple(self._watches.values()))

    def progress(self, now: float) -> tuple[DrainProgress, ...]:
        return tuple(watch.progress(now) for watch in self._watches.values())
