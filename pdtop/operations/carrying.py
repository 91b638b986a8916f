"""Carries operations out in their turn, and begins what follows a change; on the engine's loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable

from pdtop.cluster.desired import desired
from pdtop.config.schema import Config
from pdtop.operations.drain_life import ended
from pdtop.operations.executing import Executor, Job
from pdtop.operations.model import Drain, Guard, Outcome, Restart
from pdtop.operations.origin import origin
from pdtop.operations.parts import Parts
from pdtop.operations.planner import Planner, Prepared
from pdtop.operations.restarting import run_command

log = logging.getLogger(__name__)


class Queue:
    """Operations on one worker one after the other, whoever asks for them."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    def busy(self, keys: Iterable[str]) -> bool:
        return not self.under_way.isdisjoint(keys)

    @property
    def under_way(self) -> frozenset[str]:
        """The workers of all operations that have their turn."""
        return frozenset(key for key, lock in self._locks.items() if lock.locked())

    @contextlib.asynccontextmanager
    async def turn(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """Wait for the turn of all of ``keys``; taken in one order, so that nobody waits for each other."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield


class Carrier:
    """``undecided`` is given back what was refused without a trace: the operator may decide otherwise."""

    def __init__(
        self,
        parts: Parts,
        executor: Executor,
        planner: Planner,
        undecided: Callable[[str, Prepared], None],
    ) -> None:
        self._parts = parts
        self._executor = executor
        self._planner = planner
        self._undecided = undecided
        self.queue = Queue()

    async def carry_out(self, job: Job, prepared: Prepared | None = None) -> None:
        """``prepared``: what was asked for and confirmed; None: something that the gate does by itself."""
        parts, operation = self._parts, job.operation
        parts.showing.tell(operation)
        workers = job.scope.workers
        keys = workers if workers is not None else desired(parts.config).keys()
        parts.permission.begin(operation.id)
        try:
            async with self.queue.turn({*keys, *operation.plan.targets}):
                await self._in_turn(job, prepared)
        except Exception as error:
            log.exception("an operation failed")
            words = f"internal error: {type(error).__name__}: {error}"
            parts.showing.tell(ended(job.operation, Outcome.FAILED, words))
        finally:
            parts.permission.end(operation.id)

    async def _in_turn(self, job: Job, prepared: Prepared | None) -> None:
        parts = self._parts
        if (against := await self._against(prepared)) is not None:
            await self._executor.refuse(job.operation, against.text, against.to_change)
            return
        if job.after is not None and parts.known.config is not None:
            job.after = parts.known.config  # it may have had to wait
        if isinstance(job.request, Restart):
            await self._restart(job)
            return
        parts.returns.about_to_change(job.operation.plan.targets, parts.monitor.latest())
        await self._executor.run(job, lambda: self._against(prepared))
        if prepared is not None and job.written is None and job.operation.outcome is Outcome.REFUSED:
            self._undecided(job.operation.plan.id, prepared)
        self._after(job)

    async def _against(self, prepared: Prepared | None) -> Guard | None:
        """Something that speaks against it now and did not when it was planned."""
        if prepared is None:
            return None
        if own := self._parts.permission.guards():
            return own[0]
        known = {(guard.kind, guard.override) for guard in prepared.plan.guards}
        guards = await asyncio.to_thread(self._planner.guards_now, prepared)
        new = (guard for guard in guards if (guard.kind, guard.override) not in known)
        return next((guard for guard in new if guard.blocks), None)

    def _after(self, job: Job) -> None:
        """What begins when a change has been made: waiting for a drain, watching a return, comparing."""
        parts = self._parts
        for one in job.applied.routers:
            # Also one that answered nonsense: nothing was tried there.
            if one.outcome is Outcome.TIMED_OUT or (one.outcome is Outcome.FAILED and not one.changed):
                words = f"{one.router} answers again: {job.operation.plan.title}"
                parts.asserting.owe(one.router, job.scope.workers or None, words)
        before, after = job.configs
        if after is None:
            return
        request = job.request
        if isinstance(request, Drain) and job.written is not None:
            who = origin(os.environ)
            parts.drains.started(
                request.workers,
                f"{who.user}@{who.host}",
                request.timeout_s,
                after,
                parts.now(),
                job.operation.started,
            )
        if job.operation.outcome not in (Outcome.REFUSED, Outcome.FAILED):
            parts.returns.changed(before, after, job.operation.plan.title, parts.clock())

    async def _restart(self, job: Job) -> None:
        config = self._parts.config
        if not config.server.restart_command:
            words = "no command is configured that restarts the router"
            fix = 'write [server] restart_command = ["systemctl", "restart", "…"]'
            await self._executor.refuse(job.operation, words, fix)
            return

        async def run() -> tuple[Outcome, str]:
            ran = await run_command(config.server.restart_command, secrets=keys_of(config))
            told = f": {ran.output[-1]}" if ran.output and ran.outcome is not Outcome.DONE else ""
            return ran.outcome, ran.words + told

        await self._executor.run_other(job, "restarting the router", run)
        if job.operation.outcome is Outcome.DONE:
            memory = self._parts.memory.memory
            self._parts.remember(memory.restarted(memory.waiting))


def keys_of(config: Config) -> list[str]:
    """All keys that the file names a variable for."""
    server = config.server
    names = {server.api_key_env, server.admin_key_env, server.upstream_api_key_env}
    names |= {table.api_key_env for pool in (config.prefill, config.decode) for table in pool.worker.values()}
    return sorted(value for name in names if name and (value := os.environ.get(name)))
