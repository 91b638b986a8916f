"""Compare what a case expects with what the product gave, in the forms of FORMAT.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.cases.vocabulary import FINDING_KINDS, is_number

TOLERANCE = 1e-6

#: The one adapter table: the cases' word for a kind of finding to the product's.
PRODUCT_KIND: dict[str, str] = {kind: kind for kind in FINDING_KINDS}


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding as the product reports it: its kind in the product's word, where, and all its words."""

    kind: str
    text: str
    worker: str | None = None
    router: str | None = None


@dataclass(slots=True)
class Report:
    """Differences of one case. ``ports`` are the real ports of stub servers, for ``{port:NAME}`` in texts."""

    ports: Mapping[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def fail(self, where: str, what: str) -> None:
        self.failures.append(f"{where}: {what}")

    def true(self, where: str, holds: bool, otherwise: str) -> None:
        if not holds:
            self.fail(where, otherwise)

    def value(
        self,
        where: str,
        expected: object,
        actual: object,
        *,
        says_at_least: bool = False,
        exact_bound: bool = False,
    ) -> None:
        """A field of type ``value``.

        ``says_at_least``: the product itself presents ``actual`` as a lower bound. ``exact_bound`` for
        latencies and shares: then "at least x" must be said of exactly x, and never of a plain number.
        """
        reason = mismatch(expected, actual, says_at_least=says_at_least, exact_bound=exact_bound)
        if reason is not None:
            self.fail(where, reason)

    def equal(self, where: str, expected: object, actual: object) -> None:
        """A field that is not a ``value``: JSON as it is, numbers within the tolerance."""
        if not equal(expected, actual):
            self.fail(where, f"expected {expected!r}, got {actual!r}")

    def mentions(self, where: str, wanted: Sequence[object], text: str) -> None:
        missing = unmentioned(wanted, text, self.ports)
        if missing:
            self.fail(where, f"{missing!r} not mentioned in {text!r}")

    def findings(self, where: str, wanted: Iterable[Mapping[str, object]], seen: Sequence[Seen]) -> None:
        """Each wanted finding is reported."""
        for one in wanted:
            if not any(self.matches(one, finding) for finding in seen):
                self.fail(where, f"no finding like {one!r} among {[(f.kind, f.worker) for f in seen]!r}")

    def no_findings(self, where: str, unwanted: Iterable[Mapping[str, object]], seen: Sequence[Seen]) -> None:
        """No finding matches any of these."""
        for one in unwanted:
            for finding in seen:
                if self.matches(one, finding):
                    self.fail(where, f"{finding!r} must not be reported")

    def matches(self, wanted: Mapping[str, object], finding: Seen) -> bool:
        if "kind" in wanted and finding.kind != PRODUCT_KIND[str(wanted["kind"])]:
            return False
        if "worker" in wanted and finding.worker != wanted["worker"]:
            return False
        if "router" in wanted and finding.router != wanted["router"]:
            return False
        mentions = wanted.get("mentions", [])
        return isinstance(mentions, list) and not unmentioned(mentions, finding.text, self.ports)

    def raise_failures(self) -> None:
        """Fail the test with everything that differs."""
        if self.failures:
            raise AssertionError("\n".join(self.failures))


def mismatch(
    expected: object, actual: object, *, says_at_least: bool = False, exact_bound: bool = False
) -> str | None:
    """Why ``actual`` is not what the value form ``expected`` asks; None if it is."""
    if not isinstance(expected, Mapping):
        if exact_bound and says_at_least and expected is not None:
            return f"expected {expected!r}, got at least {actual!r}"
        return None if equal(expected, actual) else f"expected {expected!r}, got {actual!r}"
    for wrong in _list(expected.get("not", [])):
        if equal(wrong, actual):
            return f"must not be {wrong!r}"
    if "at_least" in expected:
        return _at_least(expected["at_least"], actual, says_at_least, exact_bound)
    if "between" in expected:
        low, high = _list(expected["between"])
        inside = is_number(actual) and _number(low) <= _number(actual) <= _number(high)
        return None if inside else f"expected between {low!r} and {high!r}, got {actual!r}"
    if "one_of" in expected:
        choices = _list(expected["one_of"])
        found = any(equal(choice, actual) for choice in choices)
        return None if found else f"expected one of {choices!r}, got {actual!r}"
    if "equals" in expected:
        return mismatch(expected["equals"], actual, says_at_least=says_at_least, exact_bound=exact_bound)
    return None


def _at_least(bound: object, actual: object, says_at_least: bool, exact_bound: bool) -> str | None:
    if not says_at_least:
        return f"expected at least {bound!r}, said so; got {actual!r}"
    good = equal(bound, actual) if exact_bound else is_number(actual) and _number(actual) >= _number(bound)
    return None if good else f"expected at least {bound!r}, got at least {actual!r}"


def equal(expected: object, actual: object) -> bool:
    """JSON equality; numbers within one part in a million, 0 is exactly 0, a bool is no number."""
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if is_number(expected) and is_number(actual):
        return abs(_number(expected) - _number(actual)) <= TOLERANCE * abs(_number(expected))
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        return expected.keys() == actual.keys() and all(equal(expected[k], actual[k]) for k in expected)
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        return len(expected) == len(actual) and all(map(equal, expected, actual))
    if isinstance(expected, str) and isinstance(actual, str):
        return str(expected) == str(actual)  # the product's closed lists are enumerations of text
    return type(expected) is type(actual) and expected == actual


def unmentioned(wanted: Sequence[object], text: str, ports: Mapping[str, int]) -> list[object]:
    """The entries that do not occur in the text; an entry that is a list is met by any of its texts."""
    plain = text.casefold()
    missing = []
    for entry in wanted:
        texts = [with_ports(str(one), ports).casefold() for one in (_list(entry) or [entry])]
        if not any(one in plain for one in texts):
            missing.append(entry)
    return missing


def with_ports(text: str, ports: Mapping[str, int]) -> str:
    """``{port:NAME}`` replaced by the port that the stub server NAME really has."""

    def one(found: re.Match[str]) -> str:
        if found[1] not in ports:
            raise AssertionError(f"no stub server {found[1]!r} for {found[0]}")
        return str(ports[found[1]])

    return re.sub(r"\{port:([^}]*)\}", one, text)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value
