"""A simulated worker's page has exactly the names, types, labels and bounds of a real one's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from pdtop.simulator.decode import DecodeModel
from pdtop.simulator.engine import Role
from pdtop.simulator.prefill import PrefillModel
from pdtop.simulator.spec import WorkerSpec
from pdtop.simulator.traffic import Traffic, arrivals
from pdtop.simulator.virtual import VirtualCluster, VirtualWorker, least_loaded

REAL = Path(__file__).parent.parent / "fixtures" / "real" / "sglang-0.5.23+sglang-router-0.3.2"

#: Families that the HTTP part writes; a worker in virtual time has none.
HTTP = {"sglang:http_requests", "sglang:http_responses", "sglang:http_requests_active"}
ANSWERED_LOADS = "sglang:get_loads_duration_seconds"


def read(text: str) -> dict[str, Metric]:
    return {m.name: m for m in text_string_to_metric_families(text) if m.name not in HTTP}


def real(state: str, role: str) -> dict[str, Metric]:
    return read((REAL / state / f"{role}0.metrics.txt").read_text())


def page(worker: VirtualWorker, now: float) -> dict[str, Metric]:
    return read(worker.telemetry.page(worker.engines, now).decode())


def label_sets(metric: Metric) -> set[frozenset[str]]:
    return {frozenset(s.labels) for s in metric.samples}


def bounds(metric: Metric) -> set[str]:
    return {s.labels["le"] for s in metric.samples if s.name.endswith("_bucket")}


def fixed_labels(metric: Metric, names: Iterable[str]) -> set[tuple[str, ...]]:
    """The label values that a worker does not choose: modes, stages, categories."""
    return {tuple(s.labels.get(n, "") for n in names) for s in metric.samples}


def loaded(
    tp: int = 1, dp: int = 1, kv_tokens: int = 30_000, reserve_tokens: int = 256
) -> tuple[VirtualCluster, float]:
    decode = DecodeModel(kv_tokens=kv_tokens, reserve_tokens=reserve_tokens)
    c = VirtualCluster.make(
        [
            WorkerSpec(role="prefill", tp=tp, prefill=PrefillModel(kv_tokens=9_000)),
            WorkerSpec(role="decode", dp=dp, decode=decode),
        ]
    )
    c.feed(
        arrivals(Traffic(rate=3.0, shared=0.8, streaming=0.85), 1),
        until=30.0,
        started=0.0,
        choose=least_loaded,
    )
    for worker in (*c.prefill, *c.decode):
        worker.telemetry.observe_loads(0.0002)
    return c, 30.0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_fresh_page_is_that_of_a_real_fresh_worker(role: Role) -> None:
    worker = VirtualWorker.make(WorkerSpec(role=role), 0.0)
    mine, theirs = page(worker, 1.0), real("2p2d-idle", role)
    assert set(mine) == set(theirs)
    assert {n: m.type for n, m in mine.items()} == {n: m.type for n, m in theirs.items()}
    assert {n: label_sets(m) for n, m in mine.items()} == {n: label_sets(m) for n, m in theirs.items()}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_page_under_load_is_that_of_a_real_worker_under_load(role: Role) -> None:
    c, now = loaded()
    worker = (c.prefill if role == "prefill" else c.decode)[0]
    mine, theirs = page(worker, now), real("2p2d-load", role)
    assert set(mine) == set(theirs)
    assert {n: label_sets(m) for n, m in mine.items()} == {n: label_sets(m) for n, m in theirs.items()}
    assert {n: bounds(m) for n, m in mine.items()} == {n: bounds(m) for n, m in theirs.items()}
    names = (
        "stage",
        "mode",
        "category",
        "is_streaming",
        "cache_source",
        "phase",
        "gt",
        "kind",
        "engine_type",
    )
    for name, metric in theirs.items():
        expected = fixed_labels(metric, names)
        found = fixed_labels(mine[name], names)
        # A long prompt is computed in parts, which the real capture's short ones were not.
        assert found - {("chunked_prefill", *("",) * 7, "prefill")} == expected, name


def test_retractions_appear_with_their_first_event() -> None:
    c, now = loaded(kv_tokens=9_500, reserve_tokens=0)
    assert c.decode[0].telemetry.truth.counts["retracted"] > 0
    mine, theirs = page(c.decode[0], now), real("1p1d-decode-pool-full", "decode")
    assert set(mine) - {ANSWERED_LOADS} == set(theirs)


def test_ranks_are_labelled_as_real_ones() -> None:
    c, now = loaded(tp=2, dp=2)
    for worker, role in ((c.prefill[0], "prefill"), (c.decode[0], "decode")):
        mine, theirs = page(worker, now), real("tp2-prefill_dp2-decode-load", role)
        for name in set(mine) & set(theirs):
            if name in ("sglang:evicted_tokens", "sglang:eviction_duration_seconds"):
                continue
            assert label_sets(mine[name]) == label_sets(theirs[name]), name
        queue = mine["sglang:queue_time_seconds"]
        ranks = fixed_labels(queue, ("dp_rank", "tp_rank"))
        wanted = {("", "0"), ("", "1")} if role == "prefill" else {("0", "0"), ("1", "0")}
        assert ranks == wanted


def test_one_value_for_each_series() -> None:
    c, now = loaded()
    for worker in (*c.prefill, *c.decode):
        lines = [
            line.rpartition(" ")[0]
            for line in worker.telemetry.page(worker.engines, now).decode().splitlines()
            if not line.startswith("#")
        ]
        assert len(lines) == len(set(lines))


def test_the_page_says_what_happened() -> None:
    c, now = loaded()
    c.drain()
    for worker in (c.prefill[0], c.decode[0]):
        truth = worker.telemetry.truth.counts
        metrics = page(worker, now)
        warm_up = 1
        finished = sum(s.value for s in metrics["sglang:num_requests"].samples)
        assert finished == truth["finished"] + warm_up
        prompt = sum(s.value for s in metrics["sglang:prompt_tokens"].samples)
        assert prompt == truth["prompt_tokens"] + 4
    ttft = page(c.decode[0], now)["sglang:time_to_first_token_seconds"].samples
    samples = [v for _, v in c.decode[0].telemetry.truth.ttft]
    assert sum(s.value for s in ttft if s.name.endswith("_count")) == len(samples) + 1
    assert sum(s.value for s in ttft if s.name.endswith("_sum")) == pytest.approx(sum(samples) + 0.06)
    below = sum(s.value for s in ttft if s.labels.get("le") == "0.2")
    assert below == sum(v <= 0.2 for v in samples) + 1


def test_habits_of_the_release() -> None:
    c, now = loaded()
    prefill, decode = page(c.prefill[0], now), page(c.decode[0], now)
    assert "sglang:time_to_first_token_seconds" not in prefill
    assert prefill["sglang:utilization"].samples[0].value == -1
    assert math.isnan(prefill["sglang:fwd_occupancy"].samples[0].value)
    assert "pid" in decode["sglang:num_retracted_reqs"].samples[0].labels
    assert all(not s.name.endswith("_created") for m in decode.values() for s in m.samples)
    size = len(c.decode[0].telemetry.page(c.decode[0].engines, now))
    assert 80_000 < size < 190_000


def test_no_counter_ever_falls() -> None:
    started = 1.8e9  # epoch seconds, where a float has steps of 0.2 µs
    c = VirtualCluster.make([WorkerSpec(role="prefill"), WorkerSpec(role="decode")], started)
    rest = arrivals(Traffic(rate=4.0), 2)
    before: dict[str, float] = {}
    for tick in range(1, 25):
        now = started + tick / 3
        rest = c.feed(rest, until=now, started=started, choose=least_loaded)
        for worker in (*c.prefill, *c.decode):
            counts = False
            for line in worker.telemetry.page(worker.engines, now).decode().splitlines():
                if line.startswith("#"):
                    counts = line.endswith((" counter", " histogram"))
                elif counts:
                    key, _, value = line.rpartition(" ")
                    assert float(value) >= before.get(key, 0.0), key
                    before[key] = float(value)
