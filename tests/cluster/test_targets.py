"""What to watch: from a config, a router or lists; folded, merged and never twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdtop.cluster.address import Address, AddressError
from pdtop.cluster.model import Role
from pdtop.cluster.readings import ListedWorker
from pdtop.cluster.targets import (
    Targets,
    WorkerTarget,
    combine,
    from_config,
    from_lists,
    from_router,
    listed_address,
)
from pdtop.config.schema import Config

BASE = {
    "server": {"host": "0.0.0.0", "port": 30000},  # noqa: S104 - as in the base form
    "prefill": {"workers": ["10.0.1.11:30001", "10.0.1.12:30001"]},
    "decode": {"workers": ["10.0.2.21:30001", "http://10.0.2.22:30001/"]},
}


def targets(raw: dict[str, Any] | None = None, **environ: str) -> Targets:
    return from_config(
        Config.model_validate(raw or BASE), cluster="c", folder=Path("/etc/pd"), environ=environ
    )


def listed(url: str, role: Role = Role.DECODE, worker_id: str = "id") -> ListedWorker:
    return ListedWorker(worker_id, url, role)


def summary(workers: tuple[WorkerTarget, ...]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(worker.key, worker.role.value, worker.ranks) for worker in workers]


def test_the_base_form() -> None:
    found = targets()
    assert [(w.key, w.name, w.role.value, w.source) for w in found.workers] == [
        ("10.0.1.11:30001", "10.0.1.11:30001", "prefill", "config"),
        ("10.0.1.12:30001", "10.0.1.12:30001", "prefill", "config"),
        ("10.0.2.21:30001", "10.0.2.21:30001", "decode", "config"),
        ("10.0.2.22:30001", "10.0.2.22:30001", "decode", "config"),
    ]
    assert [(r.name, r.address.base_url, r.engine) for r in found.routers] == [
        ("127.0.0.1:30000", "http://127.0.0.1:30000", None)
    ]
    settings = found.settings
    assert (settings.interval_s, settings.loads_interval_s, settings.health_interval_s) == (2.0, 1.0, 5.0)
    assert (settings.timeout_s, settings.health_timeout_s, settings.max_body_bytes) == (2.0, 20.0, 16 * 2**20)
    assert (settings.key, settings.admin_key, found.notices) == (None, None, ())


def test_everything_that_a_config_can_say() -> None:
    raw = {
        "server": {
            "url": "https://router.example.net",
            "metrics_url": "http://router.example.net:29000/metrics",
            "engine": "smg",
            "api_key_env": "CLUSTER_KEY",
            "ca_file": "ca.pem",
        },
        "decode": {
            "workers": ["node-7:30001"],
            "worker": {"NODE-7:30001": {"weight": 0.5, "drain": True, "metrics_url": "http://node-7:9100"}},
        },
        "console": {"interval_secs": 1, "max_body_mib": 1, "connect_to": {"NODE-7:30001": "localhost:7001"}},
    }
    found = targets(raw, CLUSTER_KEY="s3cret")
    (worker,), (router,) = found.workers, found.routers
    assert (worker.weight, worker.draining) == (0.5, True)
    assert worker.metrics is not None
    assert worker.metrics.metrics_url == "http://node-7:9100/metrics"
    assert (router.engine, router.address.key) == ("smg", "router.example.net:443")
    assert router.metrics is not None
    assert router.metrics.metrics_url == "http://router.example.net:29000/metrics"
    assert found.settings.ca_file == Path("/etc/pd/ca.pem")
    assert found.settings.connect_to == {"node-7:30001": "localhost:7001"}
    assert found.settings.max_body_bytes == 2**20
    assert found.settings.key is not None
    assert "s3cret" not in repr(found)
    assert "CLUSTER_KEY" in repr(found)


def test_replicas_are_routers_too_each_once() -> None:
    server = {
        "url": "http://10.0.0.1:30000",
        "metrics_url": "http://10.0.0.1:29000",
        "engine": "smg",
        "replica_urls": ["http://10.0.0.2:30000", "http://10.0.0.1:30000/", "http://10.0.0.3:x"],
    }
    found = targets({"server": server})
    assert [(r.name, r.engine, r.metrics is not None) for r in found.routers] == [
        ("10.0.0.1:30000", "smg", True),
        ("10.0.0.2:30000", "smg", False),
    ]
    assert len(found.notices) == 2
    assert "twice" in found.notices[0]
    assert "port" in found.notices[1]
    alone = targets({"server": {"replica_urls": ["http://10.0.0.2:30000"]}})
    assert [router.name for router in alone.routers] == ["10.0.0.2:30000"]


def test_a_worker_with_a_key_of_its_own() -> None:
    raw = {
        "decode": {
            "workers": ["a:1", "b:1", "c:1"],
            "worker": {"a:1": {"api_key_env": "OWN"}, "b:1": {"api_key_env": "UNSET"}},
        }
    }
    found = targets(raw, PDTOP_API_KEY="common", OWN="s3cret")
    own, unset, common = (worker.bearer(found.settings) for worker in found.workers)
    assert own is not None
    assert own.authorization == "Bearer s3cret"
    assert unset is None  # the common key is not meant for it
    assert common == found.settings.key
    assert [worker.key_variable for worker in found.workers] == ["OWN", "UNSET", ""]
    assert "s3cret" not in repr(found)


def test_a_mapping_that_cannot_be_read_is_left_out() -> None:
    found = targets({"console": {"connect_to": {"a:1": "b:x", "[fd00::1]:1": "127.0.0.1:2"}}})
    assert found.settings.connect_to == {"[fd00::1]:1": "127.0.0.1:2"}
    assert "connect_to" in found.notices[0]


def test_no_router_unless_the_file_names_one() -> None:
    assert targets({"prefill": {"workers": ["a:1"]}}).routers == ()


def test_bad_and_odd_lines_are_notices_and_cost_nothing_else() -> None:
    raw = {
        "prefill": {"workers": ["10.0.1.11:30001", "10.0.1.11", "10.0.1.999:1", "0.0.0.0:30002"]},
        "decode": {"workers": ["http://10.0.1.11:30001", "LOCALHOST:30009", "127.0.0.1:30009"]},
    }
    found = targets(raw, PDTOP_API_KEY="two words")
    assert [worker.key for worker in found.workers] == [
        "10.0.1.11:30001",
        "10.0.1.11:30000",
        "127.0.0.1:30002",
        "127.0.0.1:30009",
    ]
    text = "\n".join(found.notices)
    for words in ("10.0.1.999 is not an IPv4", "listen on", "twice", "localhost:30009", "PDTOP_API_KEY"):
        assert words in text
    assert "two words" not in text
    assert found.workers[0].role is Role.PREFILL


def test_ranks_written_one_by_one_are_one_worker() -> None:
    found = targets({"decode": {"workers": ["http://10.0.2.21:30001@1", "http://10.0.2.21:30001@0"]}})
    assert summary(found.workers) == [("10.0.2.21:30001", "decode", ("0", "1"))]
    assert found.workers[0].address.rank is None
    assert found.notices == ()


def test_a_router_s_address() -> None:
    found = from_router("http://user:pw@router:30000/", metrics_url="router:29000", environ={})
    (router,) = found.routers
    assert (found.cluster, router.name, found.workers) == ("router:30000", "router:30000", ())
    assert router.address.authorization is not None
    with pytest.raises(AddressError):
        from_router("http://", environ={})


def test_lists_of_addresses() -> None:
    found = from_lists(["p1:1", "p2:1"], ["http://d1:1@0", "d1:1@1"], router_url="r:30000", environ={})
    assert summary(found.workers) == [
        ("p1:1", "prefill", ()),
        ("p2:1", "prefill", ()),
        ("d1:1", "decode", ("0", "1")),
    ]
    assert [router.name for router in found.routers] == ["r:30000"]
    with pytest.raises(AddressError):
        from_lists(["x:y"], [], environ={})


def test_workers_that_only_a_router_lists_come_after_the_configured_ones() -> None:
    found = targets()
    lists = {
        "127.0.0.1:30000": [
            listed("http://10.0.2.23:30001"),
            listed("http://10.0.2.21:30001"),
            listed("http://[fd00:1::22]:30001", Role.UNIFIED),
        ]
    }
    combined = combine(found, lists)
    assert summary(combined.workers)[4:] == [
        ("10.0.2.23:30001", "decode", ()),
        ("[fd00:1::22]:30001", "unified", ()),
    ]
    assert [worker.source for worker in combined.workers] == ["config"] * 4 + ["router"] * 2
    assert combined.notices == ()
    assert combine(found, {}).workers == found.workers


def test_ranks_that_a_router_lists_are_folded() -> None:
    found = from_router("r:30000", environ={})
    lists = {"r:30000": [listed("http://10.0.2.21:30001@1"), listed("http://10.0.2.21:30001@0")]}
    combined = combine(found, lists)
    assert summary(combined.workers) == [("10.0.2.21:30001", "decode", ("0", "1"))]
    assert combined.workers[0].address.metrics_url == "http://10.0.2.21:30001/metrics"


def test_the_configured_role_stays_and_the_difference_is_said() -> None:
    combined = combine(targets(), {"127.0.0.1:30000": [listed("http://10.0.1.11:30001", Role.DECODE)]})
    assert combined.workers[0].role is Role.PREFILL
    assert combined.notices == ("10.0.1.11:30001: prefill here, decode at the router",)


def test_a_role_that_is_not_known_is_taken_from_who_knows() -> None:
    found = from_router("r:30000", environ={})
    lists = {"a": [listed("http://x:1", Role.UNKNOWN)], "b": [listed("http://x:1", Role.DECODE)]}
    assert summary(combine(found, lists).workers) == [("x:1", "decode", ())]


def test_an_unreadable_entry_is_a_notice() -> None:
    combined = combine(from_router("r:30000", environ={}), {"r:30000": [listed("http://\x1b[31m")]})
    assert combined.workers == ()
    assert "cannot be read" in combined.notices[0]


def test_one_worker_under_two_names() -> None:
    found = targets()
    lists = {"127.0.0.1:30000": [listed("http://node-7:30001")]}
    combined = combine(found, lists, {"node-7:30001": "10.0.2.21:30001"})
    assert len(combined.workers) == 4
    worker = combined.workers[2]
    assert (worker.key, worker.aliases) == ("10.0.2.21:30001", ("node-7:30001",))
    assert worker.is_called("node-7:30001")
    assert not worker.is_called("10.0.2.22:30001")


@pytest.mark.parametrize(
    ("url", "router", "key"),
    [
        ("http://127.0.0.1:30001", "http://10.0.0.5:30000", "10.0.0.5:30001"),
        ("http://localhost:30001@1", "http://router.example.net:30000", "router.example.net:30001"),
        ("http://127.0.0.1:30001", "http://127.0.0.1:30000", "127.0.0.1:30001"),
        ("http://10.0.2.21:30001", "http://10.0.0.5:30000", "10.0.2.21:30001"),
    ],
)
def test_a_router_s_loopback_is_the_router_s(url: str, router: str, key: str) -> None:
    address = listed_address(url, Address.parse(router))
    assert address is not None
    assert address.key == key
