"""The gate itself: plans, lets changes be carried out if they may be, follows the file, keeps the view.

It lives on the monitor's loop, so a closed screen or a stalled terminal stops nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pdtop.cluster.desired import desired
from pdtop.cluster.model import Snapshot
from pdtop.cluster.monitor import Monitor
from pdtop.config.schema import Config
from pdtop.config.watch import Accepted
from pdtop.operations.applying import Applier, Scope, changed_workers
from pdtop.operations.arming import Arming
from pdtop.operations.attending import Attendant
from pdtop.operations.audit import AuditLog
from pdtop.operations.backups import Backups
from pdtop.operations.beside import Witness, change_found, confirmed_in, guards_beside
from pdtop.operations.carrying import Carrier, keys_of
from pdtop.operations.config_file import ConfigFile, Written
from pdtop.operations.controls import Controls
from pdtop.operations.drain_life import ended, not_waited_for, waiting_on
from pdtop.operations.executing import Executor, Job
from pdtop.operations.fields import Field, fields
from pdtop.operations.known_file import Edited, KnownFile
from pdtop.operations.lock import BESIDE, OperatorLock
from pdtop.operations.memory import Remembering
from pdtop.operations.model import (
    FILE_EDITED,
    Apply,
    Choice,
    Drain,
    Guard,
    LogEntry,
    Operation,
    Outcome,
    Plan,
    Request,
    RestartPlan,
    Undrain,
    View,
)
from pdtop.operations.parts import Parts, Tasks
from pdtop.operations.permission import Permission
from pdtop.operations.planner import Planner, Prepared
from pdtop.operations.restarting import restart_plan
from pdtop.operations.showing import Showing
from pdtop.operations.specs import Specs
from pdtop.operations.state import StateUnwritable, folder_of
from pdtop.operations.undoing import aftermath, undoable_title

_PLANS_KEPT = 16
_ENTRIES = 500  # of the log that are looked at
_TOLD = 3  # changes in a title
LOCK_LOOK_S = 5.0
#: Who follows the file has seen a write of ours by then; if not, the file itself is looked at.
BEHIND_S = 3.0


class Operator:
    """Implements :class:`pdtop.operations.gate.Gate` over a started monitor.

    ``path``: the cluster's config.toml, None without one (then nothing can be changed). ``source``: who asks,
    for the log. ``keep_true``: assert the file at the routers whenever they differ (``pdtop apply --watch``);
    beside such a service any other writes the file and leaves the routers to it.
    ``clock`` gives epoch seconds, ``ticks`` is the clock of the monitor's loop.
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
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        arming = arming if arming is not None else Arming(True)
        folder = folder_of(monitor.targets, path, root)
        audit, backups = AuditLog(folder, clock=clock), Backups(folder, clock=clock)
        self._source = source
        self._file = ConfigFile(path, backups) if path is not None else None
        in_force = monitor.loaded
        if in_force is None and self._file is not None:
            in_force = self._file.read()
        tasks = Tasks(monitor)
        permission = Permission(
            OperatorLock(folder, service=keep_true, clock=clock),
            OperatorLock(folder, name=BESIDE, clock=clock) if not keep_true else None,
            can_change=path is not None,
            told=self._permission_changed,
        )
        self._parts = parts = Parts(
            monitor,
            tasks,
            permission,
            Showing(tasks.call),
            audit,
            KnownFile(in_force),
            Remembering(folder, lambda: permission.operates, self._publish),
            clock,
            ticks,
        )
        specs = Specs(folder)
        self._controls = Controls(monitor)
        applier = Applier(
            monitor,
            self._controls,
            specs,
            lambda: parts.memory.memory.named,
            lambda router, worker: parts.asserting.readded(router, worker, parts.now()),
        )
        witness = Witness(applier, self._controls.engines, permission)
        self._executor = Executor(
            applier, self._file, parts.known, audit, witness, parts.showing.tell, self._we_wrote, clock
        )
        self._planner = Planner(monitor, applier, self._controls, self._file, specs, audit, backups)
        self._prepared: dict[str, Prepared] = {}
        self._ids = itertools.count(1)
        self._carrier = Carrier(parts, self._executor, self._planner, self._prepared.__setitem__)
        self._attendant = Attendant(parts, self._carrier, keep_true=keep_true)
        self._wrote_at = float("-inf")
        self._look_at_lock = float("-inf")
        self._notices: tuple[str, ...] = ()
        self._closed = False
        monitor.set_read_only(True)
        self._hide_keys()
        self._look_back()
        self._leave = monitor.subscribe(self._took)
        monitor.on_config(self._config_came)
        if not arming.read_only and (problem := self._arm(arming.by)):
            self._notices = (*self._notices, f"read-only all the same: {problem}")
        self._publish()
        tasks.submit(self._first_look())

    # The gate ----------------------------------------------------------------------------------------

    def plan(self, request: Request) -> Plan:
        """What would happen; see :meth:`pdtop.operations.gate.Gate.plan`."""
        others = self._parts.known.others
        prepared = self._planner.prepare(request, self._restart_plan())
        plan = replace(prepared.plan, id=str(next(self._ids)))
        self._prepared[plan.id] = replace(prepared, others=others)
        for old in tuple(self._prepared)[:-_PLANS_KEPT]:
            self._prepared.pop(old, None)
        permission = self._parts.permission
        if (service := permission.service) is not None:
            plan = replace(plan, rows=(*plan.rows, ("Beside", f"{service.words}; this waits to see it done")))
        own = (*permission.guards(), *guards_beside(request, service))
        return replace(plan, guards=(*own, *plan.guards))

    def start(self, plan: Plan, *, typed: Sequence[str] = (), overrule: bool = False) -> Operation:
        """Carry a plan out; see :meth:`pdtop.operations.gate.Gate.start`."""
        operation = self._parts.operation(plan, self._source)
        prepared = self._prepared.pop(plan.id, None)  # only one of two threads gets it
        words = frozenset(word.strip() for word in typed)
        refusal = self._refusal(prepared, words)
        if prepared is None or refusal is not None:
            if prepared is not None:
                self._prepared[plan.id] = prepared
            told = refusal or Guard("vanished", "this plan is too old, or was begun", "ask for it again")
            self._parts.tasks.submit(self._executor.refuse(operation, told.text, told.to_change))
            return ended(operation, Outcome.REFUSED, told.text, told.to_change)
        scope = prepared.scope
        if prepared.plan.overrides:
            scope = replace(scope, confirmed=scope.workers or frozenset(plan.targets))
        job = Job(
            operation,
            session=prepared.session,
            raw=prepared.raw,
            base=prepared.base,
            overrule=overrule,
            typed=words,
            others=prepared.others,
            undoes=prepared.undoes,
            before=self._parts.known.config if prepared.after is None else None,
            after=prepared.after,
            scope=scope,
        )
        self._parts.showing.tell(operation)
        if not self._parts.tasks.submit(self._started(job, prepared)):
            operation = ended(operation, Outcome.FAILED, "pdtop's engine has ended", "start pdtop again")
            self._parts.showing.tell(operation)
        return operation

    def view(self) -> View:
        return self._parts.showing.view

    def subscribe(self, callback: Callable[[View], object]) -> Callable[[], None]:
        return self._parts.showing.subscribe(callback)

    def choose(self, operation_id: str, choice: Choice) -> None:
        self._parts.tasks.submit(self._chosen(operation_id, choice))

    def dismiss(self, operation_id: str | None = None) -> None:
        if operation_id is None:
            self._notices = ()
            self._parts.showing.show(notices=())
        self._parts.showing.dismiss(operation_id)

    def arm(self) -> str:
        problem = self._arm("this console")
        if not problem:
            self._parts.tasks.submit(self._learn())
        return problem

    def disarm(self) -> None:
        """What is under way goes on; the lock is given back when it has ended."""
        self._parts.permission.disarm()

    def log(self, limit: int = 200) -> tuple[LogEntry, ...]:
        return self._parts.audit.entries(limit)

    def fields(self) -> tuple[Field, ...]:
        engines = self._controls.engines()
        loaded = self._file.read() if self._file is not None else None
        return fields(loaded, next(iter(engines.values()), "unknown"))

    def wait(self, operation_id: str, timeout_s: float | None = None) -> Operation:
        found = self._parts.showing.wait(operation_id, timeout_s)
        if found is None:
            raise KeyError(operation_id)
        return found

    def close(self) -> None:
        """Let go of the lock and of idle connections. What is under way is in the log."""
        self._closed = True
        self._leave()
        self._parts.permission.close()
        self._parts.tasks.submit(self._hang_up())

    def _arm(self, by: str) -> str:
        problem = self._parts.permission.arm(by)
        if not problem:
            self._parts.memory.refresh(self._parts.known.config)
            self._parts.tasks.submit(self._parts.memory.save())
        return problem

    def _refusal(self, prepared: Prepared | None, typed: frozenset[str]) -> Guard | None:
        if own := self._parts.permission.guards():
            return own[0]
        if prepared is None:
            return None
        plan = prepared.plan
        if beside := guards_beside(plan.request, self._parts.permission.service):
            return beside[0]
        if plan.refusal is not None:
            return plan.refusal
        if plan.nothing_to_do:
            return Guard("nothing", plan.nothing_to_do)
        for guard in plan.guards:
            if guard.blocks and guard.override not in typed:
                return replace(guard, to_change=f"{guard.to_change}; or type {guard.override}".lstrip("; "))
        return None

    # On the engine's loop ----------------------------------------------------------------------------

    async def _first_look(self) -> None:
        self._parts.tasks.engine = threading.get_ident()
        self._publish()

    async def _started(self, job: Job, prepared: Prepared) -> None:
        self._parts.tasks.spawn(self._carry_out(job, prepared))

    async def _carry_out(self, job: Job, prepared: Prepared | None = None) -> None:
        await self._carrier.carry_out(job, prepared)
        await self._learn()

    async def _chosen(self, operation_id: str, choice: Choice) -> None:
        parts = self._parts
        operation = parts.showing.operation(operation_id)
        if operation is None or choice not in operation.choices or parts.permission.guards():
            return
        request, targets = operation.plan.request, operation.plan.targets
        if choice is Choice.WAIT and isinstance(request, Drain):
            for key in request.workers:
                parts.drains.wait_longer(key, request.timeout_s)
            parts.showing.tell(waiting_on(operation))
        elif choice is Choice.STOP_ANYWAY:
            progress = parts.drains.progress(parts.now())
            self._attendant.end_drain(not_waited_for(operation, progress, parts.seconds(operation)))
        elif choice is Choice.CANCEL:
            back = self.start(await asyncio.to_thread(self.plan, Undrain(targets)))
            if back.outcome is Outcome.REFUSED:
                parts.showing.tell(replace(operation, words=back.words))
            else:
                words = "being brought back"
                parts.showing.tell(ended(operation, Outcome.CANCELLED, words, "o: see how that goes"))

    def _took(self, snapshot: Snapshot) -> None:
        if self._closed or not self._parts.tasks.here:
            return  # said before the first look, or after the engine has ended
        self._attendant.take(snapshot)
        parts, now = self._parts, self._parts.now()
        if not parts.permission.operates and now >= self._look_at_lock:
            self._look_at_lock = now + LOCK_LOOK_S
            if said := parts.permission.look():
                self._notices = (*self._notices, said)
        if now - self._wrote_at > BEHIND_S and parts.known.may_be_behind(parts.monitor.loaded):
            self._wrote_at = now
            parts.tasks.spawn(self._look_at_file())
        self._publish()

    # The file ----------------------------------------------------------------------------------------

    def _we_wrote(self, written: Written) -> None:
        parts = self._parts
        self._wrote_at = parts.now()
        edited = parts.known.wrote(written.before, written.after)
        if edited is not None:  # somebody else was there before us, and it was not yet told
            parts.tasks.spawn(self._took_over(edited))
        before, after = written.before.config, written.after.config
        if after is not None:
            self._remember(before, after)

    def _config_came(self, event: Accepted, before: Config | None) -> None:
        """What stands in config.toml is in force."""
        edited = self._parts.known.found(event.loaded)
        if edited is not None and not self._closed:
            self._parts.tasks.spawn(self._took_over(edited))

    async def _look_at_file(self) -> None:
        """Who follows the file has something else: has somebody undone our change in an instant?"""
        in_force = self._parts.monitor.loaded
        if self._file is None or in_force is None:
            return
        on_disk = await asyncio.to_thread(self._file.read)
        edited = self._parts.known.found(on_disk) if on_disk.digest == in_force.digest else None
        if edited is not None:
            await self._took_over(edited)

    async def _took_over(self, edited: Edited) -> None:
        """Somebody else wrote config.toml, and it is in force."""
        before, after, changes = edited.config_before, edited.config, edited.changes
        self._hide_keys()
        self._remember(before, after)
        permission = self._parts.permission
        entry = change_found(await self._learn(), edited.after.digest, self._parts.clock())
        if not changes or permission.read_only or not permission.operates:
            return  # who may not, or leaves it to a service, shows what differs as drift
        by = f" by {entry.user}@{entry.host}" if entry is not None else ""
        plan = Plan(
            Apply(),
            f"config.toml edited{by}: " + "; ".join(change.text for change in changes[:_TOLD]),
            self._parts.cluster,
            rows=tuple(("changed", change.text) for change in changes),
            diff=edited.diff,
        )
        scope = Scope(changed_workers(before, after), confirmed=confirmed_in(entry))
        operation = self._parts.operation(plan, FILE_EDITED)
        await self._carry_out(Job(operation, before=before, after=after, scope=scope))

    # What is remembered ------------------------------------------------------------------------------

    def _look_back(self) -> None:
        """What was in flight when a pdtop was killed is said and put in order in the log."""
        told: list[str] = []
        audit = self._parts.audit
        try:
            loaded = self._file.read() if self._file is not None else None
            for entry in audit.in_flight():
                outcome, words, change = aftermath(entry, loaded)
                told.append(f"{entry.extra.get('title', entry.operation)}: {words}")
                audit.end(entry.id, outcome, words, change=change)
                if change is not None:
                    keys = desired(self._parts.config).keys() & set(entry.target.split(", "))
                    self._attendant.unfinished |= keys
        except StateUnwritable as error:
            told.append(str(error))
        self._notices = tuple(told)
        self._take_entries(audit.entries(_ENTRIES))

    async def _learn(self) -> Sequence[LogEntry]:
        """Read the log: another console, or an operation just now, has written into it."""
        entries = await asyncio.to_thread(self._parts.audit.entries, _ENTRIES)
        self._take_entries(entries)
        self._publish()
        return entries

    def _take_entries(self, entries: Sequence[LogEntry]) -> None:
        parts = self._parts
        parts.drains.recall(entries)
        parts.drains.follow(parts.known.config, parts.now())
        parts.showing.show(undoable=undoable_title(entries))

    def _remember(self, before: Config | None, after: Config) -> None:
        memory = self._parts.memory.memory
        self._parts.remember(memory.changed(before, after, self._controls.engines()))

    def _hide_keys(self) -> None:
        """Keys that are in the environment must not get into the log by any router's words."""
        self._parts.audit.hide({"api_key": keys_of(self._parts.config)})

    # The view ----------------------------------------------------------------------------------------

    def _permission_changed(self) -> None:
        permission = self._parts.permission
        self._parts.monitor.set_read_only(permission.read_only)
        self._parts.showing.show(
            read_only=permission.read_only, armed_by=permission.by, holder=permission.holder
        )

    def _publish(self) -> None:
        parts = self._parts
        parts.showing.show(
            drains=parts.drains.progress(parts.now()),
            readmissions=parts.returns.readmissions,
            restart=self._restart_plan(),
            comparison=parts.returns.comparison(parts.clock()),
            notices=self._notices,
        )

    def _restart_plan(self) -> RestartPlan | None:
        config, changes = self._parts.known.config, self._parts.memory.memory.changes
        return restart_plan(changes, config, self._controls.engines()) if config and changes else None

    async def _hang_up(self) -> None:
        self._controls.close()
