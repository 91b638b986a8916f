"""Policies as pure functions: who takes the request, for which view, by which dice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from pdtop.config.schema import Topology
from pdtop.gateway.policies import (
    NAMES,
    POLICIES,
    Ask,
    Candidate,
    Reason,
    Rules,
    View,
    choose,
    power_of_two,
    prefix_hash,
    round_robin,
    spread_of,
    transfer_cost,
    turn_after,
)

A, B, C = Candidate("a", 5), Candidate("b", 1), Candidate("c", 3)
RULES = Rules()

#: 99.9 % points of χ² by degrees of freedom: a seeded run that is above it is not a fluke worth keeping.
CHI2 = {1: 10.83, 2: 13.82, 3: 16.27, 7: 24.32}


def chi2(counts: Counter[str], weights: dict[str, float]) -> float:
    total, whole = sum(counts.values()), sum(weights.values())
    expected = {url: total * weight / whole for url, weight in weights.items()}
    return sum((counts[url] - n) ** 2 / n for url, n in expected.items())


def pool(*rows: tuple[float, float], weights: Sequence[float] = ()) -> list[Candidate]:
    """Candidates a, b, ... from (load, matched)."""
    return [
        Candidate(chr(97 + i), load, weights[i] if weights else 1.0, matched=matched)
        for i, (load, matched) in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("weights", "order"),
    [
        ((1.0, 1.0, 1.0), "abcabcabc"),
        ((2.0, 1.0, 1.0), "aabcaabc"),
        ((1.0, 0.5), "aabaab"),
        ((0.25, 1.0), "bbbabbbb"),
    ],
)
def test_round_robin_gives_turns_by_weight(weights: Sequence[float], order: str) -> None:
    turns = dict.fromkeys("abc"[: len(weights)], 0.0)
    got = ""
    for _ in order:
        candidates = [Candidate(u, 0, w, turns[u]) for u, w in zip(turns, weights, strict=True)]
        chosen = round_robin(candidates, Ask(), RULES).chosen
        turns[chosen.url] = turn_after(chosen)
        got += chosen.url
    assert got == order


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
    assert power_of_two([A, B, C], Ask(dice), RULES) == (
        next(x for x in (A, B, C) if x.url == chosen),
        "load",
    )


def test_power_of_two_compares_load_per_weight() -> None:
    strong, weak = Candidate("strong", 5, weight=4.0), Candidate("weak", 2, weight=1.0)
    assert power_of_two([weak, strong], Ask(), RULES).chosen is strong


def test_prefix_hash_keeps_a_prefix_where_it_is() -> None:
    before = {str(i): prefix_hash([A, B, C], Ask(prefix=str(i)), RULES).chosen.url for i in range(300)}
    assert min(Counter(before.values()).values()) > 60
    without_c = {key: prefix_hash([A, B], Ask(prefix=key), RULES).chosen.url for key in before}
    assert all(without_c[key] == url for key, url in before.items() if url != "c")


@pytest.mark.parametrize(
    ("rows", "weights", "chosen"),
    [
        (((5, 0), (1, 0), (3, 0)), (), "b"),
        (((4, 0), (3, 0)), (2.0, 1.0), "a"),  # 2 per weight against 3
        (((4, 0), (2, 0)), (2.0, 1.0), "a"),  # equal: the draw begins with the heavier
        (((0, 0), (0, 0.5)), (), "b"),  # equal loads: what is cached costs nothing to use
    ],
)
def test_least_load(rows: list[tuple[float, float]], weights: Sequence[float], chosen: str) -> None:
    assert POLICIES["least_load"](pool(*rows, weights=weights), Ask(), RULES).chosen.url == chosen


@pytest.mark.parametrize(
    ("rows", "chosen", "reason"),
    [
        # Spread up to 0.3: the longest match, whatever the load.
        (((10, 0.9), (8, 0.0), (7, 0.2)), "a", "affinity"),
        (((10, 0.1), (8, 0.0), (7, 0.0)), "a", "affinity"),
        (((10, 0.5), (9, 0.5), (10, 0.4)), "b", "affinity"),  # equal matches: the one with less load
        (((10, 0.0), (8, 0.0), (7, 0.0)), "c", "load"),  # nobody has any of it
        (((0, 0.0), (0, 0.7)), "b", "affinity"),  # an idle pool has no spread
        # Beyond 0.7: load alone.
        (((10, 1.0), (2, 0.0), (5, 0.5)), "b", "load"),
        (((1, 1.0), (0, 0.0)), "b", "load"),
        # In between: load - 4 x matched.
        (((10, 1.0), (5, 0.0)), "b", "load"),  # 6 against 5
        (((10, 1.0), (6, 0.0), (5, 0.5)), "c", "load"),  # 6, 6, 3
        (((8, 1.0), (5, 0.0)), "a", "affinity"),  # 4 against 5
        (((8, 0.7), (5, 0.0)), "b", "load"),  # 5.2 against 5
    ],
)
def test_cache_aware(rows: list[tuple[float, float]], chosen: str, reason: Reason) -> None:
    picked, why = POLICIES["cache_aware"](pool(*rows), Ask(), RULES)
    assert (picked.url, why) == (chosen, reason)


@pytest.mark.parametrize(
    ("low", "high", "chosen"),
    [
        (0.5, 0.7, "a"),  # spread 0.5 is up to the threshold
        (0.49, 0.7, "b"),  # scored: 9 against 5
        (0.3, 0.5, "b"),  # not beyond, still scored
        (0.3, 0.49, "b"),
        (1.0, 1.0, "a"),
    ],
)
def test_the_thresholds_are_where_they_are_said_to_be(low: float, high: float, chosen: str) -> None:
    rules = Rules(cache_aware_threshold=low, load_balance_threshold=high, cache_benefit=1.0)
    assert POLICIES["cache_aware"](pool((10, 1.0), (5, 0.0)), Ask(), rules).chosen.url == chosen


def test_the_threshold_for_load_alone_is_crossed_not_touched() -> None:
    rules = Rules(0.0, 0.5, cache_benefit=100.0)
    assert POLICIES["cache_aware"](pool((10, 1.0), (5, 0.0)), Ask(), rules).chosen.url == "a"
    assert POLICIES["cache_aware"](pool((10, 1.0), (4.9, 0.0)), Ask(), rules).chosen.url == "b"


def test_affinity_never_drives_one_worker_into_the_ground() -> None:
    always = Rules(cache_aware_threshold=1.0, load_balance_threshold=1.0)
    assert POLICIES["cache_aware"](pool((20, 1.0), (2, 0), (2, 0)), Ask(), always).chosen.url == "a"
    assert POLICIES["cache_aware"](pool((21, 1.0), (2, 0), (2, 0)), Ask(), always).chosen.url != "a"


def test_a_routers_own_knobs() -> None:
    loads = [3.0, 0.0]
    assert spread_of(loads, Rules()) == 1.0
    assert spread_of(loads, Rules(balance_abs_threshold=3)) == 0.0
    assert spread_of([4.0, 0.0], Rules(balance_abs_threshold=3)) == 1.0
    assert spread_of([3.0, 2.0], Rules(balance_rel_threshold=1.5)) == 0.0
    short = Rules(cache_match_threshold=0.5)
    assert POLICIES["cache_aware"](pool((2, 0.5), (2, 0.0)), Ask((0.9, 0)), short).reason == "load"
    assert POLICIES["cache_aware"](pool((2, 0.6), (2, 0.0)), Ask((0.9, 0)), short).reason == "affinity"


@pytest.mark.parametrize(
    ("one", "other", "cost"),
    [
        (("h1", "r1"), ("h1", "r1"), 0.0),
        (("h1", "r1"), ("h2", "r1"), 1.0),
        (("h1", "r1"), ("h2", "r2"), 6.0),
        (("h1", None), ("h2", None), 6.0),
        (("", None), ("", None), 6.0),
        (("h1", None), ("h1", "r1"), 0.0),
    ],
)
def test_transfer_costs(one: tuple[str, str | None], other: tuple[str, str | None], cost: float) -> None:
    p, d = Candidate("p", host=one[0], rack=one[1]), Candidate("d", host=other[0], rack=other[1])
    assert transfer_cost(p, d, Topology()) == cost


def at(url: str, load: float, rack: str, matched: float = 0.0) -> Candidate:
    return Candidate(url, load, host=url, rack=rack, matched=matched)


@pytest.mark.parametrize(
    ("prefill", "decode", "policies", "pair", "cost"),
    [
        # Both pools: least load_P - benefit + load_D + transfer.
        (
            [at("p1", 0, "r1"), at("p2", 0, "r2")],
            [at("d1", 4, "r1"), at("d2", 1, "r2")],
            "both",
            "p2 d2",
            1.0,
        ),
        (
            [at("p1", 0, "r1"), at("p2", 4, "r2")],
            [at("d1", 4, "r1"), at("d2", 1, "r2")],
            "both",
            "p1 d1",
            1.0,
        ),
        (
            [at("p1", 0, "r1"), at("p2", 9, "r2")],
            [at("d1", 9, "r1"), at("d2", 1, "r2")],
            "both",
            "p1 d2",
            6.0,
        ),
        ([at("p1", 2, "r1", 1.0), at("p2", 0, "r1")], [at("d1", 0, "r1")], "both", "p1 d1", 1.0),
        # Decode alone: the best partner of the prefill worker that its policy chose.
        (
            [at("p1", 0, "r1"), at("p2", 1, "r2")],
            [at("d1", 4, "r1"), at("d2", 0, "r2")],
            "decode",
            "p1 d1",
            1.0,
        ),
        (
            [at("p1", 0, "r1"), at("p2", 1, "r2")],
            [at("d1", 6, "r1"), at("d2", 0, "r2")],
            "decode",
            "p1 d2",
            6.0,
        ),
        # Prefill alone.
        (
            [at("p1", 0, "r1"), at("p2", 4, "r2")],
            [at("d1", 4, "r1"), at("d2", 0, "r2")],
            "prefill",
            "p2 d2",
            1.0,
        ),
    ],
)
def test_pair_aware(
    prefill: list[Candidate], decode: list[Candidate], policies: str, pair: str, cost: float
) -> None:
    names = ["pair_aware" if policies in ("both", role) else "least_load" for role in ("prefill", "decode")]
    found = choose(View(prefill, names[0]), View(decode, names[1]))
    assert f"{found.prefill.chosen.url} {found.decode.chosen.url}" == pair
    assert found.transfer_cost == cost


def test_only_the_best_few_of_each_pool_are_paired() -> None:
    near = at("d-near", 5, "r1")
    others = [at(f"d{i}", 4, "r2") for i in range(4)]
    found = choose(View([at("p", 0, "r1")], "pair_aware"), View([near, *others], "pair_aware"))
    assert found.decode.chosen is not near  # 5 + 1 would be less than 4 + 6, but it is the fifth


def test_reasons() -> None:
    one, two = [at("p1", 0, "r1")], [at("d1", 0, "r1"), at("d2", 0, "r2")]
    found = choose(View(one, "cache_aware"), View(two, "pair_aware"))
    assert (found.prefill.reason, found.decode.reason) == ("only one", "pair")
    assert choose(View(one, "pair_aware"), View(one, "pair_aware")).decode.reason == "only one"
    assert choose(View(two, "round_robin"), View(two, "random")).prefill.reason == "turn"
    assert choose(View(two, "prefix_hash"), View(two, "random")).decode.reason == "chance"
    assert choose(View(two, "prefix_hash"), View(two, "random")).prefill.reason == "hash"


@pytest.mark.parametrize("name", NAMES)
def test_a_single_worker_takes_everything(name: str) -> None:
    for throw in (0.0, 0.99):
        found = choose(View([B], name, Ask((throw, throw), "x")), View([B], name))
        assert (found.prefill, found.decode) == ((B, "only one"), (B, "only one"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "weights",
    [
        {"a": 1.0, "b": 1.0, "c": 1.0},
        {"a": 2.0, "b": 1.0, "c": 0.5},
        dict.fromkeys("abcdefgh", 1.0),  # more than the few that pairs are made of
        dict(zip("abcdefgh", (2.0, 2.0, 1.0, 1.0, 1.0, 0.5, 0.5, 4.0), strict=True)),
    ],
    ids=["even", "uneven", "many", "many uneven"],
)
def test_shares_are_in_proportion_to_weights_when_equally_loaded(
    name: str, weights: dict[str, float]
) -> None:
    chance = random.Random(11)
    turns = dict.fromkeys(weights, 0.0)
    counts: Counter[str] = Counter()
    for number in range(7000):
        idle = [Candidate(u, 0.0, w, turns[u], host=u) for u, w in weights.items()]
        ask = Ask((chance.random(), chance.random()), f"prompt {number}")
        chosen = choose(View(idle, name, ask), View([B], "random")).prefill.chosen
        turns[chosen.url] = turn_after(chosen)
        counts[chosen.url] += 1
    assert chi2(counts, weights) < CHI2[len(weights) - 1]


@pytest.mark.parametrize("name", ["power_of_two", "least_load", "cache_aware", "pair_aware"])
def test_a_pool_at_work_shares_by_weight(name: str) -> None:
    """40 requests are always under way and each takes its time: what is held is in proportion to weights."""
    weights = {"a": 2.0, "b": 1.0, "c": 0.5}
    chance = random.Random(12)
    running: list[str] = []
    counts: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for number in range(4000):
        load = Counter(running)
        busy = [Candidate(u, load[u], w, host=u) for u, w in weights.items()]
        ask = Ask((chance.random(), chance.random()))
        chosen = choose(View(busy, name, ask), View([B], "random")).prefill.chosen.url
        running.append(chosen)
        counts[chosen] += 1
        if len(running) > 40:
            running.pop(chance.randrange(len(running)))
        if number >= 500:
            held.update(running)
    total = sum(held.values())
    for url, weight in weights.items():
        assert held[url] / total == pytest.approx(weight / 3.5, abs=0.03)
    assert chi2(counts, weights) < CHI2[2]
