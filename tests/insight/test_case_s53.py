"""Case s53: the same running count, very different work."""

from __future__ import annotations

import pytest

from pdtop.cluster.address import Address
from pdtop.cluster.board import Board, Setting
from pdtop.cluster.model import Role
from pdtop.cluster.targets import WorkerTarget
from pdtop.config.schema import Config, LoadWeights, Topology
from pdtop.insight.load import Place, Work, choose, count_load, load_score, scores, transfer_cost
from tests.cluster.story import Pages, page
from tests.insight.case import case


def test_tokens_and_transfer_decide() -> None:
    given, expect = case("s53-load-score-by-tokens")
    told = given["weights"]
    weights = LoadWeights(
        running=told["running"],
        backlog=told["waiting"],
        per_1000_tokens=told["per_1000_tokens"],
        kv_use=told["kv"],
    )
    assert weights == LoadWeights()  # the case has the defaults of [load]
    work = {
        key: Work(one["running"], one["backlog"], one["remaining_tokens"], one["kv"])
        for key, one in given["D"].items()
    }
    assert {key: count_load(one) for key, one in work.items()} == expect["count_load"]
    loads = {key: load_score(one, weights) for key, one in work.items()}
    assert loads == pytest.approx(expect["decode_load"])
    found = scores(loads, given["transfer_cost"]["P1"])
    assert found == pytest.approx(expect["score_from_P1"])
    assert choose(found) == expect["choose_from_P1"]


def test_every_worker_of_a_snapshot_has_its_score() -> None:
    board = Board()
    board.setting = Setting(config=Config.model_validate({"load": {"running": 2.0}}))
    target = WorkerTarget("d:1", "d", Role.DECODE, Address.parse("http://d:1"), "config")
    board.workers_changed((target,), ())
    assert board.snapshot(0.0, 0.0, 60.0).workers[0].load_score is None
    text = page(
        num_running_reqs=4,
        num_queue_reqs=1,
        num_decode_prealloc_queue_reqs=2,
        num_decode_transfer_queue_reqs=0,
        token_usage=0.5,
    )
    board.metrics("d:1", Pages().read(1.0, text))
    assert board.snapshot(1.0, 0.0, 60.0).workers[0].load_score == 2 * 4 + 3 + 10 * 0.5


def test_a_weight_of_the_config_counts() -> None:
    work = Work(4.0, 2.0, 3000.0, 0.5)
    assert load_score(work, LoadWeights(running=2.0, backlog=3.0, per_1000_tokens=0.5, kv_use=20.0)) == 25.5


@pytest.mark.parametrize(
    ("work", "score"),
    [
        (Work(None, 2.0), None),
        (Work(4.0, None, 10.0, 0.1), None),
        (Work(4.0, 2.0), 6.0),  # what nobody tells is left out
        (Work(0.0, 0.0, 0.0, 0.0), 0.0),
    ],
)
def test_unknown_is_not_nothing(work: Work, score: float | None) -> None:
    assert load_score(work, LoadWeights()) == score


def test_who_has_no_load_or_no_weight_is_not_chosen() -> None:
    assert scores({"a": 9.0, "b": None, "c": 1.0}, {}, {"c": 0.0}) == {"a": 9.0}
    assert scores({"a": 9.0, "b": 10.0}, {"a": 1.0}, {"b": 2.0}) == {"a": 10.0, "b": 5.0}
    assert choose({}) is None


@pytest.mark.parametrize(
    ("prefill", "decode", "cost"),
    [
        (Place("n1", "r1"), Place("n1", "r1"), 0.0),
        (Place("n1", "r1"), Place("n2", "r1"), 1.0),
        (Place("n1", "r1"), Place("n2", "r2"), 6.0),
        (Place(), Place(), 1.0),
        (Place(rack="r1"), Place("n2"), 1.0),
    ],
)
def test_transfer_cost(prefill: Place, decode: Place, cost: float) -> None:
    assert transfer_cost(Topology(), prefill, decode) == cost
