"""What has to be done at each router so that it is as config.toml says; pure, nothing is sent from here.

Workers are compared by canonical key, whatever spelling the file or a router uses; the DP ranks that a router
lists apart belong to one worker. The order is one that serves: workers come before others go, and what has
to be registered anew goes last, taken out before it is put in (a role or a bootstrap port is never edited in
place: routers keep the old one).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pdtop.cluster.address import Address
from pdtop.cluster.desired import Desired, desired
from pdtop.cluster.model import Breaker, Role
from pdtop.cluster.model import Health as Opinion
from pdtop.cluster.readings import ListedWorker
from pdtop.cluster.router_watch import key_of
from pdtop.config import changes as file
from pdtop.config.keys import split_key
from pdtop.config.schema import Config, Health
from pdtop.operations.model import Guard
from pdtop.routers.detect import DIALECTS, UNKNOWN
from pdtop.routers.dialect import Powers
from pdtop.routers.flags import effect, health_fields

_POOLS = (Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True)
class Add:
    """Register a worker.

    ``when_absent``: the router still lists it on its way out; post only once the address is gone (else 409,
    and a removal under way would take the new registration with it). ``key_variable``: the variable whose
    value it wants as key; routers do not hand on their own.
    """

    role: Role
    url: str  # as to be posted
    bootstrap_port: int | None
    why: str
    key: str = ""
    health: Mapping[str, int] = field(default_factory=dict)
    key_variable: str = ""
    when_absent: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Take one entry out. ``after_any``: keys of which at least one must have been added, and read back,
    before: without them the pool would have no usable worker."""

    worker_id: str
    url: str
    key: str
    why: str
    after_any: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Change fields of one entry."""

    worker_id: str
    url: str
    key: str
    fields: Mapping[str, object]
    why: str


Action = Add | Remove | Change


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A worker of a router that nothing is done to although it differs from the file, and why."""

    key: str
    words: str
    router: str = ""


@dataclass(frozen=True, slots=True)
class Actions:
    """All that is to be done. ``by_router`` has every router, also those with nothing to do.

    ``expect``: for routers that read the file themselves, what their list is to show by key: ``ready``,
    ``draining`` or ``absent``. ``restart``: changes that count only after a restart of some router.
    """

    by_router: Mapping[str, tuple[Action, ...]] = field(default_factory=dict)
    left_alone: tuple[LeftAlone, ...] = ()
    restart: tuple[file.Change, ...] = ()
    guards: tuple[Guard, ...] = ()
    expect: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def nothing_to_do(self) -> bool:
        """No router has to be told anything, and nothing was held back."""
        return not any(self.by_router.values()) and not self.guards


def actions(
    config: Config,
    listed: Mapping[str, Sequence[ListedWorker]],
    *,
    engines: Mapping[str, str],
    before: Config | None = None,
    scope: frozenset[str] | None = None,
    known: frozenset[str] = frozenset(),
    prune: bool = False,
    usable: Mapping[str, bool | None] | None = None,
    routers: Mapping[str, Address] | None = None,
    same: Mapping[str, str] | None = None,
    ports: Mapping[str, int] | None = None,
    confirmed: frozenset[str] = frozenset(),
) -> Actions:
    """From what routers list to what ``config`` says.

    ``engines``: every router by name; ``listed``: the lists that could be read. ``before``: the settings in
    force until now, None: not known, so that all is asserted anew. ``scope``: keys that may be touched, None:
    all. ``known``: keys that the file named at any time: only those, or with ``prune`` all, are taken out
    when the file does not name them. ``usable``: by key, as in a snapshot. ``routers``: as each was reached.
    ``same``: keys that are another key's worker. ``ports``: bootstrap ports as workers say them, where the
    file does not. ``confirmed``: workers that may leave their pool without a usable one.
    """
    same = same or {}
    was = _wanted(before, same) if before is not None else {}
    task = _Task(
        _wanted(config, same),
        was,
        frozenset(same.get(key, key) for key in scope) if scope is not None else None,
        frozenset({same.get(key, key) for key in known} | was.keys()),
        prune,
        usable or {},
        ports or {},
        confirmed,
        _health(config, before),
        config.server.api_key_env,
    )
    by_router: dict[str, tuple[Action, ...]] = {}
    expect: dict[str, Mapping[str, str]] = {}
    left_alone: list[LeftAlone] = []
    guards: list[Guard] = []
    for name, engine in engines.items():
        powers = DIALECTS.get(engine, UNKNOWN).powers
        by_router[name] = ()
        if name not in listed:
            guards.append(_router_guard(f"{name}: its worker list is not known; nothing is done there"))
            continue
        there = _by_key(listed[name], (routers or {}).get(name), same)
        if powers.reads_file:
            expect[name] = _expected(task, there)
            continue
        plan = _Plan(name, there, task, powers, where=f" at {name}" if len(engines) > 1 else "")
        plan.make()
        left_alone += plan.left_alone
        if plan.made and powers.drain_by == "none":
            guards.append(_router_guard(f"{name}: workers cannot be changed through this router ({engine})"))
            continue
        guards += plan.guards
        by_router[name] = tuple(plan.made)
    restart = restart_changes(before, config, engines) if before is not None else ()
    return Actions(by_router, tuple(left_alone), restart, tuple(guards), expect)


def reassert(
    config: Config,
    router: str,
    listed: Sequence[ListedWorker],
    *,
    engine: str,
    known: frozenset[str] = frozenset(),
    usable: Mapping[str, bool | None] | None = None,
    address: Address | None = None,
    same: Mapping[str, str] | None = None,
    ports: Mapping[str, int] | None = None,
    confirmed: frozenset[str] = frozenset(),
) -> Actions:
    """What a router that has restarted lost: drains, added workers, health settings."""
    return actions(
        config,
        {router: listed},
        engines={router: engine},
        known=known,
        usable=usable,
        routers={router: address} if address is not None else None,
        same=same,
        ports=ports,
        confirmed=confirmed,
    )


def restart_changes(before: Config, after: Config, engines: Mapping[str, str]) -> tuple[file.Change, ...]:
    """Changes that some router takes over only with a restart. ``before``: what it was started with."""
    kinds = frozenset(engines.values())
    return tuple(
        change
        for change in file.config_changes(before, after)
        if any(effect(engine, split_key(change.key)).kind == "restart" for engine in kinds)
    )


# Inside ---------------------------------------------------------------------------------------------------


Entries = tuple[ListedWorker, ...]


@dataclass(frozen=True, slots=True)
class _Health:
    """``fields`` as smg names them; ``changed``: None if it is not known what was before."""

    fields: Mapping[str, int]
    changed: bool | None


@dataclass(frozen=True, slots=True)
class _Task:
    """What all routers have in common."""

    wanted: Mapping[str, Desired]
    was: Mapping[str, Desired]  # in the settings before
    scope: frozenset[str] | None
    named: frozenset[str]  # by the file, now or at any time
    prune: bool
    usable: Mapping[str, bool | None]
    ports: Mapping[str, int]
    confirmed: frozenset[str]
    health: _Health
    key_variable: str

    def touches(self, key: str) -> bool:
        return self.scope is None or key in self.scope


class _Plan:
    """What to do at one router. :meth:`make` fills ``made``, ``left_alone`` and ``guards``."""

    def __init__(
        self, router: str, there: Mapping[str, Entries], task: _Task, powers: Powers, *, where: str
    ) -> None:
        self.made: list[Action] = []
        self.left_alone: list[LeftAlone] = []
        self.guards: list[Guard] = []
        self._router = router
        self._there = there
        self._task = task
        self._powers = powers
        self._where = where

    def make(self) -> None:
        task = self._task
        anew: list[str] = []
        changed: list[str] = []
        out: dict[str, str] = {}
        for key, want in task.wanted.items():
            entries = self._there.get(key, ())
            if not task.touches(key):
                if entries and task.health.changed and not want.table.drain:
                    changed.append(key)
            elif want.table.drain:
                if entries and not _leaving(entries):
                    out[key] = "drain"
            elif not entries or _leaving(entries):
                was = task.was.get(key)
                why = "no longer drained" if was is not None and was.table.drain else "not in the router"
                self.made.append(self._add(key, why, when_absent=bool(entries)))
            elif _role(entries) not in (Role.UNKNOWN, want.role) or self._other_port(key, want, entries):
                anew.append(key)
            elif task.health.changed is not False:
                changed.append(key)
        for key in sorted(self._there.keys() - task.wanted.keys()):
            if task.touches(key) and not _leaving(self._there[key]):
                if key in task.named:
                    out[key] = "removed from config.toml"
                elif task.prune:
                    out[key] = "not in config.toml"
                else:
                    self.left_alone.append(LeftAlone(key, "in router, not in config.toml", self._router))
        for key in changed:
            self.made += self._change_health(key)
        self._take_out(out, anew)

    def _add(self, key: str, why: str, *, when_absent: bool) -> Add:
        task, want = self._task, self._task.wanted[key]
        port = want.bootstrap_port
        if port is None and want.role is Role.PREFILL:
            told = [entry.bootstrap_port for entry in self._there.get(key, ()) if entry.bootstrap_port]
            port = task.ports.get(key) or next(iter(told), None)
        return Add(
            want.role,
            want.address.base_url,
            port,
            why,
            key,
            task.health.fields if self._powers.live_health else {},
            want.table.api_key_env or task.key_variable,
            when_absent,
        )

    def _other_port(self, key: str, want: Desired, entries: Entries) -> bool:
        """Whether the file says another bootstrap port. A list without one is one only after a change."""
        if want.bootstrap_port is None:
            return False
        told = next((entry.bootstrap_port for entry in entries if entry.bootstrap_port is not None), None)
        if told is not None:
            return told != want.bootstrap_port
        was = self._task.was.get(key)
        return was is not None and was.bootstrap_port != want.bootstrap_port

    def _change_health(self, key: str) -> Iterator[Change]:
        fields = self._task.health.fields
        if not fields or not self._powers.live_health:
            return
        for entry in self._there[key]:
            if entry.health is not Opinion.DRAINING:
                yield Change(entry.worker_id, entry.url, key, {"health": dict(fields)}, "[health]")

    def _take_out(self, out: Mapping[str, str], anew: Sequence[str]) -> None:
        """Removals, then what is registered anew; what would leave a pool without a usable worker stays."""
        task = self._task
        staying = {key: entries for key, entries in self._there.items() if not _leaving(entries)}
        coming: dict[Role, list[str]] = {}
        for action in self.made:
            if isinstance(action, Add):
                coming.setdefault(action.role, []).append(action.key)
        for key, why in [*out.items(), *((key, "") for key in anew)]:
            entries = staying[key]
            role = _role(entries)
            others = any(
                _role(other) is role and _takes_requests(other) and task.usable.get(other_key) is not False
                for other_key, other in staying.items()
                if other_key != key
            )
            back = key in anew and task.wanted[key].role is role
            last = _takes_requests(entries) and role in _POOLS and not others and not back
            reserves = tuple(coming.get(role, ())) if last else ()
            if last and not reserves and key not in task.confirmed:
                self.guards.append(_last_of_pool(key, role, self._where))
                continue
            if not back:
                del staying[key]
            self.made += self._removals(entries, key, why or self._what_differs(key, entries), reserves)
            if key in anew:
                self.made.append(self._add(key, "registered anew", when_absent=True))

    def _what_differs(self, key: str, entries: Entries) -> str:
        other_role = _role(entries) not in (Role.UNKNOWN, self._task.wanted[key].role)
        return "role changed" if other_role else "bootstrap port changed"

    def _removals(self, entries: Entries, key: str, why: str, reserves: tuple[str, ...]) -> Iterator[Remove]:
        for entry in sorted(entries, key=lambda entry: entry.url):
            if entry.health is not Opinion.DRAINING:
                yield Remove(entry.worker_id, entry.url, key, why, reserves)


def _wanted(config: Config, same: Mapping[str, str]) -> dict[str, Desired]:
    found: dict[str, Desired] = {}
    for key, entry in desired(config).items():
        found.setdefault(same.get(key, key), entry)
    return found


def _by_key(
    listed: Sequence[ListedWorker], router: Address | None, same: Mapping[str, str]
) -> dict[str, Entries]:
    found: dict[str, Entries] = {}
    for entry in sorted(listed, key=lambda entry: entry.url):  # a router's order is a different one each time
        key = key_of(entry.url, router)
        key = same.get(key, key)
        found[key] = (*found.get(key, ()), entry)
    return found


def _role(entries: Entries) -> Role:
    return next((entry.role for entry in entries if entry.role is not Role.UNKNOWN), Role.UNKNOWN)


def _leaving(entries: Entries) -> bool:
    """On its way out already (smg keeps a removed worker on its list for some seconds)."""
    return bool(entries) and all(entry.health is Opinion.DRAINING for entry in entries)


def _takes_requests(entries: Entries) -> bool:
    """In the router's own opinion; what it does not say speaks for the worker."""
    return any(
        entry.health in (None, Opinion.HEALTHY) and entry.breaker in (None, Breaker.CLOSED)
        for entry in entries
    )


def _expected(task: _Task, there: Mapping[str, Entries]) -> dict[str, str]:
    """What the list of a router that reads the file itself is to show."""
    shown = {key: "draining" if want.table.drain else "ready" for key, want in task.wanted.items()}
    shown |= dict.fromkeys(sorted((task.named | there.keys()) - task.wanted.keys()), "absent")
    return {key: state for key, state in shown.items() if task.touches(key)}


def _health(config: Config, before: Config | None) -> _Health:
    """What the file says of health checks; a key that was taken out of it stands for its default."""
    now = config.health
    if before is None:
        return _Health(health_fields(now), None)
    names = type(now).model_fields
    differing = {name for name in names if getattr(now, name) != getattr(before.health, name)}
    written = {name: getattr(now, name) for name in now.model_fields_set | differing if name in names}
    return _Health(health_fields(Health.model_validate(written)), bool(differing))


def _last_of_pool(key: str, role: Role, where: str) -> Guard:
    return Guard(
        "last_of_pool",
        f"{key} is the last usable {role} worker{where}: it stays in the router",
        f"bring another {role} worker back first; or confirm it: pdtop drain {key}",
        override=key,
    )


def _router_guard(text: str) -> Guard:
    return Guard("router", text, "see the router; what is missing is done when it can be", blocks=False)
