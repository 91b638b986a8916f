"""What grew between two reads: restarts, series that come and go, gaps, broken counters."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtop.metrics import catalogue as c
from pdtop.metrics.router_page import RouterNumbers, RouterPageReader
from pdtop.metrics.timeline import Timeline, Window
from pdtop.metrics.worker_page import WorkerNumbers, WorkerPageReader
from tests.metrics.support import FIXTURES, body_of

CASES = FIXTURES / "cases"
BURST = FIXTURES / "real" / "sglang-0.5.23+sglang-router-0.3.2" / "series-1p1d-burst"


def page(counters: Mapping[str, float], *, pid: str = "", ttft: tuple[float, ...] = ()) -> bytes:
    lines = [f"sglang:{name} {value}" for name, value in counters.items()]
    if pid:
        lines.append(f'sglang:num_retracted_reqs{{pid="{pid}"}} 0')
    if ttft:
        name = "sglang:time_to_first_token_seconds"
        lines += [
            f'{name}_bucket{{le="{le}"}} {n}' for le, n in zip(("0.1", "1.0", "+Inf"), ttft, strict=True)
        ]
        lines += [f"{name}_sum {ttft[-1] * 0.5}", f"{name}_count {ttft[-1]}"]
    return "".join(f"{line}\n" for line in lines).encode()


class Story:
    """Pages of one worker in order of time."""

    def __init__(self, span_s: float = 1e6, points: int = 32) -> None:
        self.timeline: Timeline[WorkerNumbers] = Timeline(span_s, points)
        self.reader = WorkerPageReader()

    def add(self, at: float, body: bytes, *, truncated: bool = False) -> bool:
        return self.timeline.append(self.reader.read(body, at, truncated=truncated))

    def between(self, start: float, end: float) -> Window[WorkerNumbers]:
        window = self.timeline.between(start, end)
        assert window is not None
        return window


def requests(value: float, **more: float) -> bytes:
    return page({"num_requests_total": value, **more})


# --- the plain story ------------------------------------------------------------------------------


def test_growth_rate_and_seconds() -> None:
    story = Story()
    for at, value in ((0.0, 10), (2.0, 14), (4.5, 15)):
        story.add(at, requests(value))
    window = story.between(0, 4.5)
    assert (window.increase(c.REQUESTS), window.seconds, window.resets) == (5, 4.5, 0)
    assert window.rate(c.REQUESTS) == pytest.approx(5 / 4.5)
    assert story.between(2, 4.5).increase(c.REQUESTS) == 1
    assert window.increase_named("num_requests_total") == 5
    assert (window.increase(c.PROMPT_TOKENS), window.rate(c.PROMPT_TOKENS)) == (None, None)
    assert story.timeline.newest is not None and story.timeline.newest.counter(c.REQUESTS) == 15


def test_gauges_do_not_grow() -> None:
    story = Story()
    for at in (0.0, 1.0):
        story.add(at, page({"num_running_reqs": 5 + at, "num_requests_total": at}))
    window = story.between(0, 1)
    assert window.growth.gauge(c.RUNNING) is None
    assert window.newest.gauge(c.RUNNING) == 6


def test_one_read_is_no_window() -> None:
    timeline: Timeline[WorkerNumbers] = Timeline(10)
    assert (timeline.window(5), timeline.newest, timeline.oldest_at, len(timeline)) == (None, None, None, 0)
    timeline.append(WorkerPageReader().read(requests(1), 0.0))
    assert timeline.window(5) is None


def test_reads_out_of_order_are_left_out() -> None:
    story = Story()
    story.add(5, requests(5))
    assert not story.add(5, requests(6))
    assert not story.add(4, requests(1))
    story.add(6, requests(7))
    assert story.between(0, 6).increase(c.REQUESTS) == 2


def test_a_window_of_the_newest_seconds() -> None:
    story = Story()
    for at in range(11):
        story.add(at, requests(at * 10))
    window = story.timeline.window(4)
    assert window is not None and (window.seconds, window.increase(c.REQUESTS)) == (4, 40)
    young = Story()
    young.add(0, requests(1))
    young.add(1, requests(3))
    short = young.timeline.window(60)  # all that is known of it
    assert short is not None and (short.seconds, short.increase(c.REQUESTS)) == (1, 2)


def test_a_poll_that_came_a_little_late_still_begins_the_window() -> None:
    story = Story()
    for at in (0.0, 2.02, 4.0):
        story.add(at, requests(at))
    window = story.timeline.window(2.0)
    assert window is not None and window.start == 2.02


def test_a_gap_invents_nothing() -> None:
    story = Story()
    story.add(0, requests(0))
    story.add(2, requests(2))
    story.add(600, requests(5000))
    assert story.timeline.window(10) is None
    story.add(602, requests(5004))
    window = story.timeline.window(10)
    assert window is not None and (window.seconds, window.increase(c.REQUESTS)) == (2, 4)
    assert story.between(2, 600).increase(c.REQUESTS) == 4998


def test_histograms_by_bucket_difference() -> None:
    story = Story()
    story.add(0, page({}, ttft=(5, 8, 10)))
    story.add(1, page({}, ttft=(5, 10, 13)))
    story.add(2, page({}, ttft=(5, 10, 13)))
    grown = story.between(0, 1).distribution(c.TTFT)
    assert grown is not None and (grown.counts, grown.sum) == ((0, 2, 3), 1.5)
    quiet = story.between(1, 2).distribution(c.TTFT)
    assert quiet is not None and (quiet.count, quiet.quantile(0.5), quiet.mean) == (0, None, None)
    assert story.between(0, 1).distribution(c.E2E) is None
    assert story.between(0, 1).distribution_split(c.TTFT) == {}


# --- restarts -------------------------------------------------------------------------------------


def test_after_a_restart_counters_count_from_zero() -> None:
    story = Story()
    assert not story.add(0, requests(1000, prompt_tokens_total=50))
    assert not story.add(1, requests(1010, prompt_tokens_total=60))
    assert story.add(2, requests(4, prompt_tokens_total=3))
    assert not story.add(3, requests(9, prompt_tokens_total=4))
    window = story.between(0, 3)
    assert (window.increase(c.REQUESTS), window.increase(c.PROMPT_TOKENS), window.resets) == (19, 14, 1)
    assert story.between(2, 3).resets == 0
    assert story.between(1, 2).increase(c.REQUESTS) == 4


def test_several_restarts_add_up() -> None:
    story = Story()
    for at, value in enumerate((100, 7, 3, 5, 0, 2)):
        story.add(at, requests(value))
    window = story.between(0, 5)
    assert (window.increase(c.REQUESTS), window.resets) == (7 + 3 + 2 + 0 + 2, 3)


def test_a_window_stays_what_it_was_through_a_restart() -> None:
    story = Story()
    for at, value in ((0.0, 10), (1.0, 14)):
        story.add(at, requests(value))
    before = story.between(0, 1)
    story.add(2, requests(1))
    story.add(3, requests(math.nan))
    story.add(4, requests(9))
    assert before.increase(c.REQUESTS) == 4
    assert story.between(0, 4).increase(c.REQUESTS) == 4 + 9


def test_a_histogram_restarts_as_a_whole() -> None:
    story = Story()
    story.add(0, page({}, ttft=(1, 50, 90)))
    story.add(1, page({}, ttft=(4, 6, 8)))  # the first bucket is above its old value
    grown = story.between(0, 1).distribution(c.TTFT)
    assert grown is not None and (grown.counts, grown.sum) == ((4, 6, 8), 4)


def test_all_new_process_ids_are_a_restart_even_if_nothing_fell() -> None:
    story = Story()
    story.add(0, page({"num_requests_total": 5}, pid="100"))
    assert not story.add(1, page({"num_requests_total": 6}, pid="100"))
    assert story.add(2, page({"num_requests_total": 40}, pid="200"))
    window = story.between(0, 2)
    assert (window.increase(c.REQUESTS), window.resets) == (41, 1)


def test_a_real_restart() -> None:
    story = Story()
    folder = FIXTURES / "real" / "sglang-0.5.23+sglang-router-0.3.2"
    story.add(0, (folder / "2p2d-transfer-failures" / "decode1.metrics.txt").read_bytes())
    assert story.add(60, (folder / "2p2d-decode1-restarted" / "decode1.metrics.txt").read_bytes())
    newest = story.timeline.newest
    assert newest is not None
    window = story.between(0, 60)
    assert window.increase(c.REQUESTS) == newest.counter(c.REQUESTS)
    assert window.distribution(c.TTFT) == newest.histogram(c.TTFT)
    assert window.resets == 1


def test_case_restarted_prefill_worker() -> None:
    story = Story()
    for at in (0, 20):
        story.add(at, (CASES / "s09-worker-restarted" / f"p1.t{at}.txt").read_bytes())
    window = story.between(0, 20)
    assert (window.rate(c.PROMPT_TOKENS), window.rate(c.REQUESTS), window.resets) == (3200, 1, 1)
    ttft = window.distribution(c.TTFT)
    assert ttft is not None and ttft.count == 20
    assert ttft.mean == pytest.approx(0.35)


# --- series that come and go ----------------------------------------------------------------------


def test_a_counter_that_appears_began_at_zero() -> None:
    story = Story()
    story.add(0, page({"prompt_tokens_total": 5}))
    story.add(1, requests(3, prompt_tokens_total=5))
    assert story.between(0, 1).increase(c.REQUESTS) == 3
    story.add(2, requests(4, prompt_tokens_total=6))
    assert story.between(0, 2).increase(c.REQUESTS) == 4
    assert story.between(1, 2).increase(c.REQUESTS) == 1


def test_unless_the_pages_before_were_incomplete() -> None:
    story = Story()
    full = requests(3000, prompt_tokens_total=5)
    story.add(0, page({"prompt_tokens_total": 5}) + b"sglang:num_req", truncated=True)
    story.add(1, full)
    assert story.between(0, 1).increase(c.REQUESTS) == 0
    story.add(2, requests(3001, prompt_tokens_total=5))
    assert story.between(0, 2).increase(c.REQUESTS) == 1
    cut = Story()
    cut.add(0, page({"prompt_tokens_total": 5}) + b"sglang:num_requests_total broken\n")
    cut.add(1, full)
    assert cut.between(0, 1).increase(c.REQUESTS) == 0


def test_a_page_that_lacks_a_series_once_changes_nothing() -> None:
    story = Story()
    story.add(0, requests(100, prompt_tokens_total=5))
    story.add(1, page({"prompt_tokens_total": 6}))
    assert story.between(0, 1).increase(c.REQUESTS) is None
    story.add(2, requests(104, prompt_tokens_total=7))
    assert story.between(0, 2).increase(c.REQUESTS) == 4
    assert story.between(1, 2).increase(c.REQUESTS) == 4


def test_what_a_restarted_worker_does_not_have_yet_begins_at_zero() -> None:
    story = Story()
    story.add(0, requests(10, prompt_tokens_total=500))
    assert story.add(1, page({"prompt_tokens_total": 1}))
    story.add(2, requests(30, prompt_tokens_total=2))  # more than before the restart
    window = story.between(0, 2)
    assert (window.increase(c.REQUESTS), window.increase(c.PROMPT_TOKENS), window.resets) == (30, 2, 1)


def test_series_in_another_order_are_the_same() -> None:
    story = Story()
    story.add(0, page({"num_requests_total": 1, "prompt_tokens_total": 10}))
    story.add(1, page({"prompt_tokens_total": 30, "num_requests_total": 2}))
    window = story.between(0, 1)
    assert (window.increase(c.REQUESTS), window.increase(c.PROMPT_TOKENS)) == (1, 20)


def test_labels_that_change_at_every_read_do_not_fill_the_memory() -> None:
    story = Story(span_s=5)
    for at in range(40):
        lines = "".join(f'sglang:num_requests_total{{x="{at}-{i}"}} 1\n' for i in range(600))
        story.add(at, lines.encode())
    assert len(story.timeline._lost) < 11_000


# --- numbers that are none ------------------------------------------------------------------------


def test_a_sample_that_is_no_number_is_skipped() -> None:
    story = Story()
    for at, value in ((0, 5.0), (1, math.nan), (2, 9.0), (3, math.inf), (4, 10.0)):
        story.add(at, requests(value))
    assert story.between(0, 4).increase(c.REQUESTS) == 5
    assert story.between(0, 1).increase(c.REQUESTS) == 0
    late = Story()
    for at, value in ((0, math.nan), (1, 5.0), (2, 9.0)):
        late.add(at, requests(value))
    assert late.between(0, 2).increase(c.REQUESTS) == 4
    never = Story()
    never.add(0, requests(math.nan))
    never.add(1, requests(math.nan))
    assert never.between(0, 1).increase(c.REQUESTS) is None


def test_negative_buckets_are_no_restart_and_no_distribution() -> None:
    story = Story()
    for at, count in enumerate((-1, -2, -5)):
        assert not story.add(at, page({"num_requests_total": at}, ttft=(count, count, count)))
    window = story.between(0, 2)
    assert (window.resets, window.distribution(c.TTFT), window.increase(c.REQUESTS)) == (0, None, 2)


def test_a_broken_histogram_that_stands_still_is_still_broken() -> None:
    story = Story()
    story.add(0, page({}, ttft=(-1, -1, -1)))
    story.add(1, page({}, ttft=(-1, -1, -1)))
    assert story.between(0, 1).distribution(c.TTFT) is None


# --- bounds ---------------------------------------------------------------------------------------


def test_old_reads_are_dropped_but_one() -> None:
    story = Story(span_s=10)
    for at in range(100):
        story.add(at, requests(at))
    assert story.timeline.oldest_at == 88
    assert len(story.timeline) == 12


def test_many_reads_are_thinned_out_in_the_older_half_and_growth_stays_exact() -> None:
    story = Story(span_s=1000, points=20)
    values = [0.0]
    random.seed(7)
    for at in range(500):
        values.append(0.0 if random.random() < 0.05 else values[-1] + random.randrange(5))
        story.add(at, requests(values[-1]))
    assert len(story.timeline) == 20
    recent = story.timeline.window(5)
    assert recent is not None and recent.seconds == 5
    oldest = story.timeline.oldest_at
    assert oldest == 0
    total, restarts = 0.0, 0
    for before, after in pairwise(values[1:]):
        total += after - before if after >= before else after
        restarts += after < before
    whole = story.between(0, 499)
    assert (whole.increase(c.REQUESTS), whole.resets) == (total, restarts)


Steps = st.lists(
    st.tuples(st.sampled_from(["grow", "grow", "restart", "hide", "order"]), st.integers(0, 9)), max_size=25
)


@given(Steps, st.integers(0, 24), st.integers(0, 24))
@settings(deadline=None)
def test_growth_is_the_sum_of_its_steps(steps: list[tuple[str, int]], first: int, last: int) -> None:
    story = Story()
    tokens = done = 0
    grown: list[tuple[int, int]] = [(0, 0)]
    story.add(0, page({"num_requests_total": 0, "prompt_tokens_total": 0}))
    for at, (action, size) in enumerate(steps, 1):
        if action == "restart" and done and tokens:
            done, tokens = 0, min(size, tokens - 1)
            grown.append((0, tokens))
        else:
            done, tokens = done + size, tokens + 2 * size
            grown.append((size, 2 * size))
        counters = {"num_requests_total": done, "prompt_tokens_total": tokens}
        if action == "order":
            counters = {
                "prompt_tokens_total": tokens,
                "generation_tokens_total": 5,
                "num_requests_total": done,
            }
        story.add(at, page(counters))
    first, last = sorted((min(first, len(steps)), min(last, len(steps))))
    if first < last:
        window = story.between(first, last)
        assert window.increase(c.REQUESTS) == sum(step[0] for step in grown[first + 1 : last + 1])
        assert window.increase(c.PROMPT_TOKENS) == sum(step[1] for step in grown[first + 1 : last + 1])


# --- real stories ---------------------------------------------------------------------------------


def test_a_real_burst() -> None:
    moments = dict(line.split() for line in (BURST / "times_ms.tsv").read_text().splitlines())
    totals: dict[str, float | None] = {}
    for worker in ("decode0", "prefill0"):
        story = Story()
        for name, milliseconds in moments.items():
            at = int(milliseconds) / 1000
            assert not story.add(at, body_of(BURST / f"{name}.{worker}.metrics.txt.gz"))
            window = story.timeline.window(1)
            if window is not None:
                for concept in (c.REQUESTS, c.REALTIME_DECODE, c.REALTIME_PREFILL_COMPUTE, c.SCHEDULER_CPU):
                    increase = window.increase(concept)
                    assert increase is None or increase >= 0
        first, last = (
            WorkerPageReader().read(body_of(BURST / f"{name}.{worker}.metrics.txt.gz"), 0.0)
            for name in ("t00", "t24")
        )
        whole = story.between(0, 25)
        assert whole.resets == 0
        for concept in (c.REQUESTS, c.SCHEDULER_CPU, c.GENERATION_TOKENS):
            expected = (last.counter(concept) or 0) - (first.counter(concept) or 0)
            assert whole.increase(concept) == pytest.approx(expected)
        totals[worker] = whole.increase(c.REQUESTS)
    assert totals["decode0"] == totals["prefill0"]
    assert totals["decode0"] is not None and totals["decode0"] > 0


def test_router_shares() -> None:
    timeline: Timeline[RouterNumbers] = Timeline(1e6)
    reader = RouterPageReader()
    for at in (0, 60):
        body = (CASES / "s13-one-decode-takes-sixty-percent" / f"r.t{at}.txt").read_bytes()
        timeline.append(reader.read(body, at))
    window = timeline.between(0, 60)
    assert window is not None
    grown = window.growth.by_worker(c.R_DISPATCHES)
    assert sum(grown.values()) == 2000
    assert [value / 2000 for value in grown.values()] == [0.6, 0.12, 0.13, 0.15]
    assert window.newest.active_workers == 4
    assert window.growth.active_workers is None
