"""Cases of kind config: play the story on the product's watch and editing session, then look."""

from __future__ import annotations

import asyncio
import difflib
import os
import re
import socket
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from pathlib import Path

import pytest
from pydantic import BaseModel

from pdtop.cluster.targets import from_config
from pdtop.config import commands
from pdtop.config.keys import look_up, split_key, value_at
from pdtop.config.layout import scan
from pdtop.config.load import Loaded
from pdtop.config.save import Outcome, Result
from pdtop.config.schema import Config
from pdtop.config.settings import Settings, load_settings
from pdtop.config.watch import Accepted, Rejected
from tests.cases.values import Report, Seen
from tests.config.story import Sample, Story, listing

BOM = b"\xef\xbb\xbf"
SAVED = {
    Outcome.WRITTEN: "written",
    Outcome.UNCHANGED: "written",
    Outcome.ASKS: "asks",
    Outcome.REFUSED: "refused",
    Outcome.FAILED: "failed",
}
TRIED = {Outcome.REFUSED: "refused", Outcome.ASKS: "warned"}


def run(case: Mapping[str, object], folder: Path, workplace: Path) -> None:
    """Play one case; raises AssertionError with everything that differs."""
    given, expect = case["input"], case["expect"]
    assert isinstance(given, Mapping)
    assert isinstance(expect, Mapping)
    report = Report()
    with _surroundings() as connections:
        root = workplace / "story"
        play = Play(given, expect, folder, root)
        play.story.set_up()
        asyncio.run(play.story.play(sorted(_times(expect))))
        _Checks(play, connections, report).all()
        _Tries(given, expect, folder, workplace).check(report)
    report.raise_failures()


@contextmanager
def _surroundings() -> Iterator[list[object]]:
    """The umask is put back; every connection that is made is noted."""
    connections: list[object] = []

    def connect(_: socket.socket, address: object) -> None:
        connections.append(address)
        raise ConnectionRefusedError

    umask = os.umask(0)
    os.umask(umask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        try:
            yield connections
        finally:
            os.umask(umask)


def _times(expect: Mapping[str, object]) -> Iterator[float]:
    for key in ("active_at", "notice_at"):
        for at in _table(expect.get(key)):
            yield float(at)
    for span in _table(expect.get("active_during")):
        yield from _span(span)


class Play:
    """A story with what was there before and what the console read besides."""

    def __init__(
        self, given: Mapping[str, object], expect: Mapping[str, object], files: Path, root: Path
    ) -> None:
        root.mkdir()
        self.expect = expect
        self.files = files
        self.story = Story(given, files, root)
        self.settings_path = root / str(given["settings"]) if "settings" in given else None

    @property
    def settings(self) -> Settings | None:
        return None if self.settings_path is None else load_settings(self.settings_path)

    def raw(self) -> bytes:
        return self.story.content() or b""

    def text(self) -> str:
        return self.raw().removeprefix(BOM).decode("utf-8")

    def before(self) -> bytes:
        return self.story.before_edit or b""

    def errors(self) -> str:
        """All errors that were shown: of loading, reloading, editing, saving."""
        texts = [problem for sample in self.story.samples for problem in sample.problems]
        texts += [event.text for _, event in self.story.events if isinstance(event, Rejected)]
        texts += [self.story.edit_text]
        texts += [r.text for r in self.story.results if r.outcome in (Outcome.REFUSED, Outcome.FAILED)]
        return "\n".join(dict.fromkeys(texts))

    def output(self) -> Iterator[str]:
        """Everything that the product has said, in any form that leaves it."""
        for sample in self.story.samples:
            yield from sample.notices
            yield from sample.problems
        for _, event in self.story.events:
            yield event.text
            if isinstance(event, Accepted):
                yield from (repr(change) for change in event.changes)
        for result in self.story.results:
            yield from (result.text, result.diff, repr(result.problems), repr(result.conflicts))
        yield self.story.edit_text
        active = self.story.samples[-1].active
        yield commands.report(active)
        if active.config is not None:
            yield commands.show(active.config)
        if self.settings is not None:
            yield repr(self.settings)
            yield from (problem.text for problem in self.settings.problems)


class _Checks:
    """One method a key of table ``config expect``; :meth:`all` calls those that the case names."""

    def __init__(self, play: Play, connections: Sequence[object], report: Report) -> None:
        self.play, self.story, self.report = play, play.story, report
        self.connections = connections

    def all(self) -> None:
        for key, expected in self.play.expect.items():
            if key in ELSEWHERE:
                continue
            check: Callable[[str, object], None] = getattr(self, key)
            check(key, expected)
        for sample in self.story.samples:
            for text in (*sample.problems, *sample.notices):
                self.report.true("shown", "Traceback" not in text, f"a traceback is shown: {text!r}")

    # Start, edit, save

    def loads(self, key: str, expected: object) -> None:
        self.report.equal(key, expected, self.story.samples[0].active.ok)

    def edit(self, key: str, expected: object) -> None:
        word = self.story.edit_word
        if expected == "refused" and self.story.saved is not None:
            word = "refused" if self.story.saved.outcome is Outcome.REFUSED else word
        self.report.equal(key, expected, word or "possible")

    def edit_mentions(self, key: str, expected: object) -> None:
        texts = [self.story.edit_text]
        texts += [r.text for r in self.story.results if r.outcome is Outcome.REFUSED]
        self.report.mentions(key, _list(expected), "\n".join(texts))

    def save(self, key: str, expected: object) -> None:
        saved = self.story.saved
        self.report.equal(key, expected, "left out" if saved is None else SAVED[saved.outcome])

    def confirm(self, key: str, expected: object) -> None:
        confirmed = self.story.confirmed
        self.report.equal(key, expected, "left out" if confirmed is None else SAVED[confirmed.outcome])

    def shown(self, key: str, expected: object) -> None:
        wanted, saved = _table(expected), self.story.saved or Result(Outcome.UNCHANGED)
        if "other_changes" in wanted:
            changed = [change.key for change in saved.other_changes]
            self.report.equal(
                f"{key}.other_changes", sorted(map(str, _list(wanted["other_changes"]))), sorted(changed)
            )
        for side in ("base", "theirs", "mine"):
            if side in wanted:
                values = [_plain(getattr(conflict, side)) for conflict in saved.conflicts]
                self.report.equal(f"{key}.{side}", [wanted[side]], values)

    def offers(self, key: str, expected: object) -> None:
        offered = {offer for result in self.story.results for offer in result.offers}
        self.report.true(key, set(_list(expected)) <= offered, f"expected {expected!r}, got {offered!r}")

    def runtime_change_sent(self, key: str, expected: object) -> None:
        self.report.equal(key, expected, bool(self.connections))

    # The file afterwards

    def file_equals(self, key: str, expected: object) -> None:
        self._same_bytes(key, str(expected), self.play.raw())

    def _same_bytes(self, key: str, name: str, actual: bytes) -> None:
        wanted = (self.play.files / name).read_bytes()
        lines = difflib.ndiff(_shown_lines(wanted), _shown_lines(actual))
        different = "\n".join(line for line in lines if not line.startswith(" "))
        self.report.true(key, wanted == actual, f"differs from {name}:\n{different}")

    def file_unchanged(self, key: str, expected: object) -> None:
        if self.story.before_edit is not None:
            self.report.equal(key, expected, self.play.before() == self.play.raw())

    def file_never_empty(self, key: str, expected: object) -> None:
        whole = {self.play.before(), self.play.raw()}
        always = all(content in whole for content in self.story.disk.contents)
        self.report.equal(key, expected, always)

    def starts_with_original_bytes(self, key: str, expected: object) -> None:
        self.report.equal(key, expected, self.play.raw().startswith(self.play.before()))

    def changed_lines(self, key: str, expected: object) -> None:
        before, after = _lines(self.play.before()), _lines(self.play.raw())
        codes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        changed = sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in codes if tag != "equal")
        self.report.equal(key, expected, changed)

    def lf_only_lines(self, key: str, expected: object) -> None:
        self.report.equal(key, expected, len(re.findall(rb"(?<!\r)\n", self.play.raw())))

    def bom_count(self, key: str, expected: object) -> None:
        raw = self.play.raw()
        self.report.equal(key, expected, raw.count(BOM))
        if expected == 1:
            self.report.true(key, raw.startswith(BOM), "the byte order mark is not at byte 0")

    def valid_toml(self, key: str, expected: object) -> None:
        self.report.equal(key, expected, self._document() is not None)

    def parsed(self, key: str, expected: object) -> None:
        document = self._document()
        for name, value in _table(expected).items():
            actual = None if document is None else _value_in(document, name)
            self.report.equal(f"{key}.{name}", value, _plain(actual))

    def contains(self, key: str, expected: object) -> None:
        text = self.play.text()
        for part in _list(expected):
            self.report.true(key, str(part) in text, f"{part!r} is not in the file")

    def lines_kept(self, key: str, expected: object) -> None:
        lines = [line.rstrip(b"\r\n").decode() for line in _lines(self.play.raw().removeprefix(BOM))]
        for line in _list(expected):
            self.report.true(key, line in lines, f"{line!r} is no line of the file")

    def headers_in_order(self, key: str, expected: object) -> None:
        text = self.play.text()
        written = [text[header.start : header.end] for header in scan(text).headers()]
        wanted = [str(name) if str(name).startswith("[") else f"[{name}]" for name in _list(expected)]
        self.report.equal(key, wanted, written)

    def files(self, key: str, expected: object) -> None:
        for name, wanted in _table(expected).items():
            path, where, asked = self.story.root / name, f"{key}.{name}", _table(wanted)
            if "is_symlink" in asked:
                self.report.equal(f"{where}.is_symlink", asked["is_symlink"], path.is_symlink())
            if not path.exists():
                self.report.fail(where, "is not there")
                continue
            if "equals" in asked:
                self._same_bytes(f"{where}.equals", str(asked["equals"]), path.read_bytes())
            if "mode" in asked:
                mode = stat.S_IMODE(path.stat().st_mode)
                self.report.equal(f"{where}.mode", f"{int(str(asked['mode']), 8):04o}", f"{mode:04o}")

    def leftover_files(self, key: str, expected: object) -> None:
        left = listing(self.story.root) - self.story.at_start - self.story.made
        self.report.equal(key, sorted(map(str, _list(expected))), sorted(left))

    def _document(self) -> Mapping[str, object] | None:
        try:
            return tomllib.loads(self.play.text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            return None

    # Reloads and what is in force

    def reload(self, key: str, expected: object) -> None:
        rejected = any(isinstance(event, Rejected) for _, event in self.story.events)
        self.report.equal(key, expected, "rejected" if rejected else "accepted")

    def reloads(self, key: str, expected: object) -> None:
        taken = [event for _, event in self.story.events if isinstance(event, Accepted) and event.changes]
        self.report.equal(key, expected, len(taken))

    def active(self, key: str, expected: object) -> None:
        self._in_force(key, expected, self.story.samples[-1])

    def active_at(self, key: str, expected: object) -> None:
        for at, values in _table(expected).items():
            self._in_force(f"{key}.{at}", values, self.story.at(float(at)))

    def active_during(self, key: str, expected: object) -> None:
        for span, values in _table(expected).items():
            start, end = _span(span)
            inside = [sample for sample in self.story.samples if start < sample.at <= end]
            for sample in [self.story.at(start), *inside]:
                self._in_force(f"{key}.{span} at {sample.at:g}", values, sample)

    def _in_force(self, where: str, expected: object, sample: Sample) -> None:
        for name, value in _table(expected).items():
            self.report.equal(f"{where}.{name}", value, _active_value(sample.active, name))

    def defaults_ever_active(self, key: str, expected: object) -> None:
        ever = any(_is_default(sample.active) for sample in self.story.samples)
        self.report.equal(key, expected, ever)

    def seen_within_s(self, key: str, expected: object) -> None:
        assert isinstance(expected, int | float)
        for change in self.story.good_changes():
            limit = change.at + expected
            if change.until <= limit:
                continue  # replaced before it had to be seen
            seen = any(
                change.at <= sample.at <= limit + 1e-9 and sample.active.digest == change.digest
                for sample in self.story.samples
            )
            self.report.true(key, seen, f"the change at {change.at:g} was not in force by {limit:g}")

    def notice_at(self, key: str, expected: object) -> None:
        for at, mentions in _table(expected).items():
            notices = "\n".join(self.story.at(float(at)).notices)
            self.report.mentions(f"{key}.{at}", _list(mentions), notices)

    def error_mentions(self, key: str, expected: object) -> None:
        self.report.mentions(key, _list(expected), self.play.errors())

    def error_shown_until_fixed(self, key: str, expected: object) -> None:
        shown = [sample for sample in self.story.samples if sample.problems]
        self.report.true(key, bool(shown) is expected, "no error was shown")
        for before, after in zip(self.story.samples, self.story.samples[1:], strict=False):
            if before.problems and not after.problems:
                fixed = any(
                    before.at <= at <= after.at and not isinstance(event, Rejected)
                    for at, event in self.story.events
                )
                self.report.true(key, fixed, f"the error went away at {after.at:g} unfixed")

    def error_shown_polls_max(self, key: str, expected: object) -> None:
        assert isinstance(expected, int | float)
        config = self.story.samples[0].active.config or Config()
        longest = longest_error(self.story.samples)
        limit = expected * config.console.interval_secs
        self.report.true(key, longest <= limit + 1e-9, f"an error was shown for {longest:g} s")

    # What is shown

    def secret_never_in_output(self, key: str, expected: object) -> None:
        said = "\n".join(self.play.output())
        for secret in _list(expected):
            self.report.true(key, str(secret) not in said, f"{secret!r} is in the output")

    def rows(self, key: str, expected: object) -> None:
        config = self.story.samples[-1].active.config
        targets = None if config is None else from_config(config, cluster="case", folder=self.story.root)
        shown = [] if targets is None else [worker.name for worker in targets.workers]
        self.report.equal(key, expected, shown)

    def findings(self, key: str, expected: object) -> None:
        problems = list(self.story.samples[-1].active.problems)
        if self.play.settings is not None:
            problems += self.play.settings.problems
        seen = [Seen(problem.kind, problem.text) for problem in problems]
        self.report.findings(key, [_table(one) for one in _list(expected)], seen)


#: Keys that are not asked of the main story: checked with the tries, said once more, or for people.
ELSEWHERE = frozenset({"tries", "written_only_after_confirm", "no_crash", "by_hand"})


class _Tries:
    """Each try alone on a fresh start: edit, then save, nothing confirmed."""

    def __init__(
        self, given: Mapping[str, object], expect: Mapping[str, object], files: Path, workplace: Path
    ) -> None:
        self.given, self.expect, self.files, self.workplace = given, expect, files, workplace

    def check(self, report: Report) -> None:
        tries, wanted = _list(self.given.get("tries", [])), _list(self.expect.get("tries", []))
        if wanted and len(tries) != len(wanted):
            report.fail("tries", f"{len(tries)} tries, {len(wanted)} results")
        for number, one in enumerate(tries):
            asked = _table(wanted[number]) if number < len(wanted) else {}
            self.one(f"tries[{number}]", _table(one), asked, report)

    def one(self, where: str, one: Mapping[str, object], asked: Mapping[str, object], report: Report) -> None:
        steps = [{"do": "edit", "edits": one["edits"]}, {"do": "save"}]
        play = Play({**self.given, "steps": steps}, {}, self.files, self.workplace / where)
        play.story.set_up()
        asyncio.run(play.story.play())
        result = play.story.results[-1]
        if "result" in asked:
            report.equal(f"{where}.result", asked["result"], TRIED.get(result.outcome, str(result.outcome)))
        if "hint_mentions" in asked:
            report.mentions(f"{where}.hint_mentions", _list(asked["hint_mentions"]), result.text)
        unchanged = play.raw() == play.before()
        if self.expect.get("file_unchanged"):
            report.true(f"{where}.file_unchanged", unchanged, "the file was changed")
        if self.expect.get("written_only_after_confirm") and result.outcome is Outcome.ASKS:
            report.true(where, unchanged, "written before the operator's yes")
            play.story.operator_confirms()
            report.true(where, play.raw() != play.before(), "not written after the operator's yes")


def longest_error(samples: Sequence[Sample]) -> float:
    """Longest time that an error stood on the screen without a break, seconds."""
    longest, since = 0.0, None
    for sample in samples:
        if not sample.problems:
            since = None
            continue
        since = sample.at if since is None else since
        longest = max(longest, sample.at - since)
    return longest


def _is_default(active: Loaded) -> bool:
    """What is in force comes from no file."""
    return active.config is None or not active.document


def _active_value(active: Loaded, name: str) -> object:
    if active.config is None:
        return None
    try:
        return _plain(value_at(active.config, name))
    except KeyError:
        return None


def _value_in(document: Mapping[str, object], name: str) -> object:
    if name in document:
        return document[name]
    try:
        return look_up(document, split_key(name))
    except KeyError:
        return None


def _plain(value: object) -> object:
    """A value as JSON has it."""
    match value:
        case BaseModel():
            return _plain(value.model_dump())
        case Mapping():
            return {key: _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return value


def _lines(raw: bytes) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+", raw)


def _shown_lines(raw: bytes) -> list[str]:
    return [repr(line) for line in _lines(raw)]


def _span(text: str) -> tuple[float, float]:
    start, end = text.split("-", 1)
    return float(start), float(end)


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
