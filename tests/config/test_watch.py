"""Watching: what counts as a change and when; real file events and made ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from pdtop.config.load import Loaded, load, load_bytes
from pdtop.config.watch import (
    BAD_AFTER_S,
    DEBOUNCE_S,
    NOTICE_S,
    Accepted,
    ConfigWatch,
    Event,
    Observer,
    Rejected,
    Restored,
    folder_events,
    link_chain,
)
from tests.config.story import StoryClock, settle

FILE = Path("config.toml")
GOOD = b"[health]\ninterval_secs = 5\n"
NEW = b"[health]\ninterval_secs = 6\n"
COMMENTED = b"# why\n" + GOOD
BAD = b"[health]\ninterval_secs = 0\n"
HALF = b"[health]\ninterv"
LIMIT_S = 20  # for a test that waits for the kernel; never reached


def seen(raw: bytes) -> Loaded:
    return load_bytes(FILE, raw)


@pytest.mark.parametrize(
    ("story", "events"),
    [
        pytest.param([(0.0, GOOD), (9.0, GOOD)], [], id="nothing new"),
        pytest.param([(0.0, NEW), (0.4, NEW)], [], id="not yet"),
        pytest.param([(0.0, NEW), (0.5, NEW)], [(0.5, Accepted)], id="stood still"),
        pytest.param([(0.0, NEW), (0.3, GOOD), (0.6, NEW), (1.0, NEW)], [], id="there, back, there"),
        pytest.param([(0.0, b""), (0.2, HALF), (0.4, NEW), (0.9, NEW)], [(0.9, Accepted)], id="half written"),
        pytest.param([(0.0, BAD), (0.9, BAD), (1.0, BAD)], [(1.0, Rejected)], id="bad"),
        pytest.param([(0.0, BAD), (1.0, BAD), (2.0, BAD)], [(1.0, Rejected)], id="said once"),
        pytest.param(
            [(0.0, BAD), (1.0, BAD), (2.0, GOOD), (2.5, GOOD)],
            [(1.0, Rejected), (2.5, Restored)],
            id="put back",
        ),
        pytest.param(
            [(0.0, BAD), (1.0, BAD), (2.0, NEW), (2.5, NEW)], [(1.0, Rejected), (2.5, Accepted)], id="fixed"
        ),
        pytest.param(
            [(0.0, BAD), (1.0, BAD), (2.0, HALF), (3.0, HALF)],
            [(1.0, Rejected), (3.0, Rejected)],
            id="another error",
        ),
    ],
)
def test_when_content_counts(
    story: list[tuple[float, bytes]], events: list[tuple[float, type[Event]]]
) -> None:
    observer = Observer(seen(GOOD))
    found = [(at, observer.observe(at, seen(raw))) for at, raw in story]
    assert [(at, type(event)) for at, event in found if event is not None] == events
    good = [event.loaded.raw for _, event in found if isinstance(event, Accepted)]
    assert observer.active.raw == (good[-1] if good else GOOD)


def test_the_error_stays_until_it_is_fixed() -> None:
    observer = Observer(seen(GOOD))
    observer.observe(0.0, seen(BAD))
    observer.observe(BAD_AFTER_S, seen(BAD))
    assert [p.line for p in observer.problems] == [2]
    observer.observe(5.0, seen(NEW))
    assert observer.problems
    observer.observe(5.0 + DEBOUNCE_S, seen(NEW))
    assert observer.problems == ()


def test_accepted_tells_what_changed_and_comments_change_nothing() -> None:
    observer = Observer(seen(GOOD))
    observer.observe(0.0, seen(COMMENTED))
    comment = observer.observe(1.0, seen(COMMENTED))
    assert isinstance(comment, Accepted)
    assert comment.changes == ()
    observer.observe(2.0, seen(NEW))
    event = observer.observe(3.0, seen(NEW))
    assert isinstance(event, Accepted)
    assert [(c.key, c.before, c.after) for c in event.changes] == [("health.interval_secs", 5, 6)]
    assert event.text == "config.toml read again: health.interval_secs: 5 → 6"


def test_a_missing_file_is_not_an_empty_one(tmp_path: Path) -> None:
    observer = Observer(seen(GOOD))
    missing = load(tmp_path / "config.toml")
    observer.observe(0.0, seen(b""))
    observer.observe(0.9, missing)
    assert observer.observe(1.5, missing) is None
    event = observer.observe(1.9, missing)
    assert isinstance(event, Rejected)
    assert "missing" in event.text
    assert "last good settings stay" in event.text


def test_a_console_that_starts_on_a_broken_file_gets_the_fixed_one() -> None:
    observer = Observer(seen(BAD))
    assert observer.problems
    observer.observe(0.0, seen(NEW))
    assert isinstance(observer.observe(1.0, seen(NEW)), Accepted)
    assert observer.active.ok


class NoEvents(AsyncIterator[object]):
    """A system without a free inotify watch."""

    def __init__(self, _: Path) -> None:
        pass

    async def __anext__(self) -> object:
        raise OSError("inotify watch limit reached")


async def test_without_file_events_the_slow_poll_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(GOOD)
    clock = StoryClock()
    watch = ConfigWatch(load(path), clock=clock, sleep=clock.sleep, read=read_at_once, file_events=NoEvents)
    events: list[tuple[float, Event]] = []

    async def follow() -> None:
        async with aclosing(watch.events()) as stream:
            async for event in stream:
                events.append((clock.now, event))

    follower = asyncio.create_task(follow())
    await clock.advance(0.5)
    path.write_bytes(NEW)
    await clock.advance(3.0)
    assert [(at, type(event)) for at, event in events] == [(1.5, Accepted)]
    assert watch.idle
    assert "read again" in watch.notices()[0]
    await clock.advance(1.5 + NOTICE_S)
    assert watch.notices() == ()
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    await settle()


async def read_at_once(last: Loaded) -> Loaded:
    return load(last.path)


async def test_real_saves_by_rename_are_seen_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(GOOD)
    watch = ConfigWatch(load(path))
    async with aclosing(watch.events()) as events:
        first = asyncio.ensure_future(anext(events))
        for raw, interval in ((NEW, 6), (GOOD, 5), (NEW, 6)):
            new = tmp_path / ".config.toml.swp"
            new.write_bytes(raw)
            new.replace(path)
            event = await asyncio.wait_for(first, LIMIT_S)
            assert isinstance(event, Accepted)
            assert event.changes[0].after == interval
            first = asyncio.ensure_future(anext(events))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_real_events_follow_a_configmap_swap(tmp_path: Path) -> None:
    """Kubernetes: config.toml → ..data/config.toml, and ..data is swapped to another folder."""
    for name, raw in (("..1", GOOD), ("..2", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_bytes(raw)
    (tmp_path / "..data").symlink_to("..1")
    path = tmp_path / "config.toml"
    path.symlink_to("..data/config.toml")
    async with aclosing(folder_events(path)) as events:
        waiting = asyncio.ensure_future(anext(events))
        while not waiting.done():
            (tmp_path / "..new").symlink_to("..2")
            (tmp_path / "..new").replace(tmp_path / "..data")
            await asyncio.wait((waiting,), timeout=0.2)
    assert load(path).raw == NEW
    assert link_chain(path)[-1] == tmp_path / "..2" / "config.toml"


def test_the_way_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "etc").mkdir()
    target = tmp_path / "repo" / "router.toml"
    target.write_bytes(GOOD)
    link = tmp_path / "etc" / "config.toml"
    link.symlink_to("../repo/router.toml")
    assert link_chain(link) == (link, target)
    assert link_chain(target) == (target,)
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    assert link_chain(loop)[-1] == loop
