"""An event loop whose clock jumps to the next timer when nothing happens on any socket.

Client and stub servers run on the same loop and speak over loopback sockets, so whatever one of them sends is
there for the other at once. A short real wait before each jump is a margin for the kernel.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
GRACE_S = 0.002
#: With no timer at all only a socket can end the wait; longer than this means that a test hangs.
LONGEST_WAIT_S = 10.0

Place = tuple[str, int]


class _Selector(selectors.DefaultSelector):
    """Waits for sockets as usual, but not for time: that it passes on to ``jump``."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump
        self._left = time.thread_time()
        self.longest_step_s = 0.0  # CPU seconds between two waits
        self.threads = 0  # at work for the loop: time stands still for them

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.longest_step_s = max(self.longest_step_s, time.thread_time() - self._left)
        try:
            return self._select(timeout)
        finally:
            self._left = time.thread_time()

    def _select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.threads and timeout != 0:
            return super().select(LONGEST_WAIT_S)
        if timeout is None:
            found = super().select(LONGEST_WAIT_S)
            if not found:
                raise RuntimeError("nothing happens and nothing is planned")
            return found
        found = super().select(min(timeout, GRACE_S))
        if not found and timeout > 0:
            self._jump(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """``dial`` decides where a connection really goes; it may raise OSError. None: as asked."""

    def __init__(self, dial: Callable[[str, int], Place] | None = None) -> None:
        self._now = 1000.0
        self._dial = dial
        self.waits = _Selector(self._pass)
        super().__init__(self.waits)

    def time(self) -> float:
        return self._now

    def _pass(self, seconds: float) -> None:
        self._now += seconds

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], R], *args: *Ts
    ) -> asyncio.Future[R]:
        future = super().run_in_executor(executor, func, *args)
        self.waits.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: object) -> None:
        self.waits.threads -= 1

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **kw: Any
    ) -> Any:
        if self._dial is not None and host is not None:
            host, port = self._dial(host, port)
        return await super().create_connection(protocol_factory, host, port, **kw)


def run(main: Coroutine[Any, Any, T], *, dial: Callable[[str, int], Place] | None = None) -> T:
    """Run to the end in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(dial)) as runner:
        return runner.run(main)


def longest_step_s() -> float:
    """The longest time that the running virtual loop has kept everything else waiting; CPU seconds."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.waits.longest_step_s
