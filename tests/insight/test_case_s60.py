"""Case s60: did two requests with one long prefix meet the same prefill worker?"""

from __future__ import annotations

import pytest

from pdtop.insight.affinity import Tried, Verdict, verdict
from tests.insight.case import case


def test_every_try_of_the_case() -> None:
    given, expect = case("s60-affinity-step")
    found = {
        one["name"]: verdict(Tried(one["headers"], one.get("P_request_delta", {}))) for one in given["tries"]
    }
    assert found == expect["verdicts"]


@pytest.mark.parametrize(
    ("workers", "growth", "expected"),
    [
        ((None, None), {}, Verdict.NOTHING_KNOWN),
        ((None, None), {"p1": 2.0, "p2": None}, Verdict.NOTHING_KNOWN),
        ((None, None), {"p1": 3.0, "p2": None}, Verdict.OTHER_TRAFFIC),
        ((None, None), {"p1": 1.0, "p2": 0.0}, Verdict.NOT_COUNTED),
        (("http://p1", None), {"p1": 1.0, "p2": 1.0}, Verdict.DIFFERENT_BY_COUNTERS),
        (("http://p1",), {}, Verdict.NOTHING_KNOWN),
        (("http://p1", "http://p1"), {"p1": 40.0}, Verdict.SAME),
    ],
)
def test_what_can_be_told(
    workers: tuple[str | None, ...], growth: dict[str, float | None], expected: Verdict
) -> None:
    assert verdict(Tried(workers, growth)) is expected
