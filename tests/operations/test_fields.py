"""The tuning fields: what they say, what they take, and what the router in front does with them."""

from __future__ import annotations

import pytest

from pdtop.operations.fields import KNOBS, Field, check, fields, knob
from pdtop.operations.model import Guard
from tests.operations.scenes import CONFIG, loaded

PATHS = {knob.path for knob in KNOBS}


def field(path: str, config: str | None = CONFIG, engine: str = "smg") -> Field:
    found = fields(None if config is None else loaded(config), engine)
    return next(one for one in found if ".".join(one.path) == path)


def test_what_can_be_tuned() -> None:
    pool = (
        "policy",
        "cache_aware_threshold",
        "load_balance_threshold",
        "cache_match_threshold",
        "balance_abs_threshold",
        "balance_rel_threshold",
    )
    health = ("interval_secs", "timeout_secs", "unhealthy_threshold", "healthy_threshold")
    assert [".".join(one.path) for one in fields(loaded(), "smg")] == [
        *(f"prefill.{key}" for key in pool),
        *(f"decode.{key}" for key in pool),
        *(f"health.{key}" for key in health),
        "slo.ttft_p99_ms",
        "slo.tpot_p99_ms",
    ]


def test_a_written_value_is_shown_as_it_is_spelled() -> None:
    one = field("prefill.cache_aware_threshold")
    assert (one.value, one.written, one.default) == ("0.30", True, "0.3")
    assert (one.group, one.valid, one.step) == ("prefill", "0 to 1", 0.05)
    assert one.meaning == (
        "Up to this spread of load the worker with the longest matching prefix wins; "
        "lower = leaves affinity earlier, spreads sooner."
    )


def test_a_default_is_shown_as_one() -> None:
    for config in (CONFIG, None, ""):
        one = field("health.unhealthy_threshold", config)
        assert (one.value, one.written, one.default) == ("3", False, "3")
        assert field("slo.ttft_p99_ms", config).value == "not set"


def test_a_bad_value_is_still_shown() -> None:
    assert field("decode.policy", '[decode]\npolicy = "nonsense"').value == '"nonsense"'


@pytest.mark.parametrize(
    ("path", "engine", "kind"),
    [
        ("prefill.cache_aware_threshold", "smg", "restart"),
        ("prefill.cache_aware_threshold", "sglang-router", "none"),
        ("prefill.cache_aware_threshold", "pdtop", "live"),
        ("prefill.load_balance_threshold", "smg", "none"),
        ("prefill.cache_match_threshold", "pdtop", "none"),
        ("health.interval_secs", "smg", "live"),
        ("health.interval_secs", "sglang-router", "restart"),
        ("health.interval_secs", "unknown", "unknown"),
        ("slo.ttft_p99_ms", "sglang-router", "pdtop"),
    ],
)
def test_what_the_router_does_with_it(path: str, engine: str, kind: str) -> None:
    one = field(path, engine=engine)
    assert one.effect == kind
    assert one.effect_words


def test_policies_are_those_of_the_router() -> None:
    assert field("decode.policy", engine="sglang-router").choices == (
        "random",
        "round_robin",
        "cache_aware",
        "power_of_two",
        "manual",
    )
    assert "bucket" in field("prefill.policy", engine="smg").choices
    assert "bucket" not in field("decode.policy", engine="smg").choices
    assert "power_of_two" in field("decode.policy", engine="unknown").choices


OUTSIDE = {
    "0 to 1": ("-0.01", "1.01", "nan", "inf", "true"),
    "above 0": ("0", "-1", "nan", "inf"),
    "1 or more": ("0.99", "nan", "inf"),
    "a whole number, 0 or more": ("-1", "1.5"),
    "a whole number, 1 or more": ("0", "1.5"),
    "one of the router's policies": ('"fastest"', "3"),
}
INSIDE = {
    "0 to 1": ("0", "1", "0.300"),
    "above 0": ("0.1", "5"),
    "1 or more": ("1", "1.43"),
    "a whole number, 0 or more": ("0", "64"),
    "a whole number, 1 or more": ("1", "3"),
    "one of the router's policies": ('"random"', "random", "'round_robin'"),
}


@pytest.mark.parametrize("path", sorted(PATHS))
def test_the_range_that_is_told_is_the_one_that_holds(path: tuple[str, ...]) -> None:
    known = knob(path)
    assert known is not None
    for typed in OUTSIDE[known.valid]:
        found = check(path, typed)
        assert found is not None, typed
        assert found.blocks
        assert f"valid: {known.valid}, default {known.default}" in found.to_change
    for typed in INSIDE[known.valid]:
        assert check(path, typed) is None, typed
    assert known.default == "not set" or check(path, known.default) is None


@pytest.mark.parametrize("path", sorted(PATHS))
def test_every_field_is_explained_in_one_sentence(path: tuple[str, ...]) -> None:
    known = knob(path)
    assert known is not None
    assert known.meaning.endswith(".")
    assert known.meaning.count(". ") == 0
    assert known.step is not None or known.choices


def test_a_policy_of_an_external_router_may_have_any_name() -> None:
    assert check(("decode", "policy"), "fastest") is not None
    assert check(("decode", "policy"), "fastest", loaded('server.engine = "external"').config) is None


def test_more_than_one_value_is_no_value() -> None:
    found = check(("slo", "ttft_p99_ms"), "5\n[decode]")
    assert isinstance(found, Guard)
    assert found.kind == "range"
    assert check(("slo", "ttft_p99_ms"), "") is not None
    assert check(("server", "url"), "http://a:1 # note") is not None


def test_keys_that_are_no_fields() -> None:
    assert knob(("decode", "worker", "a:1", "weight")) is None
    assert check(("decode", "worker", "a:1", "weight"), "0.5") is None
    assert check(("server", "engine"), "smg") is None
    assert check(("server", "engine"), "smgg") == Guard(
        "range",
        "server.engine = \"smgg\": must be one of 'embedded', 'smg', 'sglang-router' or 'external'",
        "did you mean smg?",
    )


def test_a_misspelled_key_is_told_before_its_value() -> None:
    found = check(("decode", "polcy"), "round_robin")
    assert found is not None
    assert (found.kind, found.to_change) == ("unknown_key", "did you mean policy?")
    assert found.text == "decode.polcy: is not a known key and has no effect"
