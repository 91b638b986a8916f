"""Own writes are told from others' by what was noted last, whatever contents come back."""

from __future__ import annotations

from pdtop.operations.known_file import Edited, KnownFile
from tests.operations.scenes import CONFIG, loaded

A, B, C = (loaded(CONFIG.replace("0.30", value)) for value in ("0.30", "0.40", "0.50"))
BROKEN = loaded("[prefill]\ncache_aware_threshold = 30\n")


def keys(edited: Edited | None) -> list[str]:
    return [change.text for change in edited.changes] if edited is not None else []


def test_an_own_write_is_nobody_elses() -> None:
    known = KnownFile(A)
    assert known.wrote(A, B) is None
    assert known.found(B) is None
    assert keys(known.found(A)) == ["prefill.cache_aware_threshold: 0.4 → 0.3"]
    assert keys(known.found(B)) == ["prefill.cache_aware_threshold: 0.3 → 0.4"]
    assert known.others == 2


def test_what_others_wrote_before_ours_is_told_with_it() -> None:
    known = KnownFile(A)
    edited = known.wrote(B, C)
    assert keys(edited) == ["prefill.cache_aware_threshold: 0.3 → 0.4"]
    assert edited is not None
    assert (edited.before, edited.config_before, edited.config) == (A, A.config, B.config)
    assert "+cache_aware_threshold = 0.40" in edited.diff
    assert known.found(C) is None
    assert known.config == C.config


def test_whether_all_since_was_ours() -> None:
    known = KnownFile(A)
    known.wrote(A, B)
    assert known.all_ours(0) == B.digest
    known.found(C)
    assert known.all_ours(0) == ""
    assert known.all_ours(1) == C.digest


def test_a_broken_file_changes_nothing() -> None:
    known = KnownFile(A)
    assert known.found(BROKEN) is None
    assert known.wrote(BROKEN, B) is None
    assert known.loaded == B
    assert KnownFile(BROKEN).loaded is None
    first = KnownFile(BROKEN).found(A)
    assert first is not None
    assert (first.config_before, first.diff) == (None, "")
    assert "prefill.workers" in keys(first)[0]


def test_a_comment_is_a_change_without_values() -> None:
    edited = KnownFile(A).found(loaded("# night shift\n" + CONFIG))
    assert edited is not None
    assert edited.changes == ()
    assert "+# night shift" in edited.diff


def test_who_follows_the_file_may_be_behind() -> None:
    known = KnownFile(A)
    assert not known.may_be_behind(A)
    assert not known.may_be_behind(None)
    known.wrote(A, B)
    assert known.may_be_behind(A)
