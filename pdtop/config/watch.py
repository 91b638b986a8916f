"""Follow config.toml while others edit it: a good change is accepted, a bad one is rejected and stays said.

Editors replace the file by rename, ConfigMaps swap a link to a folder, ``sed -i`` changes the inode, some
file systems send no events. So the *folders* are watched, a slow poll is the net beneath, and only the
content decides. A change counts once it has stood still: half-written files are seen on the way and are no
news. The last good settings stay active whatever the file does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from pdtop.config.changes import Change, config_changes
from pdtop.config.load import Loaded, reload
from pdtop.config.problems import Problem, errors
from pdtop.config.schema import Config

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.5  # a good file is taken over when it has stood still so long
BAD_AFTER_S = 1.0  # a bad one is said to be bad only then: writers truncate, pause, and write
NOTICE_S = 10.0  # a reload is announced so long; an error until it is fixed
POLL_S = 1.0  # for file systems without events; reading a few KB


@dataclass(frozen=True, slots=True)
class Accepted:
    """New content is in force. ``changes`` is empty if only comments or layout changed."""

    loaded: Loaded
    changes: tuple[Change, ...]

    @property
    def text(self) -> str:
        what = "; ".join(change.text for change in self.changes) or "no value changed"
        return f"{self.loaded.path.name} read again: {what}"


@dataclass(frozen=True, slots=True)
class Rejected:
    """The content is bad; the last good settings stay in force until it is fixed."""

    loaded: Loaded
    problems: tuple[Problem, ...]

    @property
    def text(self) -> str:
        return "\n".join(p.text for p in self.problems) + "\nthe last good settings stay in force"


@dataclass(frozen=True, slots=True)
class Restored:
    """The file is again what is in force: the error is gone, nothing changes."""

    loaded: Loaded

    @property
    def text(self) -> str:
        return f"{self.loaded.path.name} is in order again: what is in force stands in it"


Event = Accepted | Rejected | Restored
Read = Callable[[Loaded], Awaitable[Loaded]]
Events = Callable[[Path], AsyncIterator[object]]


class Observer:
    """The rule of when content counts, without clock or files: feed it what is in the file, in time order."""

    def __init__(self, active: Loaded) -> None:
        self.active = active
        self.problems = errors(active.problems)
        self._settled = active  # what the last decision was about
        self.pending: Loaded | None = None
        self._since = 0.0

    def observe(self, now: float, seen: Loaded) -> Event | None:
        """A decision about ``seen`` if it is due at ``now`` (seconds)."""
        if _same_content(seen, self._settled):
            self.pending = None
            return None
        if self.pending is None or not _same_content(seen, self.pending):
            self.pending, self._since = seen, now
        if now < self._due(self.pending):
            return None
        self.pending, self._settled = None, seen
        return self._decide(seen)

    def wait(self, now: float) -> float:
        """Seconds until the file should be looked at again, events or not."""
        return POLL_S if self.pending is None else min(POLL_S, max(0.0, self._due(self.pending) - now))

    def _due(self, pending: Loaded) -> float:
        calm = DEBOUNCE_S if pending.ok or _same_content(pending, self.active) else BAD_AFTER_S
        return self._since + calm

    def _decide(self, seen: Loaded) -> Event:
        if _same_content(seen, self.active):
            self.problems = ()
            return Restored(self.active)
        if seen.config is None:
            self.problems = errors(seen.problems)
            return Rejected(seen, self.problems)
        before, self.active, self.problems = self.active.config, seen, ()
        return Accepted(seen, config_changes(before or Config(), seen.config))


def _same_content(one: Loaded, other: Loaded) -> bool:
    unreadable = [tuple(p.rule for p in side.problems) if not side.raw else () for side in (one, other)]
    return one.digest == other.digest and unreadable[0] == unreadable[1]


class ConfigWatch:
    """Watches one config file. ``active`` is what is in force, ``problems`` what is wrong with the file now.

    Iterate over :meth:`events`. Clock, sleep, reading and file events can be injected.
    """

    def __init__(
        self,
        initial: Loaded,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        read: Read | None = None,
        file_events: Events | None = None,
    ) -> None:
        self.path = initial.path
        self.seen = initial  # what was read last, decided about or not
        self._announced: tuple[float, str] | None = None
        self._observer = Observer(initial)
        self._clock = clock
        self._sleep = sleep
        self._read = read if read is not None else _read_in_thread
        self._file_events = file_events if file_events is not None else folder_events
        self._stirred = asyncio.Event()

    @property
    def active(self) -> Loaded:
        return self._observer.active

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self._observer.problems

    @property
    def idle(self) -> bool:
        """Nothing is pending: what was read last has been decided about."""
        return self._observer.pending is None

    def notices(self) -> tuple[str, ...]:
        """What a screen has to say now: errors until they are fixed, a reload for a while, then warnings."""
        lines = [problem.text for problem in self.problems]
        if self._announced is not None and self._clock() < self._announced[0] + NOTICE_S:
            lines.append(self._announced[1])
        return (*lines, *(p.text for p in self.active.problems if p not in self.problems))

    async def events(self) -> AsyncGenerator[Event, None]:
        """Decisions about the file, for ever; close the iterator to stop."""
        listener = asyncio.create_task(self._listen())
        try:
            while True:
                self._stirred.clear()
                self.seen = await self._read(self.seen)
                decision = self._observer.observe(self._clock(), self.seen)
                if decision is not None:
                    self._announced = (self._clock(), decision.text)
                    yield decision
                await self._next_look(self._observer.wait(self._clock()))
        finally:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener

    async def _next_look(self, seconds: float) -> None:
        stirred = asyncio.ensure_future(self._stirred.wait())
        timer = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait((stirred, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stirred.cancel()
            timer.cancel()
            await asyncio.gather(stirred, timer, return_exceptions=True)

    async def _listen(self) -> None:
        try:
            async for _ in self._file_events(self.path):
                self._stirred.set()
        except (OSError, RuntimeError) as error:  # no inotify, watch limit reached, folder gone
            log.info("no file events for %s (%s); polling every %g s", self.path, error, POLL_S)


async def _read_in_thread(last: Loaded) -> Loaded:
    """Off the loop: a hanging network mount must not stop the polling of workers."""
    return await asyncio.to_thread(reload, last)


def link_chain(path: Path) -> tuple[Path, ...]:
    """The links on the way to a file, in order, and the file behind them: what may be replaced."""
    chain: list[Path] = []
    current = Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow the links
    for _ in range(40):  # as many links as the kernel follows
        link = next((part for part in (*reversed(current.parents), current) if part.is_symlink()), None)
        if link is None:
            break
        chain.append(link)
        target = link.parent / link.readlink() / current.relative_to(link)
        current = Path(os.path.normpath(target))
    return (*chain, current)


@dataclass(frozen=True, slots=True)
class _Near:
    """Filter of file events: only these paths matter."""

    paths: frozenset[str]

    def __call__(self, _change: object, path: str) -> bool:
        return path in self.paths


async def folder_events(path: Path) -> AsyncGenerator[None, None]:
    """One item for each batch of changes to the file or to a link on the way to it."""
    from watchfiles import awatch  # starts a Rust library: only where a file is really watched

    while True:
        chain = link_chain(path)
        folders = {step.parent for step in chain if step.parent.is_dir()}
        if not folders:
            await asyncio.sleep(POLL_S)
            continue
        near = _Near(frozenset(str(step) for step in chain))
        batches = awatch(
            *folders,
            recursive=False,
            debounce=100,
            step=20,
            watch_filter=near,
        )
        async with contextlib.aclosing(batches):
            async for _ in batches:
                yield None
                if link_chain(path) != chain:
                    break
