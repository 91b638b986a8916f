"""What is asserted without being asked: when a difference stands, how often, and what a router is owed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pdtop.cluster.model import Drift, Role, Snapshot, State
from pdtop.cluster.readings import ListedWorker, RouterReading
from pdtop.cluster.router_watch import Heard
from pdtop.config.schema import Config
from pdtop.operations.asserting import AGAIN_S, STANDS_S, Again, Asserting, Due
from tests.insight.scenes import router
from tests.operations.scenes import CONFIG, D1, D2, cluster, loaded

DRAINED = CONFIG + f'\n[decode.worker."{D1}"]\ndrain = true\n'
NOT_IN_FORCE = Drift(D1, "drain", "drain: config says drained, router still has it", "r")


def config(text: str = DRAINED) -> Config:
    found = loaded(text).config
    assert found is not None
    return found


def drifting(*drift: Drift) -> Snapshot:
    return replace(cluster(), drift=drift)


def due(
    asserting: Asserting,
    snapshot: Snapshot,
    now: float,
    *,
    back: Iterable[str] = (),
    busy: Iterable[str] = (),
    named: Iterable[str] = (),
    keep_true: bool = False,
    text: str = DRAINED,
) -> list[Due]:
    return list(
        asserting.due(
            config(text),
            snapshot,
            now,
            back=tuple(back),
            busy=lambda keys: bool(set(keys) & set(busy)),
            named=set(named),
            keep_true=keep_true,
        )
    )


def test_again_and_again_but_less_and_less_often() -> None:
    again, at, waits = Again(), 100.0, []
    assert again.due(at)
    for _ in range(5):
        before = at
        while not again.due(at):
            at += 1.0
        waits.append(at - before)
    assert tuple(waits) == (*AGAIN_S, AGAIN_S[-1])
    assert not again.due(at + 299.0)
    assert again.due(at + 1000.0)
    assert again.due(at + 1010.0)  # it began anew


def test_a_drain_that_is_not_in_force_must_stand_for_a_while() -> None:
    asserting = Asserting()
    assert due(asserting, drifting(NOT_IN_FORCE), 0.0) == []
    assert due(asserting, drifting(), 3.0) == []
    assert due(asserting, drifting(NOT_IN_FORCE), 4.0) == []
    assert due(asserting, drifting(NOT_IN_FORCE), 4.0 + STANDS_S - 0.1) == []
    assert due(asserting, drifting(NOT_IN_FORCE), 4.0 + STANDS_S, busy=[D1]) == []
    assert due(asserting, drifting(NOT_IN_FORCE), 4.0 + STANDS_S) == [
        Due(f"drained again: {D1}", "reassert", frozenset({D1}))
    ]
    assert due(asserting, drifting(NOT_IN_FORCE), 12.0) == []
    assert due(asserting, drifting(NOT_IN_FORCE), 4.0 + STANDS_S + AGAIN_S[0]) != []


def test_one_that_a_router_lists_again_is_drained_at_once() -> None:
    assert due(Asserting(), drifting(), 0.0, back=[D1, D2]) == [
        Due(f"drained again: {D1}", "reassert", frozenset({D1}))
    ]
    assert due(Asserting(), drifting(), 0.0, back=[D1], text=CONFIG) == []


def test_only_a_kept_file_puts_all_else_right() -> None:
    stranger = Drift("10.0.9.9:1", "not_in_config", "in router, not in config", "r")
    differs = [
        Drift(D2, "not_in_router", "in config, not in router", "r"),
        Drift("10.0.2.99:30001", "version", "version: engine says 2", None),
        Drift("10.0.2.98:30001", "weight", "weight: config says 1, router says 2", "r"),
        stranger,
    ]
    for keep_true, named, expected in (
        (False, (), set()),
        (True, (), {D2}),
        (True, (stranger.worker,), {D2, stranger.worker}),
    ):
        asserting = Asserting()
        assert due(asserting, drifting(*differs), 0.0, named=named, keep_true=keep_true) == []
        found = due(asserting, drifting(*differs), STANDS_S, named=named, keep_true=keep_true)
        assert {key for one in found for key in one.workers or ()} == expected
        assert all(one.source == "apply --watch" for one in found)


def test_a_router_is_told_what_it_is_owed_once_it_answers() -> None:
    asserting = Asserting()
    asserting.owe("r", frozenset({D1}), "first")
    asserting.owe("r", frozenset({D2}), "r answers again")
    down = cluster(routers=[router(state=State.TIMEOUT, workers=5)])
    unread = cluster(routers=[router(workers=None)])
    assert due(asserting, down, 0.0) == due(asserting, unread, 0.0) == []
    assert due(asserting, cluster(), 1.0) == [
        Due("r answers again", "reassert", frozenset({D1, D2}), frozenset({"r"}))
    ]
    assert due(asserting, cluster(), 100.0) == []
    asserting.owe("r", frozenset({D1}), "some")
    asserting.owe("r", None, "all")
    assert [one.workers for one in due(asserting, cluster(), 200.0)] == [None]


def heard(at: float, **ids: str) -> Heard:
    entries = tuple(ListedWorker(id_, f"http://{name}:1", Role.DECODE) for name, id_ in ids.items())
    return Heard(RouterReading(at, State.OK, 200, workers=entries))


def test_a_restart_is_told_once_and_pays_what_is_owed() -> None:
    asserting = Asserting()
    assert asserting.hear("r", Heard(), None) == ""
    assert asserting.hear("r", heard(1.0, a="1", b="2"), None) == ""
    why = asserting.hear("r", heard(2.0, a="3", b="4"), None)
    assert why == "its workers have new ids"
    assert asserting.hear("r", heard(2.0, a="3", b="4"), None) == ""
    asserting.owe("r", None, "owed")
    assert list(asserting.restarted({"r": why}, 2.0)) == [
        Due(
            "r has restarted (its workers have new ids): config.toml asserted there",
            "router restarted",
            None,
            frozenset({"r"}),
        )
    ]
    assert due(asserting, cluster(), 20.0) == []
    assert list(asserting.restarted({"r": why}, 3.0)) == []  # two behind one address are no restarts


def test_a_worker_that_pdtop_put_in_anew_proves_nothing() -> None:
    asserting = Asserting()
    asserting.hear("r", heard(1.0, a="1"), None)
    asserting.readded("r", "a:1", 1.5)
    assert asserting.hear("r", heard(1.2, a="1"), None) == ""
    assert asserting.hear("r", heard(2.0, a="2"), None) == ""
    assert asserting.hear("r", heard(3.0, a="3"), None) == "its workers have new ids"
