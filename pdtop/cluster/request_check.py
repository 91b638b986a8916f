"""One request through the whole chain, and an honest verdict: 200 alone is not "OK"."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pdtop.cluster.address import CHAT_PATH, Address
from pdtop.cluster.answers import KeyUse, content_type, status_words, trouble
from pdtop.cluster.http import BearerKey, Dialler
from pdtop.cluster.model import State
from pdtop.cluster.readings import Answer
from pdtop.routers.values import json_of, list_of, mapping_of, text_of

TIMEOUT_S = 60.0
QUESTION = "In one sentence: what does prefill/decode disaggregation split?"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``ok``: a good, complete completion. ``text`` is what the model said, whole or up to the break."""

    ok: bool
    words: str
    text: str = ""
    seconds: float = 0.0


async def check(
    dialler: Dialler,
    address: Address,
    *,
    model: str,
    key: BearerKey | None = None,
    key_variable: str = "PDTOP_API_KEY",
    stream: bool = False,
    max_tokens: int = 32,
    timeout_s: float = TIMEOUT_S,
) -> Verdict:
    """Ask for a short completion and judge the answer."""
    question = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": max_tokens,
        "stream": stream,
    }
    answer = await dialler.request(
        "POST", address, CHAT_PATH, content=json.dumps(question).encode(), key=key, timeout_s=timeout_s
    )
    return judge(answer, KeyUse(key_variable, key is not None))


def judge(answer: Answer, keys: KeyUse) -> Verdict:
    """What an answer of a chat endpoint is worth."""
    streamed = content_type(answer) == "text/event-stream" or answer.body.startswith(b"data:")
    body = _Stream.of(answer.body) if streamed else _Single.of(answer.body)
    found = trouble(answer, keys)
    if answer.status is not None and answer.status != 200:
        return _refused(answer, found.fix if found else "", body.error)
    if found is not None:
        words = _sentence(found.reason, found.fix)
        return Verdict(False, _broken_off(words, body.text), body.text, answer.seconds)
    if body.error is not None:
        words = f"status 200, but an error inside: {body.error}"
        return Verdict(False, _broken_off(words, body.text), body.text, answer.seconds)
    if answer.failure is State.PARTIAL or not body.whole:
        words = "the stream broke off before [DONE]" if streamed else "the answer broke off"
        if answer.detail:
            words = f"{words}: {answer.detail}"
        return Verdict(False, _broken_off(words, body.text), body.text, answer.seconds)
    if not body.is_completion:
        kind = content_type(answer) or "no content type"
        return Verdict(False, f"status 200, but no completion in it ({kind})", "", answer.seconds)
    if not body.has_choices:
        words = "no choices in the answer: max_tokens 0, or everything was filtered"
        return Verdict(False, words, "", answer.seconds)
    if not body.text:
        return Verdict(False, _empty(body.finish), "", answer.seconds)
    words = f"{len(body.text)} characters in {answer.seconds:.1f} s"
    if body.finish is not None:
        words += f", finished by {body.finish}"
    return Verdict(True, words, body.text, answer.seconds)


def _refused(answer: Answer, fix: str, error: str | None) -> Verdict:
    words = status_words(answer.status)
    if answer.status == 404:
        fix = f"see whether the base address is right: {CHAT_PATH} is added to it, so it must end before /v1"
    if error is not None:
        words = f"{words}: {error}"
    return Verdict(False, _sentence(words, fix), "", answer.seconds)


def _sentence(words: str, fix: str) -> str:
    return f"{words}; {fix}" if fix else words


def _broken_off(words: str, text: str) -> str:
    return f"{words}; {len(text)} characters had come" if text else words


def _empty(finish: str | None) -> str:
    reason = f" (finished by {finish})" if finish else ""
    return f"the answer's text is empty{reason}: max_tokens may be too small"


@dataclass(frozen=True, slots=True)
class _Single:
    """An answer that is one JSON object."""

    is_completion: bool
    has_choices: bool
    whole: bool
    text: str
    finish: str | None
    error: str | None

    @classmethod
    def of(cls, body: bytes) -> _Single:
        top = mapping_of(json_of(body))
        choices = list_of(top.get("choices"))
        first = mapping_of(choices[0]) if choices else {}
        return cls(
            is_completion="choices" in top,
            has_choices=bool(choices),
            whole=True,
            text=_content(mapping_of(first.get("message"))) or _plain(first.get("text")),
            finish=text_of(first.get("finish_reason"), 40),
            error=_error(top),
        )


@dataclass(frozen=True, slots=True)
class _Stream:
    """An answer that is a stream of events; ``whole`` once ``[DONE]`` has come."""

    is_completion: bool
    has_choices: bool
    whole: bool
    text: str
    finish: str | None
    error: str | None

    @classmethod
    def of(cls, body: bytes) -> _Stream:
        parts: list[str] = []
        is_completion = has_choices = whole = False
        finish: str | None = None
        error: str | None = None
        for data in _events(body):
            if data == "[DONE]":
                whole = True
                continue
            top = mapping_of(json_of(data.encode()))
            error = error or _error(top)
            is_completion = is_completion or "choices" in top
            for choice in map(mapping_of, list_of(top.get("choices"))[:1]):
                has_choices = True
                parts.append(_content(mapping_of(choice.get("delta"))) or _plain(choice.get("text")))
                finish = text_of(choice.get("finish_reason"), 40) or finish
        return cls(is_completion, has_choices, whole, "".join(parts), finish, error)


def _events(body: bytes) -> Iterator[str]:
    """Data of the events. A character that is cut at the end is left out; an event that is cut is no JSON."""
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(body)
    for block in text.replace("\r\n", "\n").replace("\r", "\n").split("\n\n"):
        lines = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        if lines:
            yield "\n".join(lines)


def _content(message: Mapping[str, object]) -> str:
    return _plain(message.get("content")) or _plain(message.get("reasoning_content"))


def _plain(value: object) -> str:
    return value if isinstance(value, str) else ""


def _error(top: Mapping[str, object]) -> str | None:
    """The error in any of its usual forms, in the server's words."""
    error = top.get("error", top.get("detail") if "choices" not in top else None)
    if top.get("object") == "error":
        error = top
    if isinstance(error, dict):
        return text_of(error.get("message")) or text_of(error.get("code")) or "without a message"
    return text_of(error)
