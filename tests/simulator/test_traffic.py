"""The load generator: seeded, open loop, with bursts and shared prefixes."""

from __future__ import annotations

from collections import Counter
from itertools import islice, takewhile

import pytest

from pdtop.simulator.kv_pool import CHARS_PER_TOKEN, prefix_blocks
from pdtop.simulator.traffic import Arrival, Traffic, arrivals


def until(traffic: Traffic, seconds: float, seed: int = 1) -> list[Arrival]:
    return list(takewhile(lambda a: a.at < seconds, arrivals(traffic, seed)))


def test_a_seed_is_a_load() -> None:
    first, again, other = (list(islice(arrivals(Traffic(), seed), 20)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_rate_is_the_rate() -> None:
    assert len(until(Traffic(rate=10.0), 100.0)) == pytest.approx(1000, abs=120)


def test_no_rate_is_no_load() -> None:
    assert list(arrivals(Traffic(rate=0.0), 1)) == []


def test_bursts_come_at_the_end_of_each_period() -> None:
    traffic = Traffic(rate=5.0, burst_every_s=10.0, burst_for_s=2.0, burst_factor=10.0)
    seconds = Counter(int(a.at) % 10 for a in until(traffic, 100.0))
    calm = sum(seconds[s] for s in range(8)) / 8
    burst = sum(seconds[s] for s in (8, 9)) / 2
    assert burst / calm == pytest.approx(10.0, rel=0.25)


def test_lengths_stay_in_their_limits() -> None:
    traffic = Traffic(rate=100.0, prompt_max=2000, output_max=200, shared=0.5)
    found = until(traffic, 10.0)
    assert max(len(a.prompt) for a in found) <= (2000 + traffic.prefix_tokens) * CHARS_PER_TOKEN
    assert min(a.output_tokens for a in found) >= 2
    assert max(a.output_tokens for a in found) == 200


def test_shared_prompts_share_blocks_and_others_do_not() -> None:
    found = until(Traffic(rate=50.0, shared=0.5, hot=0.8, prompt_median=2000, prompt_spread=0.1), 10.0)
    first = Counter((a.prefix, prefix_blocks(a.prompt)[0]) for a in found)
    hot = sum(n for (prefix, _), n in first.items() if prefix == 0)
    assert len({block for (prefix, block) in first if prefix == 0}) == 1
    assert hot / len(found) == pytest.approx(0.5 * (0.8 + 0.2 / 6), abs=0.08)
    assert max(n for (prefix, _), n in first.items() if prefix is None) == 1
