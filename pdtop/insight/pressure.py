"""Findings about work that waits: KV memory, handshake, transfer, queues that grow, ranks that are full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from pdtop.cluster.model import READABLE, Finding, Latency, Pool, Role, Severity, Snapshot, Worker
from pdtop.cluster.words import span
from pdtop.insight.balance import affinity_fix
from pdtop.insight.levels import Levels
from pdtop.insight.words import count, percent, several


def worker_findings(worker: Worker, snapshot: Snapshot, levels: Levels) -> Iterator[Finding]:
    """What presses on one worker; nothing for one whose numbers are not of now."""
    if worker.state not in READABLE or worker.stale:
        return
    yield from _kv(worker, levels)
    yield from _rank(worker, levels)
    yield from _bootstrap(worker, levels)
    yield from _transfer(worker, snapshot, levels)
    yield from _progress(worker, snapshot)
    yield from _growing(worker, snapshot, levels)


def pool_findings(snapshot: Snapshot, levels: Levels) -> Iterator[Finding]:
    """Where the cluster as a whole is stuck, by the pattern of both pools' queues."""
    yield from _bottleneck(snapshot, levels)
    for pool in (snapshot.prefill, snapshot.decode):
        backlog = pool.trends.get("backlog", ())
        if pool.total > 1 and (grown := grown_by(backlog, snapshot.tick_s, levels)) is not None:
            before, now = grown
            yield Finding(
                Severity.WARNING,
                "backlog_growing",
                f"backlog of the {pool.role} pool grows: {count(before)} to {count(now)} "
                f"in {levels.growing_span_s:.0f} s",
                pool=pool.role,
                evidence=_parts(pool.backlog.parts),
                fix="more comes in than goes out: add capacity to this pool or hold traffic back",
            )


def _kv(worker: Worker, levels: Levels) -> Iterator[Finding]:
    use = worker.kv_use_worst if worker.kv_use_worst is not None else worker.kv_use
    prealloc = worker.backlog.parts.get("prealloc") or 0.0
    retracted = worker.retracted or 0.0
    if use is None:
        return
    rank = f" (rank {worker.kv_worst_rank})" if worker.kv_worst_rank and len(worker.ranks) > 1 else ""
    held = worker.role is not Role.PREFILL and (
        (use >= levels.kv_warn and prealloc + retracted > 0)
        or (use >= levels.kv_held and (retracted > 0 or prealloc >= max(levels.pile, worker.running or 0.0)))
    )
    if held:
        parts = [f"{count(prealloc)} wait for KV space"] if prealloc else []
        parts += [f"{count(retracted)} put back"] if retracted else []
        yield _finding(
            worker,
            Severity.CRITICAL if use >= levels.kv_crit and retracted else Severity.WARNING,
            "kv_pressure",
            f"out of KV memory{rank}: {', '.join(parts)}",
            evidence=f"KV {percent(use)}, prealloc {count(prealloc)}, retracted {count(retracted)}, "
            f"running {_known(worker.running)}",
            fix="requests whose KV has not come hold it: see the transfer and the prefill pool"
            if _held_by_transfer(worker, levels)
            else "more decode workers, fewer running requests, or move load if only this one is full",
        )
    elif use >= levels.kv_warn:
        yield _finding(
            worker,
            Severity.WARNING if use >= levels.kv_crit else Severity.INFO,
            "kv_nearly_full",
            f"KV memory nearly full{rank}: {percent(use)}",
            evidence=f"KV {percent(use)}, running {_known(worker.running)}, nothing held back yet",
            fix="the next long requests will have to wait; move load to another worker",
        )


def _held_by_transfer(decode: Worker | Pool, levels: Levels) -> bool:
    """More requests wait for their KV than run: what holds decode's memory is transfers, not decoding."""
    transfer = decode.backlog.parts.get("transfer") or 0.0
    return transfer >= max(levels.pile, decode.running or 0.0)


def _rank(worker: Worker, levels: Levels) -> Iterator[Finding]:
    """One DP rank full while the others have room: the sum over ranks hides it."""
    if len(worker.ranks) < 2 or worker.kv_use is None or worker.kv_use_worst is None:
        return
    if worker.kv_use_worst < levels.rank_full or worker.kv_use_worst - worker.kv_use < levels.rank_gap:
        return
    fullest = next((rank for rank in worker.ranks if rank.dp_rank == worker.kv_worst_rank), None)
    if fullest is None:
        return
    others = [rank.kv_use for rank in worker.ranks if rank is not fullest and rank.kv_use is not None]
    yield _finding(
        worker,
        Severity.WARNING,
        "rank_imbalance",
        f"rank {fullest.dp_rank} is full ({percent(worker.kv_use_worst)}), "
        f"the other {several(len(worker.ranks) - 1, 'rank')} average {percent(fmean(others))}",
        evidence=f"rank {fullest.dp_rank}: running {_known(fullest.running)}, "
        f"backlog {_known(fullest.backlog.total)}; worker: running {_known(worker.running)}",
        fix="requests pinned to one rank: look at the load-balance method and the router's rank selection",
    )


def _bootstrap(worker: Worker, levels: Levels) -> Iterator[Finding]:
    waiting = worker.backlog.parts.get("bootstrap") or 0.0
    if worker.role is Role.DECODE or waiting < levels.pile:
        return
    yield _finding(
        worker,
        Severity.WARNING,
        "bootstrap_backlog",
        f"{count(waiting)} requests wait for the handshake with decode",
        evidence=f"bootstrap {count(waiting)}, queue {_known(worker.backlog.parts.get('queue'))}, "
        f"running {_known(worker.running)}",
        fix="decode gives no KV room or does not answer: look at decode's prealloc queue and KV use",
    )


def _transfer(worker: Worker, snapshot: Snapshot, levels: Levels) -> Iterator[Finding]:
    failures = worker.transfer_failures or 0.0
    if failures > 0:
        yield _finding(
            worker,
            Severity.WARNING,
            "transfer_failures",
            f"{several(failures, 'KV transfer')} failed in the window",
            evidence=f"{_per_s(worker.transfer_failures_per_s)}, "
            f"transfer queue {_known(worker.backlog.parts.get('transfer'))}, "
            f"inflight {_known(worker.inflight)}",
            fix="look at the network between the pools and at partners that went away",
        )
    waiting = worker.backlog.parts.get("transfer") or 0.0
    if worker.role is not Role.DECODE or not waiting:
        return
    still = worker.transfer_still_reads >= levels.still_reads and not _prefill_computes(snapshot.prefill)
    if not still and not _nothing_started(worker.ttft):
        return
    yield Finding(
        Severity.CRITICAL,
        "transfer_stalled",
        f"KV transfer stuck: {count(waiting)} waiting for KV, none arrived",
        worker=worker.key,
        pool=worker.role,
        evidence=f"transfer queue {count(waiting)}"
        + (f" in {worker.transfer_still_reads} reads" if still else ", no first token in the window")
        + f", {_per_s(worker.transfer_failures_per_s)} failed transfers, running {_known(worker.running)}, "
        f"{_per_s(worker.tokens_per_s)} tokens{_peers(snapshot)}",
        fix="not decode's compute: check the transfer network and the prefill workers that send to it; "
        "requests give up after 300 s by default",
        since_s=worker.transfer_still_s if still else None,
    )


def _prefill_computes(prefill: Pool) -> bool:
    """What waits for prefill's forward pass waits in decode's transfer queue, too: no KV is due yet."""
    return prefill.inflight == 0 and bool(
        (prefill.running or 0.0) + (prefill.backlog.parts.get("queue") or 0.0)
    )


def _peers(snapshot: Snapshot) -> str:
    """The prefill workers that send KV now or cannot be read; none if that is not known of any."""
    peers = [
        f"{w.name} {w.state or 'not asked' if w.state not in READABLE else f'inflight {_known(w.inflight)}'}"
        for w in snapshot.pool_workers(Role.PREFILL)
        if w.inflight or w.state not in READABLE
    ]
    more = f" and {len(peers) - 6} more" if len(peers) > 6 else ""
    return f"; prefill: {', '.join(peers[:6])}{more}" if peers else ""


def _nothing_started(ttft: Latency | None) -> bool:
    return ttft is not None and ttft.distribution is not None and ttft.distribution.count == 0


def _progress(worker: Worker, snapshot: Snapshot) -> Iterator[Finding]:
    """Running requests, but no token: only if something ran all the time, since a gauge may be younger."""
    running, tokens = worker.running, worker.tokens_per_s
    if not running or tokens is None or tokens > 0:
        return
    points = max(2, round(snapshot.window_s / max(snapshot.tick_s, 0.1)))
    recent = worker.trends.get("running", ())[-points:]
    seen = [(age, point) for age, point in enumerate(reversed(recent)) if point is not None]
    if len(seen) < 2 or min(point for _, point in seen) <= 0:
        return
    watched = [seen[-1][0] * snapshot.tick_s, snapshot.window_s, worker.window_s]
    seconds = min(one for one in watched if one)
    yield _finding(
        worker,
        Severity.CRITICAL,
        "running_without_progress",
        f"{count(running)} running, but not one token in {span(seconds)}",
        evidence=f"running {count(running)} (from {worker.source or 'its page'}), tokens 0, "
        f"backlog {_known(worker.backlog.total)}",
        fix="its scheduler makes no progress: read its log, take it out of rotation",
    )


def grown_by(backlog: Sequence[float | None], tick_s: float, levels: Levels) -> tuple[float, float] | None:
    """(before, now) if the backlog grew steadily over the span: each third above the one before."""
    points = round(levels.growing_span_s / max(tick_s, 0.1))
    recent = [point for point in backlog[-points:] if point is not None]
    if len(backlog) < points or len(recent) < max(6, points * 0.8):
        return None
    third = len(recent) // 3
    first, middle, last = fmean(recent[:third]), fmean(recent[third : 2 * third]), fmean(recent[-third:])
    risen = last - first
    if recent[-1] < levels.pile or risen < max(levels.pile / 2, first * 0.5):
        return None
    if not first + risen * 0.2 < middle < last - risen * 0.2:
        return None
    return first, recent[-1]


def _growing(worker: Worker, snapshot: Snapshot, levels: Levels) -> Iterator[Finding]:
    grown = grown_by(worker.trends.get("backlog", ()), snapshot.tick_s, levels)
    if grown is None:
        return
    pool = snapshot.prefill if worker.role is Role.PREFILL else snapshot.decode
    if pool.total > 1 and grown_by(pool.trends.get("backlog", ()), snapshot.tick_s, levels) is not None:
        own, rest = grown[1], (pool.backlog.total or 0.0) - grown[1]
        if own < 2 * rest:
            return  # the pool's own finding says it
    yield _finding(
        worker,
        Severity.WARNING,
        "backlog_growing",
        f"backlog grows: {count(grown[0])} to {count(grown[1])} in {levels.growing_span_s:.0f} s",
        evidence=_parts(worker.backlog.parts),
        fix="more comes in than goes out; see whether the other workers of the pool have room",
    )


def _bottleneck(snapshot: Snapshot, levels: Levels) -> Iterator[Finding]:
    """One sentence for the whole cluster: the same request waits on P *and* on D, so read both together.

    The largest part on P decides: what waits for its forward pass waits in D's transfer queue, too. Only
    where KV that does not arrive holds decode's memory, the handshakes behind it are not the cause.
    """
    prefill, decode = snapshot.prefill, snapshot.decode
    bootstrap, queue, inflight = _part(prefill, "bootstrap"), _part(prefill, "queue"), prefill.inflight or 0.0
    prealloc, transfer = _part(decode, "prealloc"), _part(decode, "transfer")
    largest, pile = max(bootstrap, queue, inflight), levels.pile
    evidence = (
        f"P queue {count(queue)}, bootstrap {count(bootstrap)}, inflight {count(inflight)}; "
        f"D prealloc {count(prealloc)}, transfer {count(transfer)}, KV {_share(decode.kv_use_worst)}"
    )
    found: tuple[Role, str, str] | None = None
    if largest == queue and queue >= pile * max(1, prefill.usable):
        found = _compute_bound(snapshot, queue)
    elif min(inflight, transfer) >= pile and (largest == inflight or _held_by_transfer(decode, levels)):
        found = _slow_transfer(snapshot, inflight, transfer)
    elif largest == bootstrap and min(bootstrap, prealloc) >= pile:
        found = _no_room(decode, bootstrap, prealloc, levels)
    if found is not None:
        pool, text, fix = found
        yield Finding(Severity.WARNING, "bottleneck", text, pool=pool, evidence=evidence, fix=fix)


def _compute_bound(snapshot: Snapshot, queue: float) -> tuple[Role, str, str]:
    queues = {w.name: w.backlog.parts.get("queue") or 0.0 for w in snapshot.pool_workers(Role.PREFILL)}
    fullest = max(queues, key=lambda name: queues[name])
    if snapshot.prefill.usable > 1 and queues[fullest] >= 0.8 * queue:
        return (
            Role.PREFILL,
            f"prefill waits on one worker: {count(queues[fullest])} of {count(queue)} queue at {fullest}",
            f"the others have room: {affinity_fix(snapshot.prefill.policy)}",
        )
    return (
        Role.PREFILL,
        f"prefill is compute-bound: {count(queue)} ready to run wait for a forward pass",
        "add prefill capacity, or raise the prefix hit rate",
    )


def _slow_transfer(snapshot: Snapshot, inflight: float, transfer: float) -> tuple[Role, str, str]:
    text = f"KV transfer is slow: {count(inflight)} being sent, {count(transfer)} waiting for them"
    sending = {w.name: w.inflight or 0.0 for w in snapshot.pool_workers(Role.PREFILL)}
    most = max(sending, key=lambda name: sending[name])
    if snapshot.prefill.usable > 1 and sending[most] >= 0.8 * inflight:
        return (
            Role.DECODE,
            f"{text}; {count(sending[most])} of them from {most}",
            f"look at the network of {most} and its transfer log; drain it if that goes on",
        )
    return Role.DECODE, text, "look at the network between the pools and the transfer backend's log"


def _no_room(decode: Pool, bootstrap: float, prealloc: float, levels: Levels) -> tuple[Role, str, str]:
    use = decode.kv_use_worst
    if use is None or use >= levels.kv_held:
        return (
            Role.DECODE,
            f"decode is out of KV memory: {count(bootstrap)} wait in prefill's bootstrap, "
            f"{count(prealloc)} in decode's prealloc",
            "add decode capacity; prefill has nothing to do with it",
        )
    return (
        Role.DECODE,
        f"the handshake between prefill and decode is slow: {count(bootstrap)} wait in bootstrap",
        "decode has KV room: look at the bootstrap port of prefill and at failed handshakes",
    )


def _part(pool: Pool, name: str) -> float:
    return pool.backlog.parts.get(name) or 0.0


def _per_s(value: float | None) -> str:
    return "?/s" if value is None else f"{count(round(value, 1))}/s"


def _known(value: float | None) -> str:
    return "?" if value is None else count(value)


def _share(value: float | None) -> str:
    return "?" if value is None else percent(value)


def _parts(parts: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {_known(value)}" for name, value in parts.items())


def _finding(worker: Worker, severity: Severity, kind: str, text: str, *, evidence: str, fix: str) -> Finding:
    return Finding(severity, kind, text, worker=worker.key, pool=worker.role, evidence=evidence, fix=fix)
