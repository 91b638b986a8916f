"""The load a cluster is put under: seeded arrivals with prompts, lengths, shared prefixes and bursts.

Open loop: arrivals are a Poisson process that does not wait for answers, so a slow cluster gets no relief.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pdtop.simulator.kv_pool import CHARS_PER_TOKEN

_SYLLABLES = ("ka", "lo", "mi", "ren", "sta", "tor", "vel", "una", "pri", "dec", "que", "tok", "rou", "lat")
_TEXT_CHARS = 400_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests per second and their mix. Lengths in tokens, log-normal around their medians."""

    rate: float = 6.0
    prompt_median: int = 1200
    prompt_spread: float = 0.6
    prompt_max: int = 8000
    output_median: int = 130
    output_spread: float = 0.5
    output_max: int = 600
    prefixes: int = 6  # different system prompts
    prefix_tokens: int = 512
    shared: float = 0.5  # share of the requests that begin with one of them
    hot: float = 0.0  # share of those that begin with the first one, beside an even spread
    streaming: float = 1.0  # share; an answer in one piece has no time to first token
    burst_every_s: float = 0.0
    burst_for_s: float = 0.0
    burst_factor: float = 1.0

    def rate_at(self, t: float) -> float:
        """Bursts come at the end of each period, so that a run begins calm."""
        if self.burst_every_s and t % self.burst_every_s >= self.burst_every_s - self.burst_for_s:
            return self.rate * self.burst_factor
        return self.rate


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, ``at`` seconds after the start."""

    at: float
    prompt: str
    output_tokens: int
    streaming: bool
    prefix: int | None


def arrivals(traffic: Traffic, seed: int) -> Iterator[Arrival]:
    """Without end, in order of time; equal seeds give equal requests."""
    chance = random.Random(seed)
    text = _text(seed)
    heads = [_cut(text, chance, traffic.prefix_tokens) for _ in range(max(1, traffic.prefixes))]
    top = traffic.rate * max(1.0, traffic.burst_factor)
    at = 0.0
    while top > 0:
        at += chance.expovariate(top)
        if chance.random() * top >= traffic.rate_at(at):
            continue  # thinning: the process runs at its highest rate, the surplus is dropped
        prompt = _length(chance, traffic.prompt_median, traffic.prompt_spread, traffic.prompt_max)
        output = _length(chance, traffic.output_median, traffic.output_spread, traffic.output_max)
        prefix: int | None = None
        body = _cut(text, chance, prompt)
        if chance.random() < traffic.shared:
            prefix = 0 if chance.random() < traffic.hot else chance.randrange(len(heads))
            body = heads[prefix] + body[: max(64, len(body) - len(heads[prefix]))]
        yield Arrival(at, body, output, chance.random() < traffic.streaming, prefix)


def _length(chance: random.Random, median: int, spread: float, most: int) -> int:
    return max(2, min(most, round(median * chance.lognormvariate(0, spread))))


def _cut(text: str, chance: random.Random, tokens: int) -> str:
    size = min(len(text) - 1, tokens * CHARS_PER_TOKEN)
    start = chance.randrange(len(text) - size)
    return text[start : start + size]


def _text(seed: int) -> str:
    """A long text from which prompts are cut; two cuts hardly ever begin alike."""
    chance = random.Random(~seed)
    words = ["".join(chance.choices(_SYLLABLES, k=chance.randint(1, 3))) for _ in range(2000)]
    return " ".join(chance.choices(words, k=_TEXT_CHARS // 7))
