"""Which worker takes a request: pure functions over a frozen view of one pool.

A policy gets the candidates (usable workers only, in the order of the configuration) and an :class:`Ask`
that carries everything else it may look at, chance included, so that a table can test it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

#: Characters at the start of a prompt that ``prefix_hash`` looks at.
PREFIX_CHARS = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that can take a request. ``load`` is its requests in flight at this router."""

    url: str
    load: float = 0.0
    weight: float = 1.0

    @property
    def pressure(self) -> float:
        """Load for its weight after one more request."""
        return (self.load + 1) / self.weight


@dataclass(frozen=True, slots=True)
class Ask:
    """One decision: how many came before it, two throws of dice (0..1), the prompt's beginning."""

    turn: int = 0
    dice: tuple[float, float] = (0.0, 0.0)
    prefix: str = ""


Policy = Callable[[Sequence[Candidate], Ask], Candidate]


def round_robin(candidates: Sequence[Candidate], ask: Ask) -> Candidate:
    return candidates[ask.turn % len(candidates)]


def at_random(candidates: Sequence[Candidate], ask: Ask) -> Candidate:
    return candidates[_index(ask.dice[0], len(candidates))]


def power_of_two(candidates: Sequence[Candidate], ask: Ask) -> Candidate:
    """Two different ones by chance, the one with less pressure; the first of them if equal."""
    if len(candidates) == 1:
        return candidates[0]
    first = _index(ask.dice[0], len(candidates))
    second = _index(ask.dice[1], len(candidates) - 1)
    second += second >= first
    return min(candidates[first], candidates[second], key=lambda c: c.pressure)


def prefix_hash(candidates: Sequence[Candidate], ask: Ask) -> Candidate:
    """The same worker for the same beginning, as long as it is there (rendezvous hashing)."""
    prefix = ask.prefix[:PREFIX_CHARS].encode()
    return max(candidates, key=lambda c: blake2b(c.url.encode() + b"\0" + prefix, digest_size=8).digest())


#: By the name in config.toml.
POLICIES: Mapping[str, Policy] = {
    "round_robin": round_robin,
    "random": at_random,
    "power_of_two": power_of_two,
    "prefix_hash": prefix_hash,
}


def _index(throw: float, size: int) -> int:
    return min(int(throw * size), size - 1)
