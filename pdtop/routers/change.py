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
_NO_SUCH_METHOD = frozenset({404, 405, 501})
_NOT_PARTIAL = frozenset({400, 422})  # what a PUT that wants the whole worker answers
_OUTCOME_UNKNOWN = frozenset({State.TIMEOUT, State.PARTIAL})


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
) -> Changed:
    """Change ``fields`` of the worker and wait until the router shows them, at most ``read_back_s``."""
    path = f"/workers/{worker_id}"
    content = json.dumps(dict(fields)).encode()
    refusal = Changed(Result.FAILED, None, "no method to try")
    for method in methods:
        answer = await ask(method, path, content)
        if answer.failure is None and answer.status in (200, 202, 204):
            return await _read_back(ask, path, fields, method, answer.status, read_back_s)
        refusal = Changed(Result.FAILED, None, f"{method}: {_words(answer)}", answer.status)
        if answer.failure in _OUTCOME_UNKNOWN:  # it may have been heard: only a read can tell
            found = await _read_back(ask, path, fields, method, answer.status, read_back_s)
            return found if found.result is Result.DONE else refusal
        if answer.failure is not None or answer.status not in _other_method_after(method):
            break
    return refusal


def _other_method_after(method: str) -> frozenset[int]:
    return _NO_SUCH_METHOD | _NOT_PARTIAL if method == "PUT" else _NO_SUCH_METHOD


async def _read_back(
    ask: Ask, path: str, fields: Mapping[str, object], method: str, status: int | None, read_back_s: float
) -> Changed:
    clock = asyncio.get_running_loop().time
    deadline = clock() + read_back_s
    while True:
        answer = await ask("GET", path, None)
        shown = mapping_of(json_of(answer.body)) if answer.status == 200 else {}
        job = mapping_of(shown.get("job_status"))
        if job.get("status") == "failed":
            words = text_of(job.get("message")) or "the router's job failed"
            return Changed(Result.FAILED, method, words, status)
        if shows(shown, fields):
            return Changed(Result.DONE, method, "read back", status)
        if clock() + READ_BACK_EVERY_S > deadline:
            words = f"accepted ({status}), but after {read_back_s:g} s no read shows it"
            return Changed(Result.ACCEPTED_NOT_APPLIED, method, words, status)
        await asyncio.sleep(READ_BACK_EVERY_S)


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


def _words(answer: Answer) -> str:
    if answer.failure is not None:
        return answer.detail
    top = mapping_of(json_of(answer.body))
    error = top.get("error")
    message = text_of(error) or text_of(mapping_of(error).get("message"))
    return f"{answer.status} {message}" if message else str(answer.status)
