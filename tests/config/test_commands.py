"""check, show, schema, init: what they print can be read again."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from pdtop.config import commands
from pdtop.config.changes import config_changes, same
from pdtop.config.keys import join_key, split_key, value_at
from pdtop.config.load import load, load_bytes
from pdtop.config.schema import Config, WorkerTable, node_key

FILE = Path("config.toml")


def test_the_initial_file_loads_as_it_stands() -> None:
    loaded = load_bytes(FILE, commands.init_text().encode())
    assert loaded.ok
    assert loaded.problems == ()


def test_every_example_in_the_initial_file_is_right() -> None:
    lines = [line.removeprefix("# ") for line in commands.init_text().splitlines()]
    text = "\n".join(line for line in lines if not line.startswith("config.toml of"))
    assert load_bytes(FILE, text.encode()).problems == ()


def test_show_gives_the_same_settings_again() -> None:
    text = 'prefill.workers = ["a:1"]\nprefill.worker."a:1".weight = 0.5\nconsole.keymap.drain = "d"\n'
    config = load_bytes(FILE, text.encode()).config
    assert config is not None
    shown = commands.show(config)
    again = load_bytes(FILE, shown.encode())
    assert again.config is not None
    assert config_changes(config, again.config) == ()
    assert '[prefill.worker."a:1"]\nweight = 0.5' in shown
    assert "# ca_file is not set" in shown


def test_check_reports_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("prefill.policy = 3\nx = 1\n")
    report = commands.report(commands.check(path))
    assert report.splitlines()[-1] == "config.toml: 1 error, 1 warning"
    path.write_text(commands.init_text())
    assert commands.report(load(path)) == "config.toml: fine"


def test_the_json_schema_accepts_and_refuses() -> None:
    schema = commands.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    good = dict(load_bytes(FILE, commands.init_text().encode()).document)
    jsonschema.validate(good, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"health": {"unhealthy_threshold": 0}}, schema)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.b", ("a", "b")),
        ('prefill.worker."10.0.1.11:30001".weight', ("prefill", "worker", "10.0.1.11:30001", "weight")),
        ("a.'x.y'", ("a", "x.y")),
        ('"a \\" b"', ('a " b',)),
    ],
)
def test_dotted_names(name: str, parts: tuple[str, ...]) -> None:
    assert split_key(name) == parts
    assert split_key(join_key(parts)) == parts


@pytest.mark.parametrize("name", ["", "a.", ".a", 'a."b', "a b"])
def test_bad_dotted_names(name: str) -> None:
    with pytest.raises(ValueError, match="not a dotted name"):
        split_key(name)


def test_value_at_knows_defaults_and_unknown_keys() -> None:
    config = load_bytes(FILE, b"limits.max_tokens = 3\n").config
    assert config is not None
    assert value_at(config, "limits.max_tokens") == 3
    assert value_at(config, "topology.cross_rack") == 6.0
    for name in ("limits.min", "prefill.nothing", "server.port.x"):
        with pytest.raises(KeyError):
            value_at(config, name)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10.0.1.11:30001", "http://10.0.1.11:30001/"),
        ("http://h:1@0", "H:1"),
        ("https://user:pw@h:1/base", "h:1"),
        ("http://[fe80::1]:30001", "[FE80::1]:30001"),
    ],
)
def test_spellings_of_one_node(one: str, other: str) -> None:
    assert node_key(one) == node_key(other)


def test_same_is_strict_about_kinds() -> None:
    assert same({"a": [1, float("nan")]}, {"a": [1, float("nan")]})
    assert not same(1, 1.0)
    assert not same(True, 1)
    assert not same({"a": 1}, {})


def test_router_addresses() -> None:
    assert not Config().server.names_router
    for text, url in (
        ('server.host = "::"\n', "http://[::1]:30000"),
        ('server.host = "10.0.0.9"\nserver.port = 1\n', "http://10.0.0.9:1"),
        ('server.url = "https://r"\n', "https://r"),
    ):
        config = load_bytes(FILE, text.encode()).config
        assert config is not None
        assert config.server.names_router
        assert config.server.router_url == url


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Config().server
    monkeypatch.setenv("PDTOP_API_KEY", "")
    monkeypatch.delenv("PDTOP_ADMIN_KEY", raising=False)
    assert (server.api_key(), server.admin_key()) == (None, None)
    monkeypatch.setenv("PDTOP_API_KEY", "k")
    assert (server.api_key(), server.admin_key()) == ("k", "k")


def test_a_file_from_what_a_router_lists_loads_as_it_stands() -> None:
    workers = (
        commands.FoundWorker("10.0.1.11:30001", "prefill", 8998),
        commands.FoundWorker("https://10.0.2.21:30001", "decode", 8998, draining=True),
        commands.FoundWorker("10.0.2.22:30001", "decode"),
        commands.FoundWorker("10.0.3.1:30001\nevil", "unknown"),
    )
    found = commands.FoundAt(
        "http://10.0.0.10:30000", "smg", workers, {"prefill": "cache_aware", "decode": "?"}
    )
    loaded = load_bytes(FILE, commands.init_text_from(found).encode())
    assert loaded.problems == ()
    config = loaded.config
    assert config is not None
    assert (config.server.url, config.server.engine) == ("http://10.0.0.10:30000", "smg")
    assert (config.prefill.workers, config.decode.workers) == (
        ("10.0.1.11:30001",),
        ("https://10.0.2.21:30001", "10.0.2.22:30001"),
    )
    assert config.prefill.settings_of("10.0.1.11:30001").bootstrap_port == 8998
    assert config.decode.settings_of("10.0.2.21:30001") == WorkerTable(drain=True)
    assert "policy" not in config.decode.model_fields_set
    assert "its role is not known, so it is in no pool: 10.0.3.1:30001?evil" in loaded.text


@pytest.mark.parametrize(
    ("engine", "written"), [("pdtop", "embedded"), ("vllm-router", None), ("unknown", None)]
)
def test_only_engines_that_the_file_knows_are_written(engine: str, written: str | None) -> None:
    text = commands.init_text_from(commands.FoundAt("http://r:1", engine, (), {}))
    loaded = load_bytes(FILE, text.encode())
    assert loaded.config is not None
    assert loaded.config.server.engine == written
    assert not any(problem.severity == "error" for problem in loaded.problems)
