"""Who decides whether changes are allowed: the flag, then the cluster's file, then the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtop.config.load import Loaded, load_bytes
from pdtop.operations.arming import Arming, arming_of, arming_of_verb

WRITABLE, READ_ONLY, SILENT = "[console]\nread_only = false\n", "[console]\nread_only = true\n", "[slo]\n"


def cluster(text: str) -> Loaded:
    return load_bytes(Path("prod.toml"), text.encode())


@pytest.mark.parametrize(
    ("flag", "file", "user", "expected"),
    [
        (True, READ_ONLY, READ_ONLY, Arming(False, "--write")),
        (False, WRITABLE, WRITABLE, Arming(True, "--read-only")),
        (None, WRITABLE, READ_ONLY, Arming(False, "prod.toml")),
        (None, READ_ONLY, WRITABLE, Arming(True, "prod.toml")),
        (None, SILENT, WRITABLE, Arming(False, "config.toml")),
        (None, SILENT, READ_ONLY, Arming(True, "config.toml")),
        (None, SILENT, SILENT, Arming(True)),
        (None, None, WRITABLE, Arming(False, "config.toml")),
        (None, None, None, Arming(True)),
        (None, "[console]\nread_only = 1\n", WRITABLE, Arming(False, "config.toml")),
        (None, "[console]\nread_only = false\n[x", None, Arming(True)),
    ],
)
def test_the_first_that_says_something(
    tmp_path: Path, flag: bool | None, file: str | None, user: str | None, expected: Arming
) -> None:
    path = tmp_path / "config.toml"
    if user is not None:
        path.write_text(user)
    assert arming_of(flag, cluster(file) if file is not None else None, path) == expected


def test_a_verb_is_a_deliberate_act_that_a_file_may_forbid() -> None:
    assert arming_of_verb(None, cluster(SILENT), None) == Arming(False, "command line")
    assert arming_of_verb(None, cluster(READ_ONLY), None) == Arming(True, "prod.toml")
    assert arming_of_verb(False, cluster(WRITABLE), None) == Arming(True, "--read-only")
