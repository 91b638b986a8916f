"""Which worker takes a request: pure functions over a frozen view of one pool, or of both.

A policy gets the candidates (usable workers only, in the order of the configuration), an :class:`Ask` that
carries everything else that it may look at, chance included, and the pool's :class:`Rules`, so that a table
can test it. Weights count everywhere: loads are compared per weight, and among equals the share of each
worker is in proportion to its weight. A worker of weight 0 is never a candidate.

``cache_aware``, with spread = (max load - min load) / max load over the candidates:
up to ``cache_aware_threshold`` the longest matched prefix wins; beyond ``load_balance_threshold`` only load
counts; in between the least (load - cache benefit) wins.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, NamedTuple

from pdtop.config.schema import Topology

#: Characters at the start of a prompt that ``prefix_hash`` looks at.
HASHED_CHARS = 256

#: Candidates of each pool that ``pair_aware`` combines: 16 pairs are compared.
PAIR_TOP = 4

#: Affinity is passed over for a worker with more load than so many times the others' mean and the guard.
GUARD_FACTOR = 2.0

Reason = Literal["affinity", "load", "pair", "only one", "turn", "chance", "hash"]


class Candidate(NamedTuple):
    """A worker that can take a request.

    ``load`` is in the units of ``[load]``; ``turn`` the pool's virtual time when it was last chosen;
    ``matched`` the share (0..1) of the prompt that it is thought to hold in its cache.
    """

    url: str
    load: float = 0.0
    weight: float = 1.0
    turn: float = 0.0
    matched: float = 0.0
    host: str = ""
    rack: str | None = None

    @property
    def pressure(self) -> float:
        return self.load / self.weight


@dataclass(frozen=True, slots=True)
class Ask:
    """One decision: two throws of dice (0..1) and the prompt's beginning."""

    dice: tuple[float, float] = (0.0, 0.0)
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """A pool's thresholds; see :class:`pdtop.config.schema.Pool`. ``None``: the knob is not used."""

    cache_aware_threshold: float = 0.3
    load_balance_threshold: float = 0.7
    cache_benefit: float = 4.0
    affinity_guard: float = 16.0
    cache_match_threshold: float = 0.0
    balance_abs_threshold: int | None = None
    balance_rel_threshold: float | None = None
    topology: Topology = field(default_factory=Topology)


class Choice(NamedTuple):
    chosen: Candidate
    reason: Reason


class View(NamedTuple):
    """One pool at the moment of a decision."""

    candidates: Sequence[Candidate]
    policy: str
    ask: Ask = Ask()
    rules: Rules = Rules()


class Pair(NamedTuple):
    """One decision. ``transfer_cost`` is the cost that ``[topology]`` gives to it."""

    prefill: Choice
    decode: Choice
    transfer_cost: float


Policy = Callable[[Sequence[Candidate], Ask, Rules], Choice]


def round_robin(candidates: Sequence[Candidate], ask: Ask, rules: Rules) -> Choice:
    """Whose turn is due first: a worker of weight 0.5 is due half as often (weighted fair queueing)."""
    return Choice(min(candidates, key=turn_after), "turn")


def at_random(candidates: Sequence[Candidate], ask: Ask, rules: Rules) -> Choice:
    return Choice(_drawn(candidates, ask.dice[0]), "chance")


def power_of_two(candidates: Sequence[Candidate], ask: Ask, rules: Rules) -> Choice:
    """Two different ones, drawn by weight; the one with less pressure, the first of them if equal."""
    if len(candidates) == 1:
        return Choice(candidates[0], "only one")
    first = _drawn(candidates, ask.dice[0])
    rest = [c for c in candidates if c is not first]
    second = _drawn(rest, ask.dice[1])
    return Choice(second if second.pressure < first.pressure else first, "load")


def least_load(candidates: Sequence[Candidate], ask: Ask, rules: Rules) -> Choice:
    return Choice(_least(candidates, [c.pressure for c in candidates], ask), "load")


def prefix_hash(candidates: Sequence[Candidate], ask: Ask, rules: Rules) -> Choice:
    """The same worker for the same beginning, as long as it is there (rendezvous hashing, by weight)."""
    prefix = ask.prefix[:HASHED_CHARS].encode(errors="surrogatepass")  # JSON can hold half a pair

    def due(candidate: Candidate) -> float:
        digest = blake2b(candidate.url.encode() + b"\0" + prefix, digest_size=8).digest()
        # u**(1/weight) is greatest with a chance in proportion to the weight.
        return float(((int.from_bytes(digest) + 1) / 2**64) ** (1 / candidate.weight))

    return Choice(max(candidates, key=due), "hash")


def cache_aware(candidates: Sequence[Candidate], ask: Ask, rules: Rules) -> Choice:
    """See the module. A worker far beyond the others is passed over even where affinity should win."""
    pressures = [c.pressure for c in candidates]
    spread = spread_of(pressures, rules)
    if spread > rules.load_balance_threshold:
        return Choice(_least(candidates, pressures, ask), "load")
    matches = [_counting(c, rules) for c in candidates]
    longest = max(matches)
    if spread <= rules.cache_aware_threshold and longest > 0:
        holders = [c for c, matched in zip(candidates, matches, strict=True) if matched == longest]
        holder = _least(holders, [c.pressure for c in holders], ask)
        if not _overrun(holder, pressures, rules):
            return Choice(holder, "affinity")
    scores = [p - rules.cache_benefit * m for p, m in zip(pressures, matches, strict=True)]
    best = _least(candidates, scores, ask)
    return Choice(best, "affinity" if best.pressure > min(pressures) else "load")


def spread_of(pressures: Sequence[float], rules: Rules) -> float:
    """(max - min) / max; 0 for an idle pool and within the router's own balance knobs, where given."""
    most, least = max(pressures), min(pressures)
    within = rules.balance_abs_threshold is not None and most - least <= rules.balance_abs_threshold
    within |= rules.balance_rel_threshold is not None and most <= least * rules.balance_rel_threshold
    return 0.0 if most <= 0 or within else (most - least) / most


def transfer_cost(prefill: Candidate, decode: Candidate, topology: Topology) -> float:
    """Cost of sending KV; two workers whose racks are not known to be one are in different ones."""
    if prefill.host and prefill.host == decode.host:
        return topology.same_host
    if prefill.rack is not None and prefill.rack == decode.rack:
        return topology.same_rack
    return topology.cross_rack


#: By the name in config.toml. ``pair_aware`` alone looks at both pools: :func:`choose`.
POLICIES: Mapping[str, Policy] = {
    "round_robin": round_robin,
    "random": at_random,
    "power_of_two": power_of_two,
    "least_load": least_load,
    "cache_aware": cache_aware,
    "prefix_hash": prefix_hash,
}
PAIR_AWARE = "pair_aware"
NAMES = (*POLICIES, PAIR_AWARE)

#: Those that look at what a worker has been sent before.
REMEMBERING = frozenset({"cache_aware", PAIR_AWARE})


def choose(prefill: View, decode: View) -> Pair:
    """The pair for one request; both views have at least one candidate.

    A pool with ``pair_aware`` looks at the other one: with both, the best pair among the best of each; with
    one, the best partner of what the other pool's policy chose.
    """
    firsts: Sequence[Candidate] = prefill.candidates
    seconds: Sequence[Candidate] = decode.candidates
    chosen_p = chosen_d = None
    if prefill.policy != PAIR_AWARE:
        chosen_p = _alone(prefill)
        firsts = [chosen_p.chosen]
    if decode.policy != PAIR_AWARE:
        chosen_d = _alone(decode)
        seconds = [chosen_d.chosen]
    topology = decode.rules.topology
    if chosen_p is not None and chosen_d is not None:
        return Pair(chosen_p, chosen_d, transfer_cost(chosen_p.chosen, chosen_d.chosen, topology))
    p, d = _best_pair(firsts, seconds, prefill, topology)
    return Pair(
        chosen_p or _paired(p, prefill.candidates),
        chosen_d or _paired(d, decode.candidates),
        transfer_cost(p, d, topology),
    )


def _alone(view: View) -> Choice:
    if len(view.candidates) == 1:
        return Choice(view.candidates[0], "only one")
    return POLICIES[view.policy](view.candidates, view.ask, view.rules)


def _paired(chosen: Candidate, candidates: Sequence[Candidate]) -> Choice:
    return Choice(chosen, "only one" if len(candidates) == 1 else "pair")


def _best_pair(
    firsts: Sequence[Candidate], seconds: Sequence[Candidate], prefill: View, topology: Topology
) -> tuple[Candidate, Candidate]:
    """Least load_P (less its cache benefit) + load_D + transfer cost, among the best few of each pool."""
    rules = prefill.rules

    def cost(c: Candidate) -> float:
        return c.pressure - rules.cache_benefit * _counting(c, rules)

    # Equals come in an order drawn by weight, and the first of the best pairs wins: each worker's share is
    # in proportion to its weight, also where more are equal than the few.
    drawn = random.Random(prefill.ask.dice[0])
    top_p = sorted(firsts, key=lambda c: (cost(c), drawn.expovariate(c.weight)))[:PAIR_TOP]
    top_d = sorted(seconds, key=lambda c: (c.pressure, drawn.expovariate(c.weight)))[:PAIR_TOP]
    pairs = [(p, d) for p in top_p for d in top_d]
    scores = [cost(p) + d.pressure + transfer_cost(p, d, topology) for p, d in pairs]
    return pairs[scores.index(min(scores))]


def turn_after(candidate: Candidate) -> float:
    """The virtual time of its next turn."""
    return candidate.turn + 1 / candidate.weight


def _counting(candidate: Candidate, rules: Rules) -> float:
    return candidate.matched if candidate.matched > rules.cache_match_threshold else 0.0


def _overrun(holder: Candidate, pressures: Sequence[float], rules: Rules) -> bool:
    mean = (sum(pressures) - holder.pressure) / max(1, len(pressures) - 1)
    return holder.pressure > GUARD_FACTOR * mean + rules.affinity_guard


def _least(candidates: Sequence[Candidate], scores: Sequence[float], ask: Ask) -> Candidate:
    """The one with the least score; among equals the longest match, then by weight."""
    least = min(scores)
    tied = [c for c, score in zip(candidates, scores, strict=True) if score == least]
    if len(tied) > 1:
        longest = max(c.matched for c in tied)
        tied = [c for c in tied if c.matched == longest]
    return tied[0] if len(tied) == 1 else _drawn(tied, ask.dice[0])


def _drawn(candidates: Sequence[Candidate], throw: float) -> Candidate:
    return candidates[_index([c.weight for c in candidates], throw)]


def _index(weights: Sequence[float], throw: float) -> int:
    """Which of the weights a throw of dice falls on."""
    left = throw * sum(weights)
    for index, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return index
    return len(weights) - 1
