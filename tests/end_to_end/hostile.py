"""What a hostile worker or router answers: pages, lists and texts made to break whoever reads them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.stub_server import Answering, Reply, Request

REAL = Path(__file__).parents[1] / "fixtures" / "real" / "sglang-0.5.23+sglang-router-0.3.2" / "2p2d-load"
SECRET = "s3cret-launch-key"
LONG = "L" * 100_000
#: One text with everything in it that moves a cursor, closes a tag, hides or turns text round.
NASTY = (
    "\x1b]0;owned\x07\x1b[31mred\x9b2J[/x][bold red]b[/bold red][@click=app.quit]q[/] "
    "\u202eexe\u200b\u2066\rz\nnew"
)
HTML = b"<!doctype html><html><body>503 <b>sglang:num_running_reqs</b> 0</body></html>"
GZIP_BOMB = gzip.compress(b"sglang:num_running_reqs 1\n" * 4_000_000, 9)  # 104 MB unpacked


def label(text: str) -> str:
    """A text as a label's value."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def nasty_page(text: str = NASTY) -> bytes:
    """A worker's page whose label values are all ``text``."""
    value = label(text)
    labels = (
        f'model_name="{value}",engine_type="{value}",tp_rank="{value}",pp_rank="{value}",dp_rank="{value}"'
    )
    lines = [
        "# TYPE sglang:num_running_reqs gauge",
        f"sglang:num_running_reqs{{{labels}}} 3",
        f"sglang:num_queue_reqs{{{labels}}} 2",
        f"sglang:token_usage{{{labels}}} 0.5",
        f"sglang:prompt_tokens_total{{{labels}}} 1000",
        f'sglang:cache_config_info{{{labels},{value}="{value}"}} 1',
    ]
    return "\n".join([*lines, ""]).encode("utf-8", "replace")


def odd_numbers_page(at: int = 0) -> bytes:
    """Counters that overflow, buckets that fall, bounds out of order or no numbers at all."""
    labels = 'model_name="m",dp_rank="0",engine_type="unified"'
    huge = "1e308" if at % 2 else "9e307"
    lines = [
        "# TYPE sglang:num_running_reqs gauge",
        f"sglang:num_running_reqs{{{labels}}} NaN",
        f"sglang:num_queue_reqs{{{labels}}} -Inf",
        f"sglang:token_usage{{{labels}}} 1e308",
        f"sglang:num_used_tokens{{{labels}}} +Inf",
        f"sglang:max_total_num_tokens{{{labels}}} 1e308",
        "# TYPE sglang:prompt_tokens_total counter",
        f"sglang:prompt_tokens_total{{{labels}}} {huge}",
        f"sglang:generation_tokens_total{{{labels}}} {huge}",
        f"sglang:num_requests_total{{{labels}}} {huge}",
        "# TYPE sglang:time_to_first_token_seconds histogram",
        f'sglang:time_to_first_token_seconds_bucket{{{labels},le="5"}} {10 + at}',
        f'sglang:time_to_first_token_seconds_bucket{{{labels},le="abc"}} 7',
        f'sglang:time_to_first_token_seconds_bucket{{{labels},le="0.1"}} -{5 + at}',
        f'sglang:time_to_first_token_seconds_bucket{{{labels},le="NaN"}} 3',
        f'sglang:time_to_first_token_seconds_bucket{{{labels},le="1"}} 1e308',
        f'sglang:time_to_first_token_seconds_bucket{{{labels},le="+Inf"}} {huge}',
        f"sglang:time_to_first_token_seconds_count{{{labels}}} {huge}",
        f"sglang:time_to_first_token_seconds_sum{{{labels}}} {huge}",
        "# TYPE sglang:inter_token_latency_seconds histogram",
        f'sglang:inter_token_latency_seconds_bucket{{{labels},le="0.01"}} {huge}',
        f'sglang:inter_token_latency_seconds_bucket{{{labels},le="0.1"}} {huge}',
        f'sglang:inter_token_latency_seconds_bucket{{{labels},le="+Inf"}} {huge}',
        f"sglang:inter_token_latency_seconds_count{{{labels}}} {huge}",
        f"sglang:inter_token_latency_seconds_sum{{{labels}}} {huge}",
    ]
    return "\n".join([*lines, ""]).encode()


def nested(depth: int) -> object:
    """Lists in lists."""
    whole: object = 1
    for _ in range(depth):
        whole = [whole]
    return whole


def odd_loads(text: str = NASTY) -> bytes:
    """``/v1/loads`` with a wrong type in every place."""
    wrong: tuple[object, ...] = (None, True, "5", text, [1, [2]], {"a": 1}, 10**300, -1, 1e308, 1.5e-320)
    names = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens", "token_usage")
    ranks: list[object] = [dict.fromkeys((*names, "dp_rank", "timestamp"), value) for value in wrong]
    ranks += [{"dp_rank": 0, "timestamp": 5, "disaggregation": value, "queues": value} for value in wrong]
    ranks += [
        {"dp_rank": 1, "timestamp": 1e300, "num_running_reqs": 1e308, "num_waiting_reqs": 1e308,
         "token_usage": 1e308, "num_used_tokens": 1e308, "max_total_num_tokens": 1e308},
        {"dp_rank": 2, "timestamp": 1e300, "num_running_reqs": 1e308, "num_waiting_reqs": 1e308},
        nested(50), None, text,
    ]  # fmt: skip
    return json.dumps({"timestamp": 1e300, "version": text, "loads": ranks}).encode()


def odd_info(text: str = NASTY) -> bytes:
    """``/server_info`` with secrets everywhere, deep nesting and numbers that no machine has."""
    secrets = {
        "api_key": SECRET,
        "admin_api_key": SECRET,
        "ssl_keyfile_password": SECRET,
        "launch_command": f"--api-key {SECRET}",
        "env": {"HF_TOKEN": SECRET},
    }
    return json.dumps(
        {
            **secrets,
            "version": text,
            "served_model_name": text,
            "model_path": text,
            "tp_size": 1e308,
            "dp_size": 1e308,
            "attn_dp_size": 1e308,
            "max_total_num_tokens": 1e308,
            "max_running_requests": 1e308,
            "chunked_prefill_size": 10**300,
            "mem_fraction_static": [secrets],
            "context_length": text,
            "quantization": LONG,
            "kv_cache_dtype": nested(200),
            "startup_time": {"a": nested(200)},
            "internal_states": [{**secrets, "disaggregation_mode": [secrets]}],
        }
    ).encode()


def odd_workers(urls: list[str], text: str = NASTY) -> bytes:
    """A router's list with doubles, hostile texts and wrong types beside the real ``urls``."""
    roles = ("decode", "prefill")
    real = [
        {"id": "same", "url": url, "worker_type": roles[at % 2], "is_healthy": True, "load": at}
        for at, url in enumerate(urls)
    ]
    endless = "http://" + "a" * 90 + ":8"
    odd: list[object] = [
        {"id": text, "url": text, "worker_type": text},
        {"id": "x", "url": f"http://u:{SECRET}@127.0.0.1:9", "worker_type": "decode", "status": nested(50)},
        {"id": LONG, "url": endless, "model_id": LONG, "labels": {text: text, "api_key": SECRET}},
        {"url": "http://127.0.0.1:7", "load": "x", "bootstrap_port": -5, "breaker": {}, "labels": [1]},
        *({"url": url} for url in ("http://127.0.0.1:99999", "file:///etc/passwd", 7, None)),
        *({}, None, 3, []),
    ]
    return json.dumps({"workers": [*real, *real, *odd], "stats": text, "total": -1}).encode()


def worker(replies: Mapping[str, Reply], text: str = NASTY) -> Answering:
    """A worker that is hostile on every path; ``replies`` says what a path answers instead."""
    rounds = 0

    def answer(request: Request) -> Reply:
        nonlocal rounds
        rounds += 1
        if request.route in replies:
            return replies[request.route]
        match request.route:
            case "/metrics":
                return Reply(body=odd_numbers_page(rounds) + nasty_page(text))
            case "/v1/loads":
                return Reply(body=odd_loads(text))
            case "/server_info" | "/get_server_info":
                return Reply(body=odd_info(text))
            case _:
                return Reply(body=HTML)

    return answer
