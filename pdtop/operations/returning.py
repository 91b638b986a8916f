"""What is watched after a change: workers that were brought back, the pool before and after it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from pdtop.cluster.desired import desired
from pdtop.cluster.model import Role, Snapshot
from pdtop.config.changes import config_changes
from pdtop.config.keys import split_key
from pdtop.config.schema import Config
from pdtop.operations.comparison import BeforeAfter
from pdtop.operations.model import Comparison, Readmission
from pdtop.operations.readmission import Former, ReadmissionWatch

#: A check list stays so long.
READMISSION_S = 300.0
#: Settings of a pool that decide who gets its requests.
_TUNING = frozenset(
    {
        "policy",
        "cache_aware_threshold",
        "load_balance_threshold",
        "cache_match_threshold",
        "balance_abs_threshold",
        "balance_rel_threshold",
        "weight",
    }
)


class Returns:
    """Tell it of changes and feed it every snapshot. Times are epoch seconds."""

    def __init__(self) -> None:
        self._watches: dict[str, ReadmissionWatch] = {}
        self._formers: dict[str, Former] = {}
        self._compared = BeforeAfter()

    def about_to_change(self, workers: Iterable[str], snapshot: Snapshot) -> None:
        """Who these workers are before they may be stopped and come back as another."""
        for key in workers:
            worker = snapshot.worker(key)
            if worker is not None and worker.identity.version is not None:
                self._formers.setdefault(key, Former.of(worker))

    def changed(self, before: Config | None, after: Config, title: str, at: float) -> None:
        """The routers were brought from one file to another."""
        if before is None:
            return
        was, now = desired(before), desired(after)
        for key in now:
            if not now[key].table.drain and key in was and was[key].table.drain:
                self._watches[key] = ReadmissionWatch(key, since=at, former=self._formers.pop(key, None))
            elif now[key].table.drain:
                self._watches.pop(key, None)
        paths = [split_key(change.key) for change in config_changes(before, after)]
        for role in (Role.PREFILL, Role.DECODE):
            if any(path[0] == role.value and path[-1] in _TUNING for path in paths):
                self._compared.mark(at, title, role)

    def feed(self, snapshot: Snapshot) -> None:
        self._compared.feed(snapshot)
        for key, watch in tuple(self._watches.items()):
            watch.feed(snapshot)
            if snapshot.at - watch.since > READMISSION_S:
                del self._watches[key]

    @property
    def readmissions(self) -> tuple[Readmission, ...]:
        return tuple(
            Readmission(
                watch.worker, watch.since, tuple((check.state.value, check.words) for check in watch.checks)
            )
            for watch in self._watches.values()
        )

    def comparison(self, now: float) -> Comparison | None:
        return self._compared.comparison(now)
