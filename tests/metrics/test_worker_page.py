"""Worker pages as numbers: names of all releases, rank rules, what must never be a number."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from pdtop.metrics import catalogue as c
from pdtop.metrics.worker_page import WorkerNumbers, WorkerPageReader
from tests.metrics.support import FIXTURES

CASES = FIXTURES / "cases"
WORKER = FIXTURES / "worker"


def read(text: str | bytes | Path) -> WorkerNumbers:
    body = text.read_bytes() if isinstance(text, Path) else text.encode() if isinstance(text, str) else text
    return WorkerPageReader().read(body, 0.0)


def case(name: str, file: str) -> WorkerNumbers:
    return read(CASES / name / file)


# --- pages from the field -------------------------------------------------------------------------


def test_both_prefixes_are_the_same_metric() -> None:
    numbers = case("s01-underscore-names", "d1.metrics.txt")
    assert [numbers.gauge(x) for x in (c.RUNNING, c.QUEUE, c.PREALLOC, c.TRANSFER)] == [12, 0, 1, 2]
    ttft = numbers.histogram(c.TTFT)
    assert ttft is not None
    p50, p99 = ttft.quantile(0.5), ttft.quantile(0.99)
    assert p50 is not None and p50.value == pytest.approx(0.266666667, rel=1e-6)
    assert p99 is not None and (p99.at_least, p99.value) == (True, 1.0)
    assert ttft.mean == pytest.approx(0.315)


def test_the_starved_rank_is_not_averaged_away() -> None:
    numbers = case("s02-dp-rank-starved", "d1.metrics.txt")
    assert numbers.gauge(c.RUNNING) == 92
    assert (numbers.gauge(c.PREALLOC), numbers.gauge(c.TRANSFER)) == (14, 6)
    assert numbers.gauge(c.TOKEN_USAGE) == numbers.gauge_max(c.TOKEN_USAGE) == 0.98
    assert numbers.gauge_mean(c.TOKEN_USAGE) == pytest.approx(0.505)
    assert numbers.ranks == ("0", "1", "2", "3")
    assert numbers.gauge_by_rank(c.TOKEN_USAGE)["1"] == 0.98
    assert numbers.gauge_by_rank(c.PREALLOC)["1"] == 14


@pytest.mark.parametrize("empty", [False, True])
def test_an_aggregate_page_is_split_by_worker(empty: bool) -> None:
    body = (CASES / "s03-mixed-label-sets" / "engine_metrics.txt").read_bytes()
    if empty:  # dp_rank="" is the same as no dp_rank
        body = body.replace(b'engine_type="prefill"', b'engine_type="prefill",dp_rank=""')
    workers = WorkerPageReader().read_aggregate(body, 5.0)
    found = {
        address: (
            one.engine_type,
            one.gauge(c.RUNNING),
            one.gauge(c.QUEUE),
            one.gauge(c.INFLIGHT),
            one.ranks,
            one.at,
        )
        for address, one in workers.items()
    }
    assert found == {
        "http://10.0.1.11:30001": ("prefill", 4, 6, 2, ("",), 5.0),
        "http://10.0.1.12:30001": ("prefill", 5, 0, 1, ("",), 5.0),
        "http://10.0.2.21:30001": ("decode", 42, found["http://10.0.2.21:30001"][2], 0, ("0", "1"), 5.0),
    }
    assert all(one.engine_series > 0 for one in workers.values())


def test_retracted_requests_whatever_the_process_id() -> None:
    numbers = case("s04-decode-waiting-zero-but-blocked", "d3.metrics.txt")
    assert (numbers.gauge(c.RETRACTED), set(numbers.pids)) == (4, {"4242"})


def test_nan_is_no_value() -> None:
    nan, good = case("s06-nan-gauges-one-worker", "d1.txt"), case("s06-nan-gauges-one-worker", "d2.txt")
    assert (nan.gauge(c.FWD_OCCUPANCY), nan.gauge_max(c.SPEC_ACCEPT_RATE)) == (None, None)
    assert nan.gauge_by_rank(c.FWD_OCCUPANCY) == {}
    assert (good.gauge(c.FWD_OCCUPANCY), good.gauge(c.SPEC_ACCEPT_RATE)) == (62.5, 0.8)
    assert nan.gauge(c.RUNNING) == 8


def test_labels_hold_anything() -> None:
    numbers = case("s10-escapes-and-braces", "d1.txt")
    assert numbers.model_name == 'C:\\models\\"tiny"\nv2 {beta}, a=b #1'
    assert (numbers.gauge(c.RUNNING), numbers.gauge(c.QUEUE), numbers.gauge(c.PREALLOC)) == (6, 1, 1)


def test_bad_lines_are_counted() -> None:
    numbers = case("s11-bad-lines-inside", "d1.txt")
    assert (numbers.gauge(c.RUNNING), numbers.bad_lines, numbers.complete) == (9, 2, False)


def test_exemplars_do_not_change_a_bucket() -> None:
    ttft = case("s12-exemplars-on-buckets", "d1.txt").histogram(c.TTFT)
    assert ttft is not None
    assert (ttft.bounds, ttft.counts, ttft.sum) == ((0.1, 0.5, 1.0, math.inf), (20, 60, 90, 100), 52)


def test_a_large_page() -> None:
    folder = CASES / "s14-large-page"
    command = json.loads((folder / "case.json").read_text())["input"]["generate"].split()
    body = subprocess.run(
        [sys.executable, str(folder / "gen.py"), *command[2:4]], capture_output=True, check=True
    )
    numbers = read(body.stdout)
    assert (numbers.gauge(c.RUNNING), len(numbers.ranks), numbers.lines) == (189, 64, 84585)


def test_a_series_given_twice_is_not_added() -> None:
    numbers = case("s58-same-series-twice", "d1.txt")
    assert (numbers.gauge(c.RUNNING), numbers.gauge(c.QUEUE), numbers.duplicates) == (11, 1, 1)


# --- releases -------------------------------------------------------------------------------------


def test_old_spellings() -> None:
    old = read(WORKER / "sglang-0.4.6.post5-decode.metrics.txt")
    assert (old.gauge(c.BOOTSTRAP), old.gauge(c.INFLIGHT)) == (0, 0)  # prealloc and "infight" then
    assert read(WORKER / "sglang-0.4.9-prefill.metrics.txt").gauge(c.INFLIGHT) == 4


def test_transfer_times_were_gauges_once() -> None:
    old = read(WORKER / "sglang-0.5.2-decode.metrics.txt")
    assert old.histogram(c.KV_TRANSFER_LATENCY_MS) is None
    assert old.gauge(c.KV_TRANSFER_LATENCY_MS) is not None
    new = read(WORKER / "sglang-0.5.10-prefill.metrics.txt")
    assert new.gauge(c.KV_TRANSFER_LATENCY_MS) is None
    assert new.histogram(c.KV_TRANSFER_LATENCY_MS) is not None


def test_negative_buckets_are_rejected() -> None:
    numbers = read(WORKER / "sglang-0.5.5-prefill-negative-itl.metrics.txt")
    assert numbers.histogram(c.ITL) is None
    assert numbers.histogram(c.E2E) is not None


def test_streaming_and_stages_are_told_apart() -> None:
    numbers = read(WORKER / "sglang-0.5.23-decode.metrics.txt")
    split, whole = numbers.histogram_split(c.TTFT), numbers.histogram(c.TTFT)
    assert whole is not None
    assert set(split) == {"true", "false"}
    assert sum(one.count for one in split.values()) == whole.count
    assert "decode_transferred" in numbers.histograms_by(c.STAGE)
    assert read(WORKER / "sglang-0.5.16-prefill.metrics.txt").histogram_split(c.E2E) == {}


def test_a_fresh_worker_has_constants_only() -> None:
    numbers = read(WORKER / "sglang-0.5.23-decode-fresh.metrics.txt")
    assert numbers.gauge(c.RUNNING) is None
    assert numbers.counter(c.REQUESTS) is None
    assert numbers.histogram(c.TTFT) is None
    assert numbers.gauge(c.KV_CAPACITY_TOKENS) == 1048576
    assert numbers.counter(c.SCHEDULER_CPU) == 0
    assert (numbers.model_name, numbers.engine_type) == ("Qwen3-235B-A22B", "decode")


def test_labels_of_the_operator_change_nothing() -> None:
    plain, extra = (
        read(WORKER / f"sglang-0.5.23-prefill{suffix}.metrics.txt") for suffix in ("", "-extra-labels")
    )
    assert (plain.ranks, extra.ranks) == (("",), ("",))
    assert extra.gauge(c.RUNNING) == 6


def test_priorities_of_the_tokenizer_are_added_those_of_the_scheduler_have_a_total() -> None:
    numbers = read(WORKER / "sglang-0.5.23-decode-priority.metrics.txt")
    assert numbers.gauge(c.RUNNING) == 147
    assert numbers.counter(c.REQUESTS) == 149 + 184 + 36 + 31
    ttft = numbers.histogram(c.TTFT)
    assert ttft is not None
    assert ttft.count == 400
    without = read(
        "# TYPE sglang:num_requests_total counter\n"
        'sglang:num_requests_total{priority=""} 5\nsglang:num_requests_total{priority="1"} 2\n'
    )
    assert without.counter(c.REQUESTS) == 7


def test_openmetrics_reads_the_same() -> None:
    text, openmetrics = (
        read(WORKER / f"sglang-0.5.23-prefill.{kind}.txt") for kind in ("metrics", "openmetrics")
    )
    for concept in (c.REQUESTS, c.PROMPT_TOKENS, c.REALTIME_PREFILL_COMPUTE, c.EFFECTIVE_INPUT):
        assert text.counter(concept) == openmetrics.counter(concept) is not None
    assert text.histogram(c.STAGE) == openmetrics.histogram(c.STAGE) is not None


def test_vllm_names_are_known() -> None:
    numbers = read(
        '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} 3\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 4\n'
        '# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
        'vllm:kv_cache_usage_perc{engine="1"} 0.25\n'
    )
    assert (numbers.gauge(c.RUNNING), numbers.ranks) == (7, ("0", "1"))
    assert (numbers.gauge(c.TOKEN_USAGE), numbers.gauge_mean(c.TOKEN_USAGE)) == (0.5, 0.375)


# --- rank rules -----------------------------------------------------------------------------------


def test_inside_a_dp_rank_the_largest_counts_once() -> None:
    numbers = read(
        "# TYPE sglang:num_running_reqs gauge\n"
        'sglang:num_running_reqs{dp_rank="0",tp_rank="0",moe_ep_rank="0"} 3\n'
        'sglang:num_running_reqs{dp_rank="0",tp_rank="1",moe_ep_rank="1"} 4\n'
        'sglang:num_running_reqs{dp_rank="0",tp_rank="2",pid="7"} NaN\n'
        'sglang:num_running_reqs{dp_rank="10",tp_rank="3"} 5\n'
        'sglang:num_running_reqs{dp_rank="2",tp_rank="4"} 1\n'
    )
    assert numbers.gauge(c.RUNNING) == 10
    assert dict(numbers.gauge_by_rank(c.RUNNING)) == {"0": 4, "2": 1, "10": 5}
    assert numbers.ranks == ("0", "2", "10")


def test_of_a_repeated_histogram_the_lowest_rank_is_taken_but_every_shard_moves_its_own_bytes() -> None:
    def histogram(name: str) -> str:
        lines = [f"# TYPE sglang:{name} histogram\n"]
        for pp, tp, count in ((0, 1, 7), (0, 0, 5), (1, 0, 9)):
            ranks = f'pp_rank="{pp}",tp_rank="{tp}"'
            lines.append(f'sglang:{name}_bucket{{le="1.0",{ranks}}} {count}\n')
            lines.append(f'sglang:{name}_bucket{{le="+Inf",{ranks}}} {count}\n')
            lines.append(f"sglang:{name}_sum{{{ranks}}} {count}\n")
        return "".join(lines)

    numbers = read(histogram("queue_time_seconds") + histogram("kv_transfer_total_mb"))
    queue_time, moved = numbers.histogram(c.QUEUE_TIME), numbers.histogram(c.KV_TRANSFER_MB)
    assert queue_time is not None and moved is not None
    assert (queue_time.count, queue_time.sum) == (5, 5)
    assert (moved.count, moved.sum) == (21, 21)


def test_ratios_over_ranks() -> None:
    numbers = read(
        'sglang:cache_hit_rate{dp_rank="0"} 0.5\nsglang:cache_hit_rate{dp_rank="1"} 0.25\n'
        'sglang:fwd_occupancy{dp_rank="0"} NaN\nsglang:fwd_occupancy{dp_rank="1"} 40\n'
        'sglang:gen_throughput{dp_rank="0"} 100\nsglang:gen_throughput{dp_rank="1"} 50\n'
    )
    assert numbers.gauge(c.CACHE_HIT_RATE) == 0.375
    assert numbers.gauge(c.FWD_OCCUPANCY) == 40
    assert numbers.gauge(c.GEN_THROUGHPUT) == 150


def test_modes_of_one_counter_are_concepts_of_their_own() -> None:
    numbers = read(
        'sglang:realtime_tokens_total{mode="decode"} 5\n'
        'sglang:realtime_tokens_total{mode="prefill_compute"} 7\n'
    )
    assert numbers.counter(c.REALTIME_DECODE) == 5
    assert numbers.counter(c.REALTIME_PREFILL_COMPUTE) == 7
    assert numbers.counter(c.REALTIME_PREFILL_CACHE) is None
    assert numbers.named_counter("realtime_tokens_total") == 12


def test_any_counter_is_known_by_its_name() -> None:
    numbers = read(WORKER / "sglang-0.5.23-decode-dp4-attn-tp8.metrics.txt")
    assert numbers.named_counter("num_requests_total") == numbers.counter(c.REQUESTS)
    assert numbers.named_counter("cuda_graph_passes_total") is not None
    assert numbers.named_counter("http_requests_total") is None  # differs too much between workers
    assert numbers.named_counter("num_running_reqs") is None
    assert numbers.counter_by_rank(c.SCHEDULER_CPU).keys() == {"0", "1", "2", "3"}


# --- unusable histograms --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "bounds", "counts"),
    [
        (['le="1"} 2', 'le="+Inf"} 3'], (1, math.inf), (2, 3)),
        (['le="+Inf"} 3', 'le="1"} 2'], (1, math.inf), (2, 3)),
        (['le="1"} 2', 'le="2"} 2'], (1, 2, math.inf), (2, 2, 2)),
        (['le="1"} 2', 'le="1.0"} 9', 'le="+Inf"} 3'], (1, math.inf), (2, 3)),
    ],
)
def test_buckets_in_any_order(lines: list[str], bounds: tuple[float, ...], counts: tuple[float, ...]) -> None:
    text = "".join(f"sglang:time_to_first_token_seconds_bucket{{{line}\n" for line in lines)
    ttft = read(text).histogram(c.TTFT)
    assert ttft is not None
    assert (ttft.bounds, ttft.counts) == (bounds, counts)
    assert ttft.mean is None  # no sum was exported


@pytest.mark.parametrize(
    "lines", [['le="1"} -1', 'le="+Inf"} 3'], ['le="1"} 4', 'le="+Inf"} 3'], ['le="1"} NaN']]
)
def test_a_histogram_that_makes_no_sense_is_none(lines: list[str]) -> None:
    text = "".join(f"sglang:time_to_first_token_seconds_bucket{{{line}\n" for line in lines)
    numbers = read(text)
    assert numbers.histogram(c.TTFT) is None


def test_sum_and_count_alone_give_a_mean() -> None:
    name = "sglang:time_to_first_token_seconds"
    ttft = read(f"# TYPE {name} histogram\n{name}_sum 6\n{name}_count 4\n").histogram(c.TTFT)
    assert ttft is not None
    assert (ttft.count, ttft.mean, ttft.quantile(0.5)) == (4, 1.5, None)


def test_different_bounds_are_never_added() -> None:
    name = "sglang:time_to_first_token_seconds_bucket"
    numbers = read(
        f'{name}{{is_streaming="true",le="1"}} 1\n{name}{{is_streaming="true",le="+Inf"}} 1\n'
        f'{name}{{is_streaming="false",le="2"}} 1\n{name}{{is_streaming="false",le="+Inf"}} 1\n'
    )
    assert numbers.histogram(c.TTFT) is None
    assert set(numbers.histogram_split(c.TTFT)) == {"true", "false"}


# --- what is no engine's page ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"", b"<html><body>hello</body></html>\n", b"python_gc_total 5\n", b"\x00\xff"]
)
def test_no_engine_series(body: bytes) -> None:
    numbers = WorkerPageReader().read(body, 0.0)
    assert numbers.engine_series == 0
    assert numbers.gauge(c.RUNNING) is None
    assert (numbers.model_name, numbers.engine_type, numbers.ranks, set(numbers.pids)) == (
        "",
        "",
        ("",),
        set(),
    )
    assert WorkerPageReader().read_aggregate(body, 0.0) == {}


def test_a_cut_page_is_not_complete() -> None:
    body = (WORKER / "sglang-0.5.23-decode.metrics.txt").read_bytes()[:50_000]
    numbers = WorkerPageReader().read(body, 0.0, truncated=True)
    assert (numbers.complete, numbers.bad_lines) == (False, 0)
    assert numbers.engine_series > 100


def test_after_a_role_switch_the_scheduler_knows_the_role() -> None:
    numbers = read(
        'sglang:num_requests_total{engine_type="prefill"} 1\n'
        'sglang:num_running_reqs{engine_type="dynamic",tp_rank="0"} 1\n'
    )
    assert numbers.engine_type == "dynamic"
