"""A plan in words: its title, the lines of the question, and the steps that will be taken."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pdtop.cluster.model import READABLE, Role, Snapshot, Worker
from pdtop.cluster.words import clean, count
from pdtop.config.changes import Change, config_changes, table_changes
from pdtop.config.checks import PoolName
from pdtop.config.edit import Edit
from pdtop.config.layout import scan
from pdtop.config.load import Loaded
from pdtop.config.masking import Masker
from pdtop.config.schema import Config
from pdtop.insight.words import percent
from pdtop.operations.fields import knob
from pdtop.operations.guards import POOLS, is_membership, listed, powers_of, reads_weights, told, why_unusable
from pdtop.operations.model import (
    AddWorker,
    Apply,
    Drain,
    PoolEffect,
    RemoveWorker,
    Request,
    Restart,
    SetValue,
    SetWeight,
    Step,
    Undo,
    Undrain,
    UnsetValue,
)
from pdtop.operations.resolve import bootstrap_port, key_of, places
from pdtop.routers.flags import effect, translations
from pdtop.routers.spec import WorkerSpec

Row = tuple[str, str]
FILE = "config.toml"

#: Parts of a backlog as a person says them, by pool.
_WAITS = {
    "queue": "queued",
    "bootstrap": "waiting for a decode worker",
    "prealloc": "waiting for KV space",
    "transfer": "waiting for KV",
}
_READMISSION = (
    "watched until it is healthy, has the pool's model and version, serves, and its hit rate is back"
)


def title(request: Request, snapshot: Snapshot, config: Config | None, edits: Sequence[Edit]) -> str:
    """What the question is about; the cluster's name stands beside it."""

    def who(*keys: str) -> str:
        return _who(keys, snapshot, config)

    match request:
        case Drain(workers):
            return f"Drain {who(*workers)}"
        case Undrain(workers):
            return f"Undrain {who(*workers)}"
        case SetWeight(worker, weight):
            return f"Set the weight of {who(worker)} to {weight:g}"
        case AddWorker(role, address, _):
            return f"Add {role.value} worker {clean(address.strip())}"
        case RemoveWorker(worker):
            return f"Remove {who(worker)}"
        case SetValue(path, _) | UnsetValue(path):
            text = edits[0].text if edits else clean(".".join(path))
            return text[:1].upper() + text[1:] if edits else f"Change {text}"
        case Apply(prune):
            return f"Apply {FILE}" + (" and take out what it does not name" if prune else "")
        case Restart():
            return "Restart the router"
        case Undo(entry):
            return "Undo the last change" if entry is None else f"Undo change {clean(entry)}"


def _who(keys: Sequence[str], snapshot: Snapshot, config: Config | None) -> str:
    roles = [role_of(key, snapshot, config) for key in keys]
    if len(keys) == 1:
        pool = f"{roles[0].value} " if roles[0] in POOLS else ""
        return f"{pool}worker {name_of(keys[0], snapshot)}"
    if len(set(roles)) == 1 and roles[0] in POOLS:
        return f"{len(keys)} {roles[0].value} workers"
    parts = [f"{roles.count(role)} {role.value}" for role in POOLS if role in roles]
    return f"{len(keys)} workers" + (f" ({', '.join(parts)})" if parts else "")


def role_of(key: str, snapshot: Snapshot, config: Config | None) -> Role:
    """As the file says; else as the snapshot has it."""
    for role in POOLS if config is not None else ():
        if config is not None and key in listed(config, role):
            return role
    worker = snapshot.worker(key)
    return worker.role if worker is not None else Role.UNKNOWN


def name_of(key: str, snapshot: Snapshot) -> str:
    worker = snapshot.worker(key)
    return clean(worker.name if worker is not None else key)


# The lines of the question.


def work_of(worker: Worker) -> str:
    """``14 running, 13 waiting for KV``; why it can take nothing new, if so."""
    parts = [f"{count(worker.running)} running"]
    waits = worker.backlog.parts
    parts += [f"{count(n)} {_WAITS.get(name, name)}" for name, n in waits.items() if n]
    if not waits and worker.backlog.total:
        parts.append(f"{count(worker.backlog.total)} waiting")
    if worker.inflight:
        parts.append(f"{count(worker.inflight)} sending KV")
    if worker.state is not None and worker.state not in READABLE:
        parts.append(clean(worker.reason or str(worker.state)))
    elif worker.stale and worker.age_s is not None:
        parts.append(f"{worker.age_s:.0f} s ago")
    if worker.usable is not True:
        parts.append(why_unusable(worker))
    return ", ".join(dict.fromkeys(parts))


def now_rows(keys: Sequence[str], snapshot: Snapshot) -> Iterator[Row]:
    for index, key in enumerate(keys):
        worker = snapshot.worker(key)
        words = "not watched yet" if worker is None else work_of(worker)
        name = f"{name_of(key, snapshot)}: " if len(keys) > 1 else ""
        yield ("" if index else "Now", name + words)


def after_rows(effects: Sequence[PoolEffect], snapshot: Snapshot, leaving: Collection[str]) -> Iterator[Row]:
    """``3 of 4 decode workers usable, KV 49 % → 64 %, fullest of the rest 52 % now``."""
    for index, one in enumerate(effects):
        words = f"{one.usable_after} of {one.total} {one.role.value} workers usable"
        if one.kv_before is not None and one.kv_after is not None:
            words += f", KV {percent(one.kv_before)} → {percent(one.kv_after)}"
        elif one.usable_after:
            words += ", KV not known"
        if one.running_before is not None and one.running_after is not None:
            words += f", running each {count(one.running_before)} → {count(one.running_after)}"
        rest = [w for w in snapshot.pool_workers(one.role) if w.usable and w.key not in leaving]
        fullest = max((w.kv_use_worst for w in rest if w.kv_use_worst is not None), default=None)
        if fullest is not None and one.usable_after < one.usable_before:
            words += f", fullest of the rest {percent(fullest)} now"
        yield ("" if index else "After", words)


def rows(
    request: Request,
    snapshot: Snapshot,
    before: Config | None,
    after: Loaded,
    edits: Sequence[Edit],
    effects: Sequence[PoolEffect],
    *,
    engines: Mapping[str, str],
    remembered: Mapping[str, WorkerSpec],
) -> tuple[Row, ...]:
    """Now, After, How, Returns, Restart: each said only where there is something to say."""
    kinds = tuple(dict.fromkeys(engines.values()))
    config = after.config
    if config is None or before is None:
        return ()
    match request:
        case Drain(workers):
            return (
                *now_rows(workers, snapshot),
                *after_rows(effects, snapshot, workers),
                *_named("How", (how_out(kind, "then watched until it is empty") for kind in kinds)),
                ("Returns", f"any time with undrain; {_line(after, edits)}"),
                *_named("Restart", map(_restart_and_drain, kinds)),
            )
        case Undrain(workers):
            return (
                *now_rows(workers, snapshot),
                *after_rows(effects, snapshot, ()),
                *_named("How", (how_back(kind, workers, snapshot, config, remembered) for kind in kinds)),
                ("Then", _READMISSION),
            )
        case RemoveWorker(worker):
            return (
                *now_rows((worker,), snapshot),
                *after_rows(effects, snapshot, (worker,)),
                *_named("How", (how_out(kind, f"and it leaves {FILE}") for kind in kinds)),
            )
        case AddWorker(role, address, _):
            key = key_of(address) or address
            return (
                *now_rows((key,), snapshot),
                ("After", f"{len(listed(config, role))} {role.value} workers in {FILE}"),
                *_named("How", (how_in(kind, (key,), snapshot, config, remembered) for kind in kinds)),
                ("File", _line(after, edits)),
            )
        case SetWeight(worker, weight):
            return (
                ("Now", _weight_now(worker, snapshot, before)),
                ("After", weight_after(worker, weight, snapshot, config, kinds)),
                *(("", text) for _, text in after_rows(effects, snapshot, (worker,))),
                ("File", _line(after, edits)),
            )
        case _:
            return ()


def value_rows(
    path: tuple[str, ...],
    before: Loaded,
    after: Loaded,
    edits: Sequence[Edit],
    effects: Sequence[PoolEffect],
    snapshot: Snapshot,
    kinds: Sequence[str],
) -> tuple[Row, ...]:
    """For one key: the value before and after, what it means, when it counts, how a router's flag says it."""
    known = knob(path)
    several = len(kinds) > 1
    found: list[Row] = [*_named("Change", (clean(change.text) for change in _changes(path, before, after)))]
    found += after_rows(effects, snapshot, [key for one in effects for key in _gone(one.role, before, after)])
    if known is not None:
        found += [("Meaning", known.meaning), ("Valid", f"{known.valid}; default {known.default}")]
    words = [(kind, effect(kind, path).words) for kind in kinds]
    if after.config is not None:
        said = {kind: translations(after.config, kind) for kind in kinds}
        words += [(kind, text) for kind, texts in said.items() for text in texts if f" {path[-1]} " in text]
    found += _named("Effect", (f"{kind}: {text}" if several else text for kind, text in words))
    where = _line(after, edits) if edits and edits[0].op != "unset" else f"the line leaves {FILE}"
    return (*found, ("File", where))


def _changes(path: tuple[str, ...], before: Loaded, after: Loaded) -> tuple[Change, ...]:
    """Effective values, defaults included; as the file has them for what has no default of its own."""
    if before.config is not None and after.config is not None and "worker" not in path:
        return config_changes(before.config, after.config) or table_changes(before.document, after.document)
    return table_changes(before.document, after.document)


def _gone(role: Role, before: Loaded, after: Loaded) -> Collection[str]:
    if before.config is None or after.config is None:
        return ()
    return (
        listed(before.config, role, drained=False).keys() - listed(after.config, role, drained=False).keys()
    )


def how_out(engine: str, then: str) -> str:
    """How a router is made to send nothing new."""
    powers = powers_of(engine)
    match powers.drain_by:
        case "removal" if powers.settle_s:
            return f"{engine}: DELETE /workers/…, {powers.settle_s:g} s draining at the router, {then}"
        case "removal":
            return f"{engine}: DELETE /workers/…, gone from the router at once, {then}"
        case "file":
            return f"the router follows {FILE}, {then}"
        case _:
            return f"{_called(engine)}: cannot be told, goes on sending"


def how_back(
    engine: str,
    keys: Sequence[str],
    snapshot: Snapshot,
    config: Config,
    remembered: Mapping[str, WorkerSpec],
) -> str:
    """How a router is made to send again to workers that were taken out of it."""
    words, settle_s = how_in(engine, keys, snapshot, config, remembered), powers_of(engine).settle_s
    return f"{words}; not before its removal is {settle_s:g} s old" if settle_s else words


def how_in(
    engine: str,
    keys: Sequence[str],
    snapshot: Snapshot,
    config: Config,
    remembered: Mapping[str, WorkerSpec],
) -> str:
    """How a router is made to send, with the bootstrap port of prefill workers and who says it."""
    ports = []
    for key in keys:
        if role_of(key, snapshot, config) is not Role.PREFILL:
            continue
        port = bootstrap_port(key, snapshot, config, remembered)
        name = f" of {name_of(key, snapshot)}" if len(keys) > 1 else ""
        said = f"{port[0]} ({port[1]})" if port is not None else "not known"
        ports.append(f"bootstrap_port{name} {said}")
    match powers_of(engine).drain_by:
        case "removal":
            return ", ".join([f"{engine}: POST /workers", *ports])
        case "file":
            return ", ".join([f"the router follows {FILE}", *ports])
        case _:
            return f"{_called(engine)}: cannot be told"


def _called(engine: str) -> str:
    return "a router that is not known" if engine == "unknown" else engine


def _restart_and_drain(engine: str) -> str:
    powers = powers_of(engine)
    if powers.reads_file:
        return f"{engine}: stays drained, it reads {FILE}"
    if powers.drain_by == "removal":
        return f"{engine}: a restart brings it back from the command line; pdtop takes it out again"
    return f"{_called(engine)}: nothing changes"


def _weight_now(worker: str, snapshot: Snapshot, config: Config) -> str:
    weight = next((place.settings.weight for place in places(config, worker)), 1.0)
    seen = snapshot.worker(worker)
    share = f", share {percent(seen.share)}" if seen is not None and seen.share is not None else ""
    return f"weight {weight:g}{share}"


def weight_after(
    worker: str, weight: float, snapshot: Snapshot, after: Config, kinds: Collection[str]
) -> str:
    """The even share that the weight gives; unchanged where no router reads weights."""
    role = role_of(worker, snapshot, after)
    if weight == 0 and reads_weights(kinds):
        return "weight 0: no new work, what runs goes on to its end"
    if not reads_weights(kinds):
        pool: PoolName = "prefill" if role is Role.PREFILL else "decode"
        if any(effect(kind, (pool, "worker", worker, "weight")).kind == "unknown" for kind in kinds):
            return f"weight {weight:g}; what the router does with it is not known"
        policy = after.pool(pool).policy
        return f"weight {weight:g}, share unchanged: {policy} in this router does not read weights"
    usable = {w.key for w in snapshot.pool_workers(role) if w.usable}
    weights = {k: n for k, n in listed(after, role, drained=False).items() if k in usable or k == worker}
    total = sum(weights.values())
    share = f", about {percent(weight / total)} of equally loaded workers" if total else ""
    return f"weight {weight:g}{share}"


def _line(after: Loaded, edits: Sequence[Edit]) -> str:
    """``config.toml line 31: drain = true``; several lines where there are several."""
    layout = scan(after.text)
    found = []
    for one in edits:
        line = layout.line_of(one.path)
        if line is not None and one.op in ("set", "append"):
            value = f" = {layout.source(one.path)}" if one.op == "set" else ""
            found.append((line, f"line {line}: {clean(Masker()(one.path[-1] + value))}"))
    return f"{FILE} {'; '.join(text for _, text in sorted(found))}" if found else FILE


def _named(name: str, texts: Iterable[str]) -> Iterator[Row]:
    for index, text in enumerate(texts):
        yield ("" if index else name, text)


# The steps.


def steps(
    request: Request, snapshot: Snapshot, edits: Sequence[Edit], engines: Mapping[str, str]
) -> tuple[Step, ...]:
    """In the order in which they are taken."""
    if not edits:
        return ()
    found = [Step(FILE, one.text) for one in edits]
    for router, engine in engines.items():
        words = _at_router(request, snapshot, edits, engine)
        if words:
            found.append(Step(clean(router), words))
    if isinstance(request, Drain):
        found += [
            Step(name_of(key, snapshot), "wait until it is empty, by the routers' count and its own")
            for key in request.workers
        ]
    return tuple(found)


def _at_router(request: Request, snapshot: Snapshot, edits: Sequence[Edit], engine: str) -> str:
    powers = powers_of(engine)
    if not any(told(one, engine) for one in edits):
        kinds = {effect(engine, one.path).kind for one in edits if not is_membership(one)}
        return "with its next restart: see the restart plan" if "restart" in kinds else ""
    if powers.reads_file:
        return f"follows {FILE}; read back"
    if powers.drain_by == "none":
        return "cannot be told: stays as it is"

    def who(*keys: str) -> str:
        return ", ".join(name_of(key, snapshot) for key in keys)

    match request:
        case Drain(workers):
            return f"DELETE /workers/… for {who(*workers)}, read back until no new work can reach it"
        case RemoveWorker(worker):
            return f"DELETE /workers/… for {who(worker)}, read back"
        case Undrain(workers):
            return f"POST /workers for {who(*workers)}, read back until healthy"
        case AddWorker(_, address, _):
            return f"POST /workers for {clean(address.strip())}, read back until healthy"
        case _:
            return "changed while it runs, read back"
