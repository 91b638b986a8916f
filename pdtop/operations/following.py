"""Follows every worker that config.toml says is drained, from whoever's drain and however long ago."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator

from pdtop.cluster.desired import desired
from pdtop.cluster.model import Snapshot
from pdtop.config.schema import Config
from pdtop.operations.draining import DrainWatch, sample_of
from pdtop.operations.model import DrainProgress, LogEntry

#: In the log: a drain that has ended well.
DRAINED = "drained"
#: In the log: a drain that was not waited for any longer.
LET_GO = "drain let go"


class Drains:
    """One watch for each drained worker. Feed it snapshots; ``now`` is the poller's clock."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._watches: dict[str, DrainWatch] = {}
        self._past: dict[str, LogEntry] = {}
        self._over: set[str] = set()
        self._recalled = False

    def recall(self, entries: Iterable[LogEntry]) -> None:
        """Learn from the log, newest first, who drained what and when, and what was waited for to its end."""
        past: dict[str, LogEntry | None] = {}
        over: set[str] = set()
        for entry in entries:
            for key in entry.target.split(", "):
                if key in past:
                    continue
                if entry.operation in (DRAINED, LET_GO):
                    over.add(key)
                elif entry.operation == "drain" and entry.change is not None:
                    past[key] = entry if not entry.undone_by else None
                elif entry.operation in ("undrain", "remove") and entry.change is not None:
                    past[key] = None
        self._past = {key: entry for key, entry in past.items() if entry is not None}
        if not self._recalled:  # later it is known better here
            self._over |= over
            self._recalled = True
        for key, entry in self._past.items():
            if (watch := self._watches.get(key)) is not None and watch.since < entry.at:
                watch.since, watch.by = entry.at, _who(entry)

    def follow(self, config: Config | None, now: float, *, but: Container[str] = ()) -> None:
        """Watch what the file says is drained now; what it no longer says is let go.

        ``but``: workers of which the watch does not begin yet, as new work has not been stopped.
        """
        wanted = desired(config) if config is not None else {}
        drained = {key: one for key, one in wanted.items() if one.table.drain}
        self._over &= drained.keys()
        for key in self._watches.keys() - drained.keys():
            del self._watches[key]
        for key, one in drained.items():
            if key not in self._watches and key not in but:
                entry = self._past.get(key)
                self._watches[key] = DrainWatch(
                    key,
                    role=one.role,
                    since=entry.at if entry is not None else self._clock(),
                    stopped_at=now,  # what is read from now on counts, and no reading from before
                    timeout_s=config.console.drain_timeout_secs if config is not None else 1800.0,
                    by=_who(entry) if entry is not None else "config.toml",
                )

    def started(
        self,
        keys: Iterable[str],
        by: str,
        timeout_s: float,
        config: Config | None,
        now: float,
        since: float,
    ) -> None:
        """A drain was asked for, and from ``now`` on no new work comes any more."""
        for key in keys:
            self._past.pop(key, None)
            self._watches.pop(key, None)
            self._over.discard(key)
        self.follow(config, now)
        for key in keys:
            if (watch := self._watches.get(key)) is not None:
                watch.by, watch.timeout_s, watch.since = by, timeout_s, since

    def wait_longer(self, key: str, seconds: float) -> None:
        """From now on for so long."""
        if (watch := self._watches.get(key)) is not None:
            watch.wait_longer(seconds)

    def over(self, keys: Iterable[str]) -> None:
        """These are not waited for any more: they are empty, or somebody has decided so."""
        self._over.update(keys)

    def feed(self, snapshot: Snapshot, now: float) -> None:
        for worker in snapshot.workers:
            if (watch := self._watches.get(worker.key)) is not None:
                watch.feed(sample_of(worker, snapshot, now))

    def of(self, keys: Iterable[str]) -> tuple[DrainWatch, ...]:
        """The watches of these, as far as they are to be drained."""
        return tuple(watch for key in keys if (watch := self._watches.get(key)) is not None)

    @property
    def waited_for(self) -> tuple[DrainWatch, ...]:
        """Those that are not over."""
        return tuple(watch for key, watch in self._watches.items() if key not in self._over)

    @property
    def back(self) -> tuple[str, ...]:
        """Workers that a router lists again although it had let go of them."""
        return tuple(watch.worker for watch in self if watch.reappeared)

    def __iter__(self) -> Iterator[DrainWatch]:
        return iter(tuple(self._watches.values()))

    def progress(self, now: float) -> tuple[DrainProgress, ...]:
        return tuple(watch.progress(now) for watch in self._watches.values())


def drained_in(entries: Iterable[LogEntry], keys: Iterable[str]) -> bool:
    """Whether the log, newest first, says of all of these that they are drained, and nothing since."""
    said: dict[str, str] = {}
    for entry in entries:
        if entry.operation != "apply":
            for key in entry.target.split(", "):
                said.setdefault(key, entry.operation)
    return all(said.get(key) == DRAINED for key in keys)


def _who(entry: LogEntry) -> str:
    return f"{entry.user}@{entry.host}"
