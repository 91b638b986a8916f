"""What the modules of a gate share: the monitor, what is known and shown, the clocks, tasks on its loop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from pdtop.cluster.monitor import Monitor
from pdtop.config.schema import Config
from pdtop.operations.asserting import Asserting
from pdtop.operations.audit import AuditLog
from pdtop.operations.following import Drains
from pdtop.operations.known_file import KnownFile
from pdtop.operations.memory import Memory, Remembering
from pdtop.operations.model import Operation, Phase, Plan
from pdtop.operations.permission import Permission
from pdtop.operations.returning import Returns
from pdtop.operations.showing import Showing

log = logging.getLogger(__name__)


class Tasks:
    """Work on the engine's loop, from any thread."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._tasks: set[asyncio.Task[None]] = set()
        self.engine: int | None = None  # its thread, once something has run there

    @property
    def here(self) -> bool:
        """Whether the caller is on the engine's loop."""
        if self.engine != threading.get_ident():
            return False
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False  # it has ended
        return True

    def submit(self, work: Coroutine[Any, Any, object]) -> bool:
        """Have the engine do it; False if it does not run."""
        try:
            self._monitor.submit(work).add_done_callback(_told)
        except RuntimeError:
            log.info("the engine has ended")
            return False
        return True

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside all else; on the engine's loop only."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def call(self, function: Callable[[], None]) -> None:
        """Have it called on the engine's loop: now if that is here, else soon."""
        if self.here:
            function()
        else:
            self.submit(_called(function))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        _told(task)


def _told(work: asyncio.Future[Any] | Future[Any]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        log.error("work of the gate failed", exc_info=error)


async def _called(function: Callable[[], None]) -> None:
    function()


@dataclass(slots=True)
class Parts:
    """``clock`` gives epoch seconds, ``now`` is the clock of the monitor's loop."""

    monitor: Monitor
    tasks: Tasks
    permission: Permission
    showing: Showing
    audit: AuditLog
    known: KnownFile
    memory: Remembering
    clock: Callable[[], float]
    now: Callable[[], float]
    drains: Drains = field(init=False)
    returns: Returns = field(default_factory=Returns)
    asserting: Asserting = field(default_factory=Asserting)

    def __post_init__(self) -> None:
        self.drains = Drains(clock=self.clock)

    @property
    def config(self) -> Config:
        """What config.toml says, as far as is known; defaults without one."""
        return self.known.config or Config()

    @property
    def cluster(self) -> str:
        return self.monitor.targets.cluster

    def operation(self, plan: Plan, source: str) -> Operation:
        """A new one that waits for its turn."""
        return Operation(self.new_id(), plan, Phase.WAITING, started=self.clock(), source=source)

    def new_id(self) -> str:
        return f"{int(self.clock() * 1000):x}-{secrets.token_hex(2)}"

    def remember(self, memory: Memory) -> None:
        """For this console, and for the next one."""
        if self.memory.remember(memory):
            self.tasks.spawn(self.memory.save())

    def seconds(self, operation: Operation) -> float:
        """Since it was asked for."""
        return max(0.0, self.clock() - operation.started)
