"""Makes plans with the file open: the pure plan, then the diff, conflicts, what undo or apply would do."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pdtop.cluster.monitor import Monitor
from pdtop.config.changes import Change, table_changes
from pdtop.config.load import Loaded, load_bytes
from pdtop.config.save import EditSession, line_diff
from pdtop.config.save import Outcome as Saved
from pdtop.config.schema import Config
from pdtop.operations import guards as rules
from pdtop.operations import planning
from pdtop.operations.applying import Applier, Scope, changed_workers
from pdtop.operations.audit import AuditLog
from pdtop.operations.backups import Backups
from pdtop.operations.config_file import ConfigFile
from pdtop.operations.controls import Controls
from pdtop.operations.edits import after_edits
from pdtop.operations.model import (
    Apply,
    Guard,
    LogEntry,
    Plan,
    Request,
    Restart,
    RestartPlan,
    Step,
    Undo,
)
from pdtop.operations.reconcile import Action, Actions, Add, Remove
from pdtop.operations.specs import Specs
from pdtop.operations.undoing import last_undoable, undo
from pdtop.routers.control import WorkerSpec

_ASK_S = 20.0
_REQUESTS_KEPT = 16


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan and what carrying it out needs. ``raw``: the bytes that undo restores over ``base``.

    ``others``: how often somebody else had changed the file before.
    """

    plan: Plan
    session: EditSession | None = None
    raw: bytes | None = None
    base: Loaded | None = None
    undoes: str = ""
    after: Config | None = None  # where the file is not written: what routers are brought to
    scope: Scope = field(default_factory=Scope)
    others: int = 0


class Planner:
    """Plans for one cluster. Blocks for a moment (it reads files, for Apply also routers)."""

    def __init__(
        self,
        monitor: Monitor,
        applier: Applier,
        controls: Controls,
        file: ConfigFile | None,
        specs: Specs,
        audit: AuditLog,
        backups: Backups,
    ) -> None:
        self._monitor = monitor
        self._applier = applier
        self._controls = controls
        self._file = file
        self._specs = specs
        self._audit = audit
        self._backups = backups
        self._seen: OrderedDict[Request, Loaded] = OrderedDict()  # the file, when it was last asked for

    def prepare(self, request: Request, restart: RestartPlan | None = None) -> Prepared:
        """The plan for a request. ``restart``: the restart plan, if there is one."""
        match request:
            case Undo():
                return self._undo(request)
            case Apply():
                return self._apply(request)
            case Restart():
                return Prepared(self._restart(request, restart))
            case _:
                return self._edit(request)

    def guards_now(self, prepared: Prepared) -> tuple[Guard, ...]:
        """What speaks against it with what is known now; routers are not asked again."""
        request = prepared.plan.request
        match request:
            case Undo():
                return self._undo(Undo(prepared.undoes)).plan.guards
            case Apply():
                now = self._file.read() if self._file is not None else None
                if now is None or now.digest != prepared.plan.digest:
                    return (Guard("file_changed", "config.toml was changed meanwhile", "look again"),)
                return ()
            case Restart():
                return ()
            case _:
                loaded = self._file.read() if self._file is not None else None
                return self._pure(request, loaded).guards

    def _pure(self, request: Request, loaded: Loaded | None) -> Plan:
        return planning.plan(
            request,
            self._monitor.latest(),
            loaded,
            engines=self._controls.engines(),
            remembered=self._remembered(),
        )

    def _remembered(self) -> Mapping[str, WorkerSpec]:
        found: dict[str, WorkerSpec] = {}
        for name in self._controls.engines():
            found |= self._specs.of_router(name)
        return found

    def _edit(self, request: Request) -> Prepared:
        if self._file is None:
            return Prepared(self._pure(request, None))
        session = self._file.session()
        plan = self._pure(request, session.base)
        plan = replace(plan, other_changes=self._others(request, session.base))
        if not plan.edits:
            return Prepared(plan)
        staged = session.stage(plan.edits)
        guards = list(plan.guards)
        if staged.outcome is Saved.REFUSED and not any(guard.blocks for guard in guards):
            told = "; ".join([staged.reason, *(problem.text for problem in staged.problems)])
            guards.append(Guard("range", told, "see the valid values with `pdtop config schema`"))
        if (blocked := session.blocked) is not None:
            guards.append(
                Guard("file", blocked, "make config.toml writable for this user, or run as its owner")
            )
        plan = replace(plan, guards=tuple(guards), diff=staged.diff)
        scope = Scope(_touched_by(session.base, after_edits(session.base, plan.edits), plan.targets))
        return Prepared(plan, session, base=session.base, scope=scope)

    def _others(self, request: Request, base: Loaded) -> tuple[Change, ...]:
        """What somebody else changed since the same was asked for before."""
        before = self._seen.pop(request, base)
        self._seen[request] = base
        while len(self._seen) > _REQUESTS_KEPT:
            self._seen.popitem(last=False)
        return table_changes(before.document, base.document)

    def _undo(self, request: Undo) -> Prepared:
        plan = Plan(request, "Undo", self._monitor.targets.cluster)
        if self._file is None:
            return Prepared(replace(plan, guards=rules.file_guards(request, None)))
        entries = self._audit.entries(500)
        entry = (
            last_undoable(entries)
            if request.entry is None
            else next((one for one in entries if one.id == request.entry), None)
        )
        if entry is None:
            words = "nothing that pdtop changed here can be taken back"
            if request.entry is not None:
                words = f"the log has no change {request.entry}: pdtop log shows the ids"
            return Prepared(replace(plan, nothing_to_do=words))
        plan = replace(plan, title=f"Undo: {_called(entry)}", rows=_undo_rows(entry))
        base = self._file.read()
        undone = undo(base, entry, self._backups)
        if undone.kind == "refused":
            return Prepared(
                replace(plan, guards=(Guard("changed_since", undone.words, "edit config.toml by hand"),))
            )
        after = (
            load_bytes(base.path, undone.raw) if undone.raw is not None else after_edits(base, undone.edits)
        )
        guards: list[Guard] = []
        effects = plan.effects
        if base.config is not None and after.config is not None:
            kinds = tuple(self._controls.engines().values())
            snapshot = self._monitor.latest()
            guards += rules.pool_guards(snapshot, base.config, after.config, kinds)
            effects = rules.pool_effects(snapshot, base.config, after.config, kinds)
        plan = replace(
            plan,
            rows=(*plan.rows, ("Then", undone.words)),
            guards=tuple(guards),
            effects=effects,
            edits=undone.edits,
            diff=line_diff(base, after),
            digest=base.digest,
            targets=_keys(entry),
        )
        session = None
        if undone.raw is None:
            session = self._file.session()
            staged = session.stage(undone.edits)
            if staged.outcome is Saved.REFUSED:
                refusal = Guard("changed_since", staged.reason, "edit config.toml by hand")
                plan = replace(plan, guards=(*plan.guards, refusal))
        scope = Scope(_touched_by(base, after, plan.targets))
        return Prepared(plan, session, undone.raw, base, entry.id, scope=scope)

    def _apply(self, request: Apply) -> Prepared:
        loaded = self._file.read() if self._file is not None else None
        plan = Plan(request, "Bring the routers to what config.toml says", self._monitor.targets.cluster)
        if loaded is None or loaded.config is None:
            return Prepared(
                replace(plan, guards=rules.file_guards(request, loaded) or self._pure(request, loaded).guards)
            )
        scope = Scope(prune=request.prune)
        try:
            work = self._applier.plan(loaded.config, None, scope)
            todo, unread = self._monitor.submit(work).result(_ASK_S)
        except (RuntimeError, TimeoutError):
            told = Guard("router", "the routers could not be asked in time", "see whether they answer")
            return Prepared(replace(plan, guards=(told,)))
        steps = [Step(name, _words(action)) for name, found in todo.by_router.items() for action in found]
        rows = [("Left alone", f"{one.key} at {one.router}: {one.words}") for one in todo.left_alone]
        if todo.left_alone and not request.prune:
            rows.append(("", "`--prune` takes these out, too"))
        guards = [
            replace(guard, blocks=False) for guard in todo.guards if not unread or guard.kind != "router"
        ]
        guards += [
            Guard("router", f"{name}: {one.words}", one.fix, blocks=one.problem == "auth")
            for name, one in unread.items()
        ]
        nothing = ""
        if not steps and not unread:
            nothing = "the routers are as config.toml says"
            if todo.guards:
                nothing = todo.guards[0].text
        return Prepared(
            replace(
                plan,
                steps=tuple(steps),
                rows=tuple(rows),
                guards=tuple(guards),
                digest=loaded.digest,
                targets=_touched(todo),
                nothing_to_do=nothing,
            ),
            after=loaded.config,
            scope=scope,
        )

    def _restart(self, request: Restart, restart: RestartPlan | None) -> Plan:
        plan = Plan(request, "Restart the router", self._monitor.targets.cluster)
        if restart is None:
            return replace(plan, nothing_to_do="no change waits for a restart of the router")
        rows = [("Takes effect", change.text) for change in restart.changes]
        if restart.command:
            rows.append(("New command", " ".join(restart.command)))
        rows += [("Lost", words) for words in restart.lost]
        rows.append(("Gap", restart.gap))
        guards = [Guard("restart", words, blocks=False) for words in restart.warnings]
        steps: tuple[Step, ...] = ()
        if restart.restart_command:
            steps = (Step("this machine", "run " + " ".join(restart.restart_command)),)
        else:
            guards.append(
                Guard(
                    "no_command",
                    "pdtop does not know how to restart this router",
                    'write [server] restart_command = ["systemctl", "restart", "…"], or restart it by hand',
                )
            )
        return replace(plan, rows=tuple(rows), guards=tuple(guards), steps=steps)


def _touched_by(before: Loaded, after: Loaded, targets: Iterable[str]) -> frozenset[str] | None:
    changed = changed_workers(before.config, after.config)
    return None if changed is None else changed | frozenset(targets)


def _words(action: Action) -> str:
    if isinstance(action, Add):
        port = f", bootstrap port {action.bootstrap_port}" if action.bootstrap_port is not None else ""
        return f"add {action.role.value} {action.key}{port} ({action.why})"
    if isinstance(action, Remove):
        return f"take {action.key} out ({action.why})"
    return f"change {', '.join(action.fields)} of {action.key} ({action.why})"


def _touched(todo: Actions) -> tuple[str, ...]:
    keys = [action.key for found in todo.by_router.values() for action in found]
    return tuple(dict.fromkeys(keys))


def _called(entry: LogEntry) -> str:
    return entry.extra.get("title", f"{entry.operation} {entry.target}")


def _keys(entry: LogEntry) -> tuple[str, ...]:
    """The workers that it was about; the target of other operations is the name of a key."""
    return tuple(part for part in entry.target.split(", ") if ":" in part and " " not in part)


def _undo_rows(entry: LogEntry) -> tuple[tuple[str, str], ...]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
    return (("Done", f"{when} by {entry.user}@{entry.host}"), ("It did", f"{entry.before} → {entry.after}"))
