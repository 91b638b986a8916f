"""What is said of two versions of the settings."""

from __future__ import annotations

from pdtop.config.changes import config_changes
from pdtop.config.schema import Config


def test_a_table_that_comes_brings_only_what_is_set_in_it() -> None:
    before = Config.model_validate({"decode": {"workers": ["a:1"]}})
    after = Config.model_validate({"decode": {"workers": ["a:1"], "worker": {"a:1": {"drain": True}}}})
    assert [change.text for change in config_changes(before, after)] == [
        'decode.worker."a:1".weight: not set → 1',
        'decode.worker."a:1".drain: not set → true',
    ]
