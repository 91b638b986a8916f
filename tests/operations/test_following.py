"""Whose drains are followed, since when, and by whose word."""

from __future__ import annotations

from pdtop.config.schema import Config
from pdtop.operations.following import Drains, drained_in
from pdtop.operations.model import LogEntry

KEY = "10.0.2.21:30001"
DRAINED = Config.model_validate(
    {
        "decode": {"workers": [KEY], "worker": {KEY: {"drain": True}}},
        "console": {"drain_timeout_secs": 900.0},
    }
)


def told(drains: Drains) -> list[tuple[str, float | None, float]]:
    return [(one.by, one.since, (one.deadline or 0.0) - (one.since or 0.0)) for one in drains.progress(7.0)]


def test_a_drain_under_way_is_not_taken_for_one_by_somebodys_hand() -> None:
    drains = Drains(clock=lambda: 1_000.0)
    drains.follow(DRAINED, 5.0, but={KEY})
    assert told(drains) == []
    drains.started((KEY,), "ana@jump", 60.0, DRAINED, 6.0, 999.0)
    for but in (frozenset({KEY}), frozenset[str]()):
        drains.follow(DRAINED, 7.0, but=but)
        assert told(drains) == [("ana@jump", 999.0, 60.0)]
    drains.follow(Config(), 8.0)
    assert told(drains) == []


def test_a_drain_that_nobody_asked_for_here_is_the_files() -> None:
    drains = Drains(clock=lambda: 1_000.0)
    drains.follow(DRAINED, 5.0)
    assert told(drains) == [("config.toml", 1_000.0, 900.0)]


def test_a_drain_is_over_in_the_log_only_if_nothing_came_since() -> None:
    def log(*said: tuple[str, str]) -> list[LogEntry]:
        return [LogEntry("1", 1.0, "ana", "jump", "", "prod", verb, target) for verb, target in said]

    other = "10.0.2.22:30001"
    both = (("apply", KEY), ("drained", f"{KEY}, {other}"), ("drain", KEY))
    assert drained_in(log(*both), (KEY,))
    assert drained_in(log(*both), (KEY, other))
    assert not drained_in(log(("drain", KEY), *both), (KEY, other))
    assert drained_in(log(("drain", KEY), *both), (other,))
    assert not drained_in(log(), (KEY,))
