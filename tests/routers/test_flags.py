"""What each key does at each router, and the command line that a config stands for."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from pdtop.config.schema import Config
from pdtop.routers import detect
from pdtop.routers.flags import (
    RESTART_LOSES,
    Kind,
    command_line,
    effect,
    health_fields,
    masked,
    policies,
    policy_words,
    refuses_to_start,
    restart_gap,
    translations,
)

BASE = """
[server]
host = "0.0.0.0"
port = 30000

[prefill]
workers = ["10.0.1.11:30001", "http://10.0.1.12:30001/"]
policy = "cache_aware"
cache_aware_threshold = 0.3
load_balance_threshold = 0.7

[prefill.worker."10.0.1.11:30001"]
bootstrap_port = 8998

[decode]
workers = ["10.0.2.21:30001", "10.0.2.22:30001", "10.0.2.23:30001"]
policy = "power_of_two"

[health]
interval_secs = 5
timeout_secs = 2
unhealthy_threshold = 3
"""
SMG = (
    "python3 -m smg.launch_router --host 0.0.0.0 --port 30000 --pd-disaggregation "
    "--prefill http://10.0.1.11:30001 8998 --prefill http://10.0.1.12:30001 "
    "--decode http://10.0.2.21:30001 --decode http://10.0.2.22:30001 --decode http://10.0.2.23:30001 "
    "--prefill-policy cache_aware --decode-policy power_of_two --balance-rel-threshold 1.43 "
    "--health-check-interval-secs 5 --health-check-timeout-secs 2 --health-failure-threshold 3"
)


def config(text: str = BASE, more: str = "") -> Config:
    return Config.model_validate(tomllib.loads(text + more))


def line(text: str, engine: str = "smg", base: str = "") -> str:
    return " ".join(command_line(config(text), engine, base=tuple(base.split())))


W = ("decode", "worker", "10.0.2.21:30001")


@pytest.mark.parametrize(
    ("path", "smg", "sglang", "own", "other"),
    [
        (("server", "host"), "restart", "restart", "restart", "unknown"),
        (("server", "port"), "restart", "restart", "restart", "unknown"),
        (("server", "request_timeout_secs"), "restart", "restart", "live", "unknown"),
        (("server", "url"), "pdtop", "pdtop", "pdtop", "pdtop"),
        (("server", "upstream_base_url"), "pdtop", "pdtop", "pdtop", "pdtop"),
        (("server", "colour"), "none", "none", "none", "none"),
        (("prefill", "workers"), "live", "live", "live", "unknown"),
        (("prefill", "policy"), "restart", "restart", "live", "unknown"),
        (("prefill", "cache_aware_threshold"), "restart", "none", "live", "unknown"),
        (("prefill", "load_balance_threshold"), "none", "none", "live", "unknown"),
        (("prefill", "cache_match_threshold"), "restart", "none", "none", "unknown"),
        (("prefill", "balance_abs_threshold"), "restart", "none", "none", "unknown"),
        (("decode", "balance_rel_threshold"), "restart", "none", "none", "unknown"),
        (("decode", "colour"), "none", "none", "none", "none"),
        ((*W, "weight"), "none", "none", "live", "unknown"),
        ((*W, "drain"), "live", "live", "live", "unknown"),
        ((*W, "bootstrap_port"), "none", "none", "none", "none"),
        (("prefill", "worker", "x:1", "bootstrap_port"), "live", "live", "live", "unknown"),
        ((*W, "rack"), "pdtop", "pdtop", "live", "pdtop"),
        ((*W, "api_key_env"), "pdtop", "pdtop", "pdtop", "pdtop"),
        ((*W, "colour"), "none", "none", "none", "none"),
        (("health", "interval_secs"), "live", "restart", "live", "unknown"),
        (("health", "healthy_threshold"), "live", "restart", "live", "unknown"),
        (("health", "colour"), "none", "none", "none", "none"),
        (("slo", "ttft_p99_ms"), "pdtop", "pdtop", "pdtop", "pdtop"),
        (("load", "backlog"), "pdtop", "pdtop", "live", "pdtop"),
        (("topology", "cross_rack"), "pdtop", "pdtop", "live", "pdtop"),
        (("console", "levels", "kv_use", "warn"), "pdtop", "pdtop", "pdtop", "pdtop"),
        (("clusters", "b", "config"), "pdtop", "pdtop", "pdtop", "pdtop"),
        (("what",), "none", "none", "none", "none"),
    ],
)
def test_what_a_key_does(path: tuple[str, ...], smg: Kind, sglang: Kind, own: Kind, other: Kind) -> None:
    engines = ("smg", "sglang-router", "pdtop", "embedded", "external", "vllm-router")
    found = [effect(engine, path) for engine in engines]
    assert [one.kind for one in found] == [smg, sglang, own, own, other, other]
    assert all(one.words and "\n" not in one.words for one in found)


def keys_of(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, info in model.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from keys_of(inner, (*path, name))
        elif name != "worker":
            yield (*path, name)


@pytest.mark.parametrize("engine", ["smg", "sglang-router", "embedded"])
def test_every_key_of_the_schema_is_known(engine: str) -> None:
    unread = [key for key in keys_of(Config) if effect(engine, key).words == "nothing reads this key"]
    assert unread == []


def test_no_effect_says_why() -> None:
    words = effect("sglang-router", ("prefill", "cache_aware_threshold")).words
    assert words == (
        "no effect here: sglang-router 0.3.2 picks at random with cache_aware in prefill/decode mode"
    )
    assert "smg has no weights" in effect("smg", (*W, "weight")).words
    assert "not known yet" in effect("unknown", ("prefill", "policy")).words


def test_the_command_line_of_the_base_form() -> None:
    assert line(BASE) == SMG
    assert line(BASE, "sglang-router") == SMG.replace("smg.", "sglang_router.")


@pytest.mark.parametrize("engine", ["embedded", "pdtop", "external", "unknown", "vllm-router", "sgl-router"])
def test_routers_without_such_flags(engine: str) -> None:
    assert command_line(config(), engine) == ()
    assert translations(config(), engine) == ()


def test_nothing_but_defaults() -> None:
    """What the file does not say is left to the router, but for the address and the policies."""
    assert line("") == (
        "python3 -m smg.launch_router --host 0.0.0.0 --port 30000 --pd-disaggregation "
        "--prefill-policy cache_aware --decode-policy cache_aware"
    )


def test_the_rest_of_server() -> None:
    assert "--port 31000" in line('[server]\nurl = "http://router:31000"')
    assert "--port 32000" in line('[server]\nurl = "http://router:31000"\nport = 32000')
    assert "--prometheus-port 29001" in line('[server]\nmetrics_url = "http://router:29001/metrics"')
    assert "--request-timeout-secs 600" in line("[server]\nrequest_timeout_secs = 600")
    assert "--prometheus-port" not in line('[server]\nmetrics_url = "http://router:port/metrics"')


def test_drained_workers_are_left_out() -> None:
    drained = '[prefill.worker."http://10.0.1.12:30001"]\ndrain = true\n'
    found = " ".join(command_line(config(more=drained), "smg"))
    assert "10.0.1.12" not in found
    assert "10.0.1.11" in found
    assert "left out because they are drained: http://10.0.1.12:30001/" in translations(
        config(more=drained), "smg"
    )


def test_what_the_present_command_line_says_besides_is_kept() -> None:
    base = (
        "smg launch --model-path /models/x --port 1 --prefill http://old:1 9 --decode http://old:2 "
        "--spill-rel-threshold 3 --cb-failure-threshold=5 --disable-retries --prometheus-port 29005"
    )
    assert line(BASE, base=base) == (
        "smg launch --model-path /models/x --cb-failure-threshold 5 --disable-retries "
        "--prometheus-port 29005 " + SMG.removeprefix("python3 -m smg.launch_router ")
    )


def test_defaults_do_not_replace_what_is_there() -> None:
    found = line("", base="smg launch --host 10.0.0.1 --port 31000 --decode-policy random")
    assert found == (
        "smg launch --host 10.0.0.1 --port 31000 --decode-policy random --pd-disaggregation "
        "--prefill-policy cache_aware"
    )


def test_old_workers_never_stay_on_the_command_line() -> None:
    drained = '[prefill]\nworkers = ["a:1"]\n[prefill.worker."a:1"]\ndrain = true'
    assert "--prefill " not in line(drained, base="smg launch --prefill http://a:1 8998")


@pytest.mark.parametrize(
    ("keys", "flags"),
    [
        ("cache_aware_threshold = 0.5", "--balance-rel-threshold 2"),
        ("cache_aware_threshold = 0.0", "--balance-rel-threshold 1"),
        ("cache_aware_threshold = 0.7", "--balance-rel-threshold 3.33"),
        ("cache_aware_threshold = 1.0", "--balance-rel-threshold 10000"),
        ("cache_aware_threshold = 0.5\nbalance_rel_threshold = 1.2", "--balance-rel-threshold 1.2"),
        ("cache_match_threshold = 0.55", "--cache-threshold 0.55"),
        ("balance_abs_threshold = 32", "--balance-abs-threshold 32"),
        ("load_balance_threshold = 0.9", ""),
    ],
)
def test_thresholds_are_translated(keys: str, flags: str) -> None:
    found = line(f"[prefill]\n{keys}")
    assert found.partition("--decode-policy cache_aware")[2].strip() == flags


def test_both_routers_have_one_set_of_thresholds() -> None:
    text = (
        '[prefill]\npolicy = "power_of_two"\ncache_aware_threshold = 0.5\n[decode]\nbalance_abs_threshold = 8'
    )
    assert "--balance-abs-threshold 8" in line(text)
    assert "--balance-rel" not in line(text)
    assert translations(config(text), "smg") == (
        "[prefill] cache_aware_threshold: left out, smg has one set for both pools, "
        "and that of [decode] counts",
    )


def test_translations_in_words() -> None:
    more = '[decode.worker."10.0.2.21:30001"]\nweight = 0.5\n'
    text = BASE.replace("interval_secs = 5", "interval_secs = 2.6").replace(
        "timeout_secs = 2", "timeout_secs = 0.2"
    )
    assert translations(config(text, more), "smg") == (
        "[prefill] cache_aware_threshold 0.3 becomes --balance-rel-threshold 1.43: smg compares with the "
        "mean of the pool, and only beyond --balance-abs-threshold (64 by default)",
        "[prefill] load_balance_threshold 0.7 is left out: smg has one limit for affinity, not two",
        "[health] interval_secs 2.6 becomes --health-check-interval-secs 3: whole seconds only",
        "[health] timeout_secs 0.2 becomes --health-check-timeout-secs 1: whole seconds only",
        "weights are left out (10.0.2.21:30001): smg has none",
    )
    older = translations(config(), "sglang-router")
    assert "compares with the least loaded worker" in older[0]
    assert older[-1].startswith("sglang-router 0.3.2 picks at random")


def test_health_as_smg_s_workers_take_it() -> None:
    text = "[health]\ninterval_secs = 2.6\nunhealthy_threshold = 4"
    assert health_fields(config(text).health) == {"check_interval_secs": 3, "failure_threshold": 4}
    assert health_fields(Config().health) == {}


@pytest.mark.parametrize(
    ("engine", "policy", "role", "words"),
    [
        ("smg", "cache_aware", "prefill", ""),
        ("smg", "bucket", "prefill", ""),
        ("smg", "bucket", "decode", "smg has no decode policy bucket"),
        ("smg", "pair_aware", "decode", "smg has no decode policy pair_aware"),
        ("smg", "least-load", "decode", "did you mean least_load?"),
        ("sglang-router", "least_load", "decode", "sglang-router has no decode policy least_load"),
        ("sglang-router", "round_robbin", "prefill", "did you mean round_robin? it has random, round_robin,"),
        ("sglang-router", "cache_aware", "decode", "picks at random"),
        ("sglang-router", "power_of_two", "decode", ""),
        ("embedded", "pair_aware", "decode", ""),
        ("pdtop", "bucket", "prefill", "pdtop has no prefill policy bucket"),
        ("external", "anything", "decode", ""),
        ("unknown", "anything", "prefill", ""),
    ],
)
def test_policy_words(engine: str, policy: str, role: str, words: str) -> None:
    found = policy_words(engine, policy, "prefill" if role == "prefill" else "decode")
    assert words in found
    assert bool(found) is bool(words)


def test_policies_of_a_pool() -> None:
    assert policies("sglang-router", "decode") == (
        "random",
        "round_robin",
        "cache_aware",
        "power_of_two",
        "manual",
    )
    assert policies("external", "decode") == ()


@pytest.mark.parametrize(
    ("text", "engine", "words"),
    [
        (BASE, "smg", None),
        (BASE, "embedded", None),
        ('[decode]\nworkers = ["a:1"]\npolicy = "power_of_two"', "embedded", None),
        ('[decode]\nworkers = ["a:1"]\npolicy = "power_of_two"', "external", None),
        ('[decode]\nworkers = ["a:1"]\npolicy = "power_of_two"', "smg", "would have 1"),
        ('[prefill]\nworkers = []\npolicy = "power_of_two"', "sglang-router", "fewer than 2 prefill workers"),
        ('[decode]\nworkers = ["a:1"]', "smg", None),
        ('[decode]\nworkers = ["a:1"]\npolicy = "pair_aware"', "smg", "smg has no decode policy pair_aware"),
        (
            '[decode]\nworkers = ["a:1", "b:1"]\npolicy = "power_of_two"\nworker."b:1".drain = true',
            "smg",
            "would have 1 (1 drained)",
        ),
    ],
)
def test_a_restart_that_would_fail(text: str, engine: str, words: str | None) -> None:
    found = refuses_to_start(config(text), engine)
    if words is None:
        assert found is None
    else:
        assert found is not None
        assert words in found


def test_a_command_line_for_people_holds_no_key() -> None:
    argv = (
        "smg launch --api-key abc123 --control-plane-api-keys a:b:admin:k1 c:d:user:k2 "
        "--postgres-db-url postgres://u:hunter2@db/x --model-path /m --oracle-password=zzz"
    )
    assert " ".join(masked(argv.split())) == (
        "smg launch --api-key •••••• --control-plane-api-keys •••••• •••••• "
        "--postgres-db-url postgres://u:••••••@db/x --model-path /m --oracle-password ••••••"
    )


def test_what_a_restart_costs() -> None:
    assert len(RESTART_LOSES) == 4
    assert "0.5 s" in restart_gap("sglang-router")
    assert "5 s more" in restart_gap("smg")
    assert restart_gap("embedded") == restart_gap("pdtop")
    assert "not known" in restart_gap("external")


@pytest.mark.parametrize("engine", sorted(detect.DIALECTS))
def test_powers_and_effects_say_the_same(engine: str) -> None:
    powers = detect.DIALECTS[engine].powers
    threshold = effect(engine, ("prefill", "cache_aware_threshold")).kind
    assert threshold == ("unknown" if powers.drain_by == "none" else powers.thresholds)
    assert (effect(engine, ("health", "timeout_secs")).kind == "live") is powers.live_health
    assert (effect(engine, (*W, "weight")).kind == "live") is powers.weights
    one = config('[decode]\nworkers = ["a:1"]\npolicy = "power_of_two"')
    assert (refuses_to_start(one, engine) is not None) is powers.power_of_two_needs_two
