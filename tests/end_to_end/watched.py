"""A cluster of stub servers, watched by the real poller and board in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest

from pdtop.cluster.board import Board
from pdtop.cluster.http import BearerKey
from pdtop.cluster.model import Snapshot
from pdtop.cluster.poller import Poller
from pdtop.cluster.targets import PollSettings, Targets, from_lists, from_router
from tests.cluster.story import histogram, page
from tests.cluster.stub_server import Answering, Reply, Request, StubServer
from tests.cluster.virtual_time import run

T = TypeVar("T")
BEGAN = 1000.0  # the loop's clock at the start
PageAt = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Watched:
    """What runs. ``prefill`` and ``decode`` are the stubs of the workers, in order."""

    board: Board
    prefill: list[StubServer]
    decode: list[StubServer]

    def snapshot(self, window_s: float = 10.0) -> Snapshot:
        return self.board.snapshot(asyncio.get_running_loop().time(), 0.0, window_s)


def worker(metrics: Reply | PageAt) -> Callable[[Request], Reply]:
    """A worker that is ready and has a metrics page, which may depend on the seconds since the start."""

    def answer(request: Request) -> Reply:
        if request.route != "/metrics":
            return Reply() if request.route == "/ready" else Reply(404)
        match metrics:
            case Reply():
                return metrics
            case text_at:
                return Reply(body=text_at(request.at - BEGAN).encode())

    return answer


def steady(running: float = 5.0, per_s: float = 100.0) -> PageAt:
    """A healthy worker of either role: so many run, tokens and first tokens come at a steady rate."""

    def text(at: float) -> str:
        done = round(at * 10)
        return page(
            num_running_reqs=running,
            num_queue_reqs=2,
            num_decode_prealloc_queue_reqs=0,
            num_decode_transfer_queue_reqs=1,
            num_prefill_bootstrap_queue_reqs=0,
            num_prefill_inflight_queue_reqs=0,
            token_usage=0.4,
            generation_tokens_total=at * per_s,
            prompt_tokens_total=at * per_s,
        ) + histogram("time_to_first_token_seconds", [0, done, done, done, done], done * 0.15)

    return text


def watch(
    act: Callable[[Watched], Awaitable[T]],
    prefill: Sequence[Answering] = (),
    decode: Sequence[Answering] = (),
    *,
    settings: PollSettings | None = None,
) -> T:
    """Watch these workers while ``act`` runs; what it gives."""

    return run(watching(act, prefill, decode, listed, settings))


def listed(prefill: Sequence[StubServer], decode: Sequence[StubServer]) -> Targets:
    """These workers and no router."""
    return from_lists([s.url for s in prefill], [s.url for s in decode], environ={})


def watch_router(
    act: Callable[[Watched], Awaitable[T]], router: Answering, *, settings: PollSettings | None = None
) -> T:
    """Watch what this router lists."""
    return run(watching(act, [router], [], lambda one, _: from_router(one[0].url, environ={}), settings))


async def watching(
    act: Callable[[Watched], Awaitable[T]],
    first: Sequence[Answering],
    second: Sequence[Answering],
    targets_of: Callable[[list[StubServer], list[StubServer]], Targets] = listed,
    settings: PollSettings | None = None,
) -> T:
    """The same on the running loop, so in its time."""
    async with AsyncExitStack() as stack:
        one = [await stack.enter_async_context(StubServer(answer)) for answer in first]
        other = [await stack.enter_async_context(StubServer(answer)) for answer in second]
        targets = replace(targets_of(one, other), settings=settings or PollSettings())
        board = Board()
        board.routers_changed(targets.routers)
        polling = asyncio.create_task(Poller(targets, board, seed=3).run())
        try:
            return await act(Watched(board, one, other))
        finally:
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling


def with_key(text: str) -> PollSettings:
    return PollSettings(key=BearerKey(text, "PDTOP_API_KEY"))
