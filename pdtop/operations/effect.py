"""What a change does to a pool: how many workers stay usable, and what the rest has to carry."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pdtop.cluster.model import READABLE, Role, Snapshot, Worker
from pdtop.operations.model import PoolEffect


def pool_effect(
    snapshot: Snapshot,
    role: Role,
    without: Collection[str] = (),
    *,
    back: Collection[str] = (),
    idle: Collection[str] = (),
) -> PoolEffect:
    """The pool before and after. All three are keys of workers.

    ``without`` leave; ``back`` were drained and return, if they answer. ``idle`` get no new work
    before or after, for the file says so: drained, or weight 0 at a router that reads weights.
    """
    workers = snapshot.pool_workers(role)
    before = [w for w in workers if w.usable is True and w.key not in idle]
    counted = {w.key for w in before}
    returning = [w for w in workers if w.key in back and w.key not in counted and w.state in READABLE]
    after = [w for w in before if w.key not in without] + returning
    rooms = _rooms([*before, *returning])
    held = _sum([_product(w.kv_use, rooms[w.key]) for w in before])
    running = _sum([w.running for w in before])
    return PoolEffect(
        role=role,
        total=len(workers),
        usable_before=len(before),
        usable_after=len(after),
        kv_before=_ratio(held, sum(rooms[w.key] for w in before)),
        kv_after=_ratio(held, sum(rooms[w.key] for w in after)),
        running_before=_ratio(running, len(before)),
        running_after=_ratio(running, len(after)),
    )


def capacity_share(
    snapshot: Snapshot, role: Role, without: Collection[str], *, idle: Collection[str] = ()
) -> float | None:
    """Which part of the pool's usable KV capacity these workers are; None if nothing is usable."""
    usable = [w for w in snapshot.pool_workers(role) if w.usable is True and w.key not in idle]
    rooms = _rooms(usable)
    return _ratio(sum(room for key, room in rooms.items() if key in without), sum(rooms.values()))


def _rooms(workers: Sequence[Worker]) -> dict[str, float]:
    """KV capacity of each in tokens; all count the same if one does not tell its own."""
    known = {w.key: w.identity.kv_capacity_tokens for w in workers}
    return {key: float(tokens) if tokens and all(known.values()) else 1.0 for key, tokens in known.items()}


def _product(one: float | None, other: float) -> float | None:
    return None if one is None else one * other


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _ratio(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None
