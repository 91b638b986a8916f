"""Secrets: found in every form that is seen in the field, never shown, variable names left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdtop.config import commands
from pdtop.config.changes import table_changes
from pdtop.config.load import load_bytes
from pdtop.config.masking import MASK, Masker, find_secrets, is_secret_name, secret_parts
from pdtop.config.settings import load_settings

FILE = Path("config.toml")


@pytest.mark.parametrize(
    "name",
    ["api_key", "upstream_api_key", "apiKey", "API-KEY", "token", "auth_token", "password", "secret", "key"],
)
def test_names_that_hold_a_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["api_key_env", "max_tokens", "keymap", "monkey", "per_1000_tokens", "tokens"]
)
def test_names_that_do_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("upstream_api_key_env", "sk-demo-0123456789", "sk-demo-0123456789"),
        ("upstream_api_key_env", "Zx9-demo-token", "Zx9-demo-token"),
        ("note", "use sk-demo-0123456789 here", "sk-demo-0123456789"),
        ("url", "http://ops:hunter2@10.0.0.1:30000", "hunter2"),
        ("header", "Bearer abcdef123456", "Bearer abcdef123456"),
        ("url", "https://x/api?model=m&api_key=hush", "hush"),
    ],
)
def test_values_that_are_secrets(name: str, value: str, secret: str) -> None:
    assert secret in secret_parts(name, value)


@pytest.mark.parametrize(
    ("name", "value"), [("upstream_api_key_env", "UPSTREAM_KEY"), ("url", "http://h:1/x"), ("api_key", "")]
)
def test_values_that_are_none(name: str, value: str) -> None:
    assert secret_parts(name, value) == ()


def test_secrets_are_found_in_arrays_tables_and_names() -> None:
    document = {"a": [{"token": "t0p"}], "b": {"sk-demo-0123456789": 1}}
    assert dict(find_secrets(document)) == {
        ("a", 0, "token"): "t0p",
        ("b", "sk-demo-0123456789"): "sk-demo-0123456789",
    }
    assert Masker([document])("x t0p sk-demo-0123456789 sk-other-99999999") == f"x {MASK} {MASK} {MASK}"


def test_a_secret_is_warned_about_and_appears_nowhere() -> None:
    secret = "sk-demo-0123456789abcdef"
    text = f'[server]\nupstream_api_key = "{secret}"\napi_key_env = "{secret}"\nport = "{secret}"\n'
    loaded = load_bytes(FILE, text.encode())
    assert [p.line for p in loaded.problems if p.kind == "secret_in_file"] == [2, 3, 4]
    assert secret not in commands.report(loaded) + repr(loaded.problems)
    good = load_bytes(FILE, text.replace(f'port = "{secret}"\n', "").encode())
    assert good.config is not None
    assert secret not in commands.show(good.config)
    changes = table_changes(good.document, {"server": {"upstream_api_key": "other-secret"}})
    assert secret not in repr(changes)
    assert "other-secret" not in repr(changes)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('# api_key = "Zx9-old"  # until May', f'# api_key = "{MASK}"  # until May'),
        ("  token='x'", f"  token='{MASK}'"),
        ('{"api_key": "x"}', f'{{"api_key": "{MASK}"}}'),
        ("--2_token='x'", f"--2_token='{MASK}'"),
        pytest.param("w" * 1_000_000, "w" * 1_000_000, id="a long word is read once"),
        ('upstream_api_key_env = "KEY"', 'upstream_api_key_env = "KEY"'),
        ('default_model_id = "m"', 'default_model_id = "m"'),
    ],
)
def test_assignments_are_masked_wherever_they_stand(text: str, masked: str) -> None:
    assert Masker()(text) == masked


def test_settings_json(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"base_url": "https://x/api", "api_key": "Zx9-demo", "model": "m"}, indent=1))
    settings = load_settings(path)
    assert (settings.base_url, settings.model, settings.router_endpoint) == ("https://x/api", "m", None)
    assert [(p.kind, p.line, p.value) for p in settings.problems] == [("secret_in_file", 3, MASK)]
    assert "Zx9-demo" not in repr(settings)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [(b"{", "syntax"), (b"[1]", "syntax"), (b"\xff\xfe{", "encoding"), (b"[" * 100_000, "syntax")],
)
def test_bad_settings_json_is_a_problem(tmp_path: Path, raw: bytes, kind: str) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(raw)
    assert [p.kind for p in load_settings(path).problems] == [kind]
    assert load_settings(tmp_path / "none.json").problems[0].kind == "unreadable"
