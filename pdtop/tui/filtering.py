"""What the operator types after ``/``: words and conditions, all of which a worker has to meet.

``21`` a part of the name, ``name~21`` the same, ``role:d``, ``state:!ok``, ``wait>10``, ``kv>=80`` (percent),
``ttft>800ms`` (a bare number is milliseconds), ``tok<2k``; ``!`` before a term turns it round. A condition
on a number that is not known is not met, and neither is its opposite.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from pdtop.cluster.model import Finding, Latency, Role, Worker
from pdtop.tui.judge import router_words, state_names
from pdtop.tui.text import p

Findings = tuple[Finding, ...]
#: True, False, or None: cannot be said.
Test = Callable[[Worker, Findings], bool | None]

_TERM = re.compile(r"(?P<field>[A-Za-z_.]+)(?P<op>:|~|>=|<=|!=|>|<|=)(?P<value>.*)", re.DOTALL)
_NUMBER = re.compile(r"(?P<number>-?\d+(?:\.\d*)?|-?\.\d+)(?P<unit>[a-z%]*)", re.IGNORECASE)
_WORDS = re.compile(r'!?[^\s"]*"[^"]*"|\S+')

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "=": operator.eq,
    ":": operator.eq, "!=": operator.ne,
}  # fmt: skip


class FilterError(ValueError):
    """A filter that cannot be understood; the text says which term and why."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter; an empty one lets everyone through."""

    text: str = ""
    tests: tuple[Test, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tests)

    def matches(self, worker: Worker, findings: Findings = ()) -> bool:
        """Whether ``worker`` meets every term."""
        return all(test(worker, findings) is True for test in self.tests)


def parse(source: str) -> Filter:
    """Read a filter.

    Raises:
        FilterError: for an unknown field, an operator that does not suit it, or a value that is no number.
    """
    if source.count('"') % 2:
        raise FilterError('a " has no partner')
    return Filter(source.strip(), tuple(_term(word) for word in _WORDS.findall(source)))


def _term(word: str) -> Test:
    negated = word.startswith("!")
    body = word[1:] if negated else word
    if not body:
        raise FilterError("! needs something after it")
    match = _TERM.fullmatch(body)
    # An address such as [::1]:30000 or host:30001 is a name, not a condition.
    if match is None or (
        match["op"] == ":" and match["field"].lower() not in FIELDS and match["value"].isdigit()
    ):
        test = _contains("name", body.replace('"', ""))
    else:
        test = _condition(match["field"].lower(), match["op"], match["value"].replace('"', ""), word)
    return _turned(test) if negated else test


def _condition(name: str, op: str, value: str, word: str) -> Test:
    field = FIELDS.get(name)
    if field is None:
        near = get_close_matches(name, FIELDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(set(FIELDS)))}"
        raise FilterError(f"{word}: no field {name}{hint}")
    negated = op in (":", "=") and value.startswith("!")
    if negated:
        value = value[1:]
    if not value:
        raise FilterError(f"{word}: a value is missing")
    if op == "~":
        test = _contains(name, value)
    elif isinstance(field, _Number):
        test = _compares(field, op, _number(value, field, word))
    elif op in (":", "=", "!="):
        test = _is_one_of(name, field, value.lower(), word)
        negated ^= op == "!="
    else:
        raise FilterError(f"{word}: {name} is a word; use {name}:{value} or {name}~{value}")
    return _turned(test) if negated else test


def _turned(test: Test) -> Test:
    def turned(worker: Worker, findings: Findings) -> bool | None:
        result = test(worker, findings)
        return None if result is None else not result

    return turned


# Fields --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Number:
    """A number of a worker, in the unit ``unit``: "" plain, "%" percent, "ms" milliseconds, "s" seconds."""

    value: Callable[[Worker], float | None]
    unit: str = ""


@dataclass(frozen=True, slots=True)
class _Word:
    """Words of a worker; a value names one of them."""

    words: Callable[[Worker, Findings], frozenset[str]]


def _p99_ms(latency: Latency | None) -> float | None:
    quantile = p(latency.distribution, 0.99) if latency else None
    return quantile.value * 1000 if quantile else None


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else ratio * 100


def _kv(worker: Worker) -> float | None:
    return _percent(worker.kv_use if worker.kv_use_worst is None else worker.kv_use_worst)


def _role(worker: Worker, _: Findings) -> frozenset[str]:
    short = {Role.PREFILL: "p", Role.DECODE: "d", Role.UNIFIED: "u"}.get(worker.role, "?")
    return frozenset({worker.role.value, short})


def _usable(worker: Worker, _: Findings) -> frozenset[str]:
    return frozenset({{True: "yes", False: "no", None: "unknown"}[worker.usable]})


_BACKLOG = _Number(lambda w: w.backlog.total)
_RUNNING = _Number(lambda w: w.running)
_TOKENS = _Number(lambda w: w.tokens_per_s)

FIELDS: Mapping[str, _Number | _Word] = {
    "role": _Word(_role),
    "state": _Word(lambda w, found: state_names(w, found)),
    "usable": _Word(_usable),
    "name": _Word(lambda w, _: frozenset({w.name.lower(), w.key.lower()})),
    "router": _Word(lambda w, _: frozenset({router_words(w.opinions)[0].split(" ", 1)[-1]})),
    "version": _Word(lambda w, _: frozenset({(w.identity.version or "").lower()})),
    "model": _Word(lambda w, _: frozenset({(w.identity.model or "").lower()})),
    "run": _RUNNING,
    "running": _RUNNING,
    "wait": _BACKLOG,
    "backlog": _BACKLOG,
    "back": _BACKLOG,
    "infl": _Number(lambda w: w.inflight),
    "inflight": _Number(lambda w: w.inflight),
    "retr": _Number(lambda w: w.retracted),
    "kv": _Number(_kv, "%"),
    "hit": _Number(lambda w: _percent(w.hit_rate), "%"),
    "share": _Number(lambda w: _percent(w.share), "%"),
    "tok": _TOKENS,
    "tokens": _TOKENS,
    "req": _Number(lambda w: w.requests_per_s),
    "queue": _Number(lambda w: _p99_ms(w.queue_time), "ms"),
    "ttft": _Number(lambda w: _p99_ms(w.ttft), "ms"),
    "tpot": _Number(lambda w: _p99_ms(w.tpot), "ms"),
    "weight": _Number(lambda w: w.weight),
    "age": _Number(lambda w: w.age_s, "s"),
}

_FACTORS: Mapping[str, Mapping[str, float]] = {
    "": {"": 1, "k": 1e3, "m": 1e6},
    "%": {"": 1, "%": 1},
    "ms": {"": 1, "ms": 1, "s": 1000, "m": 60_000},
    "s": {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600},
}


def _number(value: str, field: _Number, word: str) -> float:
    match = _NUMBER.fullmatch(value)
    if match is None:
        raise FilterError(f"{word}: {value} is not a number")
    factors = _FACTORS[field.unit]
    unit = match["unit"].lower()
    if unit not in factors:
        raise FilterError(
            f"{word}: unit {match['unit']} does not fit; there are {', '.join(u for u in factors if u)}"
        )
    return float(match["number"]) * factors[unit]


def _compares(field: _Number, op: str, limit: float) -> Test:
    compare = _COMPARE[op]

    def test(worker: Worker, _: Findings) -> bool | None:
        value = field.value(worker)
        return None if value is None else compare(value, limit)

    return test


def _contains(name: str, value: str) -> Test:
    field = FIELDS[name]
    wanted = value.lower()
    if isinstance(field, _Number):
        raise FilterError(f"{name}~{value}: {name} is a number; use <, > or =")
    return lambda worker, findings: any(wanted in word for word in field.words(worker, findings))


def _is_one_of(name: str, field: _Word, value: str, word: str) -> Test:
    if name in _KNOWN and value not in _KNOWN[name]:
        raise FilterError(f"{word}: {name} is one of {', '.join(_KNOWN[name])}")
    return lambda worker, findings: value in field.words(worker, findings)


_KNOWN: Mapping[str, tuple[str, ...]] = {
    "role": ("p", "prefill", "d", "decode", "u", "unified", "unknown"),
    "usable": ("yes", "no", "unknown"),
}
