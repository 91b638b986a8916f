"""What other tools get wrong, right here: each of these was seen."""

from __future__ import annotations

import asyncio
import json

import pytest

from pdtop.cluster.export import dumps
from pdtop.cluster.model import READABLE, Snapshot, State
from pdtop.cluster.table import render
from pdtop.tui.app import ConsoleApp
from pdtop.tui.options import ConsoleOptions
from tests.cluster.story import histogram, page
from tests.cluster.stub_server import Reply
from tests.end_to_end.watched import Watched, steady, watch, worker
from tests.tui.fakes import FakeSource

TTFT = "time_to_first_token_seconds"


async def after(seconds: float, watched: Watched) -> Snapshot:
    """The snapshot then, with one every second until then: what is wrong has to last to be said."""
    for _ in range(int(seconds)):
        await asyncio.sleep(1.0)
        watched.snapshot()
    await asyncio.sleep(seconds % 1.0)
    return watched.snapshot()


def printed(snapshot: Snapshot, width: int = 120) -> str:
    from rich.console import Console

    console = Console(width=width, color_system=None, markup=False)
    with console.capture() as capture:
        console.print(render(snapshot, width))
    return capture.get()


def screen_text(app: ConsoleApp) -> str:
    return "\n".join(
        "".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()
    )


async def shown(snapshot: Snapshot, size: tuple[int, int] = (120, 40)) -> str:
    """The overview's text with this snapshot on it."""
    app = ConsoleApp(FakeSource(snapshot), ConsoleOptions(), environ={}, clock=lambda: snapshot.at)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        return screen_text(app)


def test_one_hung_worker_of_seven_slows_no_other_row() -> None:
    async def act(watched: Watched) -> tuple[list[float | None], list[int], State | None]:
        ages: list[float | None] = []
        for _ in range(30):
            snapshot = await after(1.0, watched)
            ages += [snapshot.workers[at].age_s for at in (0, 1, 2, 4, 5, 6)]
        polls = [
            sum(request.route == "/metrics" for request in server.requests)
            for server in (*watched.prefill, *watched.decode)
        ]
        return ages, polls, snapshot.workers[3].state

    prefill = [worker(steady()) for _ in range(3)]
    decode = [worker(Reply(hang=True)), *(worker(steady()) for _ in range(3))]
    ages, polls, state = watch(act, prefill, decode)
    hung = polls.pop(3)
    assert state is State.TIMEOUT
    assert max(age for age in ages if age is not None) < 2.1  # the interval is 2 s
    assert None not in ages[6:]
    assert set(polls) <= {15, 16}
    assert hung < 10


async def test_a_nan_gauge_is_unknown_and_not_zero() -> None:
    def text(at: float) -> str:
        return page(num_running_reqs=float("nan"), token_usage=float("nan"), num_queue_reqs=float("inf"))

    def act_in_virtual_time() -> Snapshot:
        return watch(lambda watched: after(6.0, watched), [worker(steady())], [worker(text)])

    snapshot = await asyncio.to_thread(act_in_virtual_time)
    (one,) = (w for w in snapshot.workers if w.role == "decode")
    assert one.state is not None
    assert one.state in READABLE
    assert (one.running, one.kv_use, one.backlog.total) == (None, None, None)
    assert (snapshot.decode.running, snapshot.decode.kv_use) == (None, None)
    exported = json.loads(dumps(snapshot), parse_constant=pytest.fail)
    assert exported["workers"][1]["running"] is None
    assert exported["pools"]["decode"]["kv_use"] is None
    for output in (printed(snapshot), await shown(snapshot)):
        (row,) = (line.partition(one.name)[2] for line in output.splitlines() if one.name in line)
        assert "–" in row
        assert "nan" not in row.lower()
        assert " 0" not in row.partition("ago")[0]


def test_a_restart_is_no_negative_rate() -> None:
    def restarting(at: float) -> str:
        return steady()(at + 1_000_000 if at < 9 else at - 9)

    async def act(watched: Watched) -> list[tuple[float | None, float | None, float | None, int]]:
        seen = []
        for _ in range(24):
            one = (await after(1.0, watched)).workers[0]
            ttft = one.ttft.count if one.ttft is not None else None
            seen.append((one.tokens_per_s, one.requests_per_s, ttft, one.resets))
        return seen

    seen = watch(act, decode=[worker(restarting)])
    rates = [rate for rate, _, _, _ in seen if rate is not None]
    assert len(rates) > 15
    assert min(rates) >= 0
    assert max(rates) == pytest.approx(100.0)
    assert all(count is None or 0 <= count <= 120 for _, _, count, _ in seen)
    assert max(resets for *_, resets in seen) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<!doctype html><html><body><h1>nginx</h1>\nhttp_requests_total 5\n</body></html>", "web page"),
        (b"", "empty"),
        (b"# HELP up the proxy\n# TYPE up gauge\nup 1\n", "none of the engine's metrics"),
    ],
)
def test_a_page_without_metrics_is_not_ok(body: bytes, words: str) -> None:
    snapshot = watch(lambda watched: after(6.0, watched), decode=[worker(Reply(body=body)), worker(steady())])
    one = snapshot.workers[0]
    assert one.state is State.NOT_METRICS
    assert words in one.reason
    assert one.running is None
    assert [f.worker for f in snapshot.findings if f.kind == "no_engine_metrics"] == [one.key]
    assert snapshot.decode.running == 5.0  # of the other one
    assert snapshot.decode.running_unknown == 1


def test_a_dead_worker_leaves_the_totals_and_its_numbers_age() -> None:
    alive = {"it": True}
    mortal = worker(steady(running=40))

    async def act(watched: Watched) -> tuple[Snapshot, Snapshot]:
        before = await after(6.0, watched)
        alive["it"] = False
        return before, await after(20.0, watched)

    before, later = watch(
        act, decode=[lambda request: mortal(request) if alive["it"] else Reply(hang=True), worker(steady())]
    )
    assert (before.decode.running, before.decode.usable) == (45.0, 2)
    one = later.workers[0]
    assert (one.state, one.stale, one.usable) == (State.TIMEOUT, True, False)
    assert one.age_s is not None
    assert one.age_s > 15
    assert one.running == 40.0  # still shown, dim and with its age
    assert later.decode.running == 5.0
    assert later.decode.running_unknown == 1
    assert later.decode.usable == 1
    assert later.decode.tokens_per_s == pytest.approx(100.0, rel=0.05)
    assert later.decode.backlog.total == 3.0


async def test_ranks_never_add_up_to_more_than_the_kv_cache_holds() -> None:
    uses = (0.86, 0.86, 0.3, 0.1)

    def ranks(at: float) -> str:
        lines = ["# TYPE sglang:token_usage gauge", "# TYPE sglang:num_running_reqs gauge"]
        for dp, use in enumerate(uses):
            for tp in (0, 1):  # both shards of a rank say the same
                labels = f'model_name="m",tp_rank="{tp}",pp_rank="0",dp_rank="{dp}"'
                lines += [f"sglang:token_usage{{{labels}}} {use}", f"sglang:num_running_reqs{{{labels}}} 4"]
        return "\n".join(lines) + "\n"

    snapshot = await asyncio.to_thread(
        watch, lambda watched: after(6.0, watched), [worker(steady())], [worker(ranks)]
    )
    one = snapshot.workers[1]
    assert one.kv_use == pytest.approx(sum(uses) / 4)
    assert (one.kv_use_worst, one.running) == (0.86, 16.0)
    assert snapshot.decode.kv_use == pytest.approx(sum(uses) / 4)
    for text in (printed(snapshot), await shown(snapshot)):
        assert "172" not in text
        assert "212" not in text


def test_no_lifetime_percentiles_under_a_windowed_title() -> None:
    def old(at: float) -> str:
        """A million slow first tokens long ago, quick ones now."""
        quick = round(at * 10)
        counts = [quick, quick, quick, quick + 1_000_000, quick + 1_000_000]
        return page(num_running_reqs=1) + histogram(TTFT, counts, 900_000.0)

    async def act(watched: Watched) -> tuple[Snapshot, Snapshot]:
        return await after(1.5, watched), await after(18.5, watched)

    first, later = watch(act, decode=[worker(old)])
    assert first.workers[0].running == 1.0
    for latency in (first.workers[0].ttft, first.decode.ttft, first.ttft):
        assert latency is None or latency.quantile(0.99) is None
    assert json.loads(dumps(first))["pools"]["decode"]["ttft_ms"]["p99"] is None
    assert later.ttft is not None
    assert later.ttft.count == pytest.approx(100, abs=1)
    quantile = later.ttft.quantile(0.99)
    assert quantile is not None
    assert quantile.below == 0.1


def test_pool_p99_is_of_merged_buckets_not_a_mean_of_p99s() -> None:
    def quick(at: float) -> str:
        done = round(at * 1000)
        return page(num_running_reqs=1) + histogram(TTFT, [0, done, done, done, done], done * 0.15)

    def slow(at: float) -> str:
        done = round(at)
        return page(num_running_reqs=1) + histogram(TTFT, [0, 0, 0, done, done], done * 0.7)

    snapshot = watch(lambda watched: after(20.0, watched), decode=[worker(quick), worker(slow)])
    p99s = [w.ttft.quantile(0.99) for w in snapshot.workers if w.ttft is not None]
    fast, late = (quantile.value for quantile in p99s if quantile is not None)
    assert fast < 0.2
    assert late > 0.9
    assert snapshot.decode.ttft is not None
    merged = snapshot.decode.ttft.quantile(0.99)
    assert merged is not None
    assert merged.value < 0.2  # 1 of 1001 is slow; the mean would be about 0.6
    assert snapshot.ttft == snapshot.decode.ttft


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_all_seven_rows_are_on_a_small_screen(size: tuple[int, int]) -> None:
    prefill, decode = [worker(steady()) for _ in range(3)], [worker(steady()) for _ in range(4)]
    snapshot = await asyncio.to_thread(watch, lambda watched: after(6.0, watched), prefill, decode)
    text = await shown(snapshot, size)
    assert [w.name for w in snapshot.workers if w.name not in text] == []
    dead = await asyncio.to_thread(
        watch, lambda watched: after(12.0, watched), [worker(Reply(hang=True))] * 3, [worker(Reply(500))] * 4
    )
    assert len(dead.findings) >= 7  # many findings take no row away
    text = await shown(dead, size)
    assert [w.name for w in dead.workers if w.name not in text] == []
