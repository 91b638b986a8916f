"""Who decides whether changes are allowed: the flag, then the cluster's file, then the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtop.operations.arming import Arming, arming_of, arming_of_verb
from tests.operations.scenes import CONFIG, loaded

SAYS = {True: "[console]\nread_only = true\n", False: "[console]\nread_only = false\n", None: ""}


@pytest.mark.parametrize(
    ("flag", "cluster", "own", "read_only", "by"),
    [
        (True, True, True, False, "--write"),
        (False, False, False, True, "--read-only"),
        (None, False, True, False, "config.toml"),
        (None, True, False, True, "config.toml"),
        (None, None, False, False, "own.toml"),
        (None, None, True, True, "own.toml"),
        (None, None, None, True, ""),
    ],
)
def test_the_first_that_says_something_decides(
    tmp_path: Path, flag: bool | None, cluster: bool | None, own: bool | None, read_only: bool, by: str
) -> None:
    user = tmp_path / "own.toml"
    user.write_text(SAYS[own])
    file = loaded(CONFIG + SAYS[cluster])
    assert arming_of(flag, file, user) == Arming(read_only, by)
    expected = Arming(read_only, by) if by else Arming(False, "command line")
    assert arming_of_verb(flag, file, user) == expected


def test_without_any_file_a_verb_may_change_and_a_console_may_not(tmp_path: Path) -> None:
    assert arming_of(None, None, tmp_path / "none.toml").read_only
    assert not arming_of_verb(None, None, None).read_only
