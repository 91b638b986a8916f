"""The bodies of SGLang's HTTP: reading inference requests, writing answers and stream events."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdtop.simulator.engine import Request
from pdtop.simulator.kv_pool import prefix_blocks, token_count

DEFAULT_TOKENS = 128
DONE = b"data: [DONE]\n\n"

_WORDS = ("the", "queue", "moved", "on", "while", "every", "token", "found", "its", "page")


class BadRequest(Exception):
    """The body cannot be served; the text goes to the client."""


@dataclass(frozen=True, slots=True)
class Call:
    """One inference request as it came in."""

    request: Request
    chat: bool
    model: str
    include_usage: bool
    bootstrap_host: str
    bootstrap_port: int


def words(count: int, start: int = 0) -> str:
    return "".join(f" {_WORDS[i % len(_WORDS)]}" for i in range(start, start + count))


def read_call(body: object, chat: bool, rid: str, stream_interval: int, default_model: str) -> Call:
    """Shape of ``/generate`` or ``/v1/chat/completions``; raises :class:`BadRequest`."""
    if not isinstance(body, dict):
        raise BadRequest("the body is not a JSON object")
    room = body.get("bootstrap_room")
    host = body.get("bootstrap_host")
    if not isinstance(room, int) or not isinstance(host, str):
        raise BadRequest("Disaggregated request received without bootstrap room id.")
    port = body.get("bootstrap_port")
    text, extra = _chat_text(body) if chat else _generate_text(body)
    options = body.get("stream_options")
    request = Request(
        rid=rid,
        room=room,
        prompt_tokens=token_count(text) + extra,
        output_tokens=_output_tokens(body, chat),
        streaming=body.get("stream") is True,
        blocks=prefix_blocks(text),
        stream_interval=stream_interval,
    )
    return Call(
        request=request,
        chat=chat,
        model=str(body.get("model", default_model)),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        bootstrap_host=host,
        bootstrap_port=port if isinstance(port, int) else 8998,
    )


def _generate_text(body: Mapping[str, Any]) -> tuple[str, int]:
    text = body.get("text")
    if isinstance(text, str):
        return text, 0
    ids = body.get("input_ids")
    if isinstance(ids, list) and all(isinstance(i, int) for i in ids):
        return "".join(chr(33 + i % 90) * 4 for i in ids), 0
    raise BadRequest("either text or input_ids should be provided, one prompt a request")


def _chat_text(body: Mapping[str, Any]) -> tuple[str, int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages should be a list with at least one entry")
    parts: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            content = "".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
        parts.append(content if isinstance(content, str) else "")
    return "".join(parts), 4 * len(messages)


def _output_tokens(body: Mapping[str, Any], chat: bool) -> int:
    sampling = body.get("sampling_params")
    if chat:
        wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    else:
        wanted = sampling.get("max_new_tokens") if isinstance(sampling, dict) else None
    return wanted if isinstance(wanted, int) and wanted > 0 else DEFAULT_TOKENS


def error_body(message: str, code: int) -> bytes:
    return json.dumps({"error": {"message": message, "type": "error", "code": code}}).encode()


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def whole_answer(call: Call, produced: int, cached: int) -> dict[str, object]:
    """The answer of a request that does not stream."""
    if not call.chat:
        return {"text": words(produced), "meta_info": _meta(call, produced, cached, finished=True)}
    message = {"role": "assistant", "content": words(produced), "reasoning_content": None, "tool_calls": None}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "length",
        "matched_stop": None,
    }
    return {
        **_chat_head(call, "chat.completion"),
        "choices": [choice],
        "usage": _usage(call, produced, cached),
    }


def stream_part(call: Call, tokens: int, total: int) -> bytes:
    """The events for ``tokens`` new tokens; ``/generate`` repeats the whole text each time."""
    if not call.chat:
        return event({"text": words(total), "meta_info": _meta(call, total, 0, finished=False)})
    out = b""
    if tokens == total:
        out = event(_chunk(call, {"role": "assistant", "content": ""}, None))
    return out + event(_chunk(call, {"content": words(tokens, total - tokens)}, None))


def stream_end(call: Call, produced: int, cached: int) -> bytes:
    if not call.chat:
        last = {"text": words(produced), "meta_info": _meta(call, produced, cached, finished=True)}
        return event(last) + DONE
    out = event(_chunk(call, {}, "length"))
    if call.include_usage:
        usage = {"choices": [], "usage": _usage(call, produced, cached)}
        out += event({**_chat_head(call, "chat.completion.chunk"), **usage})
    return out + DONE


def stream_error(message: str) -> bytes:
    return b"data: " + error_body(message, 500) + b"\n\n" + DONE


def _chat_head(call: Call, kind: str) -> dict[str, object]:
    return {"id": call.request.rid, "object": kind, "created": int(time.time()), "model": call.model}


def _chunk(call: Call, delta: dict[str, object], finish: str | None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": None}
    return {**_chat_head(call, "chat.completion.chunk"), "choices": [choice], "usage": None}


def _usage(call: Call, produced: int, cached: int) -> dict[str, object]:
    prompt = call.request.prompt_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": produced,
        "total_tokens": prompt + produced,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _meta(call: Call, produced: int, cached: int, finished: bool) -> dict[str, object]:
    reason = {"type": "length", "length": call.request.output_tokens} if finished else None
    return {
        "id": call.request.rid,
        "finish_reason": reason,
        "prompt_tokens": call.request.prompt_tokens,
        "completion_tokens": produced,
        "cached_tokens": cached,
        "weight_version": "default",
    }
