"""What the rest of a pool has to carry."""

from __future__ import annotations

import pytest

from pdtop.cluster.model import Identity, Role, State, Worker
from pdtop.operations.effect import capacity_share, pool_effect
from pdtop.operations.model import PoolEffect
from tests.insight.scenes import scene, worker


def with_room(key: str, kv_use: float | None, tokens: int, **more: object) -> Worker:
    return worker(
        key, Role.DECODE, kv_use=kv_use, identity=Identity(kv_capacity_tokens=tokens or None), **more
    )


def test_tokens_and_running_move_to_the_rest() -> None:
    snapshot = scene(
        worker("d1", kv_use=0.44, running=17.0),
        worker("d2", kv_use=0.71, running=14.0),
        worker("d3", kv_use=0.52, running=18.0),
        worker("d4", kv_use=0.38, running=12.0, usable=False, draining=True),
    )
    found = pool_effect(snapshot, Role.DECODE, {"d2"})
    assert (found.total, found.usable_before, found.usable_after) == (4, 3, 2)
    assert found.kv_before == pytest.approx((0.44 + 0.71 + 0.52) / 3)
    assert found.kv_after == pytest.approx((0.44 + 0.71 + 0.52) / 2)
    assert found.running_before == pytest.approx(49 / 3)
    assert found.running_after == pytest.approx(24.5)
    assert found.text == "decode: 2 of 3 usable stay, KV 56 % → 84 %, running each 16 → 24"


def test_capacities_of_different_size_count_by_size() -> None:
    snapshot = scene(with_room("d1", 0.5, 1000), with_room("d2", 0.2, 3000))
    found = pool_effect(snapshot, Role.DECODE, {"d1"})
    assert found.kv_before == pytest.approx(1100 / 4000)
    assert found.kv_after == pytest.approx(1100 / 3000)
    assert capacity_share(snapshot, Role.DECODE, {"d1"}) == pytest.approx(0.25)


def test_one_unknown_capacity_makes_all_count_the_same() -> None:
    snapshot = scene(with_room("d1", 0.5, 1000), with_room("d2", 0.2, 0))
    assert pool_effect(snapshot, Role.DECODE, {"d1"}).kv_after == pytest.approx(0.7)
    assert capacity_share(snapshot, Role.DECODE, {"d1"}) == pytest.approx(0.5)


def test_a_change_of_nothing_changes_nothing() -> None:
    snapshot = scene(with_room("d1", 0.5, 1000), with_room("d2", 0.2, 3000))
    found = pool_effect(snapshot, Role.DECODE)
    assert found.kv_before == found.kv_after
    assert found.usable_before == found.usable_after == 2


def test_more_than_fits_is_told_as_it_is() -> None:
    snapshot = scene(worker("d1", kv_use=0.8), worker("d2", kv_use=0.7))
    assert pool_effect(snapshot, Role.DECODE, {"d1"}).kv_after == pytest.approx(1.5)


def test_unknown_stays_unknown() -> None:
    snapshot = scene(worker("d1", kv_use=None, running=None), worker("d2"))
    found = pool_effect(snapshot, Role.DECODE, {"d1"})
    assert (found.kv_before, found.kv_after, found.running_before, found.running_after) == (None,) * 4
    assert found.text == "decode: 1 of 2 usable stay"


@pytest.mark.parametrize("usable", [False, None])
def test_who_is_not_known_to_be_usable_carries_nothing(usable: bool | None) -> None:
    snapshot = scene(worker("d1", kv_use=0.4), worker("d2", usable=usable, kv_use=0.9))
    found = pool_effect(snapshot, Role.DECODE, {"d1"})
    assert (found.usable_before, found.usable_after) == (1, 0)
    assert found.kv_before == pytest.approx(0.4)
    assert found.kv_after is None


@pytest.mark.parametrize(("state", "after"), [(State.OK, 2), (State.REFUSED, 1), (None, 1)])
def test_who_comes_back_counts_if_it_answers(state: State | None, after: int) -> None:
    snapshot = scene(
        worker("d1", kv_use=0.6), worker("d2", usable=False, draining=True, state=state, kv_use=0.0)
    )
    found = pool_effect(snapshot, Role.DECODE, back={"d2"})
    assert found.usable_after == after
    assert found.kv_after == pytest.approx(0.6 / after)


def test_who_has_no_weight_gets_nothing_before_or_after() -> None:
    snapshot = scene(worker("d1"), worker("d2"), worker("d3"))
    found = pool_effect(snapshot, Role.DECODE, {"d1"}, idle={"d2"})
    assert (found.usable_before, found.usable_after) == (2, 1)
    back = pool_effect(snapshot, Role.DECODE, back={"d2"}, idle={"d2"})
    assert (back.usable_before, back.usable_after) == (2, 3)


def test_an_empty_pool() -> None:
    assert pool_effect(scene(), Role.PREFILL, {"p1"}) == PoolEffect(Role.PREFILL, 0, 0, 0)
    assert capacity_share(scene(), Role.PREFILL, {"p1"}) is None
