"""What speaks against a change: pure rules over the snapshot and the file before and after.

A rule looks at what the change does, not at how it was asked for: ``pdtop set`` on a worker's ``drain`` is
guarded like a drain. Each guard says what would have to be different.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from pdtop.cluster.address import Address, AddressError
from pdtop.cluster.model import READABLE, Role, Snapshot, State, Worker
from pdtop.cluster.words import clean
from pdtop.config.edit import Edit
from pdtop.config.load import Loaded
from pdtop.config.problems import errors
from pdtop.config.schema import Config
from pdtop.insight.words import percent, several
from pdtop.operations.effect import capacity_share, pool_effect
from pdtop.operations.fields import forbids, guard_of
from pdtop.operations.model import (
    AddWorker,
    Drain,
    Guard,
    PoolEffect,
    RemoveWorker,
    Request,
    SetValue,
    SetWeight,
    Undo,
    Undrain,
    UnsetValue,
)
from pdtop.operations.resolve import all_places, bootstrap_port, key_of, places, unknown_worker
from pdtop.routers.detect import DIALECTS, UNKNOWN
from pdtop.routers.dialect import Powers
from pdtop.routers.flags import effect, policies, policy_words, refuses_to_start
from pdtop.routers.spec import WorkerSpec

#: A pool that would be fuller than this retracts requests.
KV_LIMIT = 0.95

#: Problems of the file that a guard on the pools tells better.
_TOLD_BETTER = frozenset({"power_of_two", "pool_out", "empty_pool"})
POOLS = (Role.PREFILL, Role.DECODE)


def file_guards(request: Request, loaded: Loaded | None) -> tuple[Guard, ...]:
    """Whether there is a file that can be edited. One value of a broken file can still be put right."""
    if loaded is None or (loaded.problems and loaded.problems[0].kind == "unreadable"):
        why = "there is no config.toml" if loaded is None else loaded.problems[0].text
        fix = "`pdtop config init --from http://router:30000 > config.toml`, then `pdtop config.toml`"
        return (Guard("no_config", f"{why}: a change has nowhere to last", fix),)
    if loaded.config is None and not (loaded.document and isinstance(request, SetValue | UnsetValue | Undo)):
        text = errors(loaded.problems)[0].text
        return (Guard("broken_config", text, "put the file right first: `pdtop config check`"),)
    return ()


def target_guards(request: Request, snapshot: Snapshot, loaded: Loaded) -> Iterator[Guard]:
    """The workers that are named: still there, in the file, or (to add one) not there yet."""
    match request:
        case Drain(workers) | Undrain(workers):
            keys = workers
        case SetWeight(worker, _) | RemoveWorker(worker):
            keys = (worker,)
        case AddWorker() if loaded.config is not None:
            yield from _new_worker(request, snapshot, loaded.config)
            return
        case _:
            return
    if not keys:
        yield unknown_worker("", snapshot.workers)
    for key in keys:
        known = snapshot.worker(key)
        if loaded.config is None or places(loaded.config, key):
            continue
        if known is None:
            gone = unknown_worker(key, snapshot.workers)
            yield replace(gone, kind="vanished", text=f"{gone.text} any more")
            continue
        prune = "`pdtop apply --prune` takes workers out that the file does not name"
        add = f"add it first: `pdtop add {known.role.value} {clean(known.name)}`"
        yield Guard(
            "not_in_config",
            f"{clean(known.name)} is not in config.toml: only the router lists it",
            prune if isinstance(request, RemoveWorker) else add,
        )


def _new_worker(request: AddWorker, snapshot: Snapshot, config: Config) -> Iterator[Guard]:
    try:
        address = Address.parse(request.address)
    except AddressError as error:
        yield Guard("range", str(error))
        return
    if address.credentials is not None:
        yield Guard(
            "secret_in_file",
            f"{address.shown_as}: a password must not stand in the file",
            "put the key in an environment variable and name that in api_key_env",
        )
    if request.role not in POOLS:
        yield Guard("range", f"{request.role.value} is no pool", "prefill or decode")
    there = places(config, address.key)
    for place in there:
        written = "" if place.written == request.address.strip() else f" as {place.written}"
        yield Guard(
            "exists",
            f"{address.shown_as} is in {place.pool}.workers already{written}",
            "to bring a drained worker back: undrain" if place.settings.drain else "",
        )
    if request.bootstrap_port is not None and not 1 <= request.bootstrap_port <= 65535:
        yield Guard("range", f"{request.bootstrap_port} is not a port", "valid: 1 to 65535, as a rule 8998")
    known = snapshot.worker(address.key)
    if known is not None and not there and known.role in POOLS and known.role is not request.role:
        yield Guard(
            "role",
            f"{clean(known.name)} is a {known.role.value} worker, not {request.role.value}",
            f"add it to {known.role.value}",
            blocks=False,
        )


def value_guards(loaded: Loaded, after: Loaded) -> Iterator[Guard]:
    """Problems that the file would have after the change and has not now."""
    known = {(p.kind, p.key, p.value) for p in loaded.problems}
    for problem in after.problems:
        if (problem.kind, problem.key, problem.value) not in known and problem.kind not in _TOLD_BETTER:
            yield guard_of(problem)
    left = [p for p in errors(after.problems) if (p.kind, p.key, p.value) in known]
    if left and not any(forbids(p) for p in after.problems if (p.kind, p.key, p.value) not in known):
        yield Guard(
            "broken_config",
            f"saved like this the file is rejected still: {left[0].text}",
            "put that right, too: `pdtop config check`",
            blocks=False,
        )


# The pools.


def pool_effects(
    snapshot: Snapshot, before: Config, after: Config, engines: Collection[str]
) -> tuple[PoolEffect, ...]:
    """What becomes of the pools that the change takes from or gives to."""
    found = []
    for role in POOLS:
        out = leaving(before, after, role, engines)
        back = leaving(after, before, role, engines)
        if out or back:
            idle = _idle(snapshot, before, role, engines)
            found.append(pool_effect(snapshot, role, out, back=back, idle=idle))
    return tuple(found)


def leaving(before: Config, after: Config, role: Role, engines: Collection[str]) -> frozenset[str]:
    """Workers of a pool that get new work with one file and not with the other."""
    return in_rotation(before, role, engines) - in_rotation(after, role, engines)


def listed(config: Config, role: Role, *, drained: bool = True) -> dict[str, float]:
    """Key and weight of every worker of a pool in the file, on request without the drained ones."""
    return {
        key: place.settings.weight
        for place in all_places(config)
        if place.role is role
        and (drained or not place.settings.drain)
        and (key := key_of(place.written)) is not None
    }


def in_rotation(config: Config, role: Role, engines: Collection[str]) -> frozenset[str]:
    return frozenset(listed(config, role, drained=False)) - _weightless(config, role, engines)


def _idle(snapshot: Snapshot, config: Config, role: Role, engines: Collection[str]) -> frozenset[str]:
    """Workers that get no new work by the file, whatever a snapshot from before its last change says."""
    idle = frozenset(listed(config, role)) - in_rotation(config, role, engines)
    if engines and all(powers_of(engine).reads_file for engine in engines):
        named = {key for pool in POOLS for key in listed(config, pool)}
        idle |= {worker.key for worker in snapshot.pool_workers(role)} - named
    return idle


def _weightless(config: Config, role: Role, engines: Collection[str]) -> frozenset[str]:
    """Workers with weight 0, where a router reads weights."""
    if not reads_weights(engines):
        return frozenset()
    return frozenset(key for key, weight in listed(config, role).items() if weight == 0)


def reads_weights(engines: Collection[str]) -> bool:
    return any(powers_of(engine).weights for engine in engines)


def powers_of(engine: str) -> Powers:
    return DIALECTS.get(engine, UNKNOWN).powers


def pool_guards(
    snapshot: Snapshot, before: Config, after: Config, engines: Collection[str]
) -> Iterator[Guard]:
    """All weights 0, the last of a pool, what the rest could not carry, and work that a removal forgets."""
    for role in POOLS:
        weights = _all_weights_zero(snapshot, before, after, role)
        out = leaving(before, after, role, engines)
        if weights is not None:
            yield weights
        elif out:
            idle = _idle(snapshot, before, role, engines)
            effects = pool_effect(snapshot, role, out, idle=idle)
            last = _last(snapshot, out, effects, idle)
            if last is not None:
                yield last
            elif effects.usable_after < effects.usable_before:
                yield from _capacity(snapshot, out, effects, idle, after.console.confirm_share)
        yield from _work(snapshot, listed(before, role).keys() - listed(after, role).keys())


def _all_weights_zero(snapshot: Snapshot, before: Config, after: Config, role: Role) -> Guard | None:
    weights, old = listed(after, role, drained=False), listed(before, role, drained=False)
    zeroed = [key for key, weight in weights.items() if weight == 0 and old.get(key)]
    if not zeroed or any(weights.values()):
        return None
    return Guard(
        "all_weights_zero",
        f"{_named(snapshot, zeroed)} {_is_last(zeroed)} {_workers(role, zeroed)} with weight: "
        "at 0 nobody would take new work",
        f"give another {role.value} worker a weight above 0 first",
    )


def _last(
    snapshot: Snapshot, out: Collection[str], effects: PoolEffect, idle: Collection[str]
) -> Guard | None:
    if effects.usable_after:
        return None
    role = effects.role
    members = snapshot.pool_workers(role)
    gone = [w for w in members if w.key in out]
    rest = [w for w in members if w.key not in out]
    names = _named(snapshot, out)
    others = ", ".join(f"{clean(w.name)} ({_why_not(w, idle)})" for w in rest)
    first = f"make another one usable first: {others}" if rest else f"add another {role.value} worker first"
    down = effects.usable_before == 0
    if down and all(w.usable is False for w in gone) and any(not w.draining for w in rest):
        text = f"no {role.value} worker is usable, with or without {names}"
        return Guard("last_of_pool", text, first, blocks=False)
    last = _is_last(out).replace("is the", "may be the") if down else _is_last(out)
    typed = [w for w in gone if w.usable is not False] or gone
    return Guard(
        "last_of_pool",
        f"{names} {last} usable {_workers(role, out)}: "
        f"without {'it' if len(out) == 1 else 'them'} every new request fails",
        first,
        override=typed[-1].name if typed else max(out),
    )


def _why_not(worker: Worker, idle: Collection[str]) -> str:
    return "gets no new work by config.toml" if worker.usable and worker.key in idle else why_unusable(worker)


def why_unusable(worker: Worker) -> str:
    """Why it cannot take new work, in words; also where that is not known."""
    if worker.usable is None:
        return "not known to be usable"
    return clean(worker.unusable_because or worker.reason) or ("usable" if worker.usable else "unusable")


def _capacity(
    snapshot: Snapshot,
    out: Collection[str],
    effects: PoolEffect,
    idle: Collection[str],
    confirm_share: float,
) -> Iterator[Guard]:
    role = effects.role
    name = [w.name for w in snapshot.pool_workers(role) if w.key in out and w.usable][-1]
    if effects.kv_after is not None and effects.kv_after > KV_LIMIT:
        yield Guard(
            "capacity",
            f"the {role.value} workers that stay would be at KV {percent(effects.kv_after)} "
            f"(now {percent(effects.kv_before or 0.0)})",
            f"wait for less load, or add a {role.value} worker first",
            override=name,
        )
    share = capacity_share(snapshot, role, out, idle=idle)
    if share is not None and share > confirm_share:
        yield Guard(
            "capacity",
            f"this takes {percent(share)} of the usable {role.value} capacity away, "
            f"more than {percent(confirm_share)}",
            "take fewer at once, or raise [console] confirm_share",
            override=name,
        )


def _work(snapshot: Snapshot, removed: Collection[str]) -> Iterator[Guard]:
    """Workers that leave the file while they work: nobody would watch the rest of it."""
    for worker in snapshot.workers:
        if worker.key not in removed:
            continue
        known = worker.state in READABLE and worker.running is not None
        work = sum(part or 0.0 for part in (worker.running, worker.backlog.total, worker.inflight))
        if known and work:
            yield Guard(
                "has_work",
                f"{clean(worker.name)} still has {several(work, 'request')}",
                "drain it first and wait until it is empty",
                override=worker.name,
            )
        elif not known:
            text = f"whether {clean(worker.name)} still has work is not known"
            yield Guard("has_work", text, "look at the machine itself", blocks=False)


# What routers do with it.


def router_guards(
    edits: Sequence[Edit],
    snapshot: Snapshot,
    before: Config | None,
    after: Config,
    engines: Mapping[str, str],
) -> Iterator[Guard]:
    """What a router cannot do, does only with a restart, or cannot be told now."""
    kinds = tuple(dict.fromkeys(engines.values()))
    several_kinds = len(kinds) > 1
    for engine in kinds:
        for one in edits:
            for guard in _one_edit(one, engine, after):
                yield replace(guard, text=f"{engine}: {guard.text}") if several_kinds else guard
        trap = refuses_to_start(after, engine)
        if trap is None or (before is not None and refuses_to_start(before, engine) == trap):
            continue
        chosen = [one for one in edits if one.path[-1] == "policy"]
        if any(_has_no(engine, one) for one in chosen):
            continue  # told with the edit
        fix = "choose another policy, or add a worker first" if chosen else "keep two of them in rotation"
        text = trap if chosen else f"after a restart of the router: {trap}"
        yield Guard("power_of_two", text, fix, blocks=bool(chosen))
    if not any(told(one, engine) for one in edits for engine in (*kinds, "")):
        return
    if not engines:
        text = "no router is watched: config.toml is changed and nothing else"
        yield Guard("router", text, "name it in [server] url", blocks=False)
    yield from _unreachable(snapshot, engines)


def told(one: Edit, engine: str) -> bool:
    """Whether a running router has to learn of this edit."""
    return is_membership(one) or (engine != "" and effect(engine, one.path).kind == "live")


def is_membership(one: Edit) -> bool:
    """Who is in the pool and who drains: by the router's list of workers, not by a setting of it."""
    match one.path:
        case ("prefill" | "decode", "workers") | ("prefill" | "decode", "worker", _):
            return True
        case ("prefill" | "decode", "worker", _, "drain"):
            return True
        case _:
            return False


def _has_no(engine: str, one: Edit) -> bool:
    """Whether a policy is chosen that this kind of router is known not to have."""
    match one.path:
        case ("prefill" | "decode" as role, "policy"):
            known = policies(engine, role)
            return bool(known) and one.op == "set" and one.value not in known
        case _:
            return False


def _one_edit(one: Edit, engine: str, after: Config) -> Iterator[Guard]:
    if is_membership(one):
        if powers_of(engine).drain_by == "none":
            name = "a router that is not known" if engine == "unknown" else engine
            text = f"{name} cannot be told who is in its pools: it goes on as it is"
            yield Guard("router", text, "change it where that router is started", blocks=False)
        return
    does = effect(engine, one.path)
    match one.path:
        case ("prefill" | "decode" as role, "worker", _, "weight"):
            if does.kind == "none":
                text = f"{after.pool(role).policy} in this router does not read weights"
                fix = "it is recorded in config.toml and changes nothing; to stop new work, drain the worker"
                yield Guard("no_effect", text, fix, blocks=False)
            elif one.value == 0:
                text = "weight 0 means no new work; what runs there goes on to its end"
                yield Guard("weight_zero", text, blocks=False)
            return
        case ("prefill" | "decode" as role, "policy") if words := policy_words(
            engine, after.pool(role).policy, role
        ):
            yield Guard("range" if _has_no(engine, one) else "no_effect", words, blocks=_has_no(engine, one))
        case _:
            pass
    text = f"{one.key}: {does.words}"
    if does.kind == "none":
        yield Guard("no_effect", text, "it is recorded in config.toml", blocks=False)
    elif does.kind == "restart":
        yield Guard("needs_restart", text, "see the restart plan", blocks=False)


def _unreachable(snapshot: Snapshot, engines: Mapping[str, str]) -> Iterator[Guard]:
    for router in snapshot.routers:
        if router.name not in engines or router.state is None or router.state in READABLE:
            continue
        name = clean(router.name)
        if router.state is State.AUTH:
            alone = len(engines) == 1
            yield Guard(
                "router",
                f"{name} refuses the key: {clean(router.reason)}",
                clean(router.fix),
                override="" if alone else router.name,
            )
        else:
            text = f"{name} does not answer ({clean(router.reason)}): it is told when it is back"
            yield Guard("router", text, clean(router.fix), blocks=False)


def return_guards(
    snapshot: Snapshot, keys: Collection[str], after: Config, remembered: Mapping[str, WorkerSpec]
) -> Iterator[Guard]:
    """Workers that are to take work: whether they answer, and how others reach a prefill worker."""
    for worker in snapshot.workers:
        if worker.key not in keys:
            continue
        if worker.state is not None and worker.state not in READABLE:
            text = f"{clean(worker.name)} does not answer ({clean(worker.reason)})"
            yield Guard(
                "unreachable", f"{text}: it gets no work until it does", clean(worker.fix), blocks=False
            )
    for key in keys:
        if key in listed(after, Role.PREFILL) and bootstrap_port(key, snapshot, after, remembered) is None:
            yield Guard(
                "bootstrap_port",
                f"no bootstrap port is known for prefill worker {_named(snapshot, [key])}",
                "set bootstrap_port in its table; SGLang's default is 8998",
                blocks=False,
            )


def _named(snapshot: Snapshot, keys: Collection[str]) -> str:
    """Names in the order of the snapshot; a key where there is no name."""
    known = [clean(w.name) for w in snapshot.workers if w.key in keys]
    return ", ".join([*known, *(clean(key) for key in sorted(keys) if snapshot.worker(key) is None)])


def _is_last(keys: Collection[str]) -> str:
    return "is the last" if len(keys) == 1 else "are the last"


def _workers(role: Role, keys: Collection[str]) -> str:
    return f"{role.value} worker" + ("s" if len(keys) != 1 else "")
