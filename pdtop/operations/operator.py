"""The gate itself: plans, decides whether a change may be made, has it made, and keeps the view of it all.

It lives on the monitor's loop, so a closed screen or a stalled terminal stops nothing. Read-only is decided
here and nowhere else.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pdtop.cluster.model import Role, Snapshot
from pdtop.cluster.monitor import Monitor
from pdtop.config.changes import Change
from pdtop.config.schema import Config
from pdtop.config.watch import Accepted
from pdtop.operations.applying import Applier, Scope
from pdtop.operations.arming import Arming
from pdtop.operations.audit import AuditLog
from pdtop.operations.backups import Backups
from pdtop.operations.comparison import BeforeAfter
from pdtop.operations.config_file import ConfigFile
from pdtop.operations.controls import Controls
from pdtop.operations.executing import Executor, Job, Queue, attempt_of
from pdtop.operations.fields import Field, fields
from pdtop.operations.following import Drains
from pdtop.operations.lock import OperatorLock
from pdtop.operations.model import (
    Apply,
    Choice,
    Drain,
    DrainState,
    Guard,
    LogEntry,
    Operation,
    Outcome,
    Phase,
    Plan,
    Readmission,
    Request,
    Restart,
    RestartPlan,
    SetValue,
    SetWeight,
    Undrain,
    UnsetValue,
    View,
)
from pdtop.operations.origin import origin
from pdtop.operations.planner import Planner, Prepared
from pdtop.operations.readmission import Former, ReadmissionWatch
from pdtop.operations.restarting import restart_plan, run_command
from pdtop.operations.specs import Specs
from pdtop.operations.state import StateFolder, StateUnwritable, state_root
from pdtop.operations.undoing import aftermath, last_undoable

log = logging.getLogger(__name__)

_PLANS_KEPT = 16
_ENDED_KEPT = 20
READMISSION_S = 300.0
#: Something that should be in force and is not is asserted again, but no more often than this.
AGAIN_S = (10.0, 30.0, 60.0, 300.0)
LOCK_LOOK_S = 5.0


@dataclass(slots=True)
class _Again:
    """When the same may be asserted once more."""

    times: int = 0
    not_before: float = 0.0

    def due(self, now: float) -> bool:
        if now < self.not_before:
            return False
        self.not_before = now + AGAIN_S[min(self.times, len(AGAIN_S) - 1)]
        self.times += 1
        return True


class Operator:
    """Implements :class:`pdtop.operations.gate.Gate` over a started monitor.

    ``path``: the cluster's config.toml, None without one (then nothing can be changed). ``source``: who asks,
    for the log. ``keep_true``: assert the file at the routers whenever they differ (``pdtop apply --watch``).
    """

    def __init__(
        self,
        monitor: Monitor,
        *,
        path: Path | None,
        arming: Arming | None = None,
        root: Path | None = None,
        source: str = "console",
        keep_true: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        arming = arming if arming is not None else Arming(True)
        self._monitor = monitor
        self._source = source
        self._keep_true = keep_true
        self._clock = clock
        router = next((target.address.base_url for target in monitor.targets.routers), "")
        folder = StateFolder(
            root if root is not None else state_root(os.environ), monitor.targets.cluster, path, router
        )
        self._audit = AuditLog(folder, clock=clock)
        self._lock = OperatorLock(folder, clock=clock)
        backups = Backups(folder, clock=clock)
        self._file = ConfigFile(path, backups) if path is not None else None
        self._specs = Specs(folder)
        self._controls = Controls(monitor)
        self._applier = Applier(monitor, self._controls, self._specs)
        self._ours: set[str] = set()  # digests of files that we wrote
        self._executor = Executor(self._applier, self._file, self._audit, self._told, self._ours.add, clock)
        self._planner = Planner(
            monitor, self._applier, self._controls, self._file, self._specs, self._audit, backups
        )
        self._queue = Queue()
        self._drains = Drains(clock=clock)
        self._readmissions: dict[str, ReadmissionWatch] = {}
        self._formers: dict[str, Former] = {}
        self._comparison = BeforeAfter()
        self._prepared: OrderedDict[str, Prepared] = OrderedDict()
        self._ids = itertools.count(1)
        self._operations: dict[str, Operation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: dict[str, _Again] = {}
        self._started_with: Config | None = monitor.config  # what the routers are taken to run with
        self._pending: tuple[Change, ...] = ()
        self._marks: dict[str, frozenset[str]] = {}
        self._look_at_lock = 0.0
        self._view = View(read_only=True)
        self._changed = threading.Condition()
        self._subscribers: tuple[Callable[[View], object], ...] = ()
        self._notices: tuple[str, ...] = ()
        monitor.set_read_only(True)
        self._look_back()
        monitor.subscribe(self._took)
        monitor.on_config(self._config_came)
        if not arming.read_only and (problem := self._arm(arming.by)):
            self._notices = (*self._notices, f"read-only all the same: {problem}")
        self._submit(self._first_look())

    # The gate ----------------------------------------------------------------------------------------

    def plan(self, request: Request) -> Plan:
        """What would happen; see :meth:`pdtop.operations.gate.Gate.plan`."""
        prepared = self._planner.prepare(request, self._restart_plan())
        plan = replace(prepared.plan, id=str(next(self._ids)))
        plan = replace(plan, guards=(*self._gate_guards(), *plan.guards))
        self._prepared[plan.id] = prepared
        while len(self._prepared) > _PLANS_KEPT:
            self._prepared.popitem(last=False)
        return plan

    def start(self, plan: Plan, *, typed: Sequence[str] = (), overrule: bool = False) -> Operation:
        """Carry a plan out; see :meth:`pdtop.operations.gate.Gate.start`."""
        now = self._clock()
        operation = Operation(
            id=f"{int(now * 1000):x}-{secrets.token_hex(2)}",
            plan=plan,
            phase=Phase.WAITING,
            started=now,
            source=self._source,
        )
        refusal = self._refusal(plan, typed)
        if refusal is not None:
            operation = replace(
                operation,
                phase=Phase.ENDED,
                outcome=Outcome.REFUSED,
                words=refusal.text,
                next_step=refusal.to_change,
            )
            self._submit(self._refused(operation))
            return operation
        prepared = self._prepared[plan.id]
        job = Job(
            operation,
            session=prepared.session,
            raw=prepared.raw,
            base=prepared.base,
            overrule=overrule,
            undoes=prepared.undoes,
            after=prepared.after,
            scope=replace(
                prepared.scope, confirmed=frozenset(plan.targets) if plan.overrides else frozenset()
            ),
        )
        self._submit(self._begin(job))
        return operation

    def view(self) -> View:
        return self._view

    def subscribe(self, callback: Callable[[View], object]) -> Callable[[], None]:
        self._subscribers = (*self._subscribers, callback)

        def leave() -> None:
            self._subscribers = tuple(one for one in self._subscribers if one is not callback)

        return leave

    def choose(self, operation_id: str, choice: Choice) -> None:
        self._submit(self._chosen(operation_id, choice))

    def dismiss(self, operation_id: str | None = None) -> None:
        self._submit(self._dismissed(operation_id))

    def arm(self) -> str:
        return self._arm("this console")

    def disarm(self) -> None:
        self._lock.release()
        self._monitor.set_read_only(True)
        self._show(read_only=True, armed_by="")

    def log(self, limit: int = 200) -> tuple[LogEntry, ...]:
        return self._audit.entries(limit)

    def fields(self) -> tuple[Field, ...]:
        engines = self._controls.engines()
        loaded = self._file.read() if self._file is not None else None
        return fields(loaded, next(iter(engines.values()), "unknown"))

    def wait(self, operation_id: str, timeout_s: float | None = None) -> Operation:
        def found() -> Operation | None:
            one = next((o for o in self._view.operations if o.id == operation_id), None)
            return one if one is not None and (one.ended or one.choices) else None

        with self._changed:
            self._changed.wait_for(lambda: found() is not None, timeout_s)
        known = next((o for o in self._view.operations if o.id == operation_id), None)
        if known is None:
            raise KeyError(operation_id)
        return known

    def close(self) -> None:
        """Let go of the lock and of idle connections. What is under way is in the log."""
        self._lock.release()
        self._submit(self._hang_up())

    # Whether it may be -------------------------------------------------------------------------------

    def _arm(self, by: str) -> str:
        if self._file is None:
            return "there is no config.toml: changes would have nowhere to last"
        try:
            holder = self._lock.acquire()
        except StateUnwritable as error:
            return str(error)
        if holder is not None:
            self._show(holder=holder)
            return f"{holder.text} operates on this cluster"
        self._monitor.set_read_only(False)
        self._show(read_only=False, armed_by=by, holder=None)
        return ""

    def _gate_guards(self) -> tuple[Guard, ...]:
        """What the gate itself has against any change."""
        if not self._view.read_only:
            return ()
        holder = None if self._lock.held else self._lock.holder()
        if holder is not None:
            text = f"{holder.text} operates on this cluster"
            return (Guard("locked", text, "ask them, or wait until they have left or disarmed"),)
        text = "read-only: nothing can be changed from here"
        return (Guard("read_only", text, "in the console: W; on the command line: --write"),)

    def _refusal(self, plan: Plan, typed: Sequence[str]) -> Guard | None:
        own = self._gate_guards()
        if own:
            return own[0]
        if plan.id not in self._prepared:
            return Guard("vanished", "this plan is too old", "ask for it again")
        if (refusal := plan.refusal) is not None and refusal.kind not in ("read_only", "locked"):
            return refusal
        if plan.nothing_to_do:
            return Guard("nothing", plan.nothing_to_do)
        given = {word.strip() for word in typed}
        for guard in plan.guards:
            if guard.blocks and guard.override and guard.override not in given:
                return replace(guard, to_change=f"{guard.to_change}; or type {guard.override}".lstrip("; "))
        return None

    # Carrying out, on the engine's loop --------------------------------------------------------------

    async def _begin(self, job: Job) -> None:
        self._told(job.operation)
        task = asyncio.get_running_loop().create_task(self._carry_out(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, job: Job) -> None:
        request = job.request
        async with self._queue.turn(job.operation.plan.targets or ("",)):
            changed = self._changed_since(job)
            if changed is not None:
                ended = replace(
                    job.operation,
                    phase=Phase.ENDED,
                    outcome=Outcome.REFUSED,
                    words=changed.text,
                    next_step=changed.to_change,
                )
                await self._refused(ended)
                return
            snapshot = self._monitor.latest()
            for key in job.operation.plan.targets:
                if (worker := snapshot.worker(key)) is not None and worker.identity.version is not None:
                    self._formers.setdefault(key, Former.of(worker))
            if isinstance(request, Restart):
                await self._restart(job)
                return
            await self._executor.run(job)
        if job.written is not None:
            self._drains.follow(job.written.after.config, self._now())
        operation = job.operation
        if job.applied.restart:
            self._pending = _merged(self._pending, job.applied.restart)
        if operation.outcome not in (Outcome.REFUSED, Outcome.FAILED):
            self._after(job)
        self._refresh_undoable()
        self._publish()

    def _after(self, job: Job) -> None:
        """What begins when a change has been made: waiting for a drain, watching a return, comparing."""
        request, operation, now = job.request, job.operation, self._clock()
        config = job.written.after.config if job.written is not None else job.after
        match request:
            case Drain(workers, timeout_s):
                who = origin(os.environ)
                self._drains.started(workers, f"{who.user}@{who.host}", timeout_s, config, self._now())
            case Undrain(workers):
                for key in workers:
                    self._readmissions[key] = ReadmissionWatch(
                        key, since=now, former=self._formers.pop(key, None)
                    )
                    self._cancel_drain_of(key)
            case SetWeight(worker, _):
                self._comparison.mark(now, operation.plan.title, self._role(worker))
            case SetValue(path, _) | UnsetValue(path) if path[0] in ("prefill", "decode"):
                self._comparison.mark(now, operation.plan.title, Role(path[0]))
            case _:
                pass

    def _changed_since(self, job: Job) -> Guard | None:
        """Something that speaks against it now and did not when it was planned."""
        if self._view.read_only:
            return self._gate_guards()[0]
        if not job.operation.plan.edits:
            return None
        known = {(guard.kind, guard.override) for guard in job.operation.plan.guards}
        now = self._planner.again(job.request)
        return next(
            (
                guard
                for guard in now.guards
                if guard.blocks and (guard.kind, guard.override) not in known and guard.kind != "file_changed"
            ),
            None,
        )

    async def _refused(self, operation: Operation) -> None:
        try:
            await asyncio.to_thread(
                self._audit.record, attempt_of(operation), Outcome.REFUSED, operation.words
            )
        except StateUnwritable as error:
            operation = replace(operation, words=f"{operation.words} (not in the log: {error})")
        self._told(operation)

    async def _restart(self, job: Job) -> None:
        plan, config = self._restart_plan(), self._monitor.config
        if config is None or not config.server.restart_command:
            await self._refused(
                replace(
                    job.operation,
                    phase=Phase.ENDED,
                    outcome=Outcome.REFUSED,
                    words="no command is configured that restarts the router",
                    next_step='write [server] restart_command = ["systemctl", "restart", "…"]',
                )
            )
            return

        async def run() -> tuple[Outcome, str]:
            ran = await run_command(config.server.restart_command)
            return ran.outcome, ran.words

        await self._executor.run_other(job, "restarting the router", run)
        if job.operation.outcome is Outcome.DONE:
            self._pending, self._started_with = (), config
        log.info("restart plan carried out: %s", plan)

    async def _chosen(self, operation_id: str, choice: Choice) -> None:
        operation = self._operations.get(operation_id)
        if operation is None or choice not in operation.choices:
            return
        request = operation.plan.request
        if choice is Choice.WAIT and isinstance(request, Drain):
            for key in request.workers:
                if (watch := self._drains.get(key)) is not None:
                    watch.timeout_s += request.timeout_s
            self._told(replace(operation, phase=Phase.DRAINING, choices=(Choice.CANCEL,)))
        elif choice is Choice.STOP_ANYWAY:
            left = [p.left for p in self._view.drains if p.worker in operation.plan.targets]
            known = sum(number for number in left if number is not None)
            words = f"not waited for any longer: {known:g} left will be cut when the worker is stopped"
            await self._log_event("drain", operation, Outcome.TIMED_OUT, words)
            self._told(_ended(operation, Outcome.TIMED_OUT, words, "U: bring it back"))
        elif choice is Choice.CANCEL:
            plan = await asyncio.to_thread(self.plan, Undrain(operation.plan.targets))
            back = self.start(plan)
            if back.outcome is Outcome.REFUSED:
                self._told(replace(operation, words=back.words))
                return
            self._told(_ended(operation, Outcome.CANCELLED, "being brought back", "o: see how that goes"))

    async def _dismissed(self, operation_id: str | None) -> None:
        for key, operation in tuple(self._operations.items()):
            if operation.ended and operation_id in (None, key):
                del self._operations[key]
        if operation_id is None:
            self._notices = ()
        self._publish()

    def _cancel_drain_of(self, worker: str) -> None:
        for operation in tuple(self._operations.values()):
            waits = operation.phase in (Phase.DRAINING, Phase.DEADLINE)
            if waits and set(operation.plan.targets) <= {worker, *self._readmissions}:
                self._told(_ended(operation, Outcome.CANCELLED, "brought back", ""))

    # Every snapshot, on the engine's loop -------------------------------------------------------------

    def _took(self, snapshot: Snapshot) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return  # said after the engine has ended
        now = self._now()
        self._drains.follow(self._monitor.config, now)
        self._drains.feed(snapshot, now)
        self._comparison.feed(snapshot)
        for key, watch in tuple(self._readmissions.items()):
            watch.feed(snapshot)
            if snapshot.at - watch.since > READMISSION_S:
                del self._readmissions[key]
        self._advance_drains(now)
        if not self._view.read_only:
            self._assert_drains(now)
            self._notice_restarts(snapshot)
            if self._keep_true:
                self._assert_file(snapshot, now)
        elif now >= self._look_at_lock:
            self._look_at_lock = now + LOCK_LOOK_S
            self._show(holder=self._lock.holder())
        self._publish()

    def _advance_drains(self, now: float) -> None:
        for operation in tuple(self._operations.values()):
            request = operation.plan.request
            if operation.phase not in (Phase.DRAINING, Phase.DEADLINE) or not isinstance(request, Drain):
                continue
            watches = [watch for key in request.workers if (watch := self._drains.get(key)) is not None]
            if not watches:
                continue
            progress = [watch.progress(now) for watch in watches]
            if all(one.safe_to_stop for one in progress) and len(progress) == len(request.workers):
                words = "drained: safe to stop"
                self._told(_ended(operation, Outcome.DONE, words, "U brings it back"))
                self._spawn(self._log_event("drained", operation, Outcome.DONE, words))
            elif operation.phase is Phase.DRAINING and any(watch.overdue for watch in watches):
                self._told(
                    replace(
                        operation,
                        phase=Phase.DEADLINE,
                        words="the deadline has passed; nothing was aborted",
                        choices=(Choice.WAIT, Choice.STOP_ANYWAY, Choice.CANCEL),
                    )
                )
            else:
                words = "; ".join(
                    _drain_words(one.worker, one.left, one.eta_s, one.state) for one in progress
                )
                if words != operation.words:
                    self._told(
                        replace(operation, words=words, seconds=max(0.0, self._clock() - operation.started))
                    )

    def _assert_drains(self, now: float) -> None:
        """A worker that came back at a router although the file says that it is drained."""
        back = [
            watch.worker
            for watch in self._drains
            if watch.reappeared
            and not self._queue.busy((watch.worker,))
            and self._again.setdefault(watch.worker, _Again()).due(now)
        ]
        if back:
            self._assert(frozenset(back), f"drained again: {', '.join(back)}", "reassert")

    def _notice_restarts(self, snapshot: Snapshot) -> None:
        """A router whose workers all have new ids has restarted, and lost what was told it by its API."""
        for router in snapshot.routers:
            ids = frozenset(
                worker_id
                for worker in snapshot.workers
                for opinion in worker.opinions
                if opinion.router == router.name and opinion.listed and not router.list_stale
                for worker_id in opinion.worker_ids
            )
            if not ids:
                continue
            before = self._marks.get(router.name)
            self._marks[router.name] = ids
            if before and not before & ids:
                self._assert(None, f"{router.name} has restarted: config.toml asserted", "router restarted")

    def _assert_file(self, snapshot: Snapshot, now: float) -> None:
        kinds = ("not_in_router", "not_in_config", "drain", "role", "bootstrap_port")
        keys = frozenset(one.worker for one in snapshot.drift if one.kind in kinds and one.router is not None)
        due = frozenset(
            key
            for key in keys
            if not self._queue.busy((key,)) and self._again.setdefault(key, _Again()).due(now)
        )
        if due:
            self._assert(due, f"as config.toml says: {', '.join(sorted(due))}", "apply --watch")

    def _assert(self, workers: frozenset[str] | None, title: str, source: str) -> None:
        config = self._monitor.config
        if config is None:
            return
        plan = Plan(Apply(), title, self._monitor.targets.cluster, targets=tuple(sorted(workers or ())))
        operation = Operation(
            f"{int(self._clock() * 1000):x}-{secrets.token_hex(2)}",
            plan,
            Phase.WAITING,
            started=self._clock(),
            source=source,
        )
        self._spawn(self._begin(Job(operation, after=config, scope=Scope(workers))))

    def _config_came(self, event: Accepted, before: Config | None) -> None:
        """Somebody wrote config.toml, and it is in force."""
        config = event.loaded.config
        if event.loaded.digest in self._ours or config is None:
            self._ours.discard(event.loaded.digest)
            return
        if not event.changes:
            return
        self._drains.follow(config, self._now())
        if self._view.read_only:
            return  # what differs is shown as drift
        plan = Plan(
            Apply(),
            "config.toml edited: " + "; ".join(change.text for change in event.changes[:3]),
            self._monitor.targets.cluster,
            rows=tuple(("changed", change.text) for change in event.changes),
        )
        operation = Operation(
            f"{int(self._clock() * 1000):x}-{secrets.token_hex(2)}",
            plan,
            Phase.WAITING,
            started=self._clock(),
            source="config.toml edited",
        )
        self._spawn(self._begin(Job(operation, before=before, after=config)))

    # The view ----------------------------------------------------------------------------------------

    def _told(self, operation: Operation) -> None:
        self._operations[operation.id] = operation
        ended = [key for key, one in self._operations.items() if one.ended]
        for key in ended[:-_ENDED_KEPT]:
            del self._operations[key]
        self._publish()

    def _publish(self) -> None:
        now = self._now()
        self._show(
            operations=tuple(self._operations.values()),
            drains=self._drains.progress(now),
            readmissions=tuple(_readmission(watch) for watch in self._readmissions.values()),
            restart=self._restart_plan(),
            comparison=self._comparison.comparison(self._clock()),
            notices=self._notices,
        )

    def _show(self, **changes: Any) -> None:
        with self._changed:
            view = replace(self._view, **changes)
            if view == self._view:
                return
            self._view = view
            self._changed.notify_all()
        for callback in self._subscribers:
            try:
                callback(view)
            except Exception:
                log.exception("a subscriber failed")

    def _restart_plan(self) -> RestartPlan | None:
        config = self._monitor.config
        if config is None or not self._pending:
            return None
        return restart_plan(self._pending, config, self._controls.engines())

    def _refresh_undoable(self) -> None:
        self._show(undoable=_undoable(self._audit.entries(200)))

    def _look_back(self) -> None:
        """What was in flight when a pdtop was killed is said and put in order in the log."""
        try:
            loaded = self._file.read() if self._file is not None else None
            told = []
            for entry in self._audit.in_flight():
                outcome, words, change = aftermath(entry, loaded)
                told.append(f"{entry.extra.get('title', entry.operation)}: {words}")
                self._audit.end(entry.id, outcome, words, change=change)
            self._notices = tuple(told)
        except StateUnwritable as error:
            self._notices = (str(error),)
        entries = self._audit.entries(500)
        self._drains.recall(entries)
        self._view = replace(self._view, notices=self._notices, undoable=_undoable(entries))

    async def _first_look(self) -> None:
        self._drains.follow(self._monitor.config, self._now())
        self._publish()

    async def _log_event(self, verb: str, operation: Operation, outcome: Outcome, words: str) -> None:
        attempt = replace(attempt_of(operation), operation=verb)
        try:
            await asyncio.to_thread(self._audit.record, attempt, outcome, words)
        except StateUnwritable as error:
            log.warning("not in the log: %s", error)

    async def _hang_up(self) -> None:
        self._controls.close()

    # Small things ------------------------------------------------------------------------------------

    def _now(self) -> float:
        """The engine's clock; from outside its loop the same one."""
        return time.monotonic()

    def _role(self, worker: str) -> Role:
        found = self._monitor.latest().worker(worker)
        return found.role if found is not None else Role.UNKNOWN

    def _submit(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._monitor.submit(work)
        except RuntimeError:
            log.warning("the engine has ended")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _ended(operation: Operation, outcome: Outcome, words: str, next_step: str) -> Operation:
    return replace(
        operation, phase=Phase.ENDED, outcome=outcome, words=words, next_step=next_step, choices=()
    )


def _drain_words(worker: str, left: float | None, eta_s: float | None, state: DrainState) -> str:
    words = f"{worker}: {state.value}" if state is not DrainState.DRAINING else worker
    words += f" {left:g} left" if left is not None else ", what is left is not known"
    return words + (f", about {eta_s:.0f} s" if eta_s is not None else "")


def _readmission(watch: ReadmissionWatch) -> Readmission:
    checks = tuple((check.state.value, check.words) for check in watch.checks)
    return Readmission(watch.worker, watch.since, checks)


def _undoable(entries: Iterable[LogEntry]) -> str:
    """What undo would take back, in words."""
    entry = last_undoable(entries)
    return "" if entry is None else entry.extra.get("title", f"{entry.operation} {entry.target}")


def _merged(before: Sequence[Change], new: Iterable[Change]) -> tuple[Change, ...]:
    """Changes that wait for a restart: of one key the newest counts, from what it was at first."""
    found = {change.key: change for change in before}
    for change in new:
        first = found.get(change.key)
        found[change.key] = change if first is None else replace(change, before=first.before)
    return tuple(found.values())
