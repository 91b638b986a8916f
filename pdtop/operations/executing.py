"""Carry one operation out: log it, write config.toml, tell the routers, read back, log what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from pdtop.config.keys import join_key
from pdtop.config.load import Loaded, load_bytes
from pdtop.config.save import EditSession
from pdtop.config.schema import Config
from pdtop.config.splice import CannotEdit
from pdtop.operations.applying import Applied, Applier, Scope, changed_workers
from pdtop.operations.audit import Attempt, AuditLog
from pdtop.operations.beside import CONFIRMED, Witness
from pdtop.operations.config_file import ConfigFile, NotWritten, Written
from pdtop.operations.edits import after_edits, edits_of
from pdtop.operations.known_file import KnownFile
from pdtop.operations.model import (
    AddWorker,
    Apply,
    Choice,
    Drain,
    FileChange,
    Guard,
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
    """One operation under way. ``session`` holds its edits; ``raw`` is what undo restores instead.

    ``before`` and ``after`` are the settings in force and those to bring the routers to, where the file is
    not written here; else ``before`` counts only if the file was broken. ``turn``: workers that nobody else
    may change meanwhile. ``typed``: words by which the operator overruled guards. ``others``: how often
    somebody else had changed the file when the plan was made.
    """

    operation: Operation
    session: EditSession | None = None
    raw: bytes | None = None
    base: Loaded | None = None  # the file that the plan was made on
    overrule: bool = False
    typed: frozenset[str] = frozenset()
    others: int = 0
    undoes: str = ""
    scope: Scope = field(default_factory=Scope)
    turn: frozenset[str] = frozenset()
    before: Config | None = None
    after: Config | None = None
    audit_id: str = ""
    written: Written | None = None
    not_back: str = ""  # why what was written stays, although no router did anything
    applied: Applied = field(default_factory=Applied)

    @property
    def request(self) -> Request:
        return self.operation.plan.request

    @property
    def writes(self) -> bool:
        return self.session is not None or self.raw is not None

    @property
    def configs(self) -> tuple[Config | None, Config | None]:
        """The settings before, and those to bring the routers to."""
        if self.written is None:
            return self.before, self.after
        return self.written.before.config or self.before, self.written.after.config


class Executor:
    """Carries jobs out on the engine's loop.

    ``tell`` is given the operation at every step, ``wrote`` every write of the file before anything else can
    happen on the loop: who follows the file must not take it for somebody else's.
    """

    def __init__(
        self,
        applier: Applier,
        file: ConfigFile | None,
        known: KnownFile,
        audit: AuditLog,
        witness: Witness,
        tell: Callable[[Operation], None],
        wrote: Callable[[Written], None],
        clock: Callable[[], float],
    ) -> None:
        self._applier = applier
        self._file = file
        self._known = known
        self._audit = audit
        self._witness = witness
        self._tell = tell
        self._wrote = wrote
        self._clock = clock
        self._writing = asyncio.Lock()

    async def run(self, job: Job, against: Callable[[], Awaitable[Guard | None]]) -> None:
        """To its end, or, for a drain, until no new work comes; whatever happens is logged and told.

        ``against``: what speaks against it; asked when nobody else can write the file any more, for two
        changes of different workers may each be right and both together not.
        """
        try:
            await self._run(job, against)
        except StateUnwritable as error:
            fix = "mend the state folder: what is done must be logged"
            outcome = Outcome.FAILED if job.written is not None else Outcome.REFUSED
            await self._end(job, outcome, str(error), fix)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("an operation failed")
            await self._end(job, Outcome.FAILED, f"internal error: {type(error).__name__}: {error}")

    async def refuse(self, operation: Operation, words: str, next_step: str) -> None:
        """It was not begun: one line in the log, then told."""
        ended = replace(
            operation, phase=Phase.ENDED, outcome=Outcome.REFUSED, words=words, next_step=next_step
        )
        try:
            await asyncio.to_thread(self._log_refusal, operation, words)
        except StateUnwritable as error:
            ended = replace(ended, words=f"{words} (not in the log: {error})")
        self._tell(ended)

    def _log_refusal(self, operation: Operation, words: str) -> None:
        """With what was asked for: which value was to become which."""
        wanted = _wanted(operation.plan.request, self._known.loaded)
        self._audit.record(attempt_of(operation, wanted), Outcome.REFUSED, words)

    async def _run(self, job: Job, against: Callable[[], Awaitable[Guard | None]]) -> None:
        if (refusal := await self._unwelcome(job)) is not None:
            await self._refuse(job, *refusal)
            return
        if job.writes:
            async with self._writing:
                if (guard := await against()) is not None:
                    await self._refuse(job, guard.text, guard.to_change)
                    return
                self._step(job, Phase.WRITING, "writing config.toml")
                stopped = await asyncio.to_thread(
                    self._begin_and_write, job, self._known.all_ours(job.others)
                )
                if job.written is not None:
                    self._wrote(job.written)
            if stopped is not None:
                outcome = Outcome.FAILED if stopped.failed else Outcome.REFUSED
                next_step = "look at the change again: it is shown on top of theirs" if stopped.moved else ""
                if stopped.failed:
                    next_step = "see to it that config.toml can be written, then do it again"
                job.operation = replace(job.operation, conflicts=stopped.conflicts)
                await self._end(job, outcome, stopped.words, next_step)
                return
            targets = frozenset(job.operation.plan.targets)
            changed = changed_workers(*job.configs)
            job.scope = replace(job.scope, workers=None if changed is None else changed | targets)
        else:
            job.audit_id = await asyncio.to_thread(
                self._audit.begin, attempt_of(job.operation, undoes=job.undoes)
            )
        before, after = job.configs
        if after is not None:
            if self._witness.needed:
                self._step(job, Phase.APPLYING, "waiting until the service has told the routers")
                job.applied = await self._witness.see(after, before, job.scope)
            else:
                self._step(job, Phase.APPLYING, "telling the routers")
                job.applied = await self._applier.apply(after, before, job.scope)
        if job.applied.refused_everywhere and job.written is not None and job.written.change is not None:
            await self._take_back(job)
        await self._end(job, *_sum_up(job))

    async def _refuse(self, job: Job, words: str, next_step: str) -> None:
        job.operation = replace(job.operation, phase=Phase.ENDED, outcome=Outcome.REFUSED)
        await self.refuse(job.operation, words, next_step)

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
        """Whether a router would not let us: asked before anything is written, so nothing is half done.

        Who has typed the name of such a router goes on without it, if there is another.
        """
        if not await asyncio.to_thread(self._needs_routers, job):
            return None
        lists = await self._applier.lists(job.scope)
        refusing = {
            name: one for name, one in lists.items() if isinstance(one, Controlled) and one.problem == "auth"
        }
        for name, one in refusing.items():
            if name not in job.typed or len(refusing) == len(lists):
                return f"{name}: {one.words}; nothing was done", one.fix
        return None

    def _needs_routers(self, job: Job) -> bool:
        """Whether this is a change that routers are told, or take over, while they run."""
        before, after = job.before, job.after
        if job.writes and self._file is not None:
            base = self._file.read()
            after_file = (
                load_bytes(base.path, job.raw)
                if job.raw is not None
                else after_edits(base, job.operation.plan.edits)
            )
            before, after = base.config or before, after_file.config
        return after is not None and self._applier.concerns_routers(before, after)

    def _begin_and_write(self, job: Job, ours: str) -> NotWritten | None:
        """In a thread: a log line, a backup, the file."""
        file = self._file
        if file is None:
            return NotWritten("there is no config.toml", failed=True)
        base = file.read()
        self._audit.hide(base.document)
        job.audit_id = self._audit.begin(
            attempt_of(job.operation, _planned(job, base, file.backup(base)), job.undoes, job.scope.confirmed)
        )
        if job.raw is not None:
            written = file.restore(job.raw, job.base or base)
        elif job.session is not None:
            written = file.write(job.session, overrule=job.overrule, ours=ours)
        if isinstance(written, NotWritten):
            return written
        job.written = written
        return None

    async def _take_back(self, job: Job) -> None:
        """No router did anything: then the file must not say that they did."""
        if self._file is None or job.written is None:
            return
        async with self._writing:
            back = await asyncio.to_thread(self._file.put_back, job.written)
            if isinstance(back, Written):
                job.written = None
                self._wrote(back)
            else:
                job.not_back = f"config.toml could not be put back: {back.words}"

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
        # A drain stops new work and then waits for what is left, also where a router must be told again.
        waits = isinstance(job.request, Drain) and job.written is not None
        self._tell(_waiting(job.operation) if waits else job.operation)

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


def attempt_of(
    operation: Operation,
    change: FileChange | None = None,
    undoes: str = "",
    confirmed: frozenset[str] = frozenset(),
) -> Attempt:
    """An operation as the log names it. ``change`` of config.toml, as it was planned or asked for.

    ``confirmed``: workers by whose name a guard was overruled.
    """
    plan = operation.plan
    request = plan.request
    target = ", ".join(plan.targets)
    if isinstance(request, SetValue | UnsetValue) and not target:
        target = join_key(request.path)
    if not target and change is not None:
        target = ", ".join(join_key(key.path) for key in change.keys)
    return Attempt(
        verb_of(request),
        target or plan.title,
        source=operation.source,
        change=change,
        undoes=undoes,
        extra={"title": plan.title, **({CONFIRMED: ", ".join(sorted(confirmed))} if confirmed else {})},
    )


def _wanted(request: Request, loaded: Loaded | None) -> FileChange | None:
    """What a request would have done to the file, whatever speaks against it; None if nothing can be said."""
    if loaded is None:
        return None
    try:
        return file_change(loaded, after_edits(loaded, edits_of(request, loaded)))
    except CannotEdit:
        return None


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
    if applied.refused_everywhere and (job.written is None or job.not_back):
        words += f"; {job.not_back or 'config.toml is as it was'}"
    if blocked:
        outcome = Outcome.PARTLY_DONE if any(one.changed for one in routers) else Outcome.REFUSED
        words = "; ".join([*blocked, words] if words else blocked)
    if applied.untold and outcome in (Outcome.DONE, Outcome.PARTLY_DONE):
        untold = "; ".join(guard.text for guard in applied.untold)
        everywhere = len(applied.untold) >= len(routers)
        outcome = Outcome.ACCEPTED_NOT_APPLIED if everywhere else Outcome.PARTLY_DONE
        words, next_step = f"written; {untold}", next_step or applied.untold[0].to_change
    if applied.restart and outcome is Outcome.DONE:
        keys = ", ".join(change.key for change in applied.restart)
        return (
            Outcome.ACCEPTED_NOT_APPLIED,
            f"written; {keys} counts only after a restart of the router",
            "c: the restart plan",
        )
    if outcome is Outcome.DONE and not routers:
        words = "written; no router is watched"
    if outcome is Outcome.REFUSED and job.written is not None:
        outcome = Outcome.FAILED  # refused means that nothing was changed
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
