"""The requests of one action at a router, kept for the audit log, and what became of the action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pdtop.cluster.readings import Answer
from pdtop.config.masking import MASK
from pdtop.routers.change import Ask, Result, accepted, words_of

#: Why an action did not succeed, where the result alone does not tell what to do next.
Problem = Literal["", "auth", "unreachable", "timed_out", "refused", "no_list", "no_power", "job", "mismatch"]


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a router, for the audit log: never a body, never a key."""

    router: str
    method: str
    path: str
    status: int | None
    words: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Controlled:
    """What became of one action. ``calls``: all requests of it, repeated reads of one path as one."""

    result: Result
    words: str
    fix: str = ""
    calls: tuple[Call, ...] = ()
    worker_id: str | None = None
    problem: Problem = ""


class Talk:
    """The requests of one action, kept for the audit log without bodies and without ``secret``."""

    def __init__(self, ask: Ask, router: str, secret: str | None) -> None:
        self._ask = ask
        self._router = router
        self._secret = secret
        self._calls: list[Call] = []
        self._reads = 0  # of the last call's path, in a row
        self.refused: Answer | None = None  # the last write, if it was not taken

    async def __call__(self, method: str, path: str, content: bytes | None) -> Answer:
        answer = await self._ask(method, path, content)
        words = "" if accepted(answer) else self._clean(words_of(answer))
        last = self._calls[-1] if self._calls else None
        if method == "GET" and last is not None and (last.method, last.path) == (method, path):
            self._calls.pop()
            self._reads += 1
            words = f"read {self._reads} times" + (f": {words}" if words else "")
        else:
            self._reads = 1
        self._calls.append(Call(self._router, method, path, answer.status, words, answer.seconds))
        if method != "GET":
            self.refused = None if accepted(answer) else answer
        return answer

    def done(
        self, result: Result, words: str, fix: str = "", worker_id: str | None = None, problem: Problem = ""
    ) -> Controlled:
        return Controlled(
            result, self._clean(words), self._clean(fix), tuple(self._calls), worker_id, problem
        )

    def failed(self, words: str, problem: Problem, fix: str = "") -> Controlled:
        return self.done(Result.FAILED, words, fix, problem=problem)

    def _clean(self, words: str) -> str:
        """A router may quote the body that it got."""
        return words.replace(self._secret, MASK) if self._secret else words
