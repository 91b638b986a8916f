"""Before and after: a real shift is found, chance is not, what is not known is said."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from pdtop.cluster.model import Backlog, Latency, Pool, Role, Snapshot, Worker
from pdtop.metrics.distribution import Distribution
from pdtop.operations.comparison import BLOCK_S, BLOCKS, SIDE_S, BeforeAfter
from pdtop.operations.model import Comparison
from tests.insight.scenes import latency, worker

T0 = 1_700_000_000.0
WINDOW_S = 30.0
ENOUGH_S = WINDOW_S + BLOCKS * BLOCK_S
NO_DIFFERENCE = "no clear difference"


def shot(second: float, **more: object) -> Snapshot:
    plain = Snapshot(1, "c", T0 + second, WINDOW_S, 2.0)
    return replace(plain, **more)  # type: ignore[arg-type]  # each test names fields of Snapshot


def decode(**more: object) -> Pool:
    plain = Pool(Role.DECODE, 2, 2)
    return replace(plain, **more)  # type: ignore[arg-type]  # each test names fields of Pool


class Scatter:
    """Means over a window of a noisy value, as a worker's numbers are."""

    def __init__(self, seed: int, noise: float = 0.3) -> None:
        self._dice = random.Random(seed)
        self._noise = noise
        self._kept: list[float] = []

    def __call__(self, middle: float) -> float:
        self._kept.append(middle * (1 + self._dice.gauss(0, self._noise)))
        del self._kept[: -int(WINDOW_S)]
        return sum(self._kept) / len(self._kept)


def compare(
    make: Callable[[float, bool], Snapshot],
    *,
    role: Role = Role.DECODE,
    before_s: int = 400,
    after_s: float = 300,
) -> Comparison:
    """A snapshot a second around a change at second 0; ``make`` gets the second and whether it is after."""
    panel = BeforeAfter()
    for second in range(-before_s, 1):
        panel.feed(make(second, False))
    panel.mark(T0 + 0.5, "decode policy", role)
    for second in range(1, int(after_s) + 1):
        panel.feed(make(second, True))
    found = panel.comparison(T0 + 0.5 + after_s)
    assert found is not None
    return found


def row(found: Comparison, name: str) -> tuple[str, str, str]:
    return next((was, now, verdict) for measure, was, now, verdict in found.rows if measure == name)


def test_nothing_to_compare_before_the_first_change() -> None:
    panel = BeforeAfter()
    panel.feed(shot(0))
    assert panel.comparison(T0) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_real_shift_is_found_and_the_rest_left_alone(seed: int) -> None:
    wait, tokens = Scatter(seed), Scatter(100 + seed)

    def make(_: float, after: bool) -> Snapshot:
        return shot(
            _, decode=decode(backlog=Backlog(wait(24.0 if after else 40.0)), tokens_per_s=tokens(9000.0))
        )

    found = compare(make)
    was, now, verdict = row(found, "backlog")
    assert 36 < float(was) < 44
    assert 21 < float(now) < 27
    assert verdict.endswith(" %, better")
    assert -50 < float(verdict.removesuffix(" %, better").replace("−", "-")) < -30
    assert row(found, "tokens/s")[2] == NO_DIFFERENCE
    assert found.words == (
        "clear: backlog; a difference is clear if it is over 5 % and 1.5 to 3.5 times "
        "what the measure scatters by itself from 30 s to 30 s"
    )
    assert (found.title, found.since, found.before_s, found.after_s) == (
        "decode policy",
        T0 + 0.5,
        400.5,
        300,
    )


def test_chance_is_no_difference() -> None:
    clear = 0
    for seed in range(20):
        wait = Scatter(seed)

        def make(second: float, _: bool, wait: Scatter = wait) -> Snapshot:
            return shot(second, decode=decode(backlog=Backlog(wait(40.0))))

        clear += row(compare(make), "backlog")[2] != NO_DIFFERENCE
    assert clear == 0


def test_a_small_difference_is_none_however_even() -> None:
    found = compare(lambda s, after: shot(s, decode=decode(backlog=Backlog(104.0 if after else 100.0))))
    assert row(found, "backlog") == ("100", "104", NO_DIFFERENCE)
    assert found.words.startswith("no clear difference; a difference is clear if ")


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (100.0, 150.0, "+50 %, worse"),
        (100.0, 60.0, "−40 %, better"),
        (0.0, 6.0, "up from 0, worse"),
        (6.0, 0.0, "−100 %, better"),
        (0.0, 0.0, NO_DIFFERENCE),
    ],
)
def test_verdicts(before: float, after: float, verdict: str) -> None:
    found = compare(lambda s, late: shot(s, decode=decode(backlog=Backlog(after if late else before))))
    assert row(found, "backlog")[2] == verdict


def test_every_measure_of_a_prefill_change() -> None:
    def make(second: float, after: bool) -> Snapshot:
        busy = 0.4 if after else 0.7
        pool = [worker("a", Role.PREFILL, share=busy), worker("b", Role.PREFILL, share=0.3)]
        unused = [worker("c", Role.PREFILL, share=0.9, usable=False), worker("d", Role.DECODE, share=1.0)]
        return shot(
            second,
            workers=(*pool, *unused),
            prefill=Pool(
                Role.PREFILL, 3, 2, hit_rate=0.6 if after else 0.3, backlog=Backlog(8.0), tokens_per_s=900.0
            ),
            ttft=latency("ttft", 0.4 if after else 0.8),
            tpot=latency("tpot", 0.02),
        )

    found = compare(make, role=Role.PREFILL)
    assert found.rows[:3] == (
        ("busiest share", "1.40× mean", "1.14× mean", "−18 %, better"),
        ("hit rate", "30 %", "60 %", "+100 %, better"),
        ("TTFT p50", "800 ms", "400 ms", "−50 %, better"),
    )
    assert [(name, verdict) for name, *_, verdict in found.rows[3:]] == [
        ("TTFT p99", "−50 %, better"),
        ("TPOT p50", NO_DIFFERENCE),
        ("TPOT p99", NO_DIFFERENCE),
        ("backlog", NO_DIFFERENCE),
        ("tokens/s", NO_DIFFERENCE),
    ]


def test_more_traffic_may_be_why() -> None:
    def make(second: float, after: bool) -> Snapshot:
        factor = 2.0 if after else 1.0
        return shot(second, decode=decode(backlog=Backlog(10 * factor), tokens_per_s=500 * factor))

    found = compare(make)
    assert row(found, "tokens/s") == ("500", "1.0k", "+100 %")
    assert found.words.startswith(
        "clear: backlog, tokens/s; the traffic changed too, so not all need be due to this change; "
    )


def test_too_early_says_how_long() -> None:
    def make(second: float, after: bool) -> Snapshot:
        return shot(second, decode=decode(backlog=Backlog(60.0 if after else 100.0)))

    found = compare(make, after_s=110)
    assert found.words == row(found, "backlog")[2] == f"too early, {ENOUGH_S - 110:.0f} s more"
    assert row(compare(make, after_s=ENOUGH_S), "backlog")[2] == "−40 %, better"


def test_the_first_window_after_the_change_does_not_count() -> None:
    """What was measured there still holds requests of before."""

    def make(second: float, after: bool) -> Snapshot:
        settled = after and second > WINDOW_S
        return shot(second, decode=decode(backlog=Backlog(60.0 if settled else 1000.0 if after else 100.0)))

    assert row(compare(make, after_s=ENOUGH_S), "backlog") == ("100", "60", "−40 %, better")


def test_a_console_that_has_just_started_cannot_tell() -> None:
    found = compare(lambda s, _: shot(s, decode=decode(backlog=Backlog(5.0))), before_s=40)
    assert found.before_s == 40.5
    assert row(found, "backlog") == ("5", "5", "not enough before it to tell")
    nothing = compare(lambda s, _: shot(s), before_s=40)
    assert nothing.words == "not known"


@pytest.mark.parametrize(
    "pool",
    [decode(), decode(backlog=Backlog(0.0, lower_bound=True)), decode(tokens_per_s=float("nan"))],
)
def test_unknown_is_not_known(pool: Pool) -> None:
    found = compare(lambda s, after: shot(s, decode=pool if after else decode(backlog=Backlog(4.0))))
    assert row(found, "backlog") == ("4", "not known", "not known")
    assert row(found, "tokens/s") == ("not known",) * 3
    assert row(found, "TTFT p99") == ("not known",) * 3
    assert row(found, "busiest share") == ("not known",) * 3


def test_known_for_less_than_half_of_the_time_is_not_known() -> None:
    found = compare(
        lambda s, after: shot(s, decode=decode(backlog=Backlog(None if after and s % 10 else 4.0)))
    )
    assert row(found, "backlog") == ("4", "not known", "not known")


def test_a_decode_worker_without_cache_has_no_line_for_it() -> None:
    without = compare(lambda s, _: shot(s, decode=decode()))
    assert "hit rate" not in [name for name, *_ in without.rows]
    found = compare(lambda s, _: shot(s, decode=decode(hit_rate=0.5)))
    assert row(found, "hit rate") == ("50 %", "50 %", NO_DIFFERENCE)


def test_beyond_the_last_bucket_and_within_the_first() -> None:
    def of(*counts: float, total: float) -> Latency:
        return Latency("decode", "ttft", Distribution((0.1, 1.0, float("inf")), counts, total))

    beyond, within = of(0.0, 0.0, 10.0, total=90.0), of(10.0, 10.0, 10.0, total=0.4)
    found = compare(lambda s, after: shot(s, ttft=within if after else beyond))
    assert row(found, "TTFT p50") == ("≥ 1.00 s", "40 ms", "−96 %, better")
    assert row(found, "TTFT p99") == ("≥ 1.00 s", "not known", "not known")


def test_idle_workers_are_no_spread() -> None:
    pool: tuple[Worker, ...] = (worker("a", share=0.0), worker("b", share=0.0))
    assert row(compare(lambda s, _: shot(s, workers=pool)), "busiest share")[0] == "not known"


def test_a_second_change_begins_where_the_first_has_settled() -> None:
    panel = BeforeAfter()

    def feed(start: int, end: int, value: float) -> None:
        for second in range(start, end):
            panel.feed(shot(second, decode=decode(backlog=Backlog(value))))

    feed(0, 300, 100.0)
    panel.mark(T0 + 299.5, "first", Role.DECODE)
    feed(300, 600, 50.0)
    panel.mark(T0 + 599.5, "second", Role.DECODE)
    feed(600, 900, 20.0)
    found = panel.comparison(T0 + 899.5)
    assert found is not None
    assert (found.title, row(found, "backlog")) == ("second", ("50", "20", "−60 %, better"))
    assert 268 <= found.before_s <= 270


def test_each_side_ends_after_ten_minutes() -> None:
    def make(second: float, after: bool) -> Snapshot:
        odd = second < -SIDE_S or second > SIDE_S + 1
        return shot(second, decode=decode(backlog=Backlog(9999.0 if odd else 20.0 if after else 10.0)))

    found = compare(make, before_s=2000, after_s=2000)
    assert row(found, "backlog") == ("10", "20", "+100 %, worse")
    assert SIDE_S - 4 <= found.before_s <= SIDE_S
    assert found.after_s == SIDE_S


def test_memory_is_bounded() -> None:
    panel = BeforeAfter()
    panel.mark(T0, "x", Role.DECODE)
    pool = decode(backlog=Backlog(3.0), tokens_per_s=9.0, hit_rate=0.4)
    tracemalloc.start()
    try:
        for second in range(3000):
            panel.feed(shot(second, decode=pool))
        assert tracemalloc.get_traced_memory()[0] < 1_500_000
    finally:
        tracemalloc.stop()
