"""Loading: what is right loads, what is wrong is all told, with line, key, value, rule and spelling."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtop.config.keys import value_at
from pdtop.config.load import Loaded, load, load_bytes, reload
from pdtop.config.problems import Problem, errors, warnings

FILE = Path("config.toml")

BASE_FORM = """\
[server]
host = "0.0.0.0"
port = 30000
upstream_base_url = "https://api.example.com/api"   # model API channel; never ends in /v1
upstream_api_key_env = "UPSTREAM_API_KEY"             # the name of a variable, never a key
default_model_id = "your-model-id"

[prefill]
workers = [
    "10.0.1.11:30001",
    "10.0.1.12:30001",
]
policy = "cache_aware"
cache_aware_threshold = 0.3
load_balance_threshold = 0.7

[decode]
workers = ["10.0.2.21:30001", "10.0.2.22:30001"]
policy = "power_of_two"

[health]
interval_secs = 5
timeout_secs = 2
unhealthy_threshold = 3
"""


def read(text: str) -> Loaded:
    return load_bytes(FILE, text.encode())


def only(text: str) -> Problem:
    """The one problem of a text."""
    problems = read(text).problems
    assert len(problems) == 1, [p.text for p in problems]
    return problems[0]


def test_the_base_form_loads_without_a_word() -> None:
    loaded = read(BASE_FORM)
    assert loaded.problems == ()
    assert loaded.config is not None
    assert loaded.config.prefill.workers == ("10.0.1.11:30001", "10.0.1.12:30001")
    assert loaded.config.server.router_url == "http://127.0.0.1:30000"
    assert value_at(loaded.config, "console.interval_secs") == 2.0
    assert value_at(loaded.config, "decode.cache_aware_threshold") == 0.3


def test_all_additions_load() -> None:
    loaded = read(
        """
        keymap = { drain = "d,shift+d" }
        server.engine = "smg"
        server.url = "https://router.example.net:30000"
        server.metrics_url = "http://10.0.0.10:29000/metrics"
        server.api_key_env = "SGLANG_KEY"
        server.ca_file = "ca.pem"
        slo = { ttft_p99_ms = 800, tpot_p99_ms = 45 }
        load = { running = 1.0, per_1000_tokens = 2 }
        topology = { same_host = 0, same_rack = 1, cross_rack = 6 }
        clusters.prod-b.config = "prod-b.toml"
        [prefill]
        workers = ["10.0.1.11:30001", "10.0.1.12:30001"]
        balance_abs_threshold = 64
        balance_rel_threshold = 1.43
        cache_match_threshold = 0.5
        [prefill.worker."http://10.0.1.11:30001/"]
        weight = 0.5
        drain = true
        bootstrap_port = 8998
        host = "node-7"
        rack = "r2"
        [console]
        read_only = false
        connect_to = { "10.0.2.21:30001" = "127.0.0.1:9001" }
        levels.kv_use = { warn = 0.8, crit = 0.9 }
        columns.decode = ["worker", "kv"]
        keymap.drain = "x"
        """
    )
    assert loaded.problems == ()
    config = loaded.config
    assert config is not None
    own = config.prefill.settings_of("10.0.1.11:30001")
    assert (own.weight, own.drain, own.bootstrap_port, own.host) == (0.5, True, 8998, "node-7")
    assert config.prefill.settings_of("10.0.1.99:30001").weight == 1.0
    assert config.key_bindings == {"drain": "x"}
    assert config.cluster_files(Path("/etc/pdtop/config.toml")) == {"prod-b": Path("/etc/pdtop/prod-b.toml")}
    assert value_at(config, 'console.connect_to."10.0.2.21:30001"') == "127.0.0.1:9001"


@pytest.mark.parametrize(
    ("line", "key", "rule", "suggestion"),
    [
        ("prefill.cache_aware_threshold = 1.5", "prefill.cache_aware_threshold", "between 0 and 1", None),
        ("prefill.cache_aware_threshold = -0.1", "prefill.cache_aware_threshold", "0 or more", None),
        ("prefill.cache_aware_threshold = nan", "prefill.cache_aware_threshold", "finite", None),
        ("decode.load_balance_threshold = inf", "decode.load_balance_threshold", "finite", None),
        ("prefill.cache_aware_threshold = 30", "prefill.cache_aware_threshold", "between 0 and 1", "0.30"),
        ('prefill.cache_aware_threshold = "0.3"', "prefill.cache_aware_threshold", "not text", "0.3"),
        ("health.unhealthy_threshold = 0", "health.unhealthy_threshold", "1 or more", None),
        ("health.unhealthy_threshold = 2.5", "health.unhealthy_threshold", "whole number", None),
        ("health.timeout_secs = true", "health.timeout_secs", "not a bool", None),
        ("health.timeout_secs = 0", "health.timeout_secs", "above 0", None),
        ("server.port = 0", "server.port", "1 or more", None),
        ("server.port = 70000", "server.port", "65535 or less", None),
        ('server.engine = "sglang_router"', "server.engine", "one of", "sglang-router"),
        ('server.url = "10.0.0.1:30000"', "server.url", "begin with http://", None),
        ('prefill.policy = "cache-aware"', "prefill.policy", "one of", "cache_aware"),
        ('decode.policy = "bucket"', "decode.policy", "one of", None),
        ('console.read_only = "yes"', "console.read_only", "true or false", "true"),
        ("slo.ttft_p99_ms = -inf", "slo.ttft_p99_ms", "finite", None),
        ('prefill.workers = "10.0.1.11:30001"', "prefill.workers", "an array", None),
        ("prefill = 3", "prefill", "a table", None),
        ('decode.workers = ["a:0"]', "decode.workers[0]", "not a port", None),
        ('decode.workers = ["a:x"]', "decode.workers[0]", "not a port", None),
        ('decode.workers = [""]', "decode.workers[0]", "empty", None),
        ('decode.workers = ["a b:1"]', "decode.workers[0]", "blanks", None),
        ('decode.workers = ["grpc://a:1"]', "decode.workers[0]", "http://", None),
        ("decode.balance_rel_threshold = 0.5", "decode.balance_rel_threshold", "1 or more", None),
        ("health.interval_secs = 2026-01-31", "health.interval_secs", "not a date", None),
    ],
)
def test_errors(line: str, key: str, rule: str, suggestion: str | None) -> None:
    problem = only(line)
    assert (problem.severity, problem.key, problem.line) == ("error", key, 1)
    assert rule in problem.rule
    assert problem.suggestion == suggestion
    assert "config.toml line 1" in problem.text


@pytest.mark.parametrize("weight", ["-1", "nan", "inf", '"1"', "true"])
def test_weights_are_finite_numbers_from_0(weight: str) -> None:
    text = f'decode.workers = ["a:1"]\ndecode.worker."a:1".weight = {weight}'
    problem = only(text)
    assert (problem.severity, problem.key, problem.line) == ("error", 'decode.worker."a:1".weight', 2)
    assert problem.value == weight


@pytest.mark.parametrize(
    ("text", "kind", "line", "suggestion"),
    [
        ("prefill.load_balance_treshold = 0.5", "unknown_key", 1, "load_balance_threshold"),
        ("[limits]\nx = 1", "unknown_key", 1, None),
        ("[heath]\nx = 1", "unknown_key", 1, "health"),
        ('[prefill]\nworkers = ["a:1"]\n[prefill.worker."a:2"]', "unlisted_worker", 3, "a:1"),
        ('[prefill]\nworkers = [\n "a:1",\n "http://A:1/",\n]', "duplicate_worker", 4, None),
        ('prefill.workers = ["a:1"]\ndecode.workers = ["a:1"]', "duplicate_worker", 2, None),
        ('decode.workers = ["10.0.0.1"]', "worker_address", 1, None),
        ('server.upstream_base_url = "https://x/api/v1/"', "base_url_v1", 1, '"https://x/api"'),
        ("prefill.cache_aware_threshold = 0.8", "cross_check", 1, None),
        ("health = { interval_secs = 2, timeout_secs = 5 }", "cross_check", 1, None),
        ("prefill.workers = []", "empty_pool", 1, None),
        ('decode.workers = ["a:1"]\n[decode.worker."a:1"]\nweight = 0', "pool_out", 2, None),
        (
            'server.engine = "smg"\ndecode.workers = ["a:1"]\ndecode.policy = "power_of_two"',
            "power_of_two",
            3,
            None,
        ),
    ],
)
def test_warnings_do_not_keep_a_file_out(text: str, kind: str, line: int, suggestion: str | None) -> None:
    loaded = read(text)
    assert loaded.ok
    problem = only(text)
    assert (problem.severity, problem.kind, problem.line) == ("warning", kind, line)
    assert problem.suggestion == suggestion


def test_a_key_in_the_wrong_table_is_told_where_it_belongs() -> None:
    assert "[prefill] or [decode]" in only("server.cache_aware_threshold = 0.3").fix


def test_any_policy_with_an_external_router() -> None:
    assert read('server.engine = "external"\nprefill.policy = "ours"').problems == ()


def test_all_errors_at_once_first_errors_then_warnings_by_line() -> None:
    loaded = read('[decode]\npolcy = "x"\nworkers = [3, "a:0"]\n[health]\ntimeout_secs = true\n')
    assert [(p.severity, p.line) for p in loaded.problems] == [
        ("error", 3),
        ("error", 3),
        ("error", 5),
        ("warning", 2),
    ]
    assert not loaded.ok
    assert len(errors(loaded.problems)) == 3
    assert len(warnings(loaded.problems)) == 1


@pytest.mark.parametrize(
    ("text", "line", "mentions"),
    [
        ("[prefill]\nx = 1\ny = 2\nx = 3\n", 4, ["prefill.x", "line 2", "line 4"]),
        ("[a]\n[b]\n[a]\n", 3, ["given twice", "line 1"]),
        ("a.b = 1\na = 2\n", 2, ["given twice"]),
        ("a = { x = 1, x = 2 }\n", 1, ["a.x"]),
        ("[a]\nb = 1\n[a.b]\n", 3, ["a.b"]),
        ("a = 1\nb", 2, ["expected =", "half written"]),
        ("a = ", 1, ["no value"]),
        ("a = 1 b = 2", 1, ["same line"]),
        ("a = 'x\n", 1, ["not closed"]),
        ('a = """x\n', 1, ["not closed"]),
        ("x = 1\na = [1, 2\nb = 3\n", 3, ["line 2", "]"]),
        ("a = { b = 1", 1, ["not closed"]),
        ("[a\n", 1, ["not closed"]),
        ("[[a]\n", 1, ["]]"]),
        ("\n\n= 1", 3, ["expected a key"]),
        ("x = 1\na = yes\n", 2, ["invalid value", "quotes"]),
        ('a = "\\q"', 1, []),
        ("a = 1\r\nb = 0x\r\n", 2, []),
        ("a = [" + "[" * 2000, 1, []),
    ],
)
def test_broken_files_name_the_line_and_what_to_do(text: str, line: int, mentions: list[str]) -> None:
    loaded = read(text)
    assert not loaded.ok
    assert loaded.config is None
    problem = loaded.problems[0]
    if "[[[" not in text:
        assert problem.line == line
    for mention in mentions:
        assert mention in problem.text


def test_every_key_that_is_given_twice_is_named() -> None:
    loaded = read("[a]\nx = 1\nx = 2\n[b]\ny = 1\ny = 2\ny = 3\n")
    assert [(p.key, p.line) for p in loaded.problems] == [("a.x", 3), ("b.y", 6), ("b.y", 7)]


@pytest.mark.parametrize(
    ("raw", "line", "mentions"),
    [
        ("# é\n".encode("utf-16"), 1, ["UTF-16", "iconv"]),
        ("a = 1\n".encode("utf-16-le"), 1, ["UTF-16"]),
        ("a = 1\n".encode("utf-32"), 1, ["UTF-32"]),
        ("a = 1\nb = 'é'\n".encode("latin-1"), 2, ["UTF-8", "0xE9", "Latin-1"]),
        (b"a = 1\n\xff\n", 2, ["encoding"]),
    ],
)
def test_other_encodings_are_named(raw: bytes, line: int, mentions: list[str]) -> None:
    loaded = load_bytes(FILE, raw)
    problem = loaded.problems[0]
    assert (loaded.ok, problem.kind, problem.line) == (False, "encoding", line)
    for mention in mentions:
        assert mention in problem.text


def test_byte_order_mark_and_line_ends_are_facts() -> None:
    loaded = load_bytes(FILE, b"\xef\xbb\xbf" + BASE_FORM.replace("\n", "\r\n").encode())
    assert (loaded.ok, loaded.bom, loaded.newline) == (True, True, "\r\n")
    assert read(BASE_FORM).newline == "\n"
    assert loaded.digest != read(BASE_FORM).digest


@pytest.mark.parametrize("text", ["", "\n", "# only comments\n"])
def test_an_empty_file_is_no_set_of_defaults(text: str) -> None:
    assert not read(text).ok
    assert "empty" in read(text).problems[0].text


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = load(tmp_path / "no.toml")
    assert missing.problems[0].kind == "unreadable"
    assert "missing" in missing.problems[0].text
    assert "folder" in load(tmp_path).problems[0].rule


def test_reload_gives_the_same_object_while_the_bytes_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(BASE_FORM)
    first = load(path)
    assert reload(first) is first
    path.write_text(BASE_FORM.replace("0.3", "0.4"))
    second = reload(first)
    assert second.config is not None
    assert second.config.prefill.cache_aware_threshold == 0.4
    path.unlink()
    assert not reload(second).ok


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.text(alphabet="ab.\"'=[]{},#\n\r\t 01-_\\é", max_size=80).map(str.encode))
def test_no_content_raises(raw: bytes) -> None:
    loaded = load_bytes(FILE, raw)
    assert loaded.ok or errors(loaded.problems)
