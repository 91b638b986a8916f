"""What a console must know of the time before it: changes that wait for a restart, workers of former files.

A damaged file of it is as if it was not there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pdtop.cluster.desired import desired
from pdtop.config.changes import Change, same
from pdtop.config.schema import Config
from pdtop.operations.reconcile import restart_changes
from pdtop.operations.state import StateFolder, StateUnwritable

log = logging.getLogger(__name__)

NAME = "memory.json"
_MOST_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class Memory:
    """``waiting``: by router, changes since it was started that count only when it is started again.

    ``named``: keys of workers that the file has named at any time: those may be taken out of a router when
    the file no longer names them.
    """

    waiting: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    named: frozenset[str] = frozenset()

    @property
    def changes(self) -> tuple[Change, ...]:
        """What waits at any router, each key once."""
        found = {change.key: change for changes in self.waiting.values() for change in changes}
        return tuple(found.values())

    def changed(self, before: Config | None, after: Config, engines: Mapping[str, str]) -> Memory:
        """The file has become ``after``; ``before`` None: it is not known what it was."""
        named = self.named | (desired(before).keys() if before is not None else set()) | desired(after).keys()
        if before is None:
            return replace(self, named=named)
        waiting = {
            router: merged(self.waiting.get(router, ()), restart_changes(before, after, {router: engine}))
            for router, engine in engines.items()
        }
        kept = {router: changes for router, changes in self.waiting.items() if router not in engines}
        return Memory({r: changes for r, changes in (kept | waiting).items() if changes}, named)

    def restarted(self, routers: Iterable[str]) -> Memory:
        """These were started again: with the file as it is, as far as that can be known."""
        gone = frozenset(routers)
        return replace(self, waiting={r: changes for r, changes in self.waiting.items() if r not in gone})


def merged(before: Iterable[Change], new: Iterable[Change]) -> tuple[Change, ...]:
    """Of one key the newest counts, from what it was at first; what is as it was at first waits no more."""
    found = {change.key: change for change in before}
    for change in new:
        first = found.get(change.key)
        found[change.key] = change if first is None else replace(change, before=first.before)
    return tuple(one for one in found.values() if not same(one.before, one.after))


class Remembering:
    """The memory of this console. Who operates keeps it in the state folder: ``kept`` says whether we do."""

    def __init__(self, folder: StateFolder, kept: Callable[[], bool], changed: Callable[[], None]) -> None:
        self._folder = folder
        self._kept = kept
        self._changed = changed
        self._saving = asyncio.Lock()
        self.memory = recall(folder)

    def refresh(self, config: Config | None) -> None:
        """Another console may have known more."""
        self.memory = recall(self._folder)
        if config is not None:
            self.memory = self.memory.changed(None, config, {})

    def remember(self, memory: Memory) -> bool:
        """From now on; True if it is another one, and so to be saved."""
        if memory == self.memory:
            return False
        self.memory = memory
        self._changed()
        return True

    async def save(self) -> None:
        """Keep the newest for the next console."""
        async with self._saving:
            if self._kept():
                try:
                    await asyncio.to_thread(keep, self._folder, self.memory)
                except StateUnwritable as error:
                    log.warning("not remembered: %s", error)


def recall(folder: StateFolder) -> Memory:
    try:
        data = json.loads(folder.read(NAME) or b"{}")
        waiting = {
            str(router): tuple(Change(str(key), was, now) for key, was, now in changes)
            for router, changes in data.get("waiting", {}).items()
        }
        named = frozenset(str(key) for key in data.get("named", [])[:_MOST_NAMES])
    except (ValueError, TypeError, AttributeError, RecursionError):
        return Memory()
    return Memory(waiting, named)


def keep(folder: StateFolder, memory: Memory) -> None:
    """Raises StateUnwritable: it could not be kept; what was there stays."""
    waiting = {
        router: [[change.key, change.before, change.after] for change in changes]
        for router, changes in memory.waiting.items()
    }
    data = {"waiting": waiting, "named": sorted(memory.named)[:_MOST_NAMES]}
    folder.put(NAME, json.dumps(data).encode() + b"\n")
