"""A deterministic source with synthetic snapshots: the same numbers on every run."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from pdtop.cluster.model import (
    Backlog,
    Breaker,
    Finding,
    Goodput,
    Health,
    Identity,
    Latency,
    PageFacts,
    Pool,
    Rank,
    Role,
    Router,
    RouterOpinion,
    Severity,
    Snapshot,
    State,
    Worker,
)
from pdtop.metrics.distribution import Distribution, merge

NOW = 1_700_000_000.0
BOUNDS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0, math.inf)
TPOT_BOUNDS = (0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.5, 1.0, math.inf)
POINTS = 120


@lru_cache(4096)
def spread_of(p50: float, p99: float, bounds: tuple[float, ...] = BOUNDS, n: int = 1000) -> Distribution:
    """A distribution whose p50 and p99 are close to the given ones (log-normal, seconds)."""
    sigma = max(0.05, math.log(p99 / p50) / 2.326)
    counts = []
    for bound in bounds:
        share = (
            1.0 if bound == math.inf else 0.5 * (1 + math.erf(math.log(bound / p50) / sigma / math.sqrt(2)))
        )
        counts.append(float(round(n * share)))
    return Distribution(bounds, tuple(counts), n * p50)


def latency(source: str, p50: float, p99: float, bounds: tuple[float, ...] = BOUNDS) -> Latency:
    return Latency(source, f"sglang:{source}", spread_of(p50, p99, bounds))


@lru_cache(65536)
def trend(
    seed: int, level: float, number: int, rise: float = 0.0, jitter: float = 0.15
) -> tuple[float | None, ...]:
    """A wander around ``level`` that ends ``rise`` times higher.

    Without a rise the point of a tick is the same in every snapshot that still holds it.
    """

    def noise(tick: int) -> float:
        return ((seed * 2_654_435_761 + tick * 40_503 * 65_537) >> 8) % 1024 / 512 - 1

    return tuple(
        level
        * (1 + rise * max(0.0, (i - POINTS / 2) / (POINTS / 2)) + jitter * noise(number - POINTS + 1 + i))
        for i in range(POINTS)
    )


def opinion(share: float, **changes: object) -> RouterOpinion:
    base = RouterOpinion(
        router="http://10.0.0.1:30000",
        worker_ids=("7f3a",),
        health=Health.HEALTHY,
        breaker=Breaker.CLOSED,
        inflight=round(share * 40),
        load=share * 60,
        requests=share * 1200,
        requests_per_s=share * 40,
        share=share,
        failure_rate=0.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def identity(**changes: object) -> Identity:
    base = Identity(
        version="0.5.23",
        model="/models/DeepSeek-V3.1",
        tp_size=8,
        pp_size=1,
        dp_size=1,
        transfer_backend="mooncake",
        bootstrap_port=8998,
        max_running_requests=128,
        kv_capacity_tokens=412_000,
        flags={"--chunked-prefill-size": "8192", "--mem-fraction-static": "0.88"},
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def prefill(
    host: str,
    *,
    run: float,
    parts: tuple[float | None, float | None],
    inflight: float | None,
    kv: float,
    hit: float,
    tok: float,
    queue: tuple[float, float],
    share: float,
    rise: float = 0.0,
    number: int = 100,
    **changes: object,
) -> Worker:
    key = f"{host}:30001"
    known = [v for v in parts if v is not None]
    base = Worker(
        key=key,
        name=key,
        role=Role.PREFILL,
        state=State.OK,
        usable=True,
        age_s=0.8,
        source="/v1/loads",
        running=run,
        backlog=Backlog(sum(known), None in parts, {"queue": parts[0], "bootstrap": parts[1]}),
        inflight=inflight,
        kv_use=kv,
        kv_use_worst=kv,
        hit_rate=hit,
        tokens_per_s=tok,
        prompt_tokens_per_s=tok,
        requests_per_s=tok / 2000,
        queue_time=latency("prefill", *queue),
        ttft=latency("prefill", queue[0] + 0.09, queue[1] + 0.2),
        share=share,
        opinions=(opinion(share),),
        identity=identity(),
        page=PageFacts(lines=812, bad_lines=0, duplicates=0, bytes=92_100),
        stages={"prefill_bootstrap": spread_of(0.03, 0.2), "prefill_forward": spread_of(0.15, 0.4)},
        kv_transfer_ms=spread_of(22.0, 80.0, (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, math.inf)),
        trends={
            "queue_time": trend(hash_of(host), queue[0], number, rise),
            "tokens": trend(hash_of(host) + 1, tok, number),
            "backlog": trend(hash_of(host) + 2, max(0.3, sum(known)), number, rise),
            "running": trend(hash_of(host) + 3, run, number),
            "kv": trend(hash_of(host) + 4, kv, number, 0.0, 0.05),
        },
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def decode(
    host: str,
    *,
    run: float,
    parts: tuple[float | None, float | None, float | None],
    kv: float,
    tok: float,
    ttft: tuple[float, float],
    tpot: tuple[float, float],
    share: float,
    rise: float = 0.0,
    number: int = 100,
    **changes: object,
) -> Worker:
    key = f"{host}:30001"
    known = [v for v in parts if v is not None]
    base = Worker(
        key=key,
        name=key,
        role=Role.DECODE,
        state=State.OK,
        usable=True,
        age_s=0.8,
        source="/v1/loads",
        running=run,
        backlog=Backlog(
            sum(known), None in parts, {"queue": parts[0], "prealloc": parts[1], "transfer": parts[2]}
        ),
        retracted=0.0,
        kv_use=kv,
        kv_use_worst=kv,
        hit_rate=None,
        tokens_per_s=tok,
        generated_tokens_per_s=tok,
        requests_per_s=tok / 240,
        ttft=latency("decode", *ttft),
        tpot=latency("decode", *tpot, TPOT_BOUNDS),
        share=share,
        opinions=(opinion(share),),
        identity=identity(bootstrap_port=None),
        page=PageFacts(lines=801, bad_lines=0, duplicates=0, bytes=88_300),
        stages={"decode_prealloc": spread_of(0.01, 0.1), "decode_transferred": spread_of(0.06, 0.5)},
        trends={
            "ttft": trend(hash_of(host), ttft[0], number, rise),
            "tpot": trend(hash_of(host) + 1, tpot[0], number, rise / 4),
            "tokens": trend(hash_of(host) + 2, tok, number),
            "backlog": trend(hash_of(host) + 3, max(0.3, sum(known)), number, rise),
            "running": trend(hash_of(host) + 4, run, number),
            "kv": trend(hash_of(host) + 5, kv, number, 0.0, 0.05),
        },
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def hash_of(name: str) -> int:
    """A seed that is the same in every process."""
    return sum((i + 1) * ord(c) for i, c in enumerate(name)) * 7


def _sum(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def pool_of(role: Role, workers: tuple[Worker, ...], policy: str) -> Pool:
    """Totals as the engine makes them; only what the screen reads."""
    mine = [w for w in workers if w.role is role]
    parts: dict[str, float | None] = {}
    for worker in mine:
        for name, value in worker.backlog.parts.items():
            parts[name] = None if value is None else (parts.get(name) or 0.0) + value
    kvs = [w.kv_use for w in mine if w.kv_use is not None]
    queue_parts = [w.queue_time.distribution for w in mine if w.queue_time and w.queue_time.distribution]
    return Pool(
        role=role,
        total=len(mine),
        usable=sum(w.usable is True for w in mine),
        usable_unknown=sum(w.usable is None for w in mine),
        draining=sum(w.draining for w in mine),
        running=_sum([w.running for w in mine]),
        running_unknown=sum(w.running is None for w in mine),
        backlog=Backlog(
            _sum([w.backlog.total for w in mine]), any(w.backlog.lower_bound for w in mine), parts
        ),
        inflight=_sum([w.inflight for w in mine]),
        kv_use=sum(kvs) / len(kvs) if kvs else None,
        kv_use_worst=max(kvs, default=None),
        tokens_per_s=_sum([w.tokens_per_s for w in mine]),
        requests_per_s=_sum([w.requests_per_s for w in mine]),
        queue_time=Latency("prefill", "sglang:queue_time_seconds", merge(queue_parts)),
        policy=policy,
    )


def snapshot_of(
    workers: tuple[Worker, ...], findings: tuple[Finding, ...] = (), number: int = 100, **changes: object
) -> Snapshot:
    base = Snapshot(
        number=number,
        cluster="prod-a",
        at=NOW + number,
        window_s=30.0,
        interval_s=1.0,
        routers=(
            Router(
                name="router-0",
                url="http://10.0.0.1:30000",
                engine="smg",
                version="1.13.0",
                state=State.OK,
                ready=True,
                metrics_state=State.OK,
                metrics_url="http://10.0.0.1:29000/metrics",
                control=True,
                age_s=0.6,
                requests_per_s=41.0,
                errors_per_s=0.0,
                inflight=87,
                active_workers=len(workers),
            ),
        ),
        prefill=pool_of(Role.PREFILL, workers, "cache_aware 0.30/0.70"),
        decode=pool_of(Role.DECODE, workers, "power_of_two"),
        workers=workers,
        ttft=latency("router", 0.214, 0.812),
        tpot=latency("decode", 0.021, 0.043, TPOT_BOUNDS),
        goodput=Goodput(ttft_target_s=1.0, tpot_target_s=0.05, ttft_share=0.972, tpot_share=0.991),
        findings=findings,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def moment(number: int = 100) -> Snapshot:
    """The moment of the sketch: one D stalls, one P takes most of the prefill, one D is draining."""
    workers = (
        prefill("10.0.1.11", run=4, parts=(9, 3), inflight=9, kv=0.61, hit=0.72, tok=24100,
                queue=(0.7, 1.92), share=0.62, rise=4.0, number=number),
        prefill("10.0.1.12", run=3, parts=(0, 1), inflight=1, kv=0.33, hit=0.18, tok=9000,
                queue=(0.05, 0.21), share=0.20, number=number),
        prefill("10.0.1.13", run=2, parts=(0, 1), inflight=1, kv=0.31, hit=0.16, tok=8100,
                queue=(0.05, 0.198), share=0.18, number=number),
        decode("10.0.2.21", run=17, parts=(0, 1, 1), kv=0.44, tok=3100, ttft=(0.201, 0.64),
               tpot=(0.020, 0.038), share=0.26, number=number),
        decode("10.0.2.22", run=14, parts=(0, 1, 12), kv=0.71, tok=2200, ttft=(0.388, 2.9),
               tpot=(0.024, 0.061), share=0.24, rise=3.0, number=number),
        decode("10.0.2.23", run=18, parts=(1, 0, 0), kv=0.52, tok=3200, ttft=(0.198, 0.61),
               tpot=(0.021, 0.040), share=0.27, number=number),
        decode("10.0.2.24", run=12, parts=(0, 0, 1), kv=0.38, tok=1300, ttft=(0.2, 0.6),
               tpot=(0.021, 0.041), share=0.0, number=number, draining=True, usable=False,
               unusable_because="draining", opinions=(opinion(0.0, health=Health.DRAINING),)),
    )  # fmt: skip
    drained = workers[-1]
    workers = (*workers[:-1], replace(drained, ttft=Latency("decode", "sglang:ttft", None)))
    findings = (
        Finding(Severity.WARNING, "transfer_stalled",
                "KV transfer stalled: 12 waiting for KV, none arrived; P inflight 9 and rising",
                worker="10.0.2.22:30001", pool=Role.DECODE,
                evidence="transfer 12 for 14 s, 0 tokens of new requests",
                fix="look at the transfer backend of both sides; drain it if it does not recover",
                since_s=14.0),
        Finding(Severity.WARNING, "hot_worker",
                "takes 62 % of prefill: prefix affinity, the others have room",
                worker="10.0.1.11:30001", pool=Role.PREFILL, evidence="share 62 %, even share 33 %",
                fix="lower cache_aware_threshold", since_s=75.0),
        Finding(Severity.INFO, "draining", "draining: 13 left", worker="10.0.2.24:30001", pool=Role.DECODE,
                since_s=130.0),
    )  # fmt: skip
    return snapshot_of(workers, findings, number)


def calm(number: int = 100, prefills: int = 3, decodes: int = 4, changing: float = 1.0) -> Snapshot:
    """Nothing wrong. With another ``number`` the counts of ``changing`` of the workers wander."""
    workers: list[Worker] = []
    for index in range(prefills + decodes):
        rng = random.Random(index * 1000 + number)
        moved = rng.random() < changing
        step = rng.choice((-1, 0, 1)) if moved else 0
        if index < prefills:
            host = f"10.0.{1 + index // 200}.{11 + index % 200}"
            workers.append(
                prefill(host, run=3 + step, parts=(0, max(0, step)), inflight=1, kv=0.31 + 0.01 * step,
                        hit=0.4, tok=8000 + 100 * step, queue=(0.05, 0.2), share=1 / prefills, number=number)
            )  # fmt: skip
        else:
            host = f"10.1.{1 + index // 200}.{11 + index % 200}"
            workers.append(
                decode(host, run=16 + step, parts=(0, 0, max(0, step)), kv=0.44 + 0.01 * step,
                       tok=3000 + 100 * step, ttft=(0.2, 0.6), tpot=(0.02, 0.038), share=1 / decodes,
                       number=number)
            )  # fmt: skip
    return snapshot_of(tuple(workers), number=number)


def waiting() -> Snapshot:
    """Before the first answer: workers known from the config, nothing asked yet."""
    workers = tuple(
        Worker(key=f"{host}:30001", name=f"{host}:30001", role=role, state=None)
        for role, hosts in (
            (Role.PREFILL, ("10.0.1.11", "10.0.1.12", "10.0.1.13")),
            (Role.DECODE, ("10.0.2.21", "10.0.2.22", "10.0.2.23", "10.0.2.24")),
        )
        for host in hosts
    )
    return snapshot_of(
        workers, number=0, ttft=None, tpot=None, goodput=None,
        routers=(Router("router-0", "http://10.0.0.1:30000", "unknown"),),
    )  # fmt: skip


def empty() -> Snapshot:
    """A snapshot with nobody in it."""
    return Snapshot(number=0, cluster="prod-a", at=NOW, window_s=30.0, interval_s=1.0)


def all_down(number: int = 100) -> Snapshot:
    """Nobody answers; the last numbers are shown with their age."""
    dead = tuple(
        replace(
            w,
            state=State.REFUSED if i % 2 else State.TIMEOUT,
            reason="connection refused" if i % 2 else "no answer within 2 s",
            usable=False,
            age_s=64.0 + i,
            stale=True,
        )
        for i, w in enumerate(moment(number).workers)
    )
    findings = tuple(
        Finding(Severity.CRITICAL, "down", f"down: {w.reason}", worker=w.key, pool=w.role, since_s=w.age_s)
        for w in dead
    )
    pools = tuple(
        Finding(Severity.CRITICAL, "no_usable_worker", "no usable worker: every request fails", pool=role)
        for role in (Role.PREFILL, Role.DECODE)
    )
    router = Router(
        "router-0", "http://10.0.0.1:30000", "smg", "1.13.0", State.REFUSED, ready=False, age_s=64.0
    )
    return snapshot_of(dead, pools + findings, number, routers=(router,), ttft=None, tpot=None, goodput=None)


HOSTILE = "[/qwen] [red]x"


def hostile(number: int = 100) -> Snapshot:
    """Markup, control characters, wide and endless names everywhere outside text can get in."""
    base = moment(number)
    nasty = (HOSTILE, "\x1b[31mred\x07\x9b", "日本-ワーカー-7", "a" * 300,
             "x\u202egnp.exe\u200b", "[link=x]y", "e\u0301te")  # fmt: skip
    workers = tuple(
        replace(w, name=name, reason=name, identity=replace(w.identity, model=HOSTILE, flags={name: name}))
        for w, name in zip(base.workers, nasty, strict=True)
    )
    findings = tuple(
        Finding(Severity.WARNING, name, name, worker=w.key, evidence=name, fix=name)
        for w, name in zip(workers, nasty, strict=True)
    )
    router = replace(base.routers[0], engine=HOSTILE, version="[b]1", name=HOSTILE)
    return replace(base, workers=workers, findings=findings, cluster=HOSTILE, routers=(router,),
                   config_error="line 3: " + HOSTILE)  # fmt: skip


def ranked(number: int = 100) -> Snapshot:
    """The moment with a decode worker of eight DP ranks, one of them full."""
    base = moment(number)
    ranks = tuple(
        Rank(
            dp_rank=str(r),
            running=2.0 + r % 2,
            backlog=Backlog(float(r == 5), False, {"queue": 0.0, "prealloc": 0.0, "transfer": float(r == 5)}),
            kv_use=0.97 if r == 5 else 0.4 + r / 50,
            tokens_per_s=380.0 + r,
            hit_rate=None,
            age_s=0.8,
        )
        for r in range(8)
    )
    workers = tuple(
        replace(
            w,
            ranks=ranks,
            ranks_expected=8,
            kv_use_worst=0.97,
            kv_worst_rank="5",
            identity=identity(dp_size=8),
        )
        if w.key == "10.0.2.22:30001"
        else w
        for w in base.workers
    )
    return replace(base, workers=workers)


@dataclass(frozen=True)
class FakeHistory:
    """A worker's past, taken from its trends."""

    interval_s: float
    series: Mapping[str, tuple[float | None, ...]]


class FakeSource:
    """A source the test drives: ``push`` publishes, ``calls`` records what the screen asked for."""

    def __init__(self, snapshot: Snapshot, pages: Mapping[str, str] | None = None) -> None:
        self.current = snapshot
        self.pages = dict(pages or {})
        self.callbacks: list[Callable[[Snapshot], None]] = []
        self.intervals: list[float] = []
        self.stopped = False

    def latest(self) -> Snapshot:
        return self.current

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def push(self, snapshot: Snapshot) -> None:
        """Publish a snapshot as the engine would."""
        self.current = snapshot
        for callback in list(self.callbacks):
            callback(snapshot)

    def history(self, key: str) -> FakeHistory | None:
        worker = self.current.worker(key)
        return FakeHistory(1.0, worker.trends) if worker else None

    def raw_page(self, key: str) -> str | None:
        return self.pages.get(key)

    def set_interval(self, seconds: float) -> None:
        self.intervals.append(seconds)

    def stop(self) -> None:
        self.stopped = True
