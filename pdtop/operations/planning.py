"""From a request to a plan: edits, guards, effects, the lines of the question and the steps. Pure.

The diff, conflicts with somebody else's changes and the restart plan are added by who has the file open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pdtop.cluster.model import Snapshot
from pdtop.config.edit import Edit
from pdtop.config.load import Loaded
from pdtop.config.splice import CannotEdit
from pdtop.operations import guards as rules
from pdtop.operations import wording
from pdtop.operations.edits import after_edits, edits_of
from pdtop.operations.fields import check
from pdtop.operations.model import (
    AddWorker,
    Apply,
    Drain,
    Guard,
    Plan,
    RemoveWorker,
    Request,
    Restart,
    SetValue,
    SetWeight,
    Undo,
    Undrain,
    UnsetValue,
)
from pdtop.operations.resolve import key_of
from pdtop.routers.spec import WorkerSpec


def plan(
    request: Request,
    snapshot: Snapshot,
    loaded: Loaded | None,
    *,
    engines: Mapping[str, str],
    remembered: Mapping[str, WorkerSpec],
) -> Plan:
    """All that the request will do. A plan that is refused whatever is typed holds no edits and no steps.

    ``loaded``: config.toml as it is now, None if there is none. ``engines``: of every router, by its name.
    ``remembered``: by worker, what a router knew of it when it was taken out.
    """
    config = loaded.config if loaded is not None else None
    made = Plan(
        request,
        wording.title(request, snapshot, config, ()),
        snapshot.cluster,
        digest=loaded.digest if loaded is not None else "",
        targets=targets(request),
    )
    stops = rules.file_guards(request, loaded)
    if loaded is None or stops:
        return replace(made, guards=stops)
    found = tuple(rules.target_guards(request, snapshot, loaded))
    typed = check(request.path, request.spelling, config) if isinstance(request, SetValue) else None
    if typed is not None:
        found = (*found, typed)
    if isinstance(request, SetWeight) and not 0 <= request.weight < float("inf"):
        found = (*found, _bad_weight(request.weight))
    if any(guard.blocks for guard in found):
        return replace(made, guards=found)
    try:
        edits = edits_of(request, loaded)
        after = after_edits(loaded, edits)
    except CannotEdit as error:
        fix = "edit the file by hand; it is read again at once"
        return replace(made, guards=(*found, Guard("cannot_edit", str(error), fix)))
    if isinstance(request, Apply | Restart | Undo):  # found by comparing the file with routers, or in the log
        return replace(made, guards=found)
    made = replace(made, title=wording.title(request, snapshot, config, edits))
    if not edits:
        return replace(made, guards=found, nothing_to_do=_nothing(request, snapshot))
    found = (*found, *_guards(request, snapshot, loaded, after, edits, engines, remembered))
    made = _in_words(replace(made, guards=found), snapshot, loaded, after, edits, engines, remembered)
    return replace(made, edits=(), steps=()) if made.refusal is not None else made


def targets(request: Request) -> tuple[str, ...]:
    """The workers that a request is about, by key."""
    match request:
        case Drain(workers) | Undrain(workers):
            return workers
        case SetWeight(worker, _) | RemoveWorker(worker):
            return (worker,)
        case AddWorker(_, address, _):
            key = key_of(address)
            return (key,) if key is not None else ()
        case SetValue((_, "worker", written, *_), _) | UnsetValue((_, "worker", written, *_)):
            key = key_of(written)
            return (key,) if key is not None else ()
        case _:
            return ()


def _bad_weight(weight: float) -> Guard:
    hint = f"; did you mean {weight / 100:g}?" if 2 <= weight <= 100 else ""
    return Guard("range", f"weight = {weight:g}: must be a finite number, 0 or more", f"default 1{hint}")


def _nothing(request: Request, snapshot: Snapshot) -> str:
    """Why the file needs no change."""

    def who(keys: Sequence[str]) -> str:
        names = ", ".join(wording.name_of(key, snapshot) for key in keys)
        return f"{names} {'is' if len(keys) == 1 else 'are'}"

    match request:
        case Drain(workers):
            return f"{who(workers)} drained already"
        case Undrain(workers):
            return f"{who(workers)} not drained in config.toml"
        case SetWeight(worker, weight):
            return f"the weight of {wording.name_of(worker, snapshot)} is {weight:g} already"
        case SetValue():
            return "config.toml says so already"
        case UnsetValue():
            return "it is not in config.toml: the default counts"
        case _:
            return ""


def _guards(
    request: Request,
    snapshot: Snapshot,
    loaded: Loaded,
    after: Loaded,
    edits: Sequence[Edit],
    engines: Mapping[str, str],
    remembered: Mapping[str, WorkerSpec],
) -> Iterator[Guard]:
    yield from rules.value_guards(loaded, after)
    before, then, kinds = loaded.config, after.config, engines.values()
    if then is None:
        return
    if before is not None:
        yield from rules.pool_guards(snapshot, before, then, kinds)
    yield from rules.router_guards(edits, snapshot, before, then, engines)
    if isinstance(request, Undrain | AddWorker):
        yield from rules.return_guards(snapshot, targets(request), then, remembered)


def _in_words(
    made: Plan,
    snapshot: Snapshot,
    loaded: Loaded,
    after: Loaded,
    edits: Sequence[Edit],
    engines: Mapping[str, str],
    remembered: Mapping[str, WorkerSpec],
) -> Plan:
    request, kinds = made.request, tuple(dict.fromkeys(engines.values()))
    effects = (
        rules.pool_effects(snapshot, loaded.config, after.config, kinds)
        if loaded.config is not None and after.config is not None
        else ()
    )
    if isinstance(request, SetValue | UnsetValue):
        lines = wording.value_rows(request.path, loaded, after, edits, effects, snapshot, kinds)
    else:
        lines = wording.rows(
            request, snapshot, loaded.config, after, edits, effects, engines=engines, remembered=remembered
        )
    words = wording.steps(request, snapshot, edits, engines)
    return replace(made, rows=lines, effects=effects, edits=tuple(edits), steps=words)
