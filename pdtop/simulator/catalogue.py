"""The metric families of an SGLang 0.5.23 worker: names, types, bucket bounds.

Names, types and bounds are those of the release; the help texts are our own.
"""

from __future__ import annotations

from pdtop.simulator.exposition import Family

TTFT_BOUNDS = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0),
    *(20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0),
)
E2E_BOUNDS = (*TTFT_BOUNDS, 600.0, 1200.0, 1800.0, 2400.0)
TOKEN_TIME_BOUNDS = (
    *(0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080),
    *(0.100, 0.200, 0.400, 0.600, 0.800, 1.0, 2.0, 4.0, 6.0, 8.0),
)
QUEUE_BOUNDS = (
    *(0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
    *(50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0),
    *(1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0),
)
STAGE_BOUNDS = tuple(0.001 * 1.62**i for i in range(30))
LENGTH_BOUNDS = (
    *(100.0, 300.0, 500.0, 700.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0, 7000.0, 8000.0),
    *(9000.0, 10000.0, 12500.0, 15000.0, 17500.0, 20000.0, 22500.0, 25000.0, 27500.0, 30000.0, 35000.0),
    *(40000.0, 60000.0, 80000.0, 100000.0, 200000.0, 300000.0, 400000.0, 600000.0, 800000.0, 1e6, 1.1e6),
)
WAIT_MS_BOUNDS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0)
EVICTION_BOUNDS = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01),
    *(0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.5, 1.0),
)

_GAUGES = {
    # what the scheduler reports with a batch, at a log interval or when idle
    "num_running_reqs": "Requests in the running batch.",
    "num_queue_reqs": "Requests in the waiting queue.",
    "num_grammar_queue_reqs": "Requests that wait for a grammar to be compiled.",
    "num_prefill_bootstrap_queue_reqs": "Prefill: requests that wait for the handshake with decode.",
    "num_prefill_inflight_queue_reqs": "Prefill: requests whose KV is being sent.",
    "num_decode_prealloc_queue_reqs": "Decode: requests that wait for KV memory or the handshake.",
    "num_decode_transfer_queue_reqs": "Decode: requests that wait for their KV.",
    "num_decode_host_receive_queue_reqs": "Decode: requests that receive into host memory.",
    "num_decode_deferred_kv_release_reqs": "Decode: failed requests whose KV is held until confirmed.",
    "gen_throughput": "Generated tokens per second over the last log interval.",
    "cache_hit_rate": "Prefix cache hit rate of the last prefill report.",
    "decode_sum_seq_lens": "Sum of the sequence lengths in decode.",
    "token_usage": "Highest use of any token pool, two decimals.",
    "full_token_usage": "Use of the full-attention pool.",
    "swa_token_usage": "Use of the sliding-window pool.",
    "mamba_usage": "Use of the state pool.",
    "num_used_tokens": "Token slots in use.",
    "kv_used_tokens": "KV token slots in use.",
    "kv_available_tokens": "KV token slots that are free.",
    "kv_evictable_tokens": "KV token slots that only the prefix cache holds.",
    "swa_used_tokens": "Sliding-window slots in use.",
    "swa_available_tokens": "Sliding-window slots that are free.",
    "swa_evictable_tokens": "Sliding-window slots that only the prefix cache holds.",
    "mamba_used_tokens": "State slots in use.",
    "mamba_available_tokens": "State slots that are free.",
    "mamba_evictable_tokens": "State slots that only the prefix cache holds.",
    "num_retracted_reqs": "Requests retracted in the last report.",
    "num_paused_reqs": "Requests paused by a weight update.",
    "new_token_ratio": "Reservation ratio for new tokens.",
    "utilization": "Utilization.",
    "fwd_occupancy": "Share of wall time in forward passes, percent.",
    "is_cuda_graph": "Whether the batch runs as a CUDA graph.",
    "pending_prealloc_token_usage": "Use by tokens that wait to be preallocated.",
    "prealloc_full_token_usage": "Share of the pool held by requests that do not run yet.",
    "prealloc_swa_token_usage": "Share of the sliding-window pool held by requests that do not run yet.",
    "spec_accept_length": "Mean accepted length of speculative decoding.",
    "spec_accept_rate": "Accepted share of the drafts.",
    "spec_num_steps": "Speculative steps in force.",
    "spec_num_draft_tokens": "Draft tokens in force.",
    "spec_cap_length": "Mean verify window.",
    "spec_block_accept_length": "Mean uncapped accepted length.",
    "num_unique_running_routing_keys": "Routing keys in the running batch.",
    "routing_key_running_req_count": "Routing keys by their running requests (gt < count <= le).",
    "routing_key_all_req_count": "Routing keys by all their requests (gt < count <= le).",
    # constants
    "max_total_num_tokens": "KV capacity in tokens.",
    "weight_memory_usage_gb": "Memory of the weights.",
    "kv_cache_memory_usage_gb": "Memory of the KV pools.",
    "graph_memory_usage_gb": "Memory of captured graphs.",
    "page_size": "KV page size in tokens.",
    "num_pages": "KV pages.",
    "context_len": "Longest context.",
    "startup_available_gpu_memory_gb": "Free device memory at the start.",
    "startup_time_seconds": "Start-up time by phase.",
    "startup_cuda_graph_time_seconds": "Graph capture time by phase.",
    # the process
    "routing_keys_active": "Routing keys with active requests.",
    "http_requests_active": "HTTP requests in progress.",
}

_COUNTERS = {
    "realtime_tokens": "Tokens processed, by mode.",
    "prefill_effective_tokens": "Prefill tokens without repeats after retraction, by mode.",
    "cuda_graph_passes": "Forward passes by kind of graph.",
    "scheduler_idle_seconds": "Wall time without any work.",
    "scheduler_process_cpu_seconds": "CPU time of the scheduler.",
    "scheduler_stage_seconds": "Wall time of the scheduler loop by stage.",
    "dp_attention_tokens": "Tokens of attention-DP steps.",
    "dp_attention_steps": "Attention-DP steps.",
    "dp_attention_pairs": "Query-key pairs of attention-DP steps.",
    "num_retracted_requests": "Requests retracted.",
    "num_retracted_input_tokens": "Input tokens of retracted requests.",
    "num_retracted_output_tokens": "Output tokens of retracted requests.",
    "num_bootstrap_failed_reqs": "Requests whose handshake failed.",
    "num_transfer_failed_reqs": "Requests whose KV transfer failed.",
    "failed_session_recoveries": "Transfer sessions taken off the black list.",
    "evicted_tokens": "KV token slots freed by eviction.",
    "num_requests": "Requests processed.",
    "num_aborted_requests": "Requests aborted.",
    "prompt_tokens": "Prompt tokens of finished requests.",
    "generation_tokens": "Generated tokens of finished requests.",
    "cached_tokens": "Prompt tokens found in a cache.",
    "http_requests": "HTTP requests.",
    "http_responses": "HTTP responses.",
    "process_cpu_seconds": "CPU time of the process.",
}

_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("Time to the first token.", TTFT_BOUNDS),
    "inter_token_latency_seconds": ("Time between tokens.", TOKEN_TIME_BOUNDS),
    "request_time_per_output_token_seconds": ("Time per output token of a request.", TOKEN_TIME_BOUNDS),
    "e2e_request_latency_seconds": ("Time of the whole request.", E2E_BOUNDS),
    "queue_time_seconds": ("Time in the waiting queue.", QUEUE_BOUNDS),
    "per_stage_req_latency_seconds": ("Time in each stage of a request.", STAGE_BOUNDS),
    "prompt_tokens_histogram": ("Prompt lengths.", LENGTH_BOUNDS),
    "uncached_prompt_tokens_histogram": ("Prompt lengths without cached tokens.", LENGTH_BOUNDS),
    "generation_tokens_histogram": ("Output lengths.", LENGTH_BOUNDS),
    "get_loads_duration_seconds": (
        "Time to answer /v1/loads.",
        (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0),
    ),
    "kv_transfer_latency_ms": ("Time of a KV transfer.", (*WAIT_MS_BOUNDS, 5000.0)),
    "kv_transfer_bootstrap_ms": ("Time of the handshake.", WAIT_MS_BOUNDS),
    "kv_transfer_alloc_ms": ("Wait for KV slots.", WAIT_MS_BOUNDS),
    "kv_transfer_total_mb": (
        "Size of a KV transfer.",
        (1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0, 10000.0),
    ),
    "kv_transfer_speed_gb_s": (
        "Speed of a KV transfer.",
        (0.1, 0.5, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0),
    ),
    "eviction_duration_seconds": ("Time of an eviction pass.", EVICTION_BOUNDS),
    "dp_attention_token_imbalance_ratio": (
        "Most over mean tokens across the DP ranks of a step.",
        (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0),
    ),
    "dp_attention_sync_wait_seconds": (
        "Wait for the other DP ranks in a step.",
        (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
    ),
}

#: By short name: without ``sglang:`` and, for counters, without ``_total``.
FAMILIES: dict[str, Family] = {
    **{name: Family(f"sglang:{name}", "gauge", text) for name, text in _GAUGES.items()},
    **{name: Family(f"sglang:{name}_total", "counter", text) for name, text in _COUNTERS.items()},
    **{
        name: Family(f"sglang:{name}", "histogram", text, bounds)
        for name, (text, bounds) in _HISTOGRAMS.items()
    },
}

GRAPH_PHASES = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")
SCHEDULER_STAGES = (
    *("other", "recv_requests", "process_input_requests", "get_next_batch_to_run", "process_queue"),
    *("run_batch", "process_batch_result", "sanity_check_cache", "idle"),
)
#: ``gt``/``le`` pairs of the two routing-key gauges; bands, not cumulative buckets.
ROUTING_KEY_BANDS = (
    *(("0", "1"), ("1", "2"), ("2", "3"), ("3", "5"), ("5", "7"), ("7", "10"), ("10", "20")),
    *(("20", "50"), ("50", "100"), ("100", "200"), ("200", "+Inf")),
)
