"""The prefix tree: what it holds, how it forgets, how much it may cost."""

from __future__ import annotations

import sys

import pytest

from pdtop.gateway.prefixes import BLOCK_CHARS, LONGEST_CHARS, MOST_BLOCKS, PrefixTree, block_names


def text(*parts: str) -> str:
    """Each part fills one block."""
    return "".join(part * BLOCK_CHARS for part in parts)


@pytest.mark.parametrize(
    ("prompt", "share"),
    [
        (text("a", "b", "c", "d"), 1.0),
        (text("a", "b", "x", "d"), 0.5),  # what comes after the first difference does not count
        (text("x", "b", "c", "d"), 0.0),
        (text("a"), 1.0),
        (text("a", "b", "c", "d", "e", "f", "g", "h"), 0.5),
        ("", 0.0),
    ],
)
def test_matched_share(prompt: str, share: float) -> None:
    tree = PrefixTree()
    tree.add(block_names(text("a", "b", "c", "d")))
    assert tree.matched(block_names(prompt)) == share


def test_a_short_last_block_is_one_of_its_own() -> None:
    tree = PrefixTree()
    tree.add(block_names(text("a") + "tail"))
    assert tree.matched(block_names(text("a") + "tail")) == 1.0
    assert tree.matched(block_names(text("a") + "tailor")) == 0.5


def test_only_the_start_of_a_long_prompt_is_looked_at() -> None:
    assert len(block_names("x" * (2 * LONGEST_CHARS))) == LONGEST_CHARS // BLOCK_CHARS
    assert block_names("x" * LONGEST_CHARS) == block_names("x" * LONGEST_CHARS + "y")


def test_the_oldest_leaves_go_first_and_no_block_outlives_its_parents() -> None:
    tree = PrefixTree(most=6)
    old, young = block_names(text("a", "b", "c", "d")), block_names(text("x", "y", "z"))
    tree.add(old)
    tree.add(young)
    assert len(tree) == 6
    assert tree.matched(old) == 0.75
    assert tree.matched(young) == 1.0
    tree.add(old)  # used again: now the other one is old
    assert tree.matched(old) == 1.0
    assert tree.matched(young) == pytest.approx(2 / 3)


def test_a_prompt_longer_than_the_tree_keeps_its_start() -> None:
    tree = PrefixTree(most=3)
    names = block_names(text("a", "b", "c", "d", "e"))
    tree.add(names)
    assert len(tree) == 3
    assert tree.matched(names) == 0.6


def test_memory_is_bounded() -> None:
    tree = PrefixTree()
    for start in range(0, 3 * MOST_BLOCKS, 512):
        tree.add(range(start, start + 512))
    assert len(tree) == MOST_BLOCKS
    assert sys.getsizeof(tree._blocks) < 12 * 2**20


def test_cleared_is_empty() -> None:
    tree = PrefixTree()
    tree.add(block_names("x"))
    tree.clear()
    assert tree.matched(block_names("x")) == 0.0
