"""Play a story on a config file: others change it, an operator edits it, on a clock that the story owns.

The real watch and the real editing session run; only time, file events and the disk's failures are made.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import os
import shutil
import stat
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from pdtop.config.disk import Disk, target_of
from pdtop.config.edit import Edit, edit, typed_edit
from pdtop.config.load import Loaded, digest_of, load, reload, unreadable
from pdtop.config.save import EditSession, Outcome, Result
from pdtop.config.splice import CannotEdit
from pdtop.config.watch import ConfigWatch, Event

TICK_S = 0.1
SEEN_LIMIT_S = 10.0
SETTLE_TURNS = 30  # turns of the loop in which every task that can go on has gone on


class StoryClock:
    """Time that stands still until it is moved; :meth:`sleep` is what the product awaits."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = count()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._number), future))
        await future

    async def advance(self, to: float) -> None:
        """Move on to a time; whoever sleeps until then wakes in order, each at its own time."""
        await settle()
        while self._sleepers and self._sleepers[0][0] <= to:
            due, _, future = heapq.heappop(self._sleepers)
            if future.done():
                continue
            self.now = max(self.now, due)
            future.set_result(None)
            await settle()
        self.now = max(self.now, to)


async def settle() -> None:
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)


class StoryDisk(Disk):
    """The real disk, with permissions that hold for root too, a disk that can be full, and a witness."""

    def __init__(self, watched: Path) -> None:
        self.full = False
        self.watched = watched
        self.contents: list[bytes | None] = []  # of the file, after each step of a save

    def allowed(self, path: Path, bit: int) -> bool:
        """Whether the owner, as a normal user, may; ``bit`` is one of stat.S_IRUSR and S_IWUSR."""
        return not path.exists() or bool(path.stat().st_mode & bit)

    def read(self, path: Path) -> bytes:
        if not self.allowed(path, stat.S_IRUSR):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return super().read(path)

    def writable(self, path: Path) -> bool:
        return self.allowed(path, stat.S_IWUSR) and super().writable(path)

    def create(self, path: Path) -> int:
        self._need_folder(path)
        try:
            return super().create(path)
        finally:
            self._witness()

    def write(self, descriptor: int, data: bytes) -> None:
        if self.full:
            os.write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(descriptor, data)
        self._witness()

    def replace(self, new: Path, old: Path) -> None:
        self._need_folder(old)
        super().replace(new, old)
        self._witness()

    def _need_folder(self, path: Path) -> None:
        if not self.writable(path.parent):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _witness(self) -> None:
        target = target_of(self.watched)
        self.contents.append(target.read_bytes() if target.exists() else None)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the console shows at a time."""

    at: float
    active: Loaded
    problems: tuple[str, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GoodChange:
    """Someone else put a good content with this digest there; ``until`` the next step of the kind."""

    at: float
    digest: str
    until: float


@dataclass(slots=True)
class Story:
    """One play. ``given`` is a case's input, ``files`` the folder of its files, ``root`` an empty one."""

    given: Mapping[str, object]
    files: Path
    root: Path
    clock: StoryClock = field(default_factory=StoryClock)
    samples: list[Sample] = field(default_factory=list)
    events: list[tuple[float, Event]] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)  # of edit, save and confirm
    edit_word: str = ""
    edit_text: str = ""
    saved: Result | None = None
    confirmed: Result | None = None
    changes: list[tuple[float, str | None]] = field(default_factory=list)  # digest of a good content
    made: set[str] = field(default_factory=set)  # files that steps made
    at_start: set[str] = field(default_factory=set)
    before_edit: bytes | None = None
    session: EditSession | None = None
    send_events: bool = True
    watch: ConfigWatch = field(init=False)
    disk: StoryDisk = field(init=False)
    stirred: asyncio.Event = field(init=False)

    @property
    def path(self) -> Path:
        return self.root / str(self.given["file"])

    def set_up(self) -> None:
        """The steps before the console starts."""
        self.disk = StoryDisk(self.path)
        for step in _steps(self.given.get("setup", [])):
            self.by_someone(step)
        self.at_start = listing(self.root)
        self.made.clear()
        self.changes.clear()

    async def play(self, stops: Sequence[float] = ()) -> None:
        """All steps, then on until everything has been seen and all ``stops`` (times) have passed."""
        self.stirred = asyncio.Event()
        self.watch = ConfigWatch(
            self.read_first(),
            clock=self.clock,
            sleep=self.clock.sleep,
            read=self.read_again,
            file_events=self.file_events,
        )
        follower = asyncio.create_task(self.follow())
        try:
            await settle()
            self.sample()
            for step in _steps(self.given.get("steps", [])):
                await self.step(step)
            await self.until_seen()
            await self.advance(max([self.clock.now + 2.0, *stops]))
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    async def follow(self) -> None:
        async with aclosing(self.watch.events()) as events:
            async for event in events:
                self.events.append((self.clock.now, event))
                self.sample()

    async def step(self, step: Mapping[str, object]) -> None:
        at = step.get("at")
        if isinstance(at, int | float):
            await self.advance(float(at))
        do = step["do"]
        if do == "edit":
            self.operator_edits(_steps(step.get("edits", [])))
        elif do == "save":
            self.operator_saves()
        elif do == "confirm":
            self.operator_confirms()
        else:
            self.by_someone(step)
        await settle()
        self.sample()
        if at is None:
            await self.until_seen()

    async def advance(self, to: float) -> None:
        while self.clock.now < to - 1e-9:
            await self.clock.advance(min(to, self.clock.now + TICK_S))
            self.sample()

    async def until_seen(self) -> None:
        """On until the watch has read what is in the file now and has decided about it."""
        limit = self.clock.now + SEEN_LIMIT_S
        while self.clock.now < limit:
            await settle()
            if self.watch.idle and self.watch.seen.digest == self.digest():
                return
            await self.advance(self.clock.now + TICK_S)
        raise AssertionError("the product did not see the last step")

    def sample(self) -> None:
        problems = tuple(p.text for p in self.watch.problems)
        self.samples.append(Sample(self.clock.now, self.watch.active, problems, self.watch.notices()))

    def at(self, time: float) -> Sample:
        """What was shown at a time: the last sample up to it."""
        return [s for s in self.samples if s.at <= time + 1e-9][-1]

    # What the product is given in place of real time and real failures

    def read_first(self) -> Loaded:
        try:
            self.disk.read(self.path)
        except OSError as error:
            return Loaded(self.path, None, (unreadable(self.path, error),), digest_of(b""))
        return load(self.path)

    async def read_again(self, last: Loaded) -> Loaded:
        if self.disk.allowed(self.path, stat.S_IRUSR):
            return reload(last)
        return self.read_first()

    async def file_events(self, _: Path) -> AsyncIterator[object]:
        while True:
            await self.stirred.wait()
            self.stirred.clear()
            yield None

    def stir(self) -> None:
        if self.send_events and hasattr(self, "stirred"):
            self.stirred.set()

    def digest(self) -> str:
        try:
            return digest_of(self.disk.read(self.path))
        except OSError:
            return digest_of(b"")

    def content(self) -> bytes | None:
        """Content of the file behind all links."""
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    # What the operator does

    def operator_edits(self, edits: Sequence[Mapping[str, object]]) -> None:
        if self.before_edit is None:
            self.before_edit = self.content()
        if self.session is None or not self.session.edits:
            self.session = EditSession(self.path, disk=self.disk)
        blocked, broken = self.session.blocked, self.session.broken
        if blocked is not None:
            self.edit_word, self.edit_text = "read_only", blocked
        if broken is not None:
            self.edit_word, self.edit_text = "refused", broken
        if not edits:
            return
        try:
            result = self.session.stage([as_edit(one) for one in edits])
        except CannotEdit as error:
            result = Result(Outcome.REFUSED, str(error))
        self.results.append(result)
        if result.outcome is Outcome.REFUSED:
            self.edit_word, self.edit_text = "refused", result.text

    def operator_saves(self) -> None:
        if self.session is None or not self.session.edits:
            return  # the edit was refused: nothing is pending
        self.saved = self.session.save()
        self.results.append(self.saved)
        self.stir()

    def operator_confirms(self) -> None:
        if self.session is None:
            return
        self.confirmed = self.session.confirm()
        self.results.append(self.confirmed)
        self.stir()

    # What others do

    def by_someone(self, step: Mapping[str, object]) -> None:
        before = listing(self.root)
        path = self.root / str(step.get("path", "."))
        match step["do"]:
            case "disk_full":
                self.disk.full = True
            case "no_events":
                self.send_events = False
            case "umask":
                os.umask(int(str(step["mode"]), 8))
            case "chmod":
                path.chmod(int(str(step["mode"]), 8))
            case _:
                with unlocked(path.parent):
                    self.change_files(step, path)
        self.made |= listing(self.root) - before
        self.stir()
        loaded = load(self.path)
        self.changes.append((self.clock.now, loaded.digest if loaded.ok else None))

    def change_files(self, step: Mapping[str, object], path: Path) -> None:
        match step["do"]:
            case "mkdir":
                path.mkdir(parents=True, exist_ok=True)
            case "put":
                shutil.copyfile(self.files / str(step["from"]), path)
                if "mode" in step:
                    path.chmod(int(str(step["mode"]), 8))
            case "symlink":
                new = path.with_name(path.name + ".new-link")
                new.symlink_to(str(step["to"]))
                new.replace(path)
            case "truncate":
                path.write_bytes(b"")
            case "rename":
                path.replace(self.root / str(step["to"]))
            case "remove" if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            case "remove":
                path.unlink()
            case "write":
                times = path.stat() if path.exists() else None
                self.write(
                    path, (self.files / str(step["from"])).read_bytes(), str(step.get("how", "in_place"))
                )
                if step.get("keep_mtime") and times is not None:
                    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            case other:  # pragma: no cover - the vocabulary is closed
                raise AssertionError(f"unknown step {other!r}")

    def write(self, path: Path, data: bytes, how: str) -> None:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        match how:
            case "in_place":
                path.write_bytes(data)
            case "rename":
                new = path.with_name(f".{path.name}.swp")
                new.write_bytes(data)
                if mode is not None:
                    new.chmod(mode)
                new.replace(path)
            case "backup":
                path.replace(path.with_name(path.name + "~"))
                self.stir()
                path.write_bytes(data)
                if mode is not None:
                    path.chmod(mode)

    def good_changes(self) -> Iterator[GoodChange]:
        """Good contents that were put there, each with how long it stood."""
        last: str | None = self.samples[0].active.digest
        for index, (at, digest) in enumerate(self.changes):
            until = self.changes[index + 1][0] if index + 1 < len(self.changes) else float("inf")
            if digest is not None and digest != last:
                yield GoodChange(at, digest, until)
            last = digest if digest is not None else last


def as_edit(one: Mapping[str, object]) -> Edit:
    """An edit of a case as the product's."""
    path = one.get("path")
    key = [str(part) for part in path] if isinstance(path, list) else str(one["key"])
    match one["op"]:
        case "append":
            op: Literal["set", "append", "remove"] = "append"
        case "remove":
            op = "remove"
        case _:
            op = "set"
    if "value_toml" in one:
        return typed_edit(op, key, str(one["value_toml"]))
    return edit(op, key, one.get("value"))


def listing(root: Path) -> set[str]:
    """Every file and link below a folder, relative to it."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or not path.is_dir()}


@contextmanager
def unlocked(folder: Path) -> Iterator[None]:
    """Others may write where the operator may not."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(mode | stat.S_IRWXU)
    try:
        yield
    finally:
        if folder.exists():
            folder.chmod(mode)


def _steps(value: object) -> list[Mapping[str, object]]:
    assert isinstance(value, list)
    return value
