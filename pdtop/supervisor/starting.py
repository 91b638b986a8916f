"""Brings up one run of an engine: it serves, has its workers and no drained ones before a request comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from pdtop.cluster.desired import desired
from pdtop.cluster.http import Dialler
from pdtop.cluster.model import Role
from pdtop.config.schema import Config
from pdtop.supervisor.handover import Backend, free_port
from pdtop.supervisor.keeping import Keeper, Usable, asker
from pdtop.supervisor.launching import Launch, Place, argv, listed_at_start, manifest
from pdtop.supervisor.manifest import Manifest
from pdtop.supervisor.output import Output, Tail
from pdtop.supervisor.process import EngineProcess
from pdtop.supervisor.run import Run

#: Until it answers at all.
SERVING_S = 30.0
#: A successor has so long to list as many usable workers as the run that it replaces.
AS_GOOD_S = 15.0
#: Without one before it: so long all workers are waited for, then so long one of each pool.
ALL_S, SOME_S = 2.0, 5.0
_LOOK_S = 0.05
_ASK_S = 2.0


class NotUp(Exception):
    """A run did not come to serve; the message says why."""


def good_enough(usable: Usable | None, wanted: Usable, before: Usable | None, waited_s: float) -> bool:
    """Whether requests may go to a new run. ``before``: what the run that it replaces has; None: none."""
    if before is not None:
        goal = Usable(min(before.prefill, wanted.prefill), min(before.decode, wanted.decode))
        return usable is not None and usable.covers(goal)
    if waited_s >= SOME_S:
        return True  # it says itself what is missing
    return usable is not None and (usable.covers(wanted) or (usable.serves and waited_s >= ALL_S))


def wanted(config: Config) -> Usable:
    """Workers that are to take requests."""
    roles = [one.role for one in desired(config).values() if not one.table.drain]
    return Usable(roles.count(Role.PREFILL), roles.count(Role.DECODE))


class Starter:
    """``folder`` is for smg's list of workers. ``environ`` has the keys; engines get it without them."""

    def __init__(
        self,
        dialler: Dialler,
        folder: Path,
        output: Output,
        environ: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._dialler = dialler
        self._manifest = Manifest(folder)
        self._output = output
        self._environ = environ
        self._clock = clock
        self._sleep = sleep
        self._wall = wall

    def list_workers(self, config: Config) -> bool:
        """Bring smg's list up to date, also for runs that are under way; False if it was."""
        return self._manifest.write(manifest(config, self._environ))

    async def start(self, made: Launch, config: Config, before: Usable | None) -> Run:
        """Raises :class:`NotUp`; then nothing of it is left."""
        place = Place(free_port(), free_port())
        path = str(self._manifest.path) if made.engine.reads_manifest else None
        if path is not None:
            try:
                self.list_workers(config)
            except OSError as error:
                raise NotUp(f"the list of workers cannot be written: {error}") from error
        flags = argv(config, made, place, manifest=path, environ=self._environ)
        tail = Tail()
        server = config.server

        def line(text: str) -> None:
            tail.add(self._output.passed_on(made.engine.name, text))

        try:
            process = EngineProcess.start(
                made.python, made.engine.module, flags, made.keys, self._without_keys(config), line
            )
        except (OSError, ValueError) as error:
            raise NotUp(f"{made.python} cannot be started: {error}") from error
        key = self._environ.get(server.admin_key_env) or self._environ.get(server.api_key_env) or None
        ask = asker(self._dialler, place, key)
        run = Run(
            process=process,
            launch=made,
            config=config,
            flags=flags,
            place=place,
            keeper=Keeper(made.engine, ask, config, self._environ, clock=self._clock, sleep=self._sleep),
            tail=tail,
            since=self._wall(),
            began=self._clock(),
            main=Backend(place.host, place.port),
            metrics=Backend(place.host, place.metrics_port),
        )
        try:
            await self._until_serving(run)
            await self._until_good(run, before)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        return run

    async def _until_serving(self, run: Run) -> None:
        deadline = self._clock() + SERVING_S
        ask = asker(self._dialler, run.place, None)
        while True:
            self._still_there(run)
            answer = await ask("GET", "/health", None)
            if answer.failure is None and answer.status == 200:
                return
            if self._clock() >= deadline:
                raise NotUp(f"it does not answer /health after {SERVING_S:g} s")
            await self._sleep(_LOOK_S)

    async def _until_good(self, run: Run, before: Usable | None) -> None:
        began, config = self._clock(), run.config
        makeweight: set[str] = set()
        if not run.launch.engine.reads_manifest:
            listed = listed_at_start(config, self._environ)
            makeweight = {one.key for one in listed if one.table.drain}
        while True:
            self._still_there(run)
            waited = self._clock() - began
            if makeweight - run.keeper.taken_out:
                await run.keeper.keep(config, first=True)
            out = makeweight <= run.keeper.taken_out or waited >= SOME_S
            usable = await run.keeper.usable()
            if out and good_enough(usable, wanted(config), before, waited):
                return
            if waited >= AS_GOOD_S:
                had = f"{before.prefill} prefill and {before.decode} decode" if before is not None else "some"
                has = f"{usable.prefill} and {usable.decode}" if usable is not None else "no list"
                raise NotUp(f"it has fewer usable workers than before: {has} instead of {had}")
            await self._sleep(_LOOK_S)

    def _still_there(self, run: Run) -> None:
        if run.process.ended.is_set():
            said = run.tail.error or run.tail.last
            raise NotUp(f"{run.process.how}: {said}" if said else run.process.how)

    def _without_keys(self, config: Config) -> dict[str, str]:
        tables = [*config.prefill.worker.values(), *config.decode.worker.values()]
        names = {table.api_key_env for table in tables}
        names |= {config.server.api_key_env, config.server.admin_key_env}
        return {name: value for name, value in self._environ.items() if name not in names}
