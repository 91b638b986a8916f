"""Whether a queue stands still: the same number waits, read after read, and nothing was started meanwhile."""

from __future__ import annotations


class Standstill:
    """Feed it every read in order. ``reads`` in a row were equal, the first of them at ``since``."""

    __slots__ = ("_seen", "reads", "since")

    def __init__(self) -> None:
        self.reads = 0  # 0: nothing waits, or it is not known
        self.since: float | None = None
        self._seen: tuple[float, float | None] | None = None

    def note(self, at: float, waiting: float | None, started: float | None) -> None:
        """``started`` counts all that ever left the queue; None: not exported."""
        seen = (waiting, started) if waiting else None
        if seen is None:
            self.reads, self.since = 0, None
        elif seen == self._seen:
            self.reads += 1
        else:
            self.reads, self.since = 1, at
        self._seen = seen
