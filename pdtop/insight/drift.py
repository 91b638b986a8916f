"""Where config.toml, the routers and the workers tell different stories of one worker; pure.

Every worker that any of the three knows is looked at. What a source does not say is no difference: a router
whose list is old, a worker that has not answered, a port that the file leaves out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from pdtop.cluster.desired import Desired, desired
from pdtop.cluster.model import (
    READABLE,
    Drift,
    Finding,
    Health,
    Identity,
    Role,
    Router,
    RouterOpinion,
    Severity,
    Snapshot,
    State,
    Worker,
)
from pdtop.config.schema import Config

#: The engine that keeps drained workers on its list; all others let them go.
_KEEPS_DRAINED = "pdtop"
_DRAINED = "drain: config says drained"
_APPLY = "pdtop apply takes it out of the router and adds it as config.toml says"


def drift(config: Config | None, snapshot: Snapshot) -> tuple[Drift, ...]:
    """All differences in the order of the workers; without a file those between routers and workers."""
    return differences(desired(config) if config is not None else {}, snapshot)


def differences(named: Mapping[str, Desired], snapshot: Snapshot) -> tuple[Drift, ...]:
    """As :func:`drift`; ``named`` are the file's workers. A file that names none says nothing of workers."""
    routers = {router.name: router for router in snapshot.routers}
    usual = {role: _usual(snapshot.pool_workers(role)) for role in Role}
    found: list[Drift] = []
    for worker in snapshot.workers:
        entry = named.get(worker.key)
        for name, opinion in _said(worker).items():
            router = routers.get(name)
            if router is not None:
                who = f"router {name}" if len(routers) > 1 else "router"
                found += _at_router(worker, entry, bool(named), opinion, router, who)
        if not any(opinion.listed for opinion in worker.opinions):
            found += _values(worker, entry, RouterOpinion(""), None, "router")
        found += _in_pool(worker, usual[worker.role])
        if worker.state is State.AUTH:
            text = "key: the worker refuses pdtop's key"
            found.append(Drift(worker.key, "key", text + _status(worker), fix=worker.fix))
    return tuple(found)


#: Drift that costs requests and that no other rule tells, and what it does.
_COSTLY = {
    "role": ("role_mismatch", "requests that are sent to it fail"),
    "bootstrap_port": ("bootstrap_port_mismatch", "decode workers ask for its KV at the wrong port"),
    "drain": ("drain_not_in_force", "it may get new requests although it is to be drained"),
}


def findings(snapshot: Snapshot) -> Iterator[Finding]:
    """The differences of a snapshot that cost requests. A drain that only the router knows costs none."""
    for one in snapshot.drift:
        if one.kind not in _COSTLY or (one.kind == "drain" and not one.text.startswith(_DRAINED)):
            continue
        kind, evidence = _COSTLY[one.kind]
        worker = snapshot.worker(one.worker)
        yield Finding(
            Severity.WARNING,
            kind,
            one.text,
            worker=one.worker,
            pool=worker.role if worker is not None else None,
            router=one.router,
            evidence=evidence,
            fix=one.fix,
        )


def _status(worker: Worker) -> str:
    return f" ({worker.status})" if worker.status is not None else ""


def _said(worker: Worker) -> dict[str, RouterOpinion]:
    """One opinion a router: a worker under two names counts as listed if one of them is."""
    said: dict[str, RouterOpinion] = {}
    for opinion in worker.opinions:
        if opinion.router not in said or (opinion.listed and not said[opinion.router].listed):
            said[opinion.router] = opinion
    return said


def _at_router(
    worker: Worker, entry: Desired | None, file_names: bool, opinion: RouterOpinion, router: Router, who: str
) -> Iterator[Drift]:
    """Everything about one worker at one router."""
    list_known = router.workers is not None and not router.list_stale
    drained = entry is not None and entry.table.drain
    if not opinion.listed:
        if entry is not None and list_known and (not drained or router.engine == _KEEPS_DRAINED):
            yield Drift(
                worker.key,
                "not_in_router",
                f"in config, not in {who}",
                router.name,
                "pdtop apply adds it; or take it out of config.toml",
            )
        return
    if entry is None and file_names and list_known and opinion.health is not Health.DRAINING:
        yield Drift(
            worker.key,
            "not_in_config",
            f"in {who}, not in config",
            router.name,
            "add it to config.toml; or pdtop apply --prune takes it out of the router",
        )
    yield from _values(worker, entry, opinion, router.name, who)
    if entry is None:
        return
    if opinion.health is not None and drained != (opinion.health is Health.DRAINING):
        yield Drift(
            worker.key,
            "drain",
            f"{_DRAINED}, {who} still has it" if drained else f"drain: only {who} drains it",
            router.name,
            "pdtop apply",
        )
    if opinion.weight is not None and opinion.weight != entry.table.weight:
        told = _weight(opinion.weight)
        yield Drift(
            worker.key,
            "weight",
            f"weight: config says {_weight(entry.table.weight)}, {who} says {told}",
            router.name,
            "see whether the router reads this config.toml",
        )


def _values(
    worker: Worker, entry: Desired | None, opinion: RouterOpinion, router: str | None, who: str
) -> Iterator[Drift]:
    """Role and bootstrap port, of which all three may speak."""
    config_role = entry.role if entry is not None else None
    engine_role = worker.identity.role if worker.identity.role is not Role.UNKNOWN else None
    text = _sentence("role", config_role, opinion.role, engine_role, who)
    if text:
        fix = _APPLY if _differ(config_role, opinion.role) else _role_fix(config_role or opinion.role)
        yield Drift(worker.key, "role", text, router, fix)
    if Role.PREFILL not in (config_role, opinion.role) or engine_role not in (None, Role.PREFILL):
        return
    config_port = entry.bootstrap_port if entry is not None else None
    engine_port = worker.identity.bootstrap_port
    text = _sentence("bootstrap_port", config_port, opinion.bootstrap_port, engine_port, who)
    if text:
        given = config_port or opinion.bootstrap_port
        fix = f"set bootstrap_port = {engine_port} for it in config.toml, or start it with port {given}"
        yield Drift(
            worker.key,
            "bootstrap_port",
            text,
            router,
            _APPLY if _differ(config_port, opinion.bootstrap_port) else fix,
        )


def _differ(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _sentence(
    what: str, config: Role | int | None, router: Role | int | None, engine: Role | int | None, who: str
) -> str:
    """``role: router says decode, engine says prefill``; "" if those who speak agree."""
    if _differ(config, router):
        own = f", engine says {engine}" if engine is not None else ""
        return f"{what}: config says {config}, {who} says {router}{own}"
    given, first = (router, who) if router is not None else (config, "config")
    return f"{what}: {first} says {given}, engine says {engine}" if _differ(given, engine) else ""


def _role_fix(role: Role | None) -> str:
    return f"start it with --disaggregation-mode {role}, or move it to the other pool in config.toml"


def _weight(weight: float) -> str:
    return f"{weight:g}"


_SAID_BY_ENGINES: tuple[tuple[str, Callable[[Identity], str | None]], ...] = (
    ("model", lambda identity: identity.model),
    ("version", lambda identity: identity.version),
)


def _usual(workers: Sequence[Worker]) -> dict[str, str]:
    """What most workers of a pool say, where they do not all say the same."""
    usual: dict[str, str] = {}
    for what, get in _SAID_BY_ENGINES:
        values = Counter(value for w in workers if w.state in READABLE and (value := get(w.identity)))
        if len(values) > 1:
            usual[what] = values.most_common(1)[0][0]
    return usual


def _in_pool(worker: Worker, usual: Mapping[str, str]) -> Iterator[Drift]:
    for what, get in _SAID_BY_ENGINES if usual and worker.state in READABLE else ():
        own = get(worker.identity)
        if what in usual and own and own != usual[what]:
            text = f"{what}: engine says {own}, its pool has {usual[what]}"
            yield Drift(worker.key, what, text, fix=f"bring the pool to one {what}")
