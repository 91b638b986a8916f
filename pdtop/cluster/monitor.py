"""The engine: a thread with its own loop that polls, follows config.toml and publishes snapshots.

The screen's loop may stall with a blocked terminal; this one does not. They meet only in frozen snapshots, of
which the latest wins. Whatever goes wrong in here is said in the next snapshot and the engine starts again;
what the watches know of the past stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pdtop.cluster.board import Board, Setting
from pdtop.cluster.http import Dialler
from pdtop.cluster.launch import targets_of
from pdtop.cluster.model import Finding, Severity, Snapshot
from pdtop.cluster.poller import Poller
from pdtop.cluster.router_watch import Heard
from pdtop.cluster.targets import Targets
from pdtop.config.load import Loaded
from pdtop.config.problems import Problem, errors
from pdtop.config.schema import Config
from pdtop.config.watch import Accepted, ConfigWatch

log = logging.getLogger(__name__)
T = TypeVar("T")

TICK_S = 1.0
#: Until everybody has answered once, but no longer than EARLY_S, snapshots come at this pace.
FIRST_TICKS_S = 0.2
FIRST_LOOK_S = 0.02
EARLY_S = 2.0
LONGEST_WINDOW_S = 30.0  # kept at least, so that the window can be changed while running
RESTART_S = (1.0, 2.0, 5.0, 10.0, 30.0)
TROUBLE_SHOWN_S = 60.0
TAKE_S = 30.0
RAW_AGAIN_S = 2.0
RAW_PAGES = 2


@dataclass(frozen=True, slots=True)
class WorkerHistory:
    """The kept past of one worker: points ``interval_s`` apart, newest last, None = gap."""

    interval_s: float
    series: Mapping[str, tuple[float | None, ...]]


@dataclass(slots=True)
class _RawPage:
    asked_at: float
    text: str | None = None


class Monitor:
    """Watches a cluster from :meth:`start` to :meth:`stop`. All other methods return at once, from any thread
    (:meth:`take` and :meth:`wait_first_round` wait as they say).

    ``loaded``: the config file to follow; None without one. ``window_s``: for rates and percentiles.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        loaded: Loaded | None = None,
        window_s: float = 30.0,
        read_only: bool = True,
        tick_s: float = TICK_S,
    ) -> None:
        self._targets = targets
        self._window_s = window_s
        self._tick_s = tick_s
        config = loaded.config if loaded is not None else None
        self._flags = _flags(targets, loaded)
        self._config = ConfigWatch(loaded) if loaded is not None else None
        self._board = Board(
            span_s=max(window_s, LONGEST_WINDOW_S),
            tick_s=tick_s,
            restarted=self._worker_restarted,
        )
        self._board.paced(targets.settings.interval_s, targets.settings.loads_interval_s)
        self._board.setting = Setting(
            targets.cluster, config, read_only, targets.settings.interval_s, notices=targets.notices
        )
        self._poller: Poller | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._ready = threading.Event()  # the loop runs and can be asked
        self._first_round = threading.Event()
        self._subscribers: tuple[Callable[[Snapshot], object], ...] = ()
        self._config_listeners: tuple[Callable[[Accepted, Config | None], object], ...] = ()
        self._trouble: tuple[float, str] | None = None
        self._raw: dict[str, _RawPage] = {}
        self._raw_tasks: set[asyncio.Task[None]] = set()
        self._latest = Snapshot(
            number=0,
            cluster=targets.cluster,
            at=time.time(),
            window_s=window_s,
            interval_s=targets.settings.interval_s,
            tick_s=tick_s,
            read_only=read_only,
            notices=targets.notices,
        )

    # For front ends

    def start(self) -> None:
        """Begin to poll, in a thread of its own."""
        if self._thread is not None:
            raise RuntimeError("this monitor was started before")
        self._thread = threading.Thread(target=self._run, name="pdtop-engine", daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """End polling; returns when the thread has ended. May be called twice."""
        self._stopping = True
        self._call(self._cancel)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10.0)

    def latest(self) -> Snapshot:
        """The newest snapshot; before the first round one without workers."""
        return self._latest

    def take(self) -> Snapshot:
        """A snapshot of this very moment (the trends get no point by it); the newest if the loop is busy."""
        loop = self._loop
        if loop is None or self._stopping or loop.is_closed():
            return self._latest
        try:
            return asyncio.run_coroutine_threadsafe(self._take(), loop).result(TAKE_S)
        except TimeoutError:
            return self._latest

    def wait_first_round(self, timeout_s: float) -> bool:
        """Wait until everybody has been asked for everything once; False if that took longer."""
        return self._first_round.wait(timeout_s)

    def subscribe(self, callback: Callable[[Snapshot], object]) -> Callable[[], None]:
        """Have ``callback`` called on the engine's thread for every snapshot; returns the way out."""
        self._subscribers = (*self._subscribers, callback)

        def leave() -> None:
            self._subscribers = tuple(one for one in self._subscribers if one is not callback)

        return leave

    def on_config(self, callback: Callable[[Accepted, Config | None], object]) -> None:
        """Have ``callback`` called on the engine's thread for every config that comes into force.

        Its second argument is the one before.
        """
        self._config_listeners = (*self._config_listeners, callback)

    @property
    def targets(self) -> Targets:
        """What is watched now."""
        return self._targets

    @property
    def config(self) -> Config | None:
        """The settings in force; None without a config file."""
        return self._board.setting.config

    @property
    def loaded(self) -> Loaded | None:
        """The config file whose settings are in force; None without one."""
        return self._config.active if self._config is not None else None

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other keys under which a router or the file has a watched worker, with its own."""
        return self._board.aliases

    def heard_of(self, router: str) -> Heard:
        """The newest that a router said itself, not yet judged."""
        watch = self._board.router_watch(router)
        return watch.heard if watch is not None else Heard()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``work`` on the engine's loop, whatever becomes of the caller."""
        loop = self._loop
        if loop is None or loop.is_closed():
            work.close()
            raise RuntimeError("the engine does not run")
        return asyncio.run_coroutine_threadsafe(work, loop)

    def set_read_only(self, read_only: bool) -> None:
        """Say so in the snapshots from now on."""
        self._board.setting = replace(self._board.setting, read_only=read_only)

    def history(self, key: str) -> WorkerHistory | None:
        """The past of one worker as a copy; None if it is not watched."""
        watch = self._board.worker(key)
        return WorkerHistory(self._tick_s, watch.history()) if watch is not None else None

    def raw_page(self, key: str) -> str | None:
        """A worker's metrics page as text: the one fetched last. Asking for it has a newer one fetched."""
        page = self._raw.get(key)
        now = time.monotonic()
        if page is None or now - page.asked_at >= RAW_AGAIN_S:
            self._call(self._fetch_raw, key)
        return page.text if page is not None else None

    def set_interval(self, seconds: float) -> None:
        """Read the metrics pages every ``seconds`` from now on; the config file does not change it back."""
        self._flags = {**self._flags, "interval_s": seconds}
        self._call(self._pace, seconds)

    # On the engine's thread

    def _run(self) -> None:
        try:
            asyncio.run(self._supervise())
        except Exception as error:
            log.exception("the engine has ended")
            self._publish(self._with_trouble(f"the engine has ended: {type(error).__name__}: {error}"))
        finally:
            self._ready.set()

    async def _supervise(self) -> None:
        """Keep the work going until :meth:`stop`; what is wrong is said, and tried again a little later."""
        self._loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping:
            begun = self._loop.time()
            self._work = self._loop.create_task(self._work_once())
            self._ready.set()
            await asyncio.wait((self._work,))
            if self._work.cancelled() or self._stopping:
                break
            error = self._work.exception()
            if self._loop.time() - begun > RESTART_S[-1]:
                failures = 0
            wait = RESTART_S[min(failures, len(RESTART_S) - 1)]
            failures += 1
            log.error("the engine failed", exc_info=error)
            words = f"internal error, polling again in {wait:g} s: {_root(error)!r}"
            self._trouble = (self._loop.time(), words)
            self._publish(self._with_trouble(words))
            self._work = self._loop.create_task(asyncio.sleep(wait))
            await asyncio.wait((self._work,))

    async def _work_once(self) -> None:
        self._poller = Poller(self._targets, self._board)
        self._board.routers_changed(self._targets.routers)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poller.run())
            group.create_task(self._publish_for_ever())
            if self._config is not None:
                group.create_task(self._follow_config(self._config))

    async def _publish_for_ever(self) -> None:
        """A snapshot a tick; in the first moments also in between: the screen fills as answers come."""
        loop = asyncio.get_running_loop()
        now = begun = loop.time()
        due, early_due = begun + self._tick_s, begun
        while True:
            if not self._first_round.is_set() and self._board.asked:
                self._first_round.set()
                due = now
            early = not self._first_round.is_set() and now - begun < EARLY_S
            if now >= due:
                self._publish(self._assemble(tick=True))
                due = max(due + self._tick_s, loop.time())
            elif early and now >= early_due:
                self._publish(self._assemble(tick=False))
                early_due = loop.time() + FIRST_TICKS_S
            pause = max(0.0, due - loop.time())
            await asyncio.sleep(min(pause, FIRST_LOOK_S) if early else pause)
            now = loop.time()

    async def _follow_config(self, watch: ConfigWatch) -> None:
        events = watch.events()
        async with contextlib.aclosing(events):
            async for event in events:
                if not isinstance(event, Accepted) or event.loaded.config is None:
                    continue
                config, before = event.loaded.config, self._board.setting.config
                targets = targets_of(config, event.loaded.path)
                targets = replace(targets, settings=replace(targets.settings, **self._flags))
                self._targets = targets
                self._window_s = min(config.console.window_secs, max(self._window_s, LONGEST_WINDOW_S))
                self._board.setting = replace(
                    self._board.setting,
                    cluster=targets.cluster,
                    config=config,
                    interval_s=targets.settings.interval_s,
                    notices=targets.notices,
                )
                self._board.paced(targets.settings.interval_s, targets.settings.loads_interval_s)
                self._board.routers_changed(targets.routers)
                if self._poller is not None:
                    self._poller.apply(targets)
                for listener in self._config_listeners:
                    listener(event, before)

    def _assemble(self, *, tick: bool) -> Snapshot:
        board, poller = self._board, self._poller
        if poller is not None:
            board.metrics_urls(poller.metrics_url)
        now = asyncio.get_running_loop().time()  # the poller's clock
        notices = list(self._targets.notices)
        problems: tuple[Problem, ...] = ()
        config_error = ""
        if self._config is not None:
            bad = errors(self._config.problems)
            config_error = "; ".join(problem.text for problem in bad)
            told = {problem.text for problem in bad}
            notices += [line for line in self._config.notices() if line not in told]
            problems = self._config.active.problems
        if self._trouble is not None and now - self._trouble[0] < TROUBLE_SHOWN_S:
            notices.append(self._trouble[1])
        board.setting = replace(
            board.setting,
            config_error=config_error,
            notices=tuple(notices),
            given=tuple(_as_finding(problem) for problem in problems if problem.kind == "secret_in_file"),
        )
        return board.snapshot(now, time.time(), self._window_s, tick=tick)

    async def _take(self) -> Snapshot:
        return self._assemble(tick=False)

    def _publish(self, snapshot: Snapshot) -> None:
        self._latest = snapshot
        for callback in self._subscribers:
            try:
                callback(snapshot)
            except Exception:
                log.exception("a subscriber failed")

    def _with_trouble(self, words: str) -> Snapshot:
        latest = self._latest
        return replace(latest, number=latest.number + 1, notices=(*latest.notices, words))

    def _worker_restarted(self, key: str) -> None:
        if self._poller is not None:
            self._poller.restarted(key)

    def _pace(self, seconds: float) -> None:
        settings = replace(self._targets.settings, interval_s=seconds)
        self._targets = replace(self._targets, settings=settings)
        self._board.paced(seconds, settings.loads_interval_s)
        self._board.setting = replace(self._board.setting, interval_s=seconds)
        if self._poller is not None:
            self._poller.apply(self._targets)

    def _fetch_raw(self, key: str) -> None:
        target = self._board.target(key)
        page = self._raw.get(key)
        now = time.monotonic()
        if target is None or (page is not None and now - page.asked_at < RAW_AGAIN_S):
            return
        page = _RawPage(now, page.text if page is not None else None)
        self._raw.pop(key, None)
        self._raw[key] = page
        while len(self._raw) > RAW_PAGES:
            del self._raw[next(iter(self._raw))]
        task = asyncio.get_running_loop().create_task(self._read_raw(key, page))
        self._raw_tasks.add(task)
        task.add_done_callback(self._raw_tasks.discard)

    async def _read_raw(self, key: str, page: _RawPage) -> None:
        target, settings = self._board.target(key), self._targets.settings
        if target is None:
            return
        dialler = Dialler(
            ca_file=settings.ca_file,
            connect_to=settings.connect_to,
            max_body_bytes=settings.max_body_bytes,
        )
        try:
            answer = await dialler.get(
                target.metrics or target.address,
                "/metrics",
                timeout_s=settings.timeout_s,
                key=target.bearer(settings),
            )
        finally:
            dialler.close()
        if answer.status == 200:
            page.text = answer.body.decode("utf-8", "replace")

    def _cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call it; nothing happens if it no longer runs."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(function, *arguments)


def _as_finding(problem: Problem) -> Finding:
    return Finding(Severity.WARNING, problem.kind, problem.rule, evidence=problem.text, fix=problem.fix)


def _flags(targets: Targets, loaded: Loaded | None) -> dict[str, Any]:
    """What the command line says otherwise than the file: it stays so when the file is read again."""
    if loaded is None or loaded.config is None:
        return {}
    given, written = targets.settings, targets_of(loaded.config, loaded.path).settings
    names = ("interval_s", "ca_file")
    return {name: getattr(given, name) for name in names if getattr(given, name) != getattr(written, name)}


def _root(error: BaseException | None) -> BaseException | None:
    """The first error inside a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
