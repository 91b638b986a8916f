"""What the gate does by itself with every snapshot: follows drains to their end, asserts the file."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pdtop.cluster.model import Snapshot
from pdtop.config.schema import Config
from pdtop.operations.applying import Scope
from pdtop.operations.asserting import Due
from pdtop.operations.audit import Attempt
from pdtop.operations.carrying import Carrier
from pdtop.operations.drain_life import advanced, since_then, taken_up, waits
from pdtop.operations.executing import Job, attempt_of
from pdtop.operations.following import DRAINED, LET_GO, drained_in
from pdtop.operations.model import Apply, Operation, Outcome, Plan
from pdtop.operations.parts import Parts
from pdtop.operations.state import StateUnwritable

_ENTRIES = 100  # of the log that are looked at


class Attendant:
    """On the engine's loop. ``keep_true``: assert the file wherever a router differs from it.

    ``unfinished``: workers of changes that an earlier pdtop was killed over.
    """

    def __init__(self, parts: Parts, carrier: Carrier, *, keep_true: bool) -> None:
        self._parts = parts
        self._carrier = carrier
        self._keep_true = keep_true
        self._ending: set[str] = set()  # drains whose end is being logged
        self.unfinished: frozenset[str] = frozenset()

    def take(self, snapshot: Snapshot) -> None:
        parts, now = self._parts, self._parts.now()
        parts.drains.follow(parts.known.config, now, but=self._carrier.queue.under_way)
        parts.drains.feed(snapshot, now)
        parts.returns.feed(snapshot)
        self._advance_drains(now)
        reasons = self._restarted_routers()
        if reasons:
            parts.remember(parts.memory.memory.restarted(reasons))
        if not parts.permission.read_only and parts.known.config is not None:
            self._take_up_drains(now)
            if parts.permission.operates:
                self._assert_what_is_due(snapshot, parts.known.config, reasons, now)

    def end_drain(self, operation: Operation) -> None:
        """It has ended: in the log before it is told."""
        if operation.id not in self._ending:
            self._ending.add(operation.id)
            self._parts.drains.over(operation.plan.targets)
            self._parts.tasks.spawn(self._log_and_tell(operation))

    async def _log_and_tell(self, operation: Operation) -> None:
        outcome = operation.outcome or Outcome.DONE
        verb = {Outcome.DONE: DRAINED, Outcome.TIMED_OUT: LET_GO}.get(outcome)
        try:
            if verb is not None:
                attempt = replace(attempt_of(operation), operation=verb)
                await asyncio.to_thread(self._log, attempt, outcome, operation)
        except StateUnwritable as error:
            operation = replace(operation, words=f"{operation.words}; not in the log: {error}")
        self._parts.showing.tell(operation)
        self._ending.discard(operation.id)

    def _log(self, attempt: Attempt, outcome: Outcome, operation: Operation) -> None:
        """Once, although a console and the service that it is beside both wait for it."""
        audit = self._parts.audit
        if attempt.operation != DRAINED or not drained_in(audit.entries(_ENTRIES), operation.plan.targets):
            audit.record(attempt, outcome, operation.words, (), operation.seconds)

    def _advance_drains(self, now: float) -> None:
        parts = self._parts
        for operation in parts.showing.operations:
            if self._carrier.queue.busy(operation.plan.targets):
                continue
            watches = parts.drains.of(operation.plan.targets)
            later = since_then(operation, [watch.worker for watch in watches])
            if later is not operation:
                parts.showing.tell(later)
            if not waits(operation):
                continue
            after = advanced(
                operation,
                [watch.progress(now) for watch in watches],
                overdue=any(watch.overdue for watch in watches),
                seconds=parts.seconds(operation),
            )
            if after.ended:
                self.end_drain(after)
            elif after is not operation:
                parts.showing.tell(after)

    def _take_up_drains(self, now: float) -> None:
        """Drains that no operation here waits for: of a console before this one, or by somebody's hand."""
        parts = self._parts
        waited_for = {key for one in parts.showing.operations if waits(one) for key in one.plan.targets}
        for watch in parts.drains.waited_for:
            progress = watch.progress(now)
            if progress.safe_to_stop or watch.worker in waited_for:
                continue
            if not self._carrier.queue.busy((watch.worker,)):
                id_, worker = parts.new_id(), watch.worker
                parts.showing.tell(taken_up(id_, worker, progress, parts.cluster, parts.clock()))

    def _restarted_routers(self) -> dict[str, str]:
        """Why, by router."""
        monitor, reasons = self._parts.monitor, {}
        for target in monitor.targets.routers:
            why = self._parts.asserting.hear(target.name, monitor.heard_of(target.name), target.address)
            if why:
                reasons[target.name] = why
        return reasons

    def _assert_what_is_due(
        self, snapshot: Snapshot, config: Config, reasons: dict[str, str], now: float
    ) -> None:
        parts = self._parts
        if self.unfinished and snapshot.routers:
            words = f"what was in flight: {', '.join(sorted(self.unfinished))}"
            for router in snapshot.routers:
                parts.asserting.owe(router.name, self.unfinished, words)
            self.unfinished = frozenset()
        asserted = (
            *parts.asserting.restarted(reasons, now),
            *parts.asserting.due(
                config,
                snapshot,
                now,
                back=parts.drains.back,
                busy=self._carrier.queue.busy,
                named=parts.memory.memory.named,
                keep_true=self._keep_true,
            ),
        )
        for due in asserted:
            self._assert(due, config)

    def _assert(self, due: Due, config: Config) -> None:
        plan = Plan(Apply(), due.title, self._parts.cluster, targets=tuple(sorted(due.workers or ())))
        job = Job(
            self._parts.operation(plan, due.source), after=config, scope=Scope(due.workers, due.routers)
        )
        self._parts.tasks.spawn(self._carrier.carry_out(job))
