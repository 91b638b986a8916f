"""The KV pool: what is cached is not computed again, and every slot is accounted for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdtop.simulator.engine import BLOCK_TOKENS
from pdtop.simulator.kv_pool import CHARS_PER_TOKEN, Hold, KvPool, prefix_blocks, token_count

BLOCK = "x" * BLOCK_TOKENS * CHARS_PER_TOKEN


def test_blocks_are_equal_as_far_as_the_prompts_are() -> None:
    one = prefix_blocks(BLOCK * 2 + "tail")
    other = prefix_blocks(BLOCK + "y" * len(BLOCK))
    assert len(one) == 2
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_a_block_means_all_that_came_before_it() -> None:
    assert prefix_blocks("a" + BLOCK + BLOCK)[1] != prefix_blocks("b" + BLOCK + BLOCK)[1]


def test_a_prompt_has_at_least_one_token() -> None:
    assert [token_count(text) for text in ("", "abc", "abcd", "abcde")] == [1, 1, 1, 2]


def test_the_second_request_finds_the_first_ones_blocks() -> None:
    pool = KvPool(1000)
    blocks = (1, 2, 3)
    assert pool.uncached(blocks, 200) == 200
    first = pool.take(blocks, 200)
    assert first is not None and first.hit_tokens == 0
    assert pool.used == 200
    pool.release(first)
    assert (pool.used, pool.evictable) == (0, 192)
    assert pool.uncached(blocks, 200) == 8
    assert pool.uncached((1, 2, 9), 200) == 72


def test_the_last_token_is_always_computed() -> None:
    pool = KvPool(1000)
    hold = pool.take((1, 2), 128)
    assert hold is not None
    pool.release(hold)
    assert pool.uncached((1, 2), 128) == 1


def test_no_room_takes_nothing() -> None:
    pool = KvPool(200)
    first = pool.take((1, 2), 150)
    assert first is not None
    assert pool.take((3,), 64) is None
    assert pool.used == 150


def test_the_oldest_unused_block_is_evicted_first() -> None:
    pool = KvPool(3 * BLOCK_TOKENS)
    for block in (1, 2, 3):
        hold = pool.take((block,), BLOCK_TOKENS)
        assert hold is not None
        pool.release(hold)
    again = pool.take((1,), BLOCK_TOKENS)  # 1 is fresh again
    assert again is not None
    pool.release(again)
    fourth = pool.take((4,), BLOCK_TOKENS)
    assert fourth is not None
    assert [pool.hits((b,)) for b in (1, 2, 3, 4)] == [1, 0, 1, 1]
    assert pool.evicted_tokens == BLOCK_TOKENS


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 12), max_size=5, unique=True), st.integers(0, 63), st.booleans()),
        max_size=40,
    )
)
def test_slots_always_add_up(steps: list[tuple[list[int], int, bool]]) -> None:
    pool = KvPool(8 * BLOCK_TOKENS)
    held: list[Hold] = []
    for blocks, tail, give_back in steps:
        hold = pool.take(tuple(blocks), len(blocks) * BLOCK_TOKENS + tail)
        if hold is not None:
            held.append(hold)
        if give_back and held:
            pool.release(held.pop(0))
        assert pool.used >= 0
        assert pool.used + pool.evictable <= pool.capacity
    for hold in held:
        pool.release(hold)
    assert pool.used == 0
