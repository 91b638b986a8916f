"""What an inference request says, as far as a router must know: prompt, lengths, batch, model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pdtop.gateway.fleet import Wanted
from pdtop.gateway.prefixes import LONGEST_CHARS

#: Paths that go to both pools, with the name that metrics give them and the start of their request ids.
ENDPOINTS = {
    "/v1/chat/completions": ("chat", "chatcmpl"),
    "/v1/completions": ("completions", "cmpl"),
    "/generate": ("generate", "gnt"),
}

_CHARS_PER_TOKEN = 4
_OUTPUT_TOKENS = 256  # expected of a request that names no limit
_PRODUCED = re.compile(rb'"completion_tokens":\s*(\d{1,9})')


class BadRequest(Exception):
    """The body cannot be routed; the text goes to the client."""


class Inference(NamedTuple):
    """One request. ``batch`` is the number of prompts in one, None if it is not a list."""

    raw: bytes
    body: Mapping[str, Any]
    wanted: Wanted
    batch: int | None
    streaming: bool
    model: str

    def payload(self, host: str, port: int | None, room: int) -> bytes:
        """The body with the place where the two workers meet."""
        n = self.batch
        place = {
            "bootstrap_host": host if n is None else [host] * n,
            "bootstrap_port": port if n is None else [port] * n,
            "bootstrap_room": room if n is None else [(room + i) % 2**63 for i in range(n)],
        }
        start, end = self.raw.lstrip(), self.raw.rstrip()
        # Long prompts are not written again: the place is put in before the last brace.
        plain = start[:1] == b"{" and end[-1:] == b"}" and b"\0" not in start[:4]
        if self.body and plain and not place.keys() & self.body.keys():
            return end[:-1] + b"," + json.dumps(place).encode()[1:]
        return json.dumps({**self.body, **place}).encode()


def read_inference(raw: bytes) -> Inference:
    """Raises :class:`BadRequest`."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON") from None
    if not isinstance(body, dict):
        raise BadRequest("the body is not a JSON object")
    prompt = _prompt(body)
    batch = _batch(body)
    wanted = Wanted(prompt[:LONGEST_CHARS], len(prompt) / _CHARS_PER_TOKEN, _output_tokens(body))
    return Inference(raw, body, wanted, batch, body.get("stream") is True, str(body.get("model", "")))


def _prompt(body: Mapping[str, Any]) -> str:
    """The prompt's text, of a batch the first; for token ids a text that begins alike if they do."""
    for name in ("text", "prompt", "input_ids"):
        value = body.get(name)
        if isinstance(value, list) and value and isinstance(value[0], str | list):
            value = value[0]
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return " ".join(map(str, value))
    messages = body.get("messages")
    return "".join(_contents(messages)) if isinstance(messages, list) else ""


def _contents(messages: Sequence[object]) -> list[str]:
    found: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else [{"text": content}]
        found += [p["text"] for p in parts if isinstance(p, dict) and isinstance(p.get("text"), str)]
    return found


def _batch(body: Mapping[str, Any]) -> int | None:
    for name in ("text", "prompt"):
        value = body.get(name)
        if isinstance(value, list) and value and not isinstance(value[0], int):
            return len(value)
    ids = body.get("input_ids")
    return len(ids) if isinstance(ids, list) and ids and isinstance(ids[0], list) else None


def _output_tokens(body: Mapping[str, Any]) -> float:
    sampling = body.get("sampling_params")
    nested = sampling.get("max_new_tokens") if isinstance(sampling, dict) else None
    for value in (body.get("max_completion_tokens"), body.get("max_tokens"), nested):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return float(min(value, 1_000_000))
    return float(_OUTPUT_TOKENS)


def tokens_in(tail: bytes) -> int | None:
    """The number of tokens that the end of an answer gives; None if it gives none."""
    found = _PRODUCED.findall(tail)
    return int(found[-1]) if found else None
