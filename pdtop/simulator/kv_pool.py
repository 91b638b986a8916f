"""KV memory of a prefill worker with a prefix cache in it: pinned, evictable and loose token slots."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from zlib import crc32

from pdtop.simulator.engine import BLOCK_TOKENS

#: Characters that count as one token: the simulator has no tokenizer.
CHARS_PER_TOKEN = 4

_BLOCK_CHARS = BLOCK_TOKENS * CHARS_PER_TOKEN


def token_count(text: str) -> int:
    return max(1, -(-len(text) // CHARS_PER_TOKEN))


def prefix_blocks(text: str) -> tuple[int, ...]:
    """Chained hashes of the whole blocks of a prompt: equal as long as everything before is equal."""
    blocks: list[int] = []
    value = 0
    for start in range(0, len(text) - _BLOCK_CHARS + 1, _BLOCK_CHARS):
        value = crc32(text[start : start + _BLOCK_CHARS].encode(), value)
        blocks.append(value)
    return tuple(blocks)


@dataclass(frozen=True, slots=True)
class Hold:
    """KV slots that one request keeps: its blocks and the tail that fills no block."""

    blocks: tuple[int, ...]
    tail: int
    hit_tokens: int


class KvPool:
    """``used + evictable + available = capacity``, in tokens, always."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._pins: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # oldest use first
        self._loose = 0
        self.evicted_tokens = 0

    @property
    def used(self) -> int:
        return len(self._pins) * BLOCK_TOKENS + self._loose

    @property
    def evictable(self) -> int:
        return len(self._idle) * BLOCK_TOKENS

    def hits(self, blocks: tuple[int, ...]) -> int:
        """Blocks at the start of ``blocks`` that are here."""
        for index, block in enumerate(blocks):
            if block not in self._pins and block not in self._idle:
                return index
        return len(blocks)

    def uncached(self, blocks: tuple[int, ...], tokens: int) -> int:
        """Prompt tokens that must be computed; the last token always is."""
        return max(1, tokens - self.hits(blocks) * BLOCK_TOKENS)

    def take(self, blocks: tuple[int, ...], tokens: int) -> Hold | None:
        """Pin the prompt, evicting what nobody uses; None if there is no room for it."""
        hits = self.hits(blocks)
        tail = tokens - len(blocks) * BLOCK_TOKENS
        fresh = sum(1 for b in blocks if b not in self._pins)  # an idle block becomes used too
        if self.used + fresh * BLOCK_TOKENS + tail > self.capacity:
            return None
        for block in blocks:
            self._idle.pop(block, None)
            self._pins[block] = self._pins.get(block, 0) + 1
        self._loose += tail
        self._make_room()
        return Hold(blocks, tail, min(hits * BLOCK_TOKENS, tokens - 1))

    def release(self, hold: Hold) -> None:
        """Unpin; the blocks stay as cache until their room is needed."""
        for block in hold.blocks:
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
                self._idle[block] = None
        self._loose -= hold.tail

    def flush(self) -> None:
        self._idle.clear()

    def _make_room(self) -> None:
        while self.used + self.evictable > self.capacity:
            self._idle.popitem(last=False)
            self.evicted_tokens += BLOCK_TOKENS
