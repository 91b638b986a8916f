"""Who a simulated worker says it is: ``/server_info``, ``/model_info``, ``/v1/models``.

The secrets in ``/server_info`` are made up; a real worker shows its true ones in the same places, and a
console must drop them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pdtop.simulator.spec import WorkerSpec
from pdtop.simulator.telemetry import VERSION

FAKE_API_KEY = "sk-fake-simulated-api-key"
FAKE_ADMIN_KEY = "sk-fake-simulated-admin-key"


def server_info(spec: WorkerSpec, port: int, bootstrap_port: int, throughput: float) -> dict[str, object]:
    prefill = spec.role == "prefill"
    capacity = spec.prefill.kv_tokens if prefill else spec.decode.kv_tokens
    command = (
        f"--model-path {spec.model_name} --host {spec.host} --port {port} --enable-metrics "
        f"--disaggregation-mode {spec.role} --api-key {FAKE_API_KEY} --admin-api-key {FAKE_ADMIN_KEY}"
    )
    arguments: dict[str, object] = {
        "model_path": spec.model_name,
        "tokenizer_path": spec.model_name,
        "served_model_name": spec.model_name,
        "host": spec.host,
        "port": port,
        "tp_size": spec.tp,
        "pp_size": 1,
        "dp_size": spec.dp,
        "attn_dp_size": 1,
        "ep_size": 1,
        "nnodes": 1,
        "node_rank": 0,
        "enable_dp_attention": False,
        "enable_metrics": spec.enable_metrics,
        "enable_metrics_for_all_schedulers": False,
        "decode_log_interval": 40,
        "load_snapshot_publish_interval": 15,
        "stream_interval": spec.stream_interval,
        "max_running_requests": spec.max_running,
        "max_queued_requests": None,
        "max_total_tokens": capacity,
        "chunked_prefill_size": spec.prefill.chunk_tokens,
        "page_size": 1,
        "mem_fraction_static": 0.85,
        "schedule_policy": "fcfs",
        "attention_backend": "fa3",
        "disable_radix_cache": not prefill,
        "disaggregation_mode": spec.role,
        "disaggregation_bootstrap_port": bootstrap_port if prefill else 8998,
        "disaggregation_transfer_backend": "mooncake",
        "disaggregation_ib_device": None,
        "disaggregation_decode_enable_radix_cache": False,
        "load_balance_method": "follow_bootstrap_room" if prefill else "round_robin",
        "random_seed": spec.seed,
        "api_key": FAKE_API_KEY,
        "admin_api_key": FAKE_ADMIN_KEY,
        "ssl_keyfile_password": None,
    }
    state = {
        **arguments,
        "launch_command": command,
        "effective_max_running_requests_per_dp": spec.max_running,
        "last_gen_throughput": throughput,
        "memory_usage": {
            "weight": 35.31,
            "kvcache": round(capacity * 160 / 2**20, 3),
            "startup_available": 78.4,
            "token_capacity": capacity,
            "graph": {"prefill": 0.0, "decode": 0.0},
        },
    }
    return {
        **arguments,
        "launch_command": command,
        "status": "ready",
        "max_total_num_tokens": capacity,
        "max_req_input_len": capacity - 6,
        "startup_time": {"load_weight": 0.41, "scheduler_e2e": 1.52},
        "kv_events": None,
        "internal_states": [state] * spec.dp,
        "version": VERSION,
        "frontend": "python",
    }


def model_info(spec: WorkerSpec) -> Mapping[str, object]:
    return {
        "model_path": spec.model_name,
        "served_model_name": spec.model_name,
        "tokenizer_path": spec.model_name,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": spec.role,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
    }


def models(spec: WorkerSpec, created: int) -> Mapping[str, object]:
    entry = {"id": spec.model_name, "object": "model", "created": created, "owned_by": "sglang"}
    return {
        "object": "list",
        "data": [{**entry, "root": spec.model_name, "parent": None, "max_model_len": 32768}],
    }
