"""Carry one operation out: log it, write config.toml, tell the routers, read back, log what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace

from pdtop.config.load import Loaded, load_bytes
from pdtop.config.save import EditSession
from pdtop.config.schema import Config
from pdtop.operations.applying import Applied, Applier, Scope
from pdtop.operations.audit import Attempt, AuditLog
from pdtop.operations.config_file import ConfigFile, NotWritten, Written
from pdtop.operations.edits import after_edits
from pdtop.operations.model import (
    AddWorker,
    Apply,
    Choice,
    Drain,
    FileChange,
    Operation,
    Outcome,
    Phase,
    RemoveWorker,
    Request,
    Restart,
    RouterOutcome,
    SetValue,
    SetWeight,
    Undo,
    Undrain,
    UnsetValue,
)
from pdtop.operations.state import StateUnwritable
from pdtop.operations.undoing import file_change
from pdtop.routers.control import Controlled

log = logging.getLogger(__name__)

_WORST_FIRST = (
    Outcome.FAILED,
    Outcome.REFUSED,
    Outcome.TIMED_OUT,
    Outcome.ACCEPTED_NOT_APPLIED,
    Outcome.PARTLY_DONE,
    Outcome.DONE,
)


@dataclass(slots=True)
class Job:
    """One operation under way. ``session`` holds its edits; ``raw`` is what undo restores instead."""

    operation: Operation
    session: EditSession | None = None
    raw: bytes | None = None
    base: Loaded | None = None  # the file that the plan was made on
    overrule: bool = False
    confirmed: frozenset[str] = frozenset()  # workers whose names were typed
    undoes: str = ""
    scope: Scope = field(default_factory=Scope)
    before: Config | None = None  # for a change of the file that others made
    after: Config | None = None
    audit_id: str = ""
    written: Written | None = None
    applied: Applied = field(default_factory=Applied)

    @property
    def request(self) -> Request:
        return self.operation.plan.request


class Queue:
    """Operations on one worker one after the other, whoever asks for them."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    def busy(self, keys: Iterable[str]) -> bool:
        return any(lock.locked() for key in keys if (lock := self._locks.get(key)) is not None)

    @contextlib.asynccontextmanager
    async def turn(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """Wait for the turn of all of ``keys``; taken in one order, so that nobody waits for each other."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield


class Executor:
    """Carries jobs out on the engine's loop.

    ``tell`` is given the operation at every step, ``wrote`` (from another thread) the digest of every file
    that was written here: who follows the file must not take it for somebody else's.
    """

    def __init__(
        self,
        applier: Applier,
        file: ConfigFile | None,
        audit: AuditLog,
        tell: Callable[[Operation], None],
        wrote: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._applier = applier
        self._file = file
        self._audit = audit
        self._tell = tell
        self._wrote = wrote
        self._clock = clock
        self._writing = asyncio.Lock()

    async def run(self, job: Job) -> None:
        """To its end, or, for a drain, until no new work comes; whatever happens is logged and told."""
        try:
            await self._run(job)
        except StateUnwritable as error:
            fix = "mend the state folder: what is done must be logged"
            await self._end(job, Outcome.REFUSED, str(error), fix)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("an operation failed")
            await self._end(job, Outcome.FAILED, f"internal error: {type(error).__name__}: {error}")

    async def _run(self, job: Job) -> None:
        if (refusal := await self._unwelcome(job)) is not None:
            words, fix = refusal
            await asyncio.to_thread(self._audit.record, attempt_of(job.operation), Outcome.REFUSED, words)
            await self._end(job, Outcome.REFUSED, words, fix)
            return
        async with self._writing:
            self._step(job, Phase.WRITING, "writing config.toml")
            stopped = await asyncio.to_thread(self._begin_and_write, job)
        if stopped is not None:
            outcome = Outcome.FAILED if stopped.failed else Outcome.REFUSED
            next_step = "look at the change again: it is shown on top of theirs" if stopped.moved else ""
            job.operation = replace(job.operation, conflicts=stopped.conflicts)
            await self._end(job, outcome, stopped.words, next_step)
            return
        after, before = self._configs(job)
        if after is not None:
            self._step(job, Phase.APPLYING, "telling the routers")
            job.applied = await self._applier.apply(after, before, job.scope)
        if job.applied.refused_everywhere and job.written is not None and job.written.change is not None:
            await self._take_back(job)
        await self._end(job, *_sum_up(job))

    async def run_other(
        self, job: Job, words: str, work: Callable[[], Awaitable[tuple[Outcome, str]]]
    ) -> None:
        """Something that is neither a file nor a router's API, logged in the same way."""
        try:
            job.audit_id = await asyncio.to_thread(self._audit.begin, attempt_of(job.operation))
        except StateUnwritable as error:
            fix = "mend the state folder: what is done must be logged"
            await self._end(job, Outcome.REFUSED, str(error), fix)
            return
        self._step(job, Phase.APPLYING, words)
        await self._end(job, *await work())

    async def _unwelcome(self, job: Job) -> tuple[str, str] | None:
        """Whether a router would not let us: asked before anything is written, so nothing is half done."""
        if not isinstance(job.request, Drain | Undrain | AddWorker | RemoveWorker | Apply):
            return None
        for name, one in (await self._applier.lists()).items():
            if isinstance(one, Controlled) and one.problem == "auth":
                return f"{name}: {one.words}; nothing was done", one.fix
        return None

    def _begin_and_write(self, job: Job) -> NotWritten | None:
        """In a thread: a log line, a backup, the file."""
        file = self._file
        if file is None or (job.session is None and job.raw is None):
            job.audit_id = self._audit.begin(attempt_of(job.operation, undoes=job.undoes))
            return None
        base = file.read()
        self._audit.hide(base.document)
        job.audit_id = self._audit.begin(
            attempt_of(job.operation, _planned(job, base, file.backup(base)), job.undoes)
        )
        if job.raw is not None:
            written = file.restore(job.raw, job.base or base)
        elif job.session is not None:
            written = file.write(job.session, overrule=job.overrule)
        if isinstance(written, NotWritten):
            return written
        job.written = written
        self._wrote(written.after.digest)
        return None

    def _configs(self, job: Job) -> tuple[Config | None, Config | None]:
        """The settings to bring the routers to, and those before."""
        if job.written is not None:
            return job.written.after.config, job.written.before.config
        return job.after, job.before

    async def _take_back(self, job: Job) -> None:
        """No router did anything: then the file must not say that they did."""
        if self._file is None or job.written is None:
            return
        self._wrote(job.written.before.digest)
        back = await asyncio.to_thread(self._file.restore, job.written.before.raw, job.written.after)
        if isinstance(back, Written):
            job.written = None

    def _step(self, job: Job, phase: Phase, words: str) -> None:
        job.operation = replace(job.operation, phase=phase, words=words, seconds=self._seconds(job))
        self._tell(job.operation)

    async def _end(self, job: Job, outcome: Outcome, words: str, next_step: str = "") -> None:
        """Log the outcome, then tell it; if it cannot be logged, say so, for it has happened."""
        job.operation = replace(
            job.operation,
            phase=Phase.ENDED,
            outcome=outcome,
            words=words,
            next_step=next_step,
            seconds=self._seconds(job),
            routers=job.applied.routers,
            choices=(),
        )
        if job.audit_id:
            try:
                await asyncio.to_thread(self._log_end, job, outcome, words)
            except StateUnwritable as error:
                job.operation = replace(job.operation, words=f"{words}; not in the log: {error}")
        if isinstance(job.request, Drain) and outcome not in (Outcome.REFUSED, Outcome.FAILED):
            self._tell(_waiting(job.operation))  # no new work comes: what is left is waited for
        else:
            self._tell(job.operation)

    def _log_end(self, job: Job, outcome: Outcome, words: str) -> None:
        self._audit.end(
            job.audit_id,
            outcome,
            words,
            [call for one in job.applied.routers for call in one.calls],
            job.operation.seconds,
            change=job.written.change if job.written is not None else None,
        )

    def _seconds(self, job: Job) -> float:
        return max(0.0, self._clock() - job.operation.started)


def _waiting(operation: Operation) -> Operation:
    words = "" if operation.outcome is Outcome.DONE else operation.words
    return replace(operation, phase=Phase.DRAINING, outcome=None, words=words, choices=(Choice.CANCEL,))


def verb_of(request: Request) -> str:
    """The word of the log for it."""
    match request:
        case Drain():
            return "drain"
        case Undrain():
            return "undrain"
        case SetWeight():
            return "weight"
        case SetValue():
            return "set"
        case UnsetValue():
            return "unset"
        case AddWorker():
            return "add"
        case RemoveWorker():
            return "remove"
        case Apply():
            return "apply"
        case Restart():
            return "restart"
        case Undo():
            return "undo"


def attempt_of(operation: Operation, change: FileChange | None = None, undoes: str = "") -> Attempt:
    """An operation as the log names it."""
    plan = operation.plan
    request = plan.request
    target = ", ".join(plan.targets)
    if isinstance(request, SetValue | UnsetValue) and not target:
        target = ".".join(request.path)
    return Attempt(
        verb_of(request),
        target or plan.title,
        source=operation.source,
        change=change,
        undoes=undoes,
        extra={"title": plan.title},
    )


def _planned(job: Job, base: Loaded, backup: str) -> FileChange | None:
    if job.raw is not None:
        return file_change(base, load_bytes(base.path, job.raw), backup)
    return file_change(base, after_edits(base, job.operation.plan.edits), backup)


def _sum_up(job: Job) -> tuple[Outcome, str, str]:
    """All routers' outcomes, what waits for a restart and what was held back, as one."""
    routers, applied = job.applied.routers, job.applied
    blocked = [
        f"{guard.text} ({guard.to_change})" if guard.to_change else guard.text for guard in applied.blocked
    ]
    outcome = _overall([one.outcome for one in routers])
    words = _told(routers)
    next_step = next((one.fix for one in routers if one.fix and one.outcome is not Outcome.DONE), "")
    if applied.refused_everywhere and job.written is None:
        words += "; config.toml is as it was"
    if blocked:
        outcome = Outcome.PARTLY_DONE if any(one.calls for one in routers) else Outcome.REFUSED
        words = "; ".join([*blocked, words] if words else blocked)
    if applied.restart and outcome is Outcome.DONE:
        keys = ", ".join(change.key for change in applied.restart)
        return (
            Outcome.ACCEPTED_NOT_APPLIED,
            f"written; {keys} counts only after a restart of the router",
            "c: the restart plan",
        )
    if outcome is Outcome.DONE and not routers:
        words = "written; no router is watched"
    return outcome, words or "done", next_step


def _overall(outcomes: list[Outcome]) -> Outcome:
    if not outcomes or all(one is Outcome.DONE for one in outcomes):
        return Outcome.DONE
    if Outcome.DONE in outcomes or Outcome.PARTLY_DONE in outcomes:
        return Outcome.PARTLY_DONE
    return min(outcomes, key=_WORST_FIRST.index)


def _told(routers: tuple[RouterOutcome, ...]) -> str:
    if len(routers) == 1:
        return routers[0].words
    return "; ".join(f"{one.router}: {one.words}" for one in routers if one.outcome is not Outcome.DONE) or (
        f"done at {len(routers)} routers" if routers else ""
    )
