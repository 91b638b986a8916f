"""What is read from a request's body, and what is put into it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdtop.gateway.inference import BadRequest, read_inference, tokens_in
from pdtop.gateway.prefixes import LONGEST_CHARS


def read(body: object) -> Any:
    return read_inference(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "prefix"),
    [
        ({"text": "abc"}, "abc"),
        ({"prompt": "abc"}, "abc"),
        ({"text": ["abc", "def"]}, "abc"),
        ({"input_ids": [1, 2, 3]}, "1 2 3"),
        ({"input_ids": [[1, 2], [3]]}, "1 2"),
        ({"messages": [{"content": "ab"}, {"content": [{"text": "c"}, {"image": 1}]}, {}, 7]}, "abc"),
        ({"messages": 3}, ""),
        ({}, ""),
        ({"text": "x" * (LONGEST_CHARS + 1)}, "x" * LONGEST_CHARS),
    ],
)
def test_the_prompt(body: dict[str, Any], prefix: str) -> None:
    assert read(body).wanted.prefix == prefix


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6, "max_tokens": 5}, 6),
        ({"sampling_params": {"max_new_tokens": 7}}, 7),
        ({"max_tokens": True}, 256),
        ({"max_tokens": -1}, 256),
        ({"max_tokens": "x", "sampling_params": []}, 256),
    ],
)
def test_expected_output(body: dict[str, Any], tokens: int) -> None:
    assert read(body).wanted.output_tokens == tokens


def test_input_tokens_count_the_whole_prompt() -> None:
    assert read({"text": "x" * 100_000}).wanted.input_tokens == 25_000


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_no_request(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        read_inference(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"text": "a"}',
        b' \n{"text": "a"}\r\n ',
        '{"text": "ä"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"text": "a"}',
        b"{}",
        b'{"text": "a", "bootstrap_room": 5, "bootstrap_host": "evil"}',
    ],
)
def test_the_place_is_put_into_any_body(raw: bytes) -> None:
    asked = read_inference(raw)
    sent = json.loads(asked.payload("h", 8998, 77))
    place = {"bootstrap_host": "h", "bootstrap_port": 8998, "bootstrap_room": 77}
    assert sent == {**asked.body, **place}


def test_a_plain_body_is_sent_as_it_came() -> None:
    raw = b'{"text":  "a" , "x":1.0}'
    assert read_inference(raw).payload("h", 1, 2).startswith(raw[:-1])


@pytest.mark.parametrize(
    "body", [{"text": ["a", "b"]}, {"prompt": [[1], [2]]}, {"input_ids": [[1], [2]]}, {"prompt": ["a", "b"]}]
)
def test_each_prompt_of_a_batch_has_a_room(body: dict[str, Any]) -> None:
    sent = json.loads(read(body).payload("h", None, 2**63 - 1))
    assert sent["bootstrap_host"] == ["h", "h"]
    assert sent["bootstrap_port"] == [None, None]
    assert sent["bootstrap_room"] == [2**63 - 1, 0]


def test_one_prompt_of_token_ids_is_no_batch() -> None:
    for body in ({"prompt": [1, 2, 3]}, {"input_ids": [1, 2]}):
        assert read(body).batch is None


@pytest.mark.parametrize(
    ("tail", "count"),
    [
        (b'..."completion_tokens":12}', 12),
        (b'"completion_tokens": 3 ... "completion_tokens": 4}', 4),
        (b"data: [DONE]", None),
    ],
)
def test_tokens_that_an_answer_counts(tail: bytes, count: int | None) -> None:
    assert tokens_in(tail) == count
