"""What is put in force at routers without anybody asking: decides what is due and when. Pure.

config.toml is the truth. A router forgets what its API was told when it restarts, a service discovery may put
a drained worker back, and a router that did not answer must be told when it does again. What is not in force
is asserted again, but less and less often: some routers will never do what they are told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pdtop.cluster.address import Address
from pdtop.cluster.desired import desired
from pdtop.cluster.model import READABLE, Router, Snapshot
from pdtop.cluster.router_watch import Heard, key_of
from pdtop.config.schema import Config
from pdtop.operations.router_mark import RouterMark, see_list, see_page

AGAIN_S = (10.0, 30.0, 60.0, 300.0)
#: After so long without it, it begins anew.
_FORGOTTEN_S = 900.0
#: A difference must stand so long: file and router are read at different moments.
STANDS_S = 6.0
#: Differences that can be put right at a router, and so are with ``keep_true``.
_CURABLE = frozenset({"not_in_router", "not_in_config", "drain", "role", "bootstrap_port"})


@dataclass(slots=True)
class Again:
    """When the same may be asserted once more."""

    times: int = 0
    last: float = float("-inf")

    def due(self, now: float) -> bool:
        if now - self.last > _FORGOTTEN_S:
            self.times = 0
        elif now - self.last < AGAIN_S[min(self.times, len(AGAIN_S)) - 1]:
            return False
        self.times += 1
        self.last = now
        return True


@dataclass(frozen=True, slots=True)
class Due:
    """Something to assert. ``workers`` and ``routers``: None = all."""

    title: str
    source: str
    workers: frozenset[str] | None = None
    routers: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class _Owed:
    """What a router is to be told as soon as it answers."""

    words: str
    workers: frozenset[str] | None = None


class Asserting:
    """Feed it what routers say and every snapshot. ``now`` is the poller's clock."""

    def __init__(self) -> None:
        self._marks: dict[str, RouterMark] = {}
        self._readded: dict[str, dict[str, float]] = {}
        self._again: dict[str, Again] = {}
        self._stands: dict[str, float] = {}
        self._owed: dict[str, _Owed] = {}

    def readded(self, router: str, worker: str, now: float) -> None:
        """pdtop put this worker in anew: its new id there proves nothing."""
        self._readded.setdefault(router, {})[worker] = now

    def owe(self, router: str, workers: frozenset[str] | None, words: str) -> None:
        """Tell this router of these workers once it answers."""
        before = self._owed.get(router)
        if before is not None:
            both = before.workers is not None and workers is not None
            workers = (before.workers or frozenset()) | (workers or frozenset()) if both else None
        self._owed[router] = _Owed(words, workers)

    def hear(self, router: str, heard: Heard, address: Address | None) -> str:
        """What a router said last; why this is another run of it than before, "" if it is not."""
        mark, why = self._marks.get(router, RouterMark()), ""
        if heard.list is not None and heard.list.workers is not None:
            anew = self._readded.get(router, {})
            # Worker URLs are compared as the router writes them: ranks are entries of their own.
            keys = {worker.url: key_of(worker.url, address) for worker in heard.list.workers}
            seen = see_list(
                mark,
                heard.list.workers,
                readded=frozenset(url for url, key in keys.items() if key in anew),
            )
            mark, why = seen.mark, seen.restarted
            for key in [key for key in keys.values() if anew.get(key, heard.list.at) < heard.list.at]:
                anew.pop(key, None)
        if heard.numbers is not None:
            seen = see_page(mark, heard.numbers)
            mark, why = seen.mark, why or seen.restarted
        self._marks[router] = mark
        return why

    def restarted(self, reasons: Mapping[str, str], now: float) -> Iterator[Due]:
        """All that routers which have restarted may have lost. ``reasons`` by router."""
        for router, why in reasons.items():
            self._owed.pop(router, None)
            if self._is_due(f"router {router}", now):
                title = f"{router} has restarted ({why}): config.toml asserted there"
                yield Due(title, "router restarted", None, frozenset({router}))

    def due(
        self,
        config: Config,
        snapshot: Snapshot,
        now: float,
        *,
        back: Collection[str],
        busy: Callable[[Iterable[str]], bool],
        named: Collection[str],
        keep_true: bool,
    ) -> Iterator[Due]:
        """What is due now.

        ``back``: drained workers that a router lists again. ``busy``: whether an operation is under way on
        one of them. ``named``: by the file, at any time; others are left where they are.
        """
        yield from self._answering(snapshot.routers, now)
        drained = {key for key, one in desired(config).items() if one.table.drain}
        standing = self._standing(
            {
                one.worker
                for one in snapshot.drift
                if one.kind == "drain" and one.router is not None and one.worker in drained
            },
            "drain",
            now,
        )
        again = self._free({*standing, *(key for key in back if key in drained)}, busy, now)
        if again:
            yield Due(f"drained again: {', '.join(sorted(again))}", "reassert", again)
        if keep_true:
            differs = {
                one.worker
                for one in snapshot.drift
                if one.kind in _CURABLE
                and one.router is not None
                and (one.kind != "not_in_config" or one.worker in named)
            }
            workers = self._free(self._standing(differs, "differs", now) - again, busy, now)
            if workers:
                yield Due(f"as config.toml says: {', '.join(sorted(workers))}", "apply --watch", workers)

    def _answering(self, routers: Iterable[Router], now: float) -> Iterator[Due]:
        for router in routers:
            owed = self._owed.get(router.name)
            answers = router.state in READABLE and not router.list_stale and router.workers is not None
            if owed is not None and answers and self._is_due(f"owed {router.name}", now):
                del self._owed[router.name]
                yield Due(owed.words, "reassert", owed.workers, frozenset({router.name}))

    def _standing(self, workers: set[str], what: str, now: float) -> set[str]:
        """Those for which it has been so for a while."""
        names = {f"{what} {key}": key for key in workers}
        for name in [name for name in self._stands if name.startswith(f"{what} ") and name not in names]:
            del self._stands[name]
        return {key for name, key in names.items() if now - self._stands.setdefault(name, now) >= STANDS_S}

    def _free(
        self, workers: Iterable[str], busy: Callable[[Iterable[str]], bool], now: float
    ) -> frozenset[str]:
        return frozenset(key for key in workers if not busy((key,)) and self._is_due(f"worker {key}", now))

    def _is_due(self, what: str, now: float) -> bool:
        return self._again.setdefault(what, Again()).due(now)
