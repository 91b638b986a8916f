"""Changes fields of one worker at a router: finds the method that it takes, then reads back until it is so.

202 means "queued", not "done". A partial change is PUT for sglang-router 0.3.2 (PATCH is 405 there) and PATCH
for smg 1.13.0 (a PUT there wants the whole worker and would reset what is left out: 400 without ``url``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pdtop.cluster.model import State
from pdtop.cluster.readings import Answer
from pdtop.routers.values import json_of, mapping_of, text_of

#: Asks the router: method, path, JSON body or None.
Ask = Callable[[str, str, bytes | None], Awaitable[Answer]]

#: PATCH first: where it does not exist it is refused and harms nothing; a partial PUT may be a full one.
METHODS = ("PATCH", "PUT")
READ_BACK_S = 5.0
READ_BACK_EVERY_S = 0.2
ACCEPTED = frozenset({200, 201, 202, 204})
_NO_SUCH_METHOD = frozenset({404, 405, 501})
_NOT_PARTIAL = frozenset({400, 422})  # what a PUT that wants the whole worker answers
_OUTCOME_UNKNOWN = frozenset({State.TIMEOUT, State.PARTIAL})
_GATEWAY_GAVE_UP = frozenset({502, 504})  # of a balancer in front: the router may have heard it
_JOB_RUNS = frozenset({"pending", "processing"})

Sleep = Callable[[float], Awaitable[object]]
Clock = Callable[[], float]


class Result(StrEnum):
    DONE = "done"  # a read showed the new values
    ACCEPTED_NOT_APPLIED = "accepted_not_applied"  # the router took it, but no read shows it
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of a change. ``method`` is the one that the router took, None if it took none."""

    result: Result
    method: str | None
    words: str
    status: int | None = None


async def change_worker(
    ask: Ask,
    worker_id: str,
    fields: Mapping[str, object],
    *,
    methods: tuple[str, ...] = METHODS,
    read_back_s: float = READ_BACK_S,
    hidden: frozenset[str] = frozenset(),
    clock: Clock | None = None,
    sleep: Sleep = asyncio.sleep,
) -> Changed:
    """Change ``fields`` of the worker and wait until the router shows them, at most ``read_back_s``.

    Of ``hidden`` fields, which the router never shows, only the end of its job can be seen. ``clock`` in
    seconds; None is the running loop's.
    """
    path = f"/workers/{worker_id}"
    read_back = _ReadBack(
        ask, path, fields, hidden, read_back_s, clock or asyncio.get_running_loop().time, sleep
    )
    content = json.dumps(dict(fields)).encode()
    refusal = Changed(Result.FAILED, None, "no method to try")
    for method in methods:
        answer = await ask(method, path, content)
        if accepted(answer):
            return await read_back(method, answer.status)
        refusal = Changed(Result.FAILED, None, f"{method}: {words_of(answer)}", answer.status)
        if outcome_unknown(answer) and not hidden & fields.keys():  # only a read can tell
            found = await read_back(method, answer.status)
            return found if found.result is Result.DONE else refusal
        if answer.failure is not None or answer.status not in _other_method_after(method):
            break
    return refusal


def _other_method_after(method: str) -> frozenset[int]:
    return _NO_SUCH_METHOD | _NOT_PARTIAL if method == "PUT" else _NO_SUCH_METHOD


def accepted(answer: Answer) -> bool:
    """True if the router took it, which is not yet that it has done it."""
    return answer.failure is None and answer.status in ACCEPTED


def outcome_unknown(answer: Answer) -> bool:
    """True if the router may have heard the request although no usable answer came."""
    return answer.failure in _OUTCOME_UNKNOWN or (
        answer.failure is None and answer.status in _GATEWAY_GAVE_UP
    )


@dataclass(frozen=True, slots=True)
class _ReadBack:
    """Reads the worker until it shows the new values or time is up."""

    ask: Ask
    path: str
    fields: Mapping[str, object]
    hidden: frozenset[str]
    limit_s: float
    clock: Clock
    sleep: Sleep

    async def __call__(self, method: str, status: int | None) -> Changed:
        deadline = self.clock() + self.limit_s
        visible = {name: value for name, value in self.fields.items() if name not in self.hidden}
        unseen = len(visible) < len(self.fields)
        done = "taken; this router does not show the value" if unseen else "read back"
        while True:
            answer = await self.ask("GET", self.path, None)
            shown = mapping_of(json_of(answer.body)) if answer.status == 200 else {}
            job = mapping_of(shown.get("job_status"))
            if job.get("status") == "failed":
                words = text_of(job.get("message")) or "the router's job failed"
                return Changed(Result.FAILED, method, words, status)
            is_worker = not shown.keys().isdisjoint(("id", "url"))
            at_work = unseen and str(job.get("status")) in _JOB_RUNS
            if is_worker and not at_work and shows(shown, visible):
                return Changed(Result.DONE, method, done, status)
            if self.clock() + READ_BACK_EVERY_S > deadline:
                words = f"accepted ({status}), but after {self.limit_s:g} s no read shows it"
                return Changed(Result.ACCEPTED_NOT_APPLIED, method, words, status)
            await self.sleep(READ_BACK_EVERY_S)


def shows(worker: Mapping[str, object], fields: Mapping[str, object]) -> bool:
    """True if the worker has these values; labels are merged by routers and may be called ``metadata``."""
    for name, value in fields.items():
        have = worker.get(name)
        if name == "labels" and isinstance(value, dict):
            labels = mapping_of(worker.get("labels", worker.get("metadata")))
            if any(labels.get(label) != text for label, text in value.items()):
                return False
        elif isinstance(value, dict):
            if not isinstance(have, dict) or not shows(have, value):
                return False
        elif have != value or isinstance(have, bool) != isinstance(value, bool):
            return False
    return True


def words_of(answer: Answer) -> str:
    """What came instead of what was wanted: the failure, or the status and the router's own message."""
    if answer.failure is not None:
        return answer.detail
    top = mapping_of(json_of(answer.body))
    error = top.get("error")
    message = text_of(error) or text_of(mapping_of(error).get("message"))
    if message is None and answer.headers.get("content-type", "").startswith("text/plain"):
        message = text_of(answer.body[:1000].decode("utf-8", "replace"))
    return f"{answer.status} {message}" if message else str(answer.status)
