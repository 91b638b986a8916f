"""Quiet polls, shares within a target, numbers in words."""

from __future__ import annotations

import pytest

from pdtop.cluster.model import Backlog, Latency, Rank, Role, Worker
from pdtop.cluster.words import duration, span
from pdtop.config.schema import Slo
from pdtop.insight.quiet import Poll, drained, poll_of, quiet_polls
from pdtop.insight.slo import goodput, within
from pdtop.insight.words import count, percent, several
from pdtop.metrics.distribution import Distribution
from tests.insight.scenes import waits, worker

INF = float("inf")


@pytest.mark.parametrize(
    ("polls", "row"),
    [
        ([], 0),
        ([(3, 9)], 0),
        ([(3, 9), (0, 4)], 1),  # the last tokens fall before the poll that first sees it empty
        ([(3, 9), (0, 4), (0, 0)], 2),
        ([(3, 9), (0, 4), (0, 2)], 0),  # something came and went between two polls
        ([(3, 9), (0, 4), (0, 2), (0, 0)], 1),
        ([(0, 0), (None, 0), (0, 0)], 1),  # not known is never quiet
        ([(0, None), (0, None)], 2),
        ([(0, 0), (1, 0), (0, 0), (0, 0)], 2),
    ],
)
def test_quiet_polls(polls: list[tuple[float | None, float | None]], row: int) -> None:
    made = [Poll(work, progress) for work, progress in polls]
    assert quiet_polls(made) == row
    assert drained(made, 2) is (row >= 2)


@pytest.mark.parametrize(
    ("seen", "work"),
    [
        (worker(running=2.0, backlog=waits(queue=1, prealloc=1)), 4.0),
        (worker(running=0.0), 0.0),
        (worker("p", Role.PREFILL, running=0.0, inflight=3.0), 3.0),
        (worker("p", Role.PREFILL, running=0.0, inflight=None), None),
        (worker(running=None), None),
        (worker(running=0.0, stale=True), None),
        (worker(running=0.0, backlog=Backlog(0.0, lower_bound=True)), None),
        (worker(running=0.0, ranks=(Rank("0", 0.0, Backlog(0.0), 0.0),), ranks_expected=2), None),
    ],
)
def test_what_one_look_at_a_worker_says_of_its_work(seen: Worker, work: float | None) -> None:
    assert poll_of(seen).work == work


def test_progress_is_any_rate_that_is_known() -> None:
    assert poll_of(worker(running=0.0, generated_tokens_per_s=3.0)).progress == 3.0
    assert poll_of(worker(running=0.0)).progress is None


TTFT = Latency("decode", "ttft", Distribution((0.5, 1.0, 2.0, INF), (60.0, 92.0, 98.0, 100.0), 60.0))


def test_on_a_bound_the_share_is_exact_between_bounds_it_is_a_range() -> None:
    exact, between, beyond = (within(TTFT, target, 10.0) for target in (0.5, 0.8, 3.0))
    assert exact is not None
    assert between is not None
    assert beyond is not None
    assert exact.share.exact
    assert (exact.best, exact.good_per_s) == (0.6, 6.0)
    assert (between.share.low, between.share.high) == (0.6, 0.92)
    assert between.best == pytest.approx(0.792)
    assert (beyond.share.low, beyond.share.high, beyond.best) == (0.98, 1.0, 0.98)


def test_without_a_window_there_is_a_share_but_no_rate() -> None:
    found = within(TTFT, 0.5, None)
    assert found is not None
    assert found.good_per_s is None


def test_of_nothing_there_is_no_share() -> None:
    empty = Latency("decode", "ttft", Distribution((0.5, INF), (0.0, 0.0), 0.0))
    assert within(empty, 0.5, 10.0) is None
    assert within(None, 0.5, 10.0) is None


def test_goodput_only_of_targets_that_are_set() -> None:
    assert goodput(Slo(), TTFT, None) is None
    found = goodput(Slo(ttft_p99_ms=500, tpot_p99_ms=45), TTFT, None)
    assert found is not None
    assert (found.ttft_target_s, found.ttft_share, found.tpot_share, found.worst) == (0.5, 0.6, None, 0.6)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (percent(0.604), "60 %"),
        (percent(0.004), "0.4 %"),
        (percent(0.0), "0 %"),
        (span(9.7), "9 s"),
        (span(134), "2m14s"),
        (span(11_100), "3h05m"),
        (span(-1), "0 s"),
        (duration(0.0), "0 ms"),
        (duration(0.00042), "0.42 ms"),
        (duration(0.0042), "4.2 ms"),
        (duration(0.214), "214 ms"),
        (duration(2.9), "2.90 s"),
        (duration(61), "61 s"),
        (count(12), "12"),
        (count(4.5), "4.5"),
        (count(41_230), "41.2k"),
        (several(1, "worker"), "1 worker"),
        (several(3, "worker"), "3 workers"),
        (several(2, "series", "series"), "2 series"),
    ],
)
def test_words(made: str, text: str) -> None:
    assert made == text
