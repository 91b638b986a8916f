"""Verdicts of the request check: what came back is said, and 200 alone is not OK."""

from __future__ import annotations

import json

import pytest

from pdtop.cluster.address import Address
from pdtop.cluster.answers import KeyUse
from pdtop.cluster.http import BearerKey, Dialler
from pdtop.cluster.model import State
from pdtop.cluster.readings import Answer
from pdtop.cluster.request_check import Verdict, check, judge
from tests.cluster.stub_server import Reply, Request, StubServer
from tests.cluster.virtual_time import run

GOOD = b'{"choices":[{"message":{"content":"PD splits."},"finish_reason":"stop"}]}'


def verdict(
    body: bytes = b"", status: int | None = 200, kind: str = "application/json", **kw: object
) -> Verdict:
    failure, detail = kw.get("failure"), kw.get("detail", "")
    assert failure is None or isinstance(failure, State)
    return judge(
        Answer(1.0, 0.5, status, {"content-type": kind}, body, failure is not None, failure, str(detail)),
        KeyUse("PDTOP_API_KEY", sent=bool(kw.get("sent"))),
    )


def stream(*texts: str, done: bool = True, finish: bool = True) -> bytes:
    choices = [{"delta": {"content": text}, "finish_reason": None} for text in texts]
    ends = [{"delta": {"content": ""}, "finish_reason": "stop"}] if finish else []
    events = [json.dumps({"choices": [choice]}, ensure_ascii=False) for choice in (*choices, *ends)]
    blocks = [f"data: {event}\n\n" for event in events]
    return "".join([": keep-alive\n\n", *blocks, "data: [DONE]\n\n" if done else ""]).encode()


def test_a_good_answer() -> None:
    found = verdict(GOOD)
    assert (found.ok, found.text) == (True, "PD splits.")
    assert "stop" in found.words


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"model demo-model-x not found","code":404}}', "model demo-model-x not found"),
        (b'{"object":"error","message":"context too long","code":400}', "context too long"),
        (b'{"error":"overloaded"}', "overloaded"),
        (b'{"detail":"no such model"}', "no such model"),
        (b'{"id":"x","choices":[]}', "no choices"),
        (b'{"id":"x","choices":[]}', "max_tokens"),
        (b'{"id":"x","choices":[{"message":{"content":""},"finish_reason":"length"}]}', "length"),
        (b'{"id":"x","choices":[{"message":{"content":null}}]}', "empty"),
        (b'{"id":"x","choices":[7]}', "empty"),
        (b'{"id":"x","choices":"yes"}', "no choices"),
        (b"<html>welcome</html>", "no completion"),
        (b"", "no completion"),
        (b"[]", "no completion"),
        (b'{"status":"ok"}', "no completion"),
    ],
)
def test_200_is_not_ok(body: bytes, words: str) -> None:
    found = verdict(body)
    assert not found.ok
    assert words in found.words


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b'{"detail":"Not Found"}', ("404", "/v1", "Not Found")),
        (401, b"", ("401", "PDTOP_API_KEY")),
        (503, b'{"error":{"message":"No available decode workers"}}', ("503", "No available decode workers")),
        (500, b"Traceback (most recent call last)", ("500",)),
    ],
)
def test_refusals(status: int, body: bytes, words: tuple[str, ...]) -> None:
    found = verdict(body, status)
    assert not found.ok
    assert all(word in found.words for word in words)


def test_no_answer() -> None:
    found = verdict(status=None, failure=State.REFUSED, detail="connection refused")
    assert not found.ok
    assert "connection refused" in found.words


def test_a_good_stream() -> None:
    found = verdict(stream("Prefill ", "und ", "Décode 分離"), kind="text/event-stream; charset=utf-8")
    assert (found.ok, found.text) == (True, "Prefill und Décode 分離")


def test_a_stream_without_its_end() -> None:
    found = verdict(stream("a", "b", done=False, finish=False), kind="text/event-stream")
    assert (found.ok, found.text) == (False, "ab")
    assert "[DONE]" in found.words


def test_every_cut_of_a_stream_gives_whole_characters_only() -> None:
    body = stream("né", "分離", "🙂", "end")
    texts = set()
    for cut in range(len(body)):
        found = verdict(body[:cut], kind="text/event-stream", failure=State.PARTIAL, detail="broke off")
        assert not found.ok
        assert "�" not in found.text
        texts.add(found.text)
    assert texts == {"", "né", "né分離", "né分離🙂", "né分離🙂end"}


def test_an_error_inside_a_stream() -> None:
    body = (
        stream("so far", done=False, finish=False) + b'data: {"error":{"message":"Stream error: reset"}}\n\n'
    )
    found = verdict(body + b"data: [DONE]\n\n", kind="text/event-stream")
    assert (found.ok, found.text) == (False, "so far")
    assert "Stream error: reset" in found.words


def test_line_ends_of_a_stream_may_be_any() -> None:
    body = stream("a", "b").replace(b"\n", b"\r\n")
    assert verdict(body, kind="text/event-stream").text == "ab"


def test_a_stream_s_last_event_may_lack_its_empty_line() -> None:
    assert verdict(stream("a", "b").rstrip(), kind="text/event-stream").ok


def test_a_reasoning_model() -> None:
    body = b'{"choices":[{"message":{"content":null,"reasoning_content":"hm"},"finish_reason":"length"}]}'
    assert verdict(body).text == "hm"


def test_the_request_itself() -> None:
    async def main() -> tuple[Verdict, Request]:
        async with StubServer(lambda _: Reply(body=GOOD)) as server, Dialler() as dialler:
            key = BearerKey("k3y", "PDTOP_API_KEY")
            found = await check(dialler, Address.parse(server.url + "/api"), model="m", key=key)
            return found, server.requests[0]

    found, request = run(main())
    assert found.ok
    assert (request.method, request.path) == ("POST", "/api/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer k3y"
    sent = json.loads(request.body)
    assert (sent["model"], sent["stream"]) == ("m", False)
    assert sent["max_tokens"] > 0
