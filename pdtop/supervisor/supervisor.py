"""Runs smg or sglang-router from config.toml: starts it, keeps it true, replaces it, and ends it gently.

Neither engine can be told a new policy or threshold while it runs, and neither gives its port to a successor.
So the public port stays here: a new process starts on a port of its own, gets its workers, then all new
connections, while the old one finishes what it has. The metrics port is handed over in the same way, so a
scraper's address stays; counters begin at 0 anew.

Why so: what 40 streaming clients see of one restart, on two busy cores (``benchmarks/handover.py``; refused
connections, for how long, failed requests; no way cuts a stream within the grace):

==============================================  =====================  =====================
way                                             smg 1.13.0             sglang-router 0.3.2
==============================================  =====================  =====================
stop, wait for the end, start                   2,294 in 4.0 s, 15     1,562 in 2.2 s, 20
successor on the same port after SIGTERM        0 to 129, 24 to 132    1,091 in 1.6 s, 20
successor tried until it holds, then SIGTERM    39 in 0.06 s, 16       1,664 in 2.4 s, 20
this hand-over                                  0, 0                   0, 0
==============================================  =====================  =====================

With stop-wait-start the time is that of the longest stream (8 s there at most, else up to the grace).
The price is a hop of bytes through Python: to the first event 0.1 to 0.5 ms (p99 1 to 6 ms there) at
50 requests/s with smg, nothing with sglang-router, whose own waits for acknowledgements are longer; CPU for
each part of a stream 90 µs when it comes alone and 22 µs when many do, which is 40,000 parts a second for the
one core that this process can use. The engine sees connections from this machine, not clients' addresses.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from pdtop import __version__
from pdtop.config.load import Loaded
from pdtop.config.schema import Config
from pdtop.config.watch import Accepted, ConfigWatch, Event
from pdtop.routers.dialect import METRICS_PORT
from pdtop.supervisor.backoff import Backoff
from pdtop.supervisor.engines import CannotRun, Engine, engine_of, interpreter
from pdtop.supervisor.handover import HandOver, listening_error
from pdtop.supervisor.keeping import Usable
from pdtop.supervisor.launching import (
    Launch,
    idle_pools,
    launch,
    not_honoured,
    refusal,
    restart_reasons,
    secrets,
    warnings,
)
from pdtop.supervisor.output import Output
from pdtop.supervisor.run import Run
from pdtop.supervisor.starting import NotUp, Starter
from pdtop.supervisor.status import Former, State, Status, iso

#: As the engines' own default; systemd kills earlier (TimeoutStopSec).
GRACE_S = 180.0
KEEP_EVERY_S = 5.0
REMIND_S = 60.0
#: Between the switch and the old process's SIGTERM: connections that were just being made arrive.
SETTLE_S = 0.3
#: A start that fails so often before anything has ever served is not tried again.
FIRST_TRIES = 3
_FLUSH_S = 1.0


class Supervisor:
    """``further``: flags of the engine that config.toml has no key for. To be run on one event loop."""

    def __init__(
        self,
        watch: ConfigWatch,
        engine: Engine,
        starter: Starter,
        output: Output,
        environ: Mapping[str, str],
        *,
        further: Sequence[str] = (),
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        wall: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        config = watch.active.config
        if config is None:
            raise CannotRun("\n".join(problem.text for problem in watch.active.problems))
        self._watch = watch
        self._starter = starter
        self._output = output
        self._environ = environ
        self._further = tuple(further)
        self._grace_s = grace_s
        self._clock = clock
        self._sleep = sleep
        self._wall = wall
        self._config = config
        self._made = self._made_of(config, engine)
        self._good: tuple[Launch, Config] | None = None  # what served last
        self._fall_back = False
        self._run: Run | None = None
        self._former: list[Run] = []
        self._again = Backoff(chance)
        self._replace_again = Backoff(chance, first_s=30.0, longest_s=300.0)
        self._next_try = 0.0
        self._next_replacement = 0.0
        self._refused = ""
        self._failed = ""
        self._unlisted = ""
        self._state: State = "starting"
        self._restarts = self._hand_overs = 0
        self._last_restart: tuple[float, str] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stirred = asyncio.Event()
        self._keep_now = asyncio.Event()
        self._told = asyncio.Event()
        self._told_again = asyncio.Event()
        self.main = HandOver()
        self.metrics = HandOver()

    # From outside -------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Take the public addresses. Raises :class:`CannotRun`."""
        for hand_over, (host, port) in zip((self.main, self.metrics), _addresses(self._config), strict=True):
            try:
                await hand_over.listen(host, port)
            except OSError as error:
                self.main.stop_listening()
                raise CannotRun(listening_error(error, host, port)) from error

    def tell(self) -> None:
        """End gently; told once more: at once."""
        if self._told.is_set():
            self._told_again.set()
        self._told.set()

    async def run(self) -> None:
        """Until told to end, or until it is clear that it will not start (:class:`CannotRun`)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.tell)
        for words in (
            *warnings(self._config, self._environ, self._further),
            *not_honoured(self._config, self._made.engine),
        ):
            self._output.say(words)
        minding = loop.create_task(self._mind())
        others = [loop.create_task(self._for_ever(work)) for work in (self._follow, self._keep, self._remind)]
        told = loop.create_task(self._told.wait())
        try:
            await asyncio.wait((minding, told), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (told, minding, *others):
                task.cancel()
            results = await asyncio.gather(minding, *others, return_exceptions=True)
            await self._stop()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def status(self) -> Status:
        run, last = self._run, self._last_restart
        (host, port), (_, metrics_port) = _addresses(self._config)
        waiting = self._next_try - self._clock()
        return Status(
            version=__version__,
            engine=self._made.engine.name,
            state=self._state,
            pid=run.process.pid if run is not None else None,
            since=iso(run.since) if run is not None else None,
            command=run.launch.shown(run.flags) if run is not None else (),
            url=_url(host, self.main.port or port),
            metrics_url=_url(host, self.metrics.port or metrics_port) + "/metrics",
            restarts=self._restarts,
            hand_overs=self._hand_overs,
            last_restart=iso(last[0]) if last is not None else None,
            last_restart_reason=last[1] if last is not None else "",
            waiting_s=round(waiting, 1) if run is None and waiting > 0 else None,
            connections=self.main.open,
            held_out=self.main.refused,
            former=tuple(Former(one.process.pid, one.connections) for one in self._former),
            config=str(self._watch.path),
            config_problems=tuple(self._output.harmless(one.text) for one in self._watch.problems),
            pending=tuple(self._output.harmless(words) for words in self._pending()),
            failed=self._failed,
            not_honoured=not_honoured(self._config, self._made.engine),
        )

    # The file ----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        async for event in self._watch.events():
            await self._took(event)

    async def _took(self, event: Event) -> None:
        for line in event.text.splitlines():
            self._output.say(line)
        if isinstance(event, Accepted) and event.loaded.config is not None:
            try:
                await self._accept(event.loaded.config)
            except CannotRun as reason:
                self._refused = f"{event.loaded.path.name} is not in force: {reason}"
                self._output.say(f"{self._refused}; the last good settings stay in force")
                return
            self._refused = ""

    async def _accept(self, config: Config) -> None:
        """Put it in force. Raises :class:`CannotRun` and changes nothing."""
        engine = engine_of(config)
        if engine is None:
            raise CannotRun("pdtop's own router cannot take over from here: restart pdtop router")
        made = await asyncio.to_thread(self._made_of, config, engine)
        before = not_honoured(self._config, self._made.engine)
        moved = _addresses(self._config), _addresses(config)
        self._config, self._made = config, made
        self._output.hide(secrets(config, self._environ))
        self._list_workers()
        for words in not_honoured(config, engine):
            if words not in before:
                self._output.say(words)
        for hand_over, old, new in zip((self.main, self.metrics), *moved, strict=True):
            if old != new:
                await self._move(hand_over, *new)
        self._next_replacement = 0.0
        self._replace_again.forget()
        self._keep_now.set()
        self._stirred.set()

    async def _move(self, hand_over: HandOver, host: str, port: int) -> None:
        try:
            await hand_over.listen(host, port)
            self._output.say(f"listening on {host}:{port} now; connections made before go on")
        except OSError as error:
            self._output.say(f"{listening_error(error, host, port)}; the former address stays")

    def _made_of(self, config: Config, engine: Engine) -> Launch:
        python = interpreter(config, engine, self._environ)
        if why := refusal(config, engine, self._environ):
            raise CannotRun(why)
        return launch(config, engine, python, self._further, self._environ)

    def _list_workers(self) -> None:
        """Bring smg's list up to date; what hinders it, a full disk perhaps, is said once and tried again."""
        if not self._made.engine.reads_manifest:
            self._unlisted = ""
            return
        try:
            self._starter.list_workers(self._config)
        except OSError as error:
            words = f"the list of workers cannot be written: {error}; workers stay as they are until it can"
            if words != self._unlisted:
                self._output.say(words)
            self._unlisted = words
        else:
            self._unlisted = ""

    async def _keep(self) -> None:
        while True:
            run, config = self._run, self._config
            if self._unlisted:
                self._list_workers()
            if run is not None and not run.process.ended.is_set():
                for words in await run.keeper.keep(config):
                    if run is self._run:
                        self._output.say(words)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._keep_now.wait(), KEEP_EVERY_S)
            self._keep_now.clear()

    async def _remind(self) -> None:
        """What is wrong stays said until it is not."""
        while True:
            await self._sleep(REMIND_S)
            problems = (problem.text for problem in self._watch.problems)
            for words in (*problems, self._refused, self._failed, self._unlisted, *idle_pools(self._config)):
                if words:
                    self._output.say(words)

    async def _for_ever(self, work: Callable[[], Awaitable[None]]) -> None:
        """What nobody waits for must not end unnoticed: it is said, and goes on."""
        while True:
            try:
                await work()
            except Exception as failure:  # noqa: BLE001 - whatever it is, the engine goes on under the file
                words = f"{work.__name__.strip('_')}: {type(failure).__name__}: {failure}"
                self._output.say(f"internal error in {words}; it is tried again")
            await self._sleep(KEEP_EVERY_S)

    def _pending(self) -> tuple[str, ...]:
        words = tuple(one for one in (self._refused, self._unlisted) if one)
        return (*words, *self._reasons(self._run)) if self._run is not None else words

    def _reasons(self, run: Run) -> tuple[str, ...]:
        """Why this run has to be replaced; empty: it has not."""
        return restart_reasons(run.launch, run.config, self._made, self._config)

    # The engine --------------------------------------------------------------------------------------

    async def _mind(self) -> None:
        while True:
            run = self._run
            if run is None:
                await self._bring_up()
            elif run.process.ended.is_set():
                self._crashed(run)
            elif self._reasons(run) and self._clock() >= self._next_replacement:
                await self._replace(run)
            else:
                await self._until_something(run)

    async def _until_something(self, run: Run) -> None:
        loop = asyncio.get_running_loop()
        waits: list[asyncio.Future[object]] = [
            loop.create_task(event.wait()) for event in (run.process.ended, self._stirred)
        ]
        if self._reasons(run):
            left = max(0.0, self._next_replacement - self._clock())
            waits.append(asyncio.ensure_future(self._sleep(left)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            self._stirred.clear()

    async def _bring_up(self) -> None:
        wait = self._next_try - self._clock()
        if wait > 0:
            await self._sleep(wait)
        made, config = self._made, self._config
        if self._fall_back and self._good is not None:
            made, config = self._good
        try:
            run = await self._starter.start(made, config, None)
        except NotUp as reason:
            wait = self._again.failed()
            if self._good is None and self._again.failures >= FIRST_TRIES:
                raise CannotRun(f"{made.engine.name} does not start: {reason}") from reason
            self._output.say(f"{made.engine.name} did not start: {reason}; next try in {wait:.1f} s")
            self._next_try = self._clock() + wait
            self._fall_back = not self._fall_back and self._good is not None
            return
        self._take(run)

    def _take(self, run: Run) -> None:
        """All new connections go to this run from now on."""
        self._run, self._good, self._fall_back, self._state = run, (run.launch, run.config), False, "serving"
        self.main.switch(run.main)
        self.metrics.switch(run.metrics)
        self._keep_now.set()
        self._output.say(f"{run.launch.engine.name} serves (pid {run.process.pid})")

    def _crashed(self, run: Run) -> None:
        self._run, self._state = None, "down"
        self.main.switch(None)
        self.metrics.switch(None)
        wait = self._again.failed(self._clock() - run.began)
        self._next_try = self._clock() + wait
        self._restarts += 1
        said = "" if run.process.was_killed else run.tail.error
        reason = f"{run.process.how}: {said}" if said else run.process.how
        self._last_restart = self._wall(), reason
        self._output.say(
            f"{run.launch.engine.name} (pid {run.process.pid}) is gone: {reason}; "
            f"its streams are cut, new connections wait; started again in {wait:.1f} s"
        )

    async def _replace(self, old: Run) -> None:
        reasons = "; ".join(self._reasons(old))
        made, config = self._made, self._config
        self._state = "handing_over"
        self._output.say(f"restart for {reasons}: the present {old.launch.engine.name} serves meanwhile")
        before = await old.keeper.usable()
        try:
            run = await self._starter.start(made, config, before or Usable())
        except NotUp as reason:
            wait = self._replace_again.failed()
            self._next_replacement = self._clock() + wait
            self._failed = self._output.harmless(f"restart for {reasons} failed: {reason}")
            self._state = "serving"
            self._output.say(f"{self._failed}; the present one goes on, next try in {wait:.0f} s")
            return
        self._failed = ""
        self._replace_again.forget()
        self._hand_overs += 1
        self._last_restart = self._wall(), reasons
        self._take(run)
        if not old.process.ended.is_set():
            self._former.append(old)
            task = asyncio.get_running_loop().create_task(self._let_go(old))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _let_go(self, run: Run) -> None:
        """Have a former run end when its streams have; none is longer than a request may take."""
        await self._sleep(SETTLE_S)
        run.leave()
        limit = run.config.server.request_timeout_secs + GRACE_S
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(run.process.ended.wait(), limit)
            run.process.kill()
            await run.process.wait()
        finally:
            self._former.remove(run)
        self._output.say(f"the former {run.launch.engine.name} (pid {run.process.pid}) has ended")

    # The end -----------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """The engine's own graceful end, within the grace; told once more: at once."""
        self._state = "stopping"
        for task in tuple(self._tasks):
            task.cancel()
        former = list(self._former)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        runs = [run for run in (self._run, *former) if run is not None]
        self.main.hold_s = 0.0
        window = self._run.launch.engine.window_s if self._run is not None else 0.0
        closing = asyncio.get_running_loop().call_later(
            min(window, self._grace_s / 2), self.main.stop_listening
        )
        if runs:
            streams = sum(run.connections for run in runs)
            self._output.say(f"told to end: {streams} connections finish, at most {self._grace_s:g} s")
        for run in runs:
            run.process.terminate()
        ends = [asyncio.ensure_future(run.process.ended.wait()) for run in runs]
        again = asyncio.ensure_future(self._told_again.wait())
        ended = asyncio.gather(*ends)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                await asyncio.wait((ended, again), return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        closing.cancel()
        self.main.stop_listening()
        self.metrics.stop_listening()
        for run in runs:
            if not run.process.ended.is_set():
                self._output.say(f"{run.launch.engine.name} (pid {run.process.pid}) is killed")
            run.process.kill()
            await run.process.wait()
        await ended
        await self._flush()

    async def _flush(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                while self.main.open:  # noqa: ASYNC110 - the last bytes are on their way to clients
                    await asyncio.sleep(0.02)
        self.main.abort()
        self.metrics.abort()


def _addresses(config: Config) -> tuple[tuple[str, int], tuple[str, int]]:
    """Where requests and where scrapers come."""
    server = config.server
    port = METRICS_PORT
    if server.metrics_url is not None:
        with suppress(ValueError):
            port = urlsplit(server.metrics_url).port or METRICS_PORT
    return (server.host, server.port), (server.host, port)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def first_engine(loaded: Loaded) -> Engine | None:
    """What the file names; None: pdtop's own router. Raises :class:`CannotRun`."""
    if loaded.config is None:
        raise CannotRun("\n".join(problem.text for problem in loaded.problems))
    return engine_of(loaded.config)
