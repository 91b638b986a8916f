"""What a worker's prefix cache is thought to hold: an approximate prefix tree over text, in bounded memory.

A prompt is cut into blocks; a block's name is the hash of its text and of all before it, so a set of names is
a tree of prefixes. What is used moves to the young end, the deepest block first, so that a block never
outlives its parents when the old end is cut off.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

#: Characters of a block: matches are found in steps of it.
BLOCK_CHARS = 64

#: Characters at the start of a prompt that are looked at: 512 blocks.
LONGEST_CHARS = 32_768

#: Blocks that are remembered of one worker: 4 million characters, about 8 MB.
MOST_BLOCKS = 65_536


def block_names(prompt: str) -> tuple[int, ...]:
    """The names of a prompt's blocks, the first first; the last one may be short."""
    names = []
    before = 0
    for start in range(0, min(len(prompt), LONGEST_CHARS), BLOCK_CHARS):
        before = hash((before, prompt[start : start + BLOCK_CHARS]))
        names.append(before)
    return tuple(names)


class PrefixTree:
    """See the module."""

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._most = most
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def matched(self, names: Sequence[int]) -> float:
        """The share (0..1) of the blocks that are held from the start on; 0 for no blocks."""
        held = 0
        for name in names:
            if name not in self._blocks:
                break
            held += 1
        return held / len(names) if names else 0.0

    def add(self, names: Sequence[int]) -> None:
        """The worker has seen this prompt."""
        for name in reversed(names):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """The worker's cache is gone, as after a restart."""
        self._blocks.clear()
