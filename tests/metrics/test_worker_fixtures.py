"""Worker fixtures against numbers computed apart from pdtop's reader.

The literals come from a script on prometheus-client's parser that knows only the counting rules: inside a DP
rank the largest of the ranks that repeat a gauge, the lowest PP and TP rank's histogram, then sums over DP
ranks; quantiles as PromQL's ``histogram_quantile``.
"""
# ruff: noqa: E501 - a table reads better with a row a line

from __future__ import annotations

from typing import NamedTuple

import pytest

from pdtop.metrics import catalogue
from pdtop.metrics.worker_page import WorkerNumbers, WorkerPageReader
from tests.metrics.support import FIXTURES


class AtLeast(NamedTuple):
    bound: float


Expected = float | AtLeast | None


class Row(NamedTuple):
    folder: str
    name: str
    running: float | None
    queue: float | None
    bootstrap: float | None
    inflight: float | None
    prealloc: float | None
    transfer: float | None
    kv_worst: float | None
    kv_mean: float | None
    ttft_p50: Expected
    ttft_p99: Expected
    tpot_concept: str | None  # by release: per request, else per token, else the oldest
    tpot_p50: Expected
    tpot_p99: Expected


WORKER = "worker"
R32 = "real/sglang-0.5.23+sglang-router-0.3.2"
OLD = "real/sglang-0.5.6+sglang-router-0.3.2"
SMG = "real/sglang-0.5.23+smg-1.13.0"

# fmt: off
ROWS = [
    Row(WORKER, "sglang-0.4.3-unified", 42.0, 11.0, None, None, None, None, 0.79, 0.79, 0.467741935, 1.983870968, "tpot_old", 0.018937008, 0.047037037),
    Row(WORKER, "sglang-0.4.6.post5-decode", 118.0, 2.0, 0.0, 0.0, 9.0, 6.0, 0.79, 0.79, 0.444897959, 1.983870968, "itl", 0.018937008, 0.052258065),
    Row(WORKER, "sglang-0.4.9-prefill", 3.0, 11.0, 7.0, 4.0, 0.0, 0.0, 0.79, 0.79, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.10-prefill", 3.0, 11.0, 7.0, 4.0, 0.0, 0.0, 0.79, 0.79, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.12-decode", 118.0, 2.0, 0.0, 0.0, 9.0, 6.0, 0.79, 0.79, 0.444897959, 1.983870968, "itl", 0.018937008, 0.052258065),
    Row(WORKER, "sglang-0.5.16-prefill", 3.0, 11.0, 7.0, 4.0, 0.0, 0.0, 0.79, 0.79, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.2-decode", 118.0, 2.0, 0.0, 0.0, 9.0, 6.0, 0.79, 0.79, 0.444897959, 1.983870968, "itl", 0.018937008, 0.052258065),
    Row(WORKER, "sglang-0.5.20-decode", 118.0, 2.0, 0.0, 0.0, 9.0, 6.0, 0.79, 0.79, 0.444897959, 1.983870968, "itl", 0.018937008, 0.052258065),
    Row(WORKER, "sglang-0.5.23-decode-dp4-attn-tp8", 439.0, 13.0, 0.0, 0.0, 87.0, 63.0, 0.88, 0.8, 0.283769634, 1.746666667, "tpot", 0.02, 0.067333333),
    Row(WORKER, "sglang-0.5.23-decode-dp4-attn", 431.0, 12.0, 0.0, 0.0, 59.0, 47.0, 0.82, 0.715, 0.289700997, 1.739130435, "tpot", 0.019932432, 0.065),
    Row(WORKER, "sglang-0.5.23-decode-dp4-replicas", 509.0, 11.0, 0.0, 0.0, 64.0, 55.0, 0.87, 0.7175, 0.282051282, 1.666666667, "tpot", 0.020285714, 0.071428571),
    Row(WORKER, "sglang-0.5.23-decode-fresh", None, None, None, None, None, None, None, None, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.23-decode-idle", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.277333333, 1.636363636, "tpot", 0.02, 0.057391304),
    Row(WORKER, "sglang-0.5.23-decode-priority", 147.0, 0.0, 0.0, 0.0, 12.0, 21.0, 0.53, 0.53, 0.296503497, 1.8, "tpot", 0.02091954, 0.076),
    Row(WORKER, "sglang-0.5.23-decode", 153.0, 5.0, 0.0, 0.0, 13.0, 19.0, 0.72, 0.72, 0.296815287, 1.0, "tpot", 0.019655172, 0.066666667),
    Row(WORKER, "sglang-0.5.23-prefill-extra-labels", 6.0, 19.0, 16.0, 5.0, 0.0, 0.0, 0.51, 0.51, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.23-prefill-fresh", None, None, None, None, None, None, None, None, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.23-prefill-idle", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.23-prefill-pp2", 2.0, 15.0, 19.0, 4.0, 0.0, 0.0, 0.74, 0.74, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.23-prefill-tp4-all-schedulers", 4.0, 12.0, 8.0, 9.0, 0.0, 0.0, 0.87, 0.87, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.23-prefill-tp4", 4.0, 12.0, 8.0, 9.0, 0.0, 0.0, 0.87, 0.87, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.23-prefill", 4.0, 5.0, 28.0, 7.0, 0.0, 0.0, 0.46, 0.46, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.23-prefill.openmetrics", 4.0, 5.0, 28.0, 7.0, 0.0, 0.0, 0.46, 0.46, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.23-unified-hicache-spec-lora", 20.0, 7.0, 0.0, 0.0, 0.0, 0.0, 0.72, 0.72, 0.09569378, 0.5, "tpot", 0.02, 0.066666667),
    Row(WORKER, "sglang-0.5.23-unified", 40.0, 12.0, 0.0, 0.0, 0.0, 0.0, 0.91, 0.91, 0.1, 0.466666667, "tpot", 0.020487805, 0.073333333),
    Row(WORKER, "sglang-0.5.5-prefill-negative-itl", 3.0, 11.0, 7.0, 4.0, 0.0, 0.0, 0.79, 0.79, None, None, "itl", None, None),
    Row(WORKER, "sglang-0.5.5-prefill", 3.0, 11.0, 7.0, 4.0, 0.0, 0.0, 0.79, 0.79, None, None, None, None, None),
    Row(WORKER, "sglang-0.5.8-decode", 118.0, 2.0, 0.0, 0.0, 9.0, 6.0, 0.79, 0.79, 0.444897959, 1.983870968, "itl", 0.018937008, 0.052258065),
    Row(R32, "1p1d-decode-pool-full/decode0", 3.0, 0.0, 0.0, 0.0, 34.0, 0.0, 0.79, 0.79, 7.75, 19.75, "tpot", 0.004133333, 0.00768),
    Row(R32, "1p1d-decode-pool-full/prefill0", 1.0, 0.0, 34.0, 3.0, 0.0, 0.0, 0.11, 0.11, None, None, None, None, None),
    Row(R32, "2p2d-load/decode0", 2.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.06, 0.06, 0.295454545, 1.942142857, "tpot", 0.002321429, 0.00862),
    Row(R32, "2p2d-load/decode1", 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.17, 0.17, 0.514285714, 1.916, "tpot", 0.00485, 0.0191125),
    Row(R32, "2p2d-load/prefill0", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, None, None, None, None),
    Row(R32, "2p2d-load/prefill1", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, None, None, None, None),
    Row(R32, "2p2d-saturated/decode0", 4.0, 0.0, 0.0, 0.0, 36.0, 2.0, 0.63, 0.63, 0.447058824, 18.8, "tpot", 0.002863636, 0.0198),
    Row(R32, "2p2d-saturated/decode1", 3.0, 0.0, 0.0, 0.0, 32.0, 2.0, 0.62, 0.62, 0.703846154, 18.59, "tpot", 0.005068966, 0.021775),
    Row(R32, "2p2d-saturated/prefill0", 1.0, 0.0, 33.0, 1.0, 0.0, 0.0, 0.16, 0.16, None, None, None, None, None),
    Row(R32, "2p2d-saturated/prefill1", 1.0, 0.0, 35.0, 4.0, 0.0, 0.0, 0.35, 0.35, None, None, None, None, None),
    Row(R32, "2p2d-after-load/decode0", 1.0, 0.0, 0.0, 0.0, 69.0, 4.0, 0.63, 0.63, 0.452941176, 26.3, "tpot", 0.002977273, 0.019791667),
    Row(R32, "2p2d-after-load/decode1", 3.0, 0.0, 0.0, 0.0, 32.0, 2.0, 0.62, 0.62, 0.703846154, 18.59, "tpot", 0.005068966, 0.021775),
    Row(R32, "2p2d-after-load/prefill0", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, None, None, None, None),
    Row(R32, "2p2d-after-load/prefill1", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, None, None, None, None),
    Row(R32, "tp2-prefill_dp2-decode-load/decode0", 2.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.13, 0.125, 4.777777778, 7.916, "tpot", 0.0045, 0.01925),
    Row(R32, "tp2-prefill_dp2-decode-load/prefill0", 1.0, 0.0, 0.0, 6.0, 0.0, 0.0, 0.17, 0.17, None, None, None, None, None),
    Row(R32, "2p2d-idle/decode0", None, None, None, None, None, None, None, None, 0.05, 0.099, None, None, None),
    Row(R32, "2p2d-idle/decode1", None, None, None, None, None, None, None, None, 0.05, 0.099, None, None, None),
    Row(R32, "2p2d-idle/prefill0", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, None, None, None, None),
    Row(R32, "2p2d-idle/prefill1", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, None, None, None, None),
    Row(OLD, "1p1d-load/decode0", 7.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.260620117, 0.260620117, 0.219736842, 1.895, "itl", 0.003201856, 0.017415385),
    Row(OLD, "1p1d-load/prefill0", 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.030273438, 0.030273438, None, None, None, None, None),
    Row(SMG, "1p1d-load/decode0", 2.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.32, 0.32, 0.453333333, 36.117647059, "tpot", 0.003738462, 0.01),
    Row(SMG, "1p1d-load/prefill0", 2.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.05, 0.05, None, None, None, None, None),
]
# fmt: on


def read(folder: str, name: str) -> WorkerNumbers:
    suffix = ".txt" if name.endswith(".openmetrics") else ".metrics.txt"
    return WorkerPageReader().read((FIXTURES / folder / f"{name}{suffix}").read_bytes(), 0.0)


def quantile(numbers: WorkerNumbers, concept: str | None, q: float) -> Expected:
    whole = None if concept is None else numbers.histogram(concept)
    found = None if whole is None else whole.quantile(q)
    if found is None:
        return None
    return AtLeast(found.value) if found.at_least else found.value


def close(expected: Expected) -> object:
    return pytest.approx(expected, rel=1e-6) if isinstance(expected, float) else expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.folder.rpartition('/')[2]}/{row.name}")
def test_numbers_of_a_fixture(row: Row) -> None:
    numbers = read(row.folder, row.name)
    gauges = (
        catalogue.RUNNING,
        catalogue.QUEUE,
        catalogue.BOOTSTRAP,
        catalogue.INFLIGHT,
        catalogue.PREALLOC,
        catalogue.TRANSFER,
        catalogue.TOKEN_USAGE,
    )
    assert [numbers.gauge(gauge) for gauge in gauges] == [close(value) for value in row[2:9]]
    assert numbers.gauge_mean(catalogue.TOKEN_USAGE) == close(row.kv_mean)
    assert quantile(numbers, catalogue.TTFT, 0.5) == close(row.ttft_p50)
    assert quantile(numbers, catalogue.TTFT, 0.99) == close(row.ttft_p99)
    assert quantile(numbers, row.tpot_concept, 0.5) == close(row.tpot_p50)
    assert quantile(numbers, row.tpot_concept, 0.99) == close(row.tpot_p99)
    assert numbers.bad_lines == numbers.duplicates == 0
    assert numbers.engine_series > 0


def test_there_are_enough_rows() -> None:
    assert len(ROWS) >= 50


# What each fixture's traffic was, by the counting rules measured on it: running requests, and how many
# requests waited in a queue before their first forward (what each TP and PP rank repeats counted once).
RANKS = [
    ("prefill-tp4", 4, 250, ("",)),
    ("prefill-tp4-all-schedulers", 4, 250, ("",)),
    ("decode-dp4-attn", 431, 800, ("0", "1", "2", "3")),
    ("decode-dp4-attn-tp8", 439, 480, ("0", "1", "2", "3")),
    ("decode-dp4-replicas", 509, 600, ("0", "1", "2", "3")),
    ("prefill-pp2", 2, 150, ("",)),
    ("decode-priority", 147, 400, ("",)),
]


@pytest.mark.parametrize(("name", "running", "queued", "ranks"), RANKS, ids=lambda value: str(value))
def test_rank_totals(name: str, running: float, queued: float, ranks: tuple[str, ...]) -> None:
    numbers = read(WORKER, f"sglang-0.5.23-{name}")
    assert numbers.gauge(catalogue.RUNNING) == running
    queue_time = numbers.histogram(catalogue.QUEUE_TIME)
    assert queue_time is not None
    assert queue_time.count == queued
    assert numbers.ranks == ranks
    by_rank = numbers.gauge_by_rank(catalogue.RUNNING)
    assert tuple(by_rank) == ranks
    assert sum(by_rank.values()) == running
