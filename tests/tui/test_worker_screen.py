"""The worker screen: every key, what the lines say, hostile and vanished workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.geometry import Region

from pdtop.cluster.model import (
    Backlog,
    Breaker,
    Health,
    Latency,
    PageFacts,
    Role,
    RouterOpinion,
    Snapshot,
    State,
    Worker,
)
from pdtop.tui.app import ConsoleApp
from pdtop.tui.lines import line_width
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.screens.worker import WorkerScreen
from pdtop.tui.tones import Tone
from pdtop.tui.widgets.line_page import LinePage
from pdtop.tui.worker_page import charts_of, page
from pdtop.tui.worker_view import WorkerView, neighbour, walk
from tests.tui import fakes
from tests.tui.fakes import FakeSource
from tests.tui.opened import HOT, SIZES, STALLED, opened, without


def view_of(snapshot: Snapshot, key: str) -> WorkerView:
    worker = snapshot.worker(key)
    assert worker is not None
    return WorkerView(worker, snapshot, ConsoleOptions(), worker.trends, 1.0, walk(snapshot).index(key))


def with_worker(snapshot: Snapshot, worker: Worker) -> Snapshot:
    return replace(snapshot, workers=tuple(worker if w.key == worker.key else w for w in snapshot.workers))


def changed(snapshot: Snapshot, key: str, **changes: object) -> Snapshot:
    worker = snapshot.worker(key)
    assert worker is not None
    return with_worker(snapshot, replace(worker, **changes))  # type: ignore[arg-type]


def words(snapshot: Snapshot, key: str, width: int = 120, height: int = 40) -> list[str]:
    return ["".join(w for w, _ in line).rstrip() for line in page(view_of(snapshot, key), width, height)]


def part(lines: list[str], title: str) -> list[str]:
    """The lines of one part of the page, without its heading and the cell of margin."""
    start = next(i for i, line in enumerate(lines) if line.startswith(f" {title} "))
    end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
    return [line[1:] for line in lines[start + 1 : end]]


def screen_of(app: ConsoleApp) -> WorkerScreen:
    assert isinstance(app.screen, WorkerScreen)
    return app.screen


def shown(app: ConsoleApp) -> list[str]:
    return ["".join(w for w, _ in line).rstrip() for line in app.screen.query_one(LinePage).lines]


# What the lines say --------------------------------------------------------------------------------------


def test_head_of_a_decode_worker() -> None:
    assert words(fakes.moment(), STALLED)[1:8] == [
        " DECODE 10.0.2.22:30001   ▲ stall   usable   age 0s   queues from /v1/loads" + " " * 38 + "5 of 7",
        " SGLang 0.5.23   /models/DeepSeek-V3.1   TP 8 · PP 1 · DP 1   KV by mooncake   weight 1",
        " running 14   backlog 13   KV 71%   hit –   tok/s 2.2k   req/s 9.2   share 24%",
        "",
        " ▲ KV transfer stalled: 12 waiting for KV, none arrived; P inflight 9 and rising   for 14s",
        "   seen  transfer 12 for 14 s, 0 tokens of new requests",
        "   do    look at the transfer backend of both sides; drain it if it does not recover",
    ]


def test_head_says_why_and_what_to_do() -> None:
    snapshot = changed(
        replace(fakes.moment(), findings=()), STALLED,
        state=State.METRICS_DISABLED, reason="404 Not Found: no /metrics",
        fix="start the worker with --enable-metrics",
        usable=False, unusable_because="circuit open in the router", resets=2, age_s=31.0,
    )  # fmt: skip
    assert words(snapshot, STALLED)[1:7] == [
        " DECODE 10.0.2.22:30001   ▲ unused   ✖ not usable   age 31s   queues from /v1/loads"
        + " " * 30
        + "5 of 7",
        " why     404 Not Found: no /metrics",
        " do      start the worker with --enable-metrics",
        " unused  circuit open in the router",
        " SGLang 0.5.23   /models/DeepSeek-V3.1   TP 8 · PP 1 · DP 1   KV by mooncake   weight 1",
        " running 14   backlog 13   KV 71%   hit –   tok/s 2.2k   req/s 9.2   share 24%   ▲ restarts 2",
    ]


def test_at_80_columns_the_name_stays_whole() -> None:
    assert words(fakes.moment(), STALLED, 79, 22)[0] == (
        " DECODE 10.0.2.22:30001   ▲ stall   usable   age 0s" + " " * 21 + "5 of 7"
    )


def test_a_worker_that_was_never_asked_is_all_unknown() -> None:
    lines = words(fakes.waiting(), STALLED)
    assert lines[1:4] == [
        " DECODE 10.0.2.22:30001   … asking   usable –   age –" + " " * 60 + "5 of 7",
        " SGLang –   –   TP – · PP – · DP –   KV by –   weight 1",
        " running –   backlog –   KV –   hit –   tok/s –   req/s –   share –",
    ]
    assert part(lines, "ROUTERS") == [" no router says anything of this worker"]
    assert part(lines, "PAGE") == [" HTTP –   no page has been read"]
    assert "no data yet" in "\n".join(lines)


def test_queues_of_a_decode_worker() -> None:
    assert part(words(fakes.moment(), STALLED), "QUEUES") == [
        " running           14  ███████████▎      of 128",
        " backlog           13  ██████████▍",
        "   queue            0                    waiting for the scheduler",
        "   prealloc         1  ▊                 waiting for KV memory",
        "   transfer        12  █████████▋        waiting for its KV to arrive",
        " retracted          0                    put back for lack of KV memory",
        " KV use           71%  ███████████▍      of 412k tok",
    ]


def test_queues_of_a_prefill_worker_with_an_unknown_part() -> None:
    snapshot = changed(fakes.moment(), HOT, backlog=Backlog(9.0, True, {"queue": 9.0, "bootstrap": None}),
                       transfer_failures=3.0)  # fmt: skip
    assert part(words(snapshot, HOT), "QUEUES") == [
        " running            4  ██████▍           of 128",
        " backlog           ≥9  ██████████████▍   at least: a part is not exported",
        "   queue            9  ██████████████▍   waiting for the scheduler",
        "   bootstrap        –                    waiting for the decode worker",
        " inflight           9  ██████████████▍   KV still being sent",
        " failed             3                    KV transfers, in the window",
        " KV use           61%  █████████▊        of 412k tok",
    ]


def test_ranks_with_the_fullest_one_marked_and_silent_ones_counted() -> None:
    lines = part(words(changed(fakes.ranked(), STALLED, ranks_expected=9), STALLED), "RANKS")
    assert lines[0].split() == [
        "RANK",
        "RUN",
        "BACKLOG",
        "QUEUE+PREALLOC+TRANSFER",
        "KV",
        "TOK/S",
        "HIT",
        "AGE",
    ]
    assert lines[5].split() == ["4", "2", "0", "0+0+0", "48%", "████▊", "384", "–", "0s"]
    assert lines[6].split() == ["5", "3", "1", "0+0+1", "97%", "█████████▊", "385", "–", "0s", "✖", "fullest"]
    assert lines[-1] == " ▲ the totals are a lower bound: not every rank reports"


def test_one_rank_needs_no_table() -> None:
    assert not any(line.startswith(" RANKS") for line in words(fakes.moment(), STALLED))


def test_latencies_with_streaming_apart_and_their_metric() -> None:
    ttft = Latency(
        "decode", "sglang:time_to_first_token_seconds", fakes.spread_of(0.388, 2.9),
        {"true": fakes.spread_of(0.3, 0.9, n=900), "false": fakes.spread_of(2.0, 3.0, n=100)},
    )  # fmt: skip
    assert part(words(changed(fakes.moment(), STALLED, ttft=ttft, tpot=None), STALLED), "LATENCY") == [
        "                        COUNT      P50      P99     MEAN  METRIC",
        " TTFT, decode            1.0k    390ms    3.09s    388ms  sglang:time_to_first_token_seconds",
        "   streaming              900    314ms    1.18s    300ms",
        "   not streaming          100    2.31s    3.18s    2.00s",
        " TPOT                       –        –        –        –  –",
    ]


def test_latencies_of_a_prefill_worker_have_the_kv_transfer_in_seconds() -> None:
    lines = part(words(fakes.moment(), HOT), "LATENCY")
    assert [line.split()[0] for line in lines[1:]] == ["TTFT,", "queue", "KV"]
    assert lines[3] == " KV transfer             1.0k     23ms     80ms     22ms"


def test_an_empty_window_has_a_count_and_no_quantiles() -> None:
    nothing = fakes.spread_of(0.2, 0.6, n=0)
    snapshot = changed(
        fakes.moment(), STALLED, tpot=Latency("decode", "sglang:inter_token_latency_seconds", nothing)
    )
    line = part(words(snapshot, STALLED), "LATENCY")[2]
    assert line.split() == ["TPOT,", "decode", "0", "–", "–", "–", "sglang:inter_token_latency_seconds"]


def test_stages_with_bars_of_the_time_spent() -> None:
    assert part(words(fakes.moment(), HOT), "STAGES") == [
        "                              COUNT      P50      P99     MEAN  TIME",
        " prefill_bootstrap             1.0k   <100ms    200ms     30ms  ██▍",
        " prefill_forward               1.0k    157ms    400ms    150ms  ████████████",
    ]


def test_every_router_has_its_own_opinion() -> None:
    opinions = (
        fakes.opinion(0.24, breaker=Breaker.OPEN, breaker_since_s=130.0, failure_rate=0.06, weight=0.5),
        RouterOpinion("https://router-b:30000", health=Health.UNHEALTHY),
        RouterOpinion("http://router-c:30000", listed=False),
    )
    lines = part(words(changed(fakes.moment(), STALLED, opinions=opinions), STALLED), "ROUTERS")
    assert [line.split() for line in lines] == [
        ["ROUTER", "HEALTH", "BREAKER", "INFL", "SHARE", "FAIL", "REQ/S", "LOAD", "WEIGHT"],
        ["10.0.0.1:30000", "✓", "healthy", "✖", "open", "2m10s", "10", "24%", "6%", "9.6", "14", "0.5"],
        ["https://router-b:30000", "✖", "unhealthy", *["–"] * 7],
        ["router-c:30000", "✖", "absent", *["–"] * 7],
    ]


def test_identity_and_page() -> None:
    snapshot = changed(fakes.moment(), STALLED, page=PageFacts(801, 3, 2, 88_300), status=200, missed_polls=4)
    lines = words(snapshot, STALLED)
    assert [line.split() for line in part(lines, "IDENTITY")] == [
        ["version", "0.5.23", "bootstrap", "port", "–"],
        ["model", "/models/DeepSeek-V3.1", "max", "running", "requests", "128"],
        ["TP", "8", "KV", "capacity,", "tokens", "412000"],
        ["PP", "1", "--chunked-prefill-size", "8192"],
        ["DP", "1", "--mem-fraction-static", "0.88"],
        ["transfer", "backend", "mooncake"],
    ]
    assert part(lines, "PAGE") == [
        " HTTP 200   801 lines   ▲ 3 bad   ▲ 2 repeated   88.3kB   4 reads without numbers"
    ]


@pytest.mark.parametrize(
    ("key", "titles"),
    [
        (STALLED, ["TTFT p50", "TPOT p50", "Backlog", "Running", "KV use", "Generated tokens"]),
        (HOT, ["Queue time p50", "Prompt tokens", "Backlog", "Running", "KV use"]),
    ],
)
def test_charts_of_a_role(key: str, titles: list[str]) -> None:
    assert [chart.title for chart in charts_of(view_of(fakes.moment(), key))] == titles


def test_a_worker_of_unknown_role_has_all_charts() -> None:
    snapshot = changed(fakes.moment(), STALLED, role=Role.UNKNOWN)
    assert len(charts_of(view_of(snapshot, STALLED))) == 7
    assert words(snapshot, STALLED)[1].startswith(" ROLE – 10.0.2.22:30001")


@pytest.mark.parametrize(("size", "charts_in_line"), [((80, 24), 1), ((120, 40), 2), ((200, 60), 2)])
def test_charts_stand_beside_each_other_where_there_is_room(
    size: tuple[int, int], charts_in_line: int
) -> None:
    lines = words(fakes.moment(), STALLED, *size)
    first = next(line for line in lines if line.startswith(" TTFT p50"))
    assert ("TPOT p50" in first) == (charts_in_line == 2)
    assert any("KV use   " in line and "tok/s" in line for line in lines) == (charts_in_line == 2)
    assert ("QUEUES" in first) == (size[0] == 200)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [fakes.moment, fakes.ranked, fakes.hostile, fakes.all_down, fakes.waiting])
def test_every_line_fits_and_is_harmless(make: object, size: tuple[int, int]) -> None:
    assert callable(make)
    snapshot = make()
    for worker in snapshot.workers:
        for line in page(view_of(snapshot, worker.key), size[0], size[1]):
            assert line_width(line) <= size[0]
            assert all(c.isprintable() for w, _ in line for c in w)


def test_old_numbers_are_all_in_the_background() -> None:
    lines = page(view_of(fakes.all_down(), STALLED), 120, 40)
    tones = {
        tone
        for line in lines
        for words, tone in line
        if words.strip(" █▉▊▋▌▍▎▏") in ("13", "2.2k", "390ms", "71%")
    }
    assert tones == {Tone.STALE}


def test_the_walk_goes_by_pool_and_in_a_circle() -> None:
    order = ["a", "b", "c"]
    assert [neighbour(order, k, 0, s) for k, s in (("a", 1), ("c", 1), ("a", -1), ("b", -1))] == [
        "b",
        "a",
        "c",
        "a",
    ]
    assert [neighbour(order, "gone", 1, s) for s in (1, -1)] == ["b", "a"]
    assert neighbour([], "gone", 0, 1) is None
    snapshot = changed(fakes.moment(), HOT, role=Role.UNIFIED)
    assert walk(snapshot)[0] == "10.0.1.12:30001"
    assert walk(snapshot)[-1] == HOT


# Keys ----------------------------------------------------------------------------------------------------


async def test_enter_opens_the_worker_under_the_cursor() -> None:
    app = ConsoleApp(FakeSource(fakes.moment()), ConsoleOptions(), environ={}, clock=lambda: fakes.NOW)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("down", "enter")
        assert screen_of(app).key == "10.0.1.12:30001"


@pytest.mark.parametrize("key", ["escape", "q"])
async def test_back(key: str) -> None:
    async with opened(fakes.moment()) as (app, pilot, _):
        depth = len(app.screen_stack)
        await pilot.press(key)
        assert not isinstance(app.screen, WorkerScreen)
        assert len(app.screen_stack) == depth - 1


async def test_previous_and_next() -> None:
    async with opened(fakes.moment()) as (app, pilot, _):
        for key, last in (
            ("left_square_bracket", "21"),
            ("left", "1.13"),
            ("right", "21"),
            ("right_square_bracket", "22"),
        ):
            expected = f"10.0.{last}:30001" if "." in last else f"10.0.2.{last}:30001"
            await pilot.press(key)
            assert screen_of(app).key == expected
            assert f" {expected} " in shown(app)[1]


async def test_scrolling() -> None:
    async with opened(fakes.ranked(), size=(80, 24)) as (app, pilot, _):
        lines = app.screen.query_one(LinePage)

        async def after(key: str) -> int:
            await pilot.press(key)
            return lines.scroll_offset.y

        assert [await after(k) for k in ("down", "j", "up", "k")] == [1, 2, 1, 0]
        page_of = lines.size.height - 1
        assert [await after(k) for k in ("pagedown", "pageup")] == [page_of, 0]
        assert [await after(k) for k in ("end", "home", "G", "g")] == [
            lines.max_scroll_y,
            0,
            lines.max_scroll_y,
            0,
        ]


async def test_the_place_on_the_page_stays_when_numbers_arrive() -> None:
    async with opened(fakes.ranked(), size=(80, 24)) as (app, pilot, source):
        await pilot.press("pagedown")
        before = app.screen.query_one(LinePage).scroll_offset.y
        source.push(fakes.ranked(101))
        await pilot.pause()
        assert app.screen.query_one(LinePage).scroll_offset.y == before > 0


async def test_only_what_changed_is_painted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(fakes.moment()) as (app, pilot, source):
        painted: list[Region] = []
        monkeypatch.setattr(LinePage, "refresh", lambda self, *regions, **_: painted.extend(regions))
        source.push(replace(changed(fakes.moment(), STALLED, running=15.0)))
        await pilot.pause()
        numbers = shown(app).index(
            " running 15   backlog 13   KV 71%   hit –   tok/s 2.2k   req/s 9.2   share 24%"
        )
        queue = next(i for i, line in enumerate(shown(app)) if line.startswith("  running  "))
        assert [(r.y, r.height) for r in painted] == [(numbers, 1), (queue, 1)]
        assert painted[0].width == 1


async def test_pause_holds_the_charts_too() -> None:
    async with opened(fakes.moment()) as (app, pilot, source):
        await pilot.press("space")
        before = shown(app)
        source.push(fakes.calm(170))
        await pilot.press("down", "up")
        assert shown(app) == before
        await pilot.press("space")
        assert shown(app) != before


async def test_a_vanished_worker_stays_and_says_so() -> None:
    async with opened(fakes.moment()) as (app, pilot, source):
        chart = next(line for line in shown(app) if "TTFT p50" in line)
        source.push(without(fakes.moment(), STALLED))
        await pilot.pause()
        lines = shown(app)
        assert lines[1] == " DECODE 10.0.2.22:30001   gone   usable   age 0s   queues from /v1/loads"
        assert lines[2] == " gone    the cluster no longer has this worker; these are its last numbers"
        assert chart in lines
        await pilot.press("right_square_bracket")
        assert screen_of(app).key == "10.0.2.23:30001"


async def test_a_vanished_worker_that_returns_is_live_again() -> None:
    async with opened(fakes.moment()) as (app, pilot, source):
        source.push(without(fakes.moment(), STALLED))
        await pilot.pause()
        source.push(fakes.moment(103))
        await pilot.pause()
        assert shown(app)[1].endswith("5 of 7")
        assert not any("no longer" in line for line in shown(app))


async def test_a_worker_nobody_knows() -> None:
    async with opened(fakes.empty(), "10.9.9.9:1") as (app, pilot, _):
        assert shown(app)[1].startswith(" ROLE – 10.9.9.9:1   gone   usable –   age –")
        await pilot.press("right_square_bracket", "left_square_bracket")
        assert screen_of(app).key == "10.9.9.9:1"


async def test_a_hostile_worker_is_plain_text() -> None:
    async with opened(fakes.hostile(), HOT) as (app, pilot, _):
        assert f"PREFILL {fakes.HOSTILE}" in "\n".join(shown(app))
        for _ in range(7):
            await pilot.press("right_square_bracket")
        assert screen_of(app).key == HOT
