"""The queueing model in virtual time: every request is accounted for, and trouble looks as it should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pdtop.simulator.decode import DecodeEngine, DecodeModel
from pdtop.simulator.engine import Gauges, LinkModel, Request, Site
from pdtop.simulator.prefill import PrefillEngine, PrefillModel
from pdtop.simulator.spec import WorkerSpec
from pdtop.simulator.traffic import Traffic, arrivals
from pdtop.simulator.virtual import Result, VirtualCluster, VirtualWorker, least_loaded

PREFILL = PrefillModel(
    tokens_per_s=1000.0,
    overhead_s=0.1,
    chunk_tokens=1000,
    kv_tokens=10_000,
    kv_bytes_per_token=2**20,
    link=LinkModel(same_host_gb_s=1.0, same_rack_gb_s=0.5, cross_rack_gb_s=0.1, setup_s=0.0),
    site=Site("a", "r0"),
)
DECODE = DecodeModel(
    step_s=0.1,
    step_per_request_s=0.0,
    step_per_kilotoken_s=0.0,
    kv_tokens=10_000,
    reserve_tokens=0,
    handshake_s=0.0,
    site=Site("a", "r0"),
)


def cluster(
    prefill: int = 1, decode: int = 1, p: PrefillModel = PREFILL, d: DecodeModel = DECODE
) -> VirtualCluster:
    specs = [WorkerSpec(role="prefill", prefill=p, seed=i) for i in range(prefill)]
    return VirtualCluster.make([*specs, *(WorkerSpec(role="decode", decode=d) for _ in range(decode))])


def send(
    c: VirtualCluster, number: int, prompt: int = 1000, output: int = 11, blocks: tuple[int, ...] = ()
) -> None:
    request = Request(f"r{number}", number, prompt, output, streaming=True, blocks=blocks)
    c.submit(request, c.prefill[0], c.decode[0])


def gauges(worker: VirtualWorker, now: float = 0.0) -> Gauges:
    return worker.engines[0].gauges(now)


def counts(workers: Sequence[VirtualWorker]) -> Counter[str]:
    total: Counter[str] = Counter()
    for worker in workers:
        total += worker.telemetry.truth.counts
    return total


def test_the_times_of_one_request() -> None:
    c = cluster()
    send(c, 1, prompt=1024, output=11)
    c.drain()
    (result,) = c.results
    # 24 + 1000 tokens in two passes: 0.1 + 1.0 and 0.1 + 0.024 s; 1 GiB at 1 GiB/s; ten steps of 0.1 s.
    assert result.error == ""
    assert result.tokens == 11
    assert result.first_s == pytest.approx(1.224 + 1.0)
    assert result.end_s == pytest.approx(1.224 + 1.0 + 1.0)


@pytest.mark.parametrize(
    ("site", "seconds"), [(Site("a", "r0"), 1.0), (Site("b", "r0"), 2.0), (Site("b", "r1"), 10.0)]
)
def test_distance_decides_the_time_of_a_transfer(site: Site, seconds: float) -> None:
    c = cluster(d=replace(DECODE, site=site))
    send(c, 1, prompt=1024, output=1)
    c.drain()
    assert c.results[0].first_s == pytest.approx(1.224 + seconds)


def test_transfers_of_one_worker_queue_for_its_link() -> None:
    c = cluster(p=replace(PREFILL, tokens_per_s=1e9, overhead_s=0.0, chunk_tokens=4096))
    for number in (1, 2, 3):
        send(c, number, prompt=1024, output=1)
    c.run_until(1.5)
    assert gauges(c.prefill[0]).inflight == 2
    assert gauges(c.decode[0]).transfer == 2
    c.drain()
    assert [r.first_s for r in c.results] == pytest.approx([1.0, 2.0, 3.0], abs=0.01)


def test_a_known_prefix_is_not_computed_again() -> None:
    c = cluster()
    blocks = tuple(range(15))  # 960 of 1000 tokens
    send(c, 1, blocks=blocks)
    c.drain()
    send(c, 2, blocks=blocks)
    c.drain()
    first, second = c.results
    assert first.first_s is not None and second.first_s is not None
    assert first.first_s - second.first_s == pytest.approx(0.96)
    truth = c.prefill[0].telemetry.truth.counts
    assert (truth["prefill_computed_tokens"], truth["prefill_cached_tokens"]) == (1040, 960)


def test_a_step_takes_longer_with_the_batch_and_its_kv() -> None:
    slow = replace(DECODE, step_s=0.1, step_per_request_s=0.05, step_per_kilotoken_s=0.01, kv_tokens=10_000)
    c = cluster(p=replace(PREFILL, tokens_per_s=1e9, overhead_s=0.0, kv_bytes_per_token=0), d=slow)
    send(c, 1, prompt=1000, output=2)
    c.drain()
    assert c.results[0].end_s - (c.results[0].first_s or 0) == pytest.approx(0.1 + 0.05 + 0.01)


def test_without_kv_memory_requests_wait_on_both_sides() -> None:
    c = cluster(d=replace(DECODE, kv_tokens=2100))
    for number in range(1, 6):
        send(c, number, prompt=1000, output=50)
    assert gauges(c.decode[0]).prealloc == 3
    assert gauges(c.prefill[0]).bootstrap == 3
    assert gauges(c.decode[0]).transfer == 2
    c.drain()
    assert [r.error for r in c.results] == [""] * 5


def test_a_full_pool_retracts_and_still_finishes_everything() -> None:
    c = cluster(p=replace(PREFILL, tokens_per_s=1e6, overhead_s=0.001), d=replace(DECODE, kv_tokens=1000))
    for number in range(1, 4):
        send(c, number, prompt=300, output=200)
    c.drain()
    assert [(r.error, r.tokens) for r in c.results] == [("", 200)] * 3
    assert counts(c.decode)["retracted"] > 0
    assert gauges(c.decode[0]).used_tokens == 0


@pytest.mark.parametrize("prompt", [1001, 995])
def test_what_can_never_fit_is_refused(prompt: int) -> None:
    c = cluster(d=replace(DECODE, kv_tokens=1000))
    send(c, 1, prompt=prompt, output=11)
    assert [r.error for r in c.results] == ["the request is longer than the KV pool"]


def test_a_lost_transfer_ends_the_request_on_both_sides() -> None:
    c = cluster()
    engine = c.prefill[0].engines[0]
    assert isinstance(engine, PrefillEngine)
    engine.transfer_fail_rate = 1.0
    send(c, 1)
    c.drain()
    assert [r.error for r in c.results] == ["KV transfer failed"]
    for worker in (c.prefill[0], c.decode[0]):
        assert worker.telemetry.truth.counts["transfers_failed"] == 1
        assert gauges(worker).used_tokens == 0
        assert worker.engines[0].idle


def test_a_frozen_scheduler_stands_still_and_its_reports_with_it() -> None:
    c = cluster()
    send(c, 1, output=1000)
    c.run_until(5.0)
    decode = c.decode[0].engines[0]
    before = decode.reporter.loads
    decode.frozen = True
    c.run_until(60.0)
    assert decode.reporter.loads == before
    assert gauges(c.decode[0]).running == 1
    decode.frozen = False
    c.drain()
    assert c.results[0].error == ""


def shown(worker: VirtualWorker) -> tuple[int, int] | None:
    """Running and prealloc as the metrics page has them."""
    gauges = worker.engines[0].reporter.page
    return None if gauges is None else (gauges.running, gauges.prealloc)


def test_gauges_lag_until_the_next_report() -> None:
    c = cluster(d=replace(DECODE, kv_tokens=1500))
    (decode,) = c.decode
    assert shown(decode) is None  # nothing served yet: the families are absent
    send(c, 1, prompt=1000, output=200)
    c.run_until(3.0)
    assert shown(decode) == (1, 0)
    send(c, 2, prompt=1000, output=5)
    c.run_until(c.now + 0.5)
    assert shown(decode) == (1, 0)  # written with the batch, before the second one came
    assert gauges(decode).prealloc == 1
    c.drain()
    assert shown(decode) == (0, 0)  # at once: an idle worker does not say that something runs


@pytest.mark.parametrize("kv_tokens", [9_500, 30_000])
def test_a_worker_holds_what_was_sent_to_it_and_has_not_ended(kv_tokens: int) -> None:
    """As a router counts: from dispatch to the end of decode's answer, aborted or well."""
    c = cluster(2, 2, PrefillModel(), DecodeModel(kv_tokens=kv_tokens, reserve_tokens=0))
    rest = arrivals(Traffic(rate=6.0, streaming=0.85), seed=5)
    sent: Counter[int] = Counter()
    place: dict[str, int] = {}

    def choose(pool: Sequence[VirtualWorker]) -> VirtualWorker:
        chosen = least_loaded(pool)
        if pool is c.decode:
            index = pool.index(chosen)
            place[f"r{len(place) + 1}"] = index
            sent[index] += 1
        return chosen

    most = 0
    for step in range(1, 600):
        rest = c.feed(rest, until=step / 20, started=0.0, choose=choose)
        if step % 50 == 0:
            c.abort(f"r{len(place)}")
        ended = Counter(place[r.request.rid] for r in c.results)
        held = [w.load for w in c.decode]
        assert held == [sent[i] - ended[i] for i in range(2)]
        most = max(most, *held)
    assert most > 8
    assert any(r.error == "aborted" for r in c.results)
    assert counts(c.decode)["retracted"] > 0 or kv_tokens > 10_000
    c.drain()
    assert [w.load for w in c.decode] == [0, 0]


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_a_load_report_is_no_older_than_some_steps(slow: float) -> None:
    c = cluster(1, 1, PrefillModel(), DecodeModel())
    (decode,) = c.decode
    engine = decode.engines[0]
    assert isinstance(engine, DecodeEngine)
    engine.slow = slow
    rest = arrivals(Traffic(rate=1.5), seed=2)
    ages: list[float] = []
    for step in range(1, 400):
        rest = c.feed(rest, until=step / 20, started=0.0, choose=least_loaded)
        assert engine.reporter.loads is not None
        ages.append(c.now - engine.reporter.loads.at)
    assert max(ages) <= 1.2
    assert sum(ages) / len(ages) < 0.6


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.15, 1.6, 2.3, 4.0])
def test_a_client_may_leave_at_any_moment(moment: float) -> None:
    c = cluster()
    for number in (1, 2):
        send(c, number, output=40)
    c.run_until(moment)
    c.abort("r1")
    c.drain()
    assert {(r.request.rid, r.error) for r in c.results} == {("r1", "aborted"), ("r2", "")}
    for worker in (c.prefill[0], c.decode[0]):
        assert worker.engines[0].idle
        assert gauges(worker).used_tokens == 0


def run(seed: int, kv_tokens: int = 20_000) -> tuple[VirtualCluster, list[Result]]:
    c = cluster(
        2,
        2,
        PrefillModel(kv_tokens=30_000),
        DecodeModel(kv_tokens=kv_tokens, reserve_tokens=64),
    )
    c.feed(arrivals(Traffic(rate=6.0, streaming=0.85), seed), until=40.0, started=0.0, choose=least_loaded)
    c.drain()
    return c, list(c.results)


@pytest.mark.parametrize("kv_tokens", [9_500, 30_000])
def test_every_request_is_accounted_for(kv_tokens: int) -> None:
    c, results = run(7, kv_tokens)
    assert c.open_requests == 0
    done = [r for r in results if not r.error]
    assert len(done) > 150
    assert all(r.tokens == r.request.output_tokens for r in done)
    assert all(r.first_s is not None and 0 < r.first_s <= r.end_s for r in done)
    p, d = counts(c.prefill), counts(c.decode)
    assert d["finished"] == len(done) == p["finished"] == p["transfers"]
    assert d["output_tokens"] == d["decoded_tokens"] == sum(r.tokens for r in done)
    assert p["prompt_tokens"] == d["prompt_tokens"] == sum(r.request.prompt_tokens for r in done)
    assert p["prefill_computed_tokens"] + p["prefill_cached_tokens"] == p["prompt_tokens"]
    assert len(c.decode[0].telemetry.truth.ttft) + len(c.decode[1].telemetry.truth.ttft) == len(done)


def test_one_seed_gives_one_history() -> None:
    _, first = run(3)
    _, again = run(3)
    _, other = run(4)
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_busy_time_and_idle_time_only_grow(seed: int) -> None:
    c = cluster(1, 1, PrefillModel(), DecodeModel())
    rest = arrivals(Traffic(rate=2.0), seed)
    before = [0.0, 0.0, 0.0, 0.0]
    for tenth in range(1, 300):
        rest = c.feed(rest, until=tenth / 10, started=0.0, choose=least_loaded)
        now = [
            value
            for worker in (*c.prefill, *c.decode)
            for busy in [gauges(worker, c.now).busy_s]
            for value in (busy, c.now - busy)
        ]
        assert all(new >= old - 1e-9 for new, old in zip(now, before, strict=True))
        before = now
