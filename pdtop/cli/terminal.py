"""The terminal of a verb: what is printed where, what is asked, one line of progress that is rewritten.

stdout is for the outcome (and a plan that is asked for with ``--dry-run``), stderr for everything on the way.
All words are printed as they are: harmless characters only, no markup, no emoji codes (``:a:`` is a part of
an IPv6 address).
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING

from pdtop.cli.printed import plan_text
from pdtop.cluster.words import clean
from pdtop.operations.model import Plan

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

#: Between two lines where nothing is left to rewrite.
_ERASE = "\r\x1b[K"


class Terminal:
    """What a verb prints and asks. ``interactive``: there is a person to ask."""

    def __init__(
        self,
        *,
        interactive: bool,
        out: Console,
        err: Console,
        read: Callable[[], str],
    ) -> None:
        self.interactive = interactive
        self._out = out
        self._err = err
        self._read = read
        self._rewriting = False
        self._last = ""

    # stdout

    def answer(self, lines: Iterable[str]) -> None:
        """The outcome."""
        self._end_line()
        for line in lines:
            self._out.print(_plain(line), soft_wrap=True)

    def plan_asked_for(self, plan: Plan) -> None:
        self._out.print(plan_text(plan, _width(self._out)), soft_wrap=True)

    # stderr

    def plan(self, plan: Plan) -> None:
        self._show(plan_text(plan, _width(self._err)))

    def say(self, words: str) -> None:
        self._show(_plain(words))

    def progress(self, words: str, *, worth_a_line: bool) -> None:
        """On a terminal one line that is rewritten; else a line each time that it is ``worth_a_line``."""
        if not self._err.is_terminal:
            if worth_a_line:
                self.say(words)
            return
        words = clean(words)
        if words == self._last:
            return
        self._last, self._rewriting = words, True
        self._err.file.write(_ERASE + words[: max(20, self._err.width - 1)])
        self._err.file.flush()

    # Questions

    def yes(self, question: str) -> bool:
        """Yes or no; no is what a bare Enter means, and the end of the input."""
        return self._ask(f"{question}? [y/N] ").lower() in ("y", "yes")

    def typed(self, word: str) -> bool:
        """Whether the person types this word."""
        return self._ask(f"type {word} to go on: ") == word

    def choice(self, question: str, choices: dict[str, str]) -> str:
        """One of the keys of ``choices``, whose values say what they mean; "" for anything else."""
        self.say(question)
        for key, words in choices.items():
            self.say(f"  {key}  {words}")
        found = self._ask(f"[{'/'.join(choices)}] ").lower()[:1]
        return found if found in choices else ""

    def _ask(self, question: str) -> str:
        self._end_line()
        self._err.file.write(clean(question))
        self._err.file.flush()
        try:
            return self._read().strip()
        except EOFError:
            self.say("")
            return ""

    def _show(self, words: Text) -> None:
        self._end_line()
        self._err.print(words, soft_wrap=True)

    def _end_line(self) -> None:
        if self._rewriting:
            self._err.file.write("\n")
            self._rewriting = False


def _width(console: Console) -> int:
    """Of a person's terminal; 0 where nobody wraps lines."""
    return console.width if console.is_terminal else 0


def _plain(words: str) -> Text:
    from rich.text import Text

    return Text(clean(words))


def this_terminal() -> Terminal:
    """Of this process."""
    from rich.console import Console

    streams = (sys.stdin, sys.stderr)  # a closed one is None
    return Terminal(
        interactive=all(stream is not None and stream.isatty() for stream in streams),
        out=Console(),
        err=Console(stderr=True),
        read=input,
    )


class Told(BaseException):
    """A signal that came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def code(self) -> int:
        return 128 + self.number


class Signals:
    """Within, Ctrl+C and SIGTERM are entries of ``queue``: a change that was begun is not cut in two."""

    def __init__(self, queue: SimpleQueue[object]) -> None:
        self._queue = queue
        self._raise = False
        self._before = contextlib.ExitStack()

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before.callback(signal.signal, number, signal.signal(number, self._told))

    def __exit__(self, *_: object) -> None:
        self._before.close()

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Within, they are raised as :class:`Told`: a question would not notice them otherwise."""
        self._raise = True
        try:
            yield
        finally:
            self._raise = False

    def _told(self, number: int, frame: FrameType | None) -> None:
        if self._raise:
            raise Told(number)
        self._queue.put(Told(number))
