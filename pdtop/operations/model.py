"""The words of changing a cluster as frozen data: request, guard, plan, operation, drain, outcome.

Front ends make a :class:`Request`, get a :class:`Plan`, show it, and hand it back to the gate; what comes of
it they see in :class:`View`. Nothing in here does I/O.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

from pdtop.cluster.model import Role
from pdtop.config.changes import Change
from pdtop.config.edit import Edit
from pdtop.config.save import Conflict
from pdtop.routers.control import Call

# What may be asked for. Workers are canonical keys (``host:port``), as in a snapshot.


@dataclass(frozen=True, slots=True)
class Drain:
    """No new work for these workers, then wait until each is empty; after ``timeout_s`` pdtop asks."""

    workers: tuple[str, ...]
    timeout_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class Undrain:
    """Bring drained workers back with the spec that they had."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetWeight:
    worker: str
    weight: float


@dataclass(frozen=True, slots=True)
class SetValue:
    """Set one key of config.toml. ``spelling`` is TOML as typed; it is kept."""

    path: tuple[str, ...]
    spelling: str


@dataclass(frozen=True, slots=True)
class UnsetValue:
    """Take one key of config.toml out, so that its default counts."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddWorker:
    role: Role
    address: str
    bootstrap_port: int | None = None


@dataclass(frozen=True, slots=True)
class RemoveWorker:
    """Take the worker out of config.toml and of the routers. Its own table in the file goes, too."""

    worker: str


@dataclass(frozen=True, slots=True)
class Apply:
    """Bring the routers to what the file says. ``prune``: also remove workers that no file ever named."""

    prune: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """Carry out the restart plan with ``[server] restart_command``."""


@dataclass(frozen=True, slots=True)
class Undo:
    """Take back a change of the audit log. ``entry`` None: the last one that can be."""

    entry: str | None = None


Request = (
    Drain | Undrain | SetWeight | SetValue | UnsetValue | AddWorker | RemoveWorker | Apply | Restart | Undo
)


# What is known before anything is done.


@dataclass(frozen=True, slots=True)
class Guard:
    """Something that speaks against it.

    ``kind`` is a stable word: read_only, no_config, broken_config, vanished, last_of_pool, capacity,
    all_weights_zero, weight_zero, power_of_two, range, no_effect, needs_restart, restart, no_command, file,
    file_changed, changed_since (by somebody else, after what is to be undone), nothing (to do), locked,
    router, unknown_key, secret_in_file, cannot_edit, config (a doubt about the file), unknown_worker,
    not_in_config, exists, role, has_work, unreachable, bootstrap_port.
    ``to_change`` says what would have to be different. A guard that ``blocks`` refuses the plan, unless
    ``override`` is typed (a worker's name; "" = there is no override). Others are warnings.
    """

    kind: str
    text: str
    to_change: str = ""
    blocks: bool = True
    override: str = ""


@dataclass(frozen=True, slots=True)
class PoolEffect:
    """A pool before and after: what the rest has to carry. None = not known."""

    role: Role
    total: int
    usable_before: int
    usable_after: int
    kv_before: float | None = None  # mean KV use over usable workers
    kv_after: float | None = None  # the same tokens on the rest
    running_before: float | None = None  # mean per usable worker
    running_after: float | None = None

    @property
    def text(self) -> str:
        """``decode: 3 of 4 usable stay, KV 61 % → 81 %``; ``decode: 3 → 4 usable, ...`` where it grows."""
        words = f"{self.role.value}: {self.usable_after} of {self.usable_before} usable stay"
        if self.usable_after > self.usable_before:
            words = f"{self.role.value}: {self.usable_before} → {self.usable_after} usable"
        if self.kv_before is not None and self.kv_after is not None:
            words += f", KV {self.kv_before:.0%} → {self.kv_after:.0%}".replace("%", " %")
        if self.running_before is not None and self.running_after is not None:
            words += f", running each {self.running_before:.0f} → {self.running_after:.0f}"
        return words


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that will be done, in words. ``where``: ``config.toml`` or a router's name."""

    where: str
    words: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All that will happen, for the question. ``rows`` are its lines: name and text (Now, After, How...)."""

    request: Request
    title: str
    cluster: str
    rows: tuple[tuple[str, str], ...] = ()
    guards: tuple[Guard, ...] = ()
    effects: tuple[PoolEffect, ...] = ()
    edits: tuple[Edit, ...] = ()
    diff: str = ""  # of config.toml, masked, with two lines around each change
    steps: tuple[Step, ...] = ()
    digest: str = ""  # of the file that the plan was made on
    conflicts: tuple[Conflict, ...] = ()
    other_changes: tuple[Change, ...] = ()  # made by somebody else since the plan before
    targets: tuple[str, ...] = ()  # keys of the workers it is about: operations on one worker queue up
    nothing_to_do: str = ""  # why there is nothing to confirm; "" if there is
    id: str = ""  # the gate's, to find the edits again

    @property
    def refusal(self) -> Guard | None:
        """What refuses it whatever is typed."""
        return next((guard for guard in self.guards if guard.blocks and not guard.override), None)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Words that must be typed to go on."""
        return tuple(
            dict.fromkeys(guard.override for guard in self.guards if guard.blocks and guard.override)
        )

    @property
    def warnings(self) -> tuple[Guard, ...]:
        return tuple(guard for guard in self.guards if not guard.blocks)


# What comes of it.


class Outcome(StrEnum):
    DONE = "done"
    ACCEPTED_NOT_APPLIED = "accepted, not applied"
    PARTLY_DONE = "partly done"
    TIMED_OUT = "timed out"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Phase(StrEnum):
    WAITING = "waiting"  # for another operation on the same worker
    WRITING = "writing"
    APPLYING = "applying"  # at the routers, with reading back
    DRAINING = "draining"
    DEADLINE = "deadline"  # asks: wait, stop anyway, cancel the drain
    ENDED = "ended"


class Choice(StrEnum):
    """Answers to a drain's deadline (and, at any time, ``CANCEL``: bring the worker back)."""

    WAIT = "wait"
    STOP_ANYWAY = "stop anyway"
    CANCEL = "cancel the drain"


class DrainState(StrEnum):
    DRAINING = "draining"
    PARTLY_DRAINED = "partly drained"  # a router still sends, or does not answer
    DRAINED = "drained"
    UNKNOWN = "unknown"  # the worker cannot be read


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far a worker has drained. ``left`` is the larger of the routers' count and the worker's own."""

    worker: str
    state: DrainState
    left: float | None = None
    eta_s: float | None = None  # from the fall so far
    since: float | None = None  # epoch seconds of the request, from the audit log
    by: str = ""  # who asked
    deadline: float | None = None  # epoch seconds
    still_on: tuple[str, ...] = ()  # routers that still send to it, or whose word is missing
    orphans: float | None = None  # running on the worker, held by no router
    note: str = ""  # e.g. "back at router R2: service discovery listed it again"

    @property
    def safe_to_stop(self) -> bool:
        return self.state is DrainState.DRAINED


@dataclass(frozen=True, slots=True)
class RouterOutcome:
    """What became of it at one router."""

    router: str
    outcome: Outcome
    words: str = ""
    fix: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything but reading was tried there."""
        return any(call.method != "GET" for call in self.calls)


#: Source of what is done because somebody wrote the file; who that was, the log cannot know.
FILE_EDITED = "config.toml edited"


@dataclass(frozen=True, slots=True)
class Operation:
    """One change under way or ended; kept until dismissed."""

    id: str
    plan: Plan
    phase: Phase
    outcome: Outcome | None = None
    words: str = ""
    next_step: str = ""  # the next sensible key or command
    started: float = 0.0  # epoch seconds
    seconds: float = 0.0
    source: str = "console"  # or "command line", "config.toml edited", "reassert"
    routers: tuple[RouterOutcome, ...] = ()
    choices: tuple[Choice, ...] = ()
    conflicts: tuple[Conflict, ...] = ()

    @property
    def ended(self) -> bool:
        return self.phase is Phase.ENDED


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """Changes of the file that take effect only with a restart of the router."""

    changes: tuple[Change, ...]
    command: tuple[str, ...]  # the router's new command line; () where it reads the file itself
    lost: tuple[str, ...]  # what the restart loses
    gap: str  # what clients will notice
    warnings: tuple[str, ...] = ()
    restart_command: tuple[str, ...] = ()  # what pdtop would run; () = not configured


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Another pdtop that operates on the same cluster. ``service``: it does so without a screen, for ever."""

    user: str
    host: str
    pid: int
    since: float  # epoch seconds
    service: bool = False

    @property
    def text(self) -> str:
        clock = time.strftime("%H:%M", time.localtime(self.since))
        return f"{self.user}@{self.host} (pid {self.pid}) since {clock}"

    @property
    def words(self) -> str:
        """What it does here."""
        if self.service:
            return f"{self.user}@{self.host}'s service tells the routers"
        return f"{self.text} operates on this cluster"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Before and after a change, one line a measure; ``words`` says what can be said honestly."""

    title: str
    since: float  # epoch seconds of the change
    before_s: float
    after_s: float
    rows: tuple[tuple[str, str, str, str], ...]  # measure, before, after, verdict
    words: str = ""


@dataclass(frozen=True, slots=True)
class Readmission:
    """The check list of a worker that was brought back: state (ok, waiting, failed) and words, in order."""

    worker: str
    since: float  # epoch seconds
    checks: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class View:
    """All that a screen needs to know of operations; frozen, latest wins."""

    read_only: bool = True
    armed_by: str = ""  # "--write", "config.toml" or "this console"; beside a service also that
    holder: LockHolder | None = None  # another pdtop has the lock; beside a service this one may be armed
    operations: tuple[Operation, ...] = ()  # oldest first
    drains: tuple[DrainProgress, ...] = ()
    restart: RestartPlan | None = None
    comparison: Comparison | None = None
    notices: tuple[str, ...] = ()  # e.g. what was in flight when pdtop was killed
    undoable: str = ""  # the change that undo would take back, in words
    readmissions: tuple[Readmission, ...] = ()

    def drain_of(self, worker: str) -> DrainProgress | None:
        return next((drain for drain in self.drains if drain.worker == worker), None)


EMPTY_VIEW = View()


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key of config.toml before and after, as TOML text; None = not set.

    ``hidden``: a secret is involved, so neither value is kept.
    """

    path: tuple[str, ...]
    before: str | None = None
    after: str | None = None
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class FileChange:
    """What one operation did to config.toml: enough to say it and to take it back."""

    digest_before: str
    digest_after: str
    backup: str = ""  # name of the kept bytes from before
    keys: tuple[KeyChange, ...] = ()
    made: tuple[tuple[str, ...], ...] = ()  # tables that were not there before


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One attempt in the audit log, from its begin to its end; ``outcome`` is "" while it is not ended."""

    id: str
    at: float  # epoch seconds
    user: str
    host: str
    ssh_client: str
    cluster: str
    operation: (
        str  # drain, undrain, weight, set, unset, add, remove, apply, restart, undo; drained, drain let go
    )
    target: str
    before: str = ""
    after: str = ""
    outcome: str = ""
    words: str = ""
    source: str = ""
    seconds: float | None = None
    calls: tuple[Call, ...] = ()
    undone_by: str = ""
    undoable: bool = False
    undoes: str = ""  # the entry that this one took back, or was to take back
    change: FileChange | None = None  # of config.toml; while not ended, the one that was planned
    pid: int = 0
    process: str = ""  # tells the process from a later one with the same pid
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def by(self) -> str:
        """Who asked for it. An edit of the file was only carried out by the user of the entry."""
        return "somebody (file edited)" if self.source == FILE_EDITED else f"{self.user}@{self.host}"
