"""Changes that wait for a restart and former workers are remembered from console to console."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtop.config.changes import Change
from pdtop.config.schema import Config
from pdtop.operations.memory import NAME, Memory, keep, merged, recall
from pdtop.operations.state import StateFolder
from tests.operations.scenes import CONFIG, D1, D2, D3, P1, P2, loaded

TWO = {"r1": "smg", "r2": "pdtop"}


def config(text: str = CONFIG) -> Config:
    found = loaded(text).config
    assert found is not None
    return found


def test_only_routers_that_need_a_restart_wait() -> None:
    before, after = config(), config(CONFIG.replace("power_of_two", "round_robin"))
    memory = Memory().changed(before, after, TWO)
    assert memory.named == {P1, P2, D1, D2, D3}
    assert [(router, [c.key for c in changes]) for router, changes in memory.waiting.items()] == [
        ("r1", ["decode.policy"])
    ]
    assert [change.text for change in memory.changes] == ['decode.policy: "power_of_two" → "round_robin"']
    assert memory.restarted(["r2"]) == memory
    assert memory.restarted(["r1"]).changes == ()
    assert memory.changed(after, before, TWO).changes == ()  # as it was started
    assert memory.changed(after, before, {}).changes == memory.changes  # that router is not watched now


def test_a_file_of_which_the_former_is_not_known_only_names() -> None:
    memory = Memory(named=frozenset({"old:1"})).changed(None, config(), TWO)
    assert memory == Memory(named=frozenset({"old:1", P1, P2, D1, D2, D3}))


def test_of_one_key_the_newest_counts_from_what_it_was_at_first() -> None:
    first = [Change("a", 1, 2), Change("b", "x", None)]
    assert merged(first, [Change("a", 2, 3), Change("c", [1], (1, 2))]) == (
        Change("a", 1, 3),
        Change("b", "x", None),
        Change("c", [1], (1, 2)),
    )
    assert merged(first, [Change("a", 2, 1), Change("b", None, "x")]) == ()


def test_it_is_kept_for_the_next_console(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, "prod", router="http://r")
    assert recall(folder) == Memory()
    changes = (Change("decode.policy", "random", None), Change("prefill.workers", ["a"], ["a", "b"]))
    memory = Memory({"r1": changes}, frozenset({D1}))
    keep(folder, memory)
    assert recall(folder) == memory


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b'{"waiting": 3}', b'{"waiting": {"r": [1]}}', b'{"named": 3}']
)
def test_a_damaged_one_is_as_if_it_was_not_there(tmp_path: Path, raw: bytes) -> None:
    folder = StateFolder(tmp_path, "prod", router="http://r")
    folder.put(NAME, raw)
    assert recall(folder) == Memory()
