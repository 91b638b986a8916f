"""Case s47: is 3P4D the right split for this hour?"""

from __future__ import annotations

import pytest

from pdtop.cluster.model import Role
from pdtop.insight.capacity import best_split, capacity, capacity_of
from tests.insight.case import case
from tests.insight.scenes import scene, worker


def test_the_split_of_the_case() -> None:
    given, expect = case("s47-capacity-formula")
    found = capacity_of(
        input_tokens=given["I"],
        output_tokens=given["O"],
        prefill_speed=given["P_tok_s"],
        decode_speed=given["D_tok_s"],
        m=given["m"],
        n=given["n"],
    )
    assert (found.a, found.b) == (expect["a"], expect["b"])
    assert found.unified == pytest.approx(expect["unified"], rel=1e-6)
    assert found.pd == expect["pd"]
    assert found.bottleneck == expect["bottleneck"]
    assert found.slower_than_unified is expect["pd_slower_than_unified"]
    assert found.m + found.n == given["total_nodes"]
    best = expect["best_split_of_7"]
    assert (found.best.m, found.best.n, found.best.pd) == (best["m"], best["n"], best["pd"])
    assert found.direction == expect["direction"]


@pytest.mark.parametrize(
    ("a", "b", "m", "n", "bottleneck", "direction"),
    [
        (30.0, 40.0, 3, 4, None, "keep"),
        (90.0, 10.0, 2, 4, Role.PREFILL, "more prefill"),
        (0.0, 10.0, 1, 1, Role.DECODE, "keep"),  # nothing to move
        (10.0, 10.0, 2, 1, Role.DECODE, "keep"),  # 1P2D would be no better
    ],
)
def test_directions(a: float, b: float, m: int, n: int, bottleneck: Role | None, direction: str) -> None:
    found = capacity_of(input_tokens=a, output_tokens=b, prefill_speed=1, decode_speed=1, m=m, n=n)
    assert (found.bottleneck, found.direction) == (bottleneck, direction)


@pytest.mark.parametrize(("speed", "m"), [(0.0, 1), (1.0, 0)])
def test_without_speed_or_worker_there_is_no_answer(speed: float, m: int) -> None:
    with pytest.raises(ValueError, match=r"speed|worker"):
        capacity_of(input_tokens=1, output_tokens=1, prefill_speed=speed, decode_speed=1, m=m, n=1)


def test_among_equal_splits_the_present_one_stays() -> None:
    assert [best_split(0.0, 0.0, m, 5 - m).m for m in range(1, 5)] == [1, 2, 3, 4]


def test_the_live_split_goes_by_the_busy_part_of_the_time() -> None:
    """Prefill works a quarter of its time, decode nine tenths."""
    snapshot = scene(
        *(worker(f"p{n}", Role.PREFILL, tokens_per_s=10_000.0, fwd_occupancy=25.0) for n in range(3)),
        *(worker(f"d{n}", Role.DECODE, tokens_per_s=900.0, fwd_occupancy=90.0) for n in range(4)),
    )
    found = capacity(snapshot, 3600.0)
    assert found is not None
    assert found.a == pytest.approx(3600 * 0.75)
    assert found.b == pytest.approx(3600 * 3.6)
    assert (found.bottleneck, found.direction) == (Role.DECODE, "more decode")


@pytest.mark.parametrize(
    ("tokens", "occupancy", "usable"),
    [(900.0, None, True), (None, 90.0, True), (900.0, 1.0, True), (0.0, 90.0, True), (900.0, 90.0, False)],
)
def test_no_live_split_without_measured_speeds(
    tokens: float | None, occupancy: float | None, usable: bool
) -> None:
    snapshot = scene(
        worker("p", Role.PREFILL, tokens_per_s=10_000.0, fwd_occupancy=25.0),
        worker("d", Role.DECODE, tokens_per_s=tokens, fwd_occupancy=occupancy, usable=usable),
    )
    assert capacity(snapshot, 3600.0) is None
