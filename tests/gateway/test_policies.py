"""Policies as pure functions: who takes the request, for which view, by which dice."""

from __future__ import annotations

from collections import Counter

import pytest

from pdtop.gateway.policies import POLICIES, Ask, Candidate, power_of_two, prefix_hash, round_robin

A, B, C = Candidate("a", 5), Candidate("b", 1), Candidate("c", 3)


def test_round_robin_goes_round() -> None:
    assert [round_robin([A, B, C], Ask(turn)).url for turn in range(5)] == ["a", "b", "c", "a", "b"]


@pytest.mark.parametrize(
    ("dice", "chosen"),
    [
        ((0.0, 0.0), "b"),  # a and b: b has less
        ((0.0, 0.99), "c"),  # a and c
        ((0.34, 0.99), "b"),  # b and c
        ((0.99, 0.0), "c"),  # c and a
        ((1.0, 1.0), "b"),  # a throw of exactly 1 stays inside
    ],
)
def test_power_of_two_takes_the_one_with_less_of_two_different_ones(
    dice: tuple[float, float], chosen: str
) -> None:
    assert power_of_two([A, B, C], Ask(dice=dice)).url == chosen


def test_power_of_two_weighs() -> None:
    strong, weak = Candidate("strong", 5, weight=4.0), Candidate("weak", 2, weight=1.0)
    assert power_of_two([strong, weak], Ask()).url == "strong"


def test_prefix_hash_keeps_a_prefix_where_it_is() -> None:
    before = {str(i): prefix_hash([A, B, C], Ask(prefix=str(i))).url for i in range(300)}
    assert min(Counter(before.values()).values()) > 60
    without_c = {key: prefix_hash([A, B], Ask(prefix=key)).url for key in before}
    assert all(without_c[key] == url for key, url in before.items() if url != "c")


@pytest.mark.parametrize("name", POLICIES)
def test_a_single_worker_takes_everything(name: str) -> None:
    for turn in range(3):
        assert POLICIES[name]([B], Ask(turn, (0.99, 0.99), "x")) is B
