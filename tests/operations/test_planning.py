"""Plans: what is written, where, in which steps, and how the question reads."""

from __future__ import annotations

import tomllib

import pytest

from pdtop.cluster.model import Backlog, Identity, Role, State
from pdtop.config.edit import Edit, apply_edits
from pdtop.operations.edits import after_edits, edits_of
from pdtop.operations.model import (
    AddWorker,
    Apply,
    Drain,
    Plan,
    RemoveWorker,
    Request,
    Restart,
    SetValue,
    SetWeight,
    Step,
    Undo,
    Undrain,
    UnsetValue,
)
from pdtop.operations.planning import targets
from tests.insight.scenes import router, waits, worker
from tests.operations.scenes import (
    CONFIG,
    D1,
    D2,
    D3,
    OWN,
    P1,
    P2,
    cluster,
    loaded,
    planned,
    row,
)

BUSY = cluster(
    worker(D1, kv_use=0.44, kv_use_worst=0.5, running=17.0),
    worker(D2, kv_use=0.71, kv_use_worst=0.8, running=14.0, backlog=waits(queue=0.0, transfer=13.0)),
    worker(D3, kv_use=0.52, kv_use_worst=0.52, running=18.0),
)
ANY = "config.toml"


def document(made: Plan, text: str = CONFIG) -> dict[str, object]:
    return tomllib.loads(apply_edits(text, made.edits))


def written(made: Plan) -> list[str]:
    return [one.text for one in made.edits]


def test_a_drain() -> None:
    made = planned(Drain((D2,)), BUSY)
    assert made.title == f"Drain decode worker {D2}"
    assert made.cluster == "c"
    assert made.digest == loaded().digest
    assert made.targets == (D2,)
    assert made.guards == ()
    assert made.nothing_to_do == ""
    assert made.rows == (
        ("Now", "14 running, 13 waiting for KV"),
        (
            "After",
            "2 of 3 decode workers usable, KV 56 % → 84 %, running each 16 → 24, "
            "fullest of the rest 52 % now",
        ),
        (
            "How",
            "smg: DELETE /workers/…, 5 s draining at the router, then watched until it is empty",
        ),
        ("Returns", "any time with undrain; config.toml line 21: drain = true"),
        ("Restart", "smg: a restart brings it back from the command line; pdtop takes it out again"),
    )
    assert [effect.text for effect in made.effects] == [
        "decode: 2 of 3 usable stay, KV 56 % → 84 %, running each 16 → 24"
    ]
    assert made.edits == (Edit("set", ("decode", "worker", D2, "drain"), True),)
    assert made.steps == (
        Step(ANY, f'set decode.worker."{D2}".drain = true'),
        Step("r", f"DELETE /workers/… for {D2}, read back until no new work can reach it"),
        Step(D2, "wait until it is empty, by the routers' count and its own"),
    )


def test_the_line_of_the_question_is_the_line_of_the_new_file() -> None:
    text = apply_edits(CONFIG, planned(Drain((D2,))).edits)
    assert text.splitlines()[20] == "drain = true"
    text = apply_edits(CONFIG, planned(Drain((D3,))).edits)
    assert row(planned(Drain((D3,))), "Returns").endswith("config.toml line 19: drain = true")
    assert text.splitlines()[18] == "drain = true"


def test_several_at_once() -> None:
    made = planned(Drain((D2, P2)), BUSY)
    assert made.title == "Drain 2 workers (1 prefill, 1 decode)"
    assert planned(Drain((D1, D2))).title == "Drain 2 decode workers"
    assert row(made, "Now") == f"{D2}: 14 running, 13 waiting for KV\n{P2}: 4 running"
    assert [(e.role, e.usable_after) for e in made.effects] == [(Role.PREFILL, 1), (Role.DECODE, 2)]
    assert document(made)["prefill"] == {
        "workers": [P1, P2],
        "policy": "cache_aware",
        "cache_aware_threshold": 0.30,
        "worker": {P2: {"drain": True}},
    }


@pytest.mark.parametrize(
    ("engine", "how", "restart", "step"),
    [
        (
            "sglang-router",
            "sglang-router: DELETE /workers/…, gone from the router at once, then watched until it is empty",
            "sglang-router: a restart brings it back from the command line; pdtop takes it out again",
            f"DELETE /workers/… for {D2}, read back until no new work can reach it",
        ),
        (
            "pdtop",
            "the router follows config.toml, then watched until it is empty",
            "pdtop: stays drained, it reads config.toml",
            "follows config.toml; read back",
        ),
        (
            "vllm-router",
            "vllm-router: cannot be told, goes on sending",
            "vllm-router: nothing changes",
            "cannot be told: stays as it is",
        ),
        (
            "unknown",
            "a router that is not known: cannot be told, goes on sending",
            "a router that is not known: nothing changes",
            "cannot be told: stays as it is",
        ),
    ],
)
def test_how_each_router_is_drained(engine: str, how: str, restart: str, step: str) -> None:
    made = planned(Drain((D2,)), engines={"r": engine})
    assert (row(made, "How"), row(made, "Restart")) == (how, restart)
    assert [s.words for s in made.steps if s.where == "r"] == [step]


def test_every_router_has_its_step() -> None:
    made = planned(Drain((D2,)), engines={"a": "smg", "b": "smg", "c": "pdtop"})
    assert [s.where for s in made.steps] == [ANY, "a", "b", "c", D2]
    assert len(row(made, "How").splitlines()) == 2  # once for each kind


SPELLED = f"""\
decode.workers = ["http://{D1}/", "{D2}"]
[decode.worker."{D1}"]
rack = "r2"
drain = false
"""


def test_the_table_that_is_there_is_used_in_its_spelling() -> None:
    assert written(planned(Drain((D1,)), config=SPELLED)) == [f'set decode.worker."{D1}".drain = true']
    bare = f'decode.workers = ["http://{D1}/", "{D2}"]\n'
    assert written(planned(Drain((D1,)), config=bare)) == [f'set decode.worker."http://{D1}/".drain = true']


def test_ranks_of_one_worker_share_a_table() -> None:
    config = f'decode.workers = ["http://{D1}@0", "http://{D1}@1", "{D2}"]\n'
    after = after_edits(loaded(config), edits_of(Drain((D1,)), loaded(config))).config
    assert after is not None
    assert [after.decode.settings_of(w).drain for w in after.decode.workers] == [True, True, False]


def test_draining_a_drained_one() -> None:
    config = CONFIG + "drain = true\n"
    made = planned(Drain((D3,)), config=config)
    assert made.nothing_to_do == f"{D3} is drained already"
    assert (made.edits, made.steps, made.guards) == ((), (), ())
    assert written(planned(Drain((D3, D2)), config=config)) == [f'set decode.worker."{D2}".drain = true']


def test_undraining_one_that_is_not() -> None:
    assert planned(Undrain((D2,))).nothing_to_do == f"{D2} is not drained in config.toml"
    assert planned(Undrain((D1, D2))).nothing_to_do == f"{D1}, {D2} are not drained in config.toml"


@pytest.mark.parametrize(
    ("table", "edit", "left"),
    [
        ("drain = true", f'take prefill.worker."{P2}" out', None),
        ("drain = true\nweight = 2.0", f'take prefill.worker."{P2}".drain out', {"weight": 2.0}),
        (
            "drain = true\nbootstrap_port = 8998",
            f'take prefill.worker."{P2}".drain out',
            {"bootstrap_port": 8998},
        ),
    ],
)
def test_an_undrain(table: str, edit: str, left: dict[str, object] | None) -> None:
    config = CONFIG + f'[prefill.worker."{P2}"]\n{table}\n'
    drained = worker(P2, Role.PREFILL, usable=False, unusable_because="draining", draining=True, running=0.0)
    made = planned(Undrain((P2,)), cluster(drained), config)
    assert made.title == f"Undrain prefill worker {P2}"
    assert written(made) == [edit]
    prefill = document(made, config)["prefill"]
    assert isinstance(prefill, dict)
    assert prefill.get("worker") == (None if left is None else {P2: left})
    assert row(made, "Now") == "0 running, draining"
    assert row(made, "After") == "2 of 2 prefill workers usable, KV 30 % → 15 %, running each 4 → 2"
    port = "8998 (config.toml)" if "8998" in table else "not known"
    how = f"smg: POST /workers, bootstrap_port {port}; not before its removal is 5 s old"
    assert row(made, "How") == how
    assert row(made, "Then").startswith("watched until it is healthy")
    assert made.steps[1] == Step("r", f"POST /workers for {P2}, read back until healthy")


def test_drain_and_undrain_give_the_old_bytes() -> None:
    there = apply_edits(CONFIG, planned(Drain((D2, D3))).edits)
    assert apply_edits(there, planned(Undrain((D2, D3)), config=there).edits) == CONFIG


def test_an_undrain_of_a_decode_worker_needs_no_port() -> None:
    made = planned(Undrain((D3,)), config=CONFIG + "drain = true\n")
    assert row(made, "How") == "smg: POST /workers; not before its removal is 5 s old"
    own = planned(Undrain((D3,)), config=CONFIG + "drain = true\n", engines=OWN)
    assert row(own, "How") == "the router follows config.toml"


def test_a_weight() -> None:
    made = planned(SetWeight(D2, 0.5), cluster(worker(D2, share=0.35)), engines=OWN)
    assert made.title == f"Set the weight of decode worker {D2} to 0.5"
    assert made.rows == (
        ("Now", "weight 1, share 35 %"),
        ("After", "weight 0.5, about 20 % of equally loaded workers"),
        ("File", "config.toml line 21: weight = 0.5"),
    )
    assert made.edits == (Edit("set", ("decode", "worker", D2, "weight"), 0.5),)
    assert made.steps[1] == Step("r", "follows config.toml; read back")


def test_weight_zero_takes_the_worker_out_where_weights_are_read() -> None:
    own = planned(SetWeight(D2, 0), engines=OWN)
    assert [e.usable_after for e in own.effects] == [2]
    assert row(own, "After").startswith("weight 0: no new work, what runs goes on to its end\n2 of 3 decode")
    smg = planned(SetWeight(D2, 0))
    assert smg.effects == ()
    assert row(smg, "After") == "weight 0, share unchanged: power_of_two in this router does not read weights"
    assert [s.where for s in smg.steps] == [ANY]
    unknown = planned(SetWeight(D2, 0.5), engines={"r": "unknown"})
    assert row(unknown, "After") == "weight 0.5; what the router does with it is not known"


def test_a_weight_that_it_has() -> None:
    assert planned(SetWeight(D2, 1)).nothing_to_do == f"the weight of {D2} is 1 already"
    config = CONFIG + "weight = 0.5\n"
    assert written(planned(SetWeight(D3, 1.0), config=config)) == [f'set decode.worker."{D3}".weight = 1.0']


def test_a_value() -> None:
    made = planned(SetValue(("prefill", "cache_aware_threshold"), "0.40"))
    assert made.title == "Set prefill.cache_aware_threshold = 0.40"
    assert made.targets == ()
    assert made.edits == (Edit("set", ("prefill", "cache_aware_threshold"), 0.4, "0.40"),)
    assert row(made, "Change") == "prefill.cache_aware_threshold: 0.3 → 0.4"
    assert row(made, "Meaning").startswith("Up to this spread of load")
    assert row(made, "Valid") == "0 to 1; default 0.3"
    assert "--balance-rel-threshold 1.67" in row(made, "Effect")
    assert row(made, "File") == "config.toml line 7: cache_aware_threshold = 0.40"
    assert made.steps == (
        Step(ANY, "set prefill.cache_aware_threshold = 0.40"),
        Step("r", "with its next restart: see the restart plan"),
    )


def test_a_value_that_only_pdtop_reads_goes_to_no_router() -> None:
    made = planned(SetValue(("slo", "ttft_p99_ms"), "500"))
    assert [s.where for s in made.steps] == [ANY]
    assert row(made, "Change") == "slo.ttft_p99_ms: not set → 500"
    live = planned(SetValue(("health", "interval_secs"), "3"))
    assert live.steps[1:] == (Step("r", "changed while it runs, read back"),)
    assert row(live, "Change") == "health.interval_secs: 5 → 3"


def test_text_needs_no_quotes() -> None:
    made = planned(SetValue(("decode", "policy"), " round_robin "))
    assert written(made) == ['set decode.policy = "round_robin"']
    assert written(planned(SetValue(("decode", "policy"), "'round_robin'"))) == [
        "set decode.policy = 'round_robin'"
    ]


def test_a_value_that_it_has() -> None:
    made = planned(SetValue(("prefill", "cache_aware_threshold"), "0.3"))
    assert made.nothing_to_do == "config.toml says so already"
    assert planned(UnsetValue(("slo", "ttft_p99_ms"))).nothing_to_do == (
        "it is not in config.toml: the default counts"
    )


def test_unset() -> None:
    made = planned(UnsetValue(("decode", "policy")), engines=OWN)
    assert made.title == "Take decode.policy out"
    assert row(made, "Change") == 'decode.policy: "power_of_two" → "cache_aware"'
    assert row(made, "File") == "the line leaves config.toml"
    assert written(made) == ["take decode.policy out"]


def test_a_value_that_takes_workers_out_shows_what_it_does() -> None:
    made = planned(SetValue(("decode", "workers"), f'["{D1}", "{D2}"]'), BUSY)
    assert row(made, "After").startswith("2 of 3 decode workers usable")
    drain = planned(SetValue(("decode", "worker", D2, "drain"), "true"), BUSY)
    assert drain.targets == (D2,)
    assert [e.usable_after for e in drain.effects] == [2]


def test_adding() -> None:
    made = planned(AddWorker(Role.PREFILL, " http://10.0.1.13:30001 ", 8998))
    assert made.title == "Add prefill worker http://10.0.1.13:30001"
    assert made.targets == ("10.0.1.13:30001",)
    assert written(made) == [
        'add "http://10.0.1.13:30001" to prefill.workers',
        'set prefill.worker."http://10.0.1.13:30001".bootstrap_port = 8998',
    ]
    assert made.rows == (
        ("Now", "not watched yet"),
        ("After", "3 prefill workers in config.toml"),
        ("How", "smg: POST /workers, bootstrap_port 8998 (config.toml)"),
        ("File", "config.toml line 5: workers; line 10: bootstrap_port = 8998"),
    )
    assert made.steps[2] == Step("r", "POST /workers for http://10.0.1.13:30001, read back until healthy")
    after = after_edits(loaded(), made.edits).config
    assert after is not None
    assert after.prefill.settings_of("10.0.1.13:30001").bootstrap_port == 8998


def test_adding_one_that_the_router_lists_already() -> None:
    there = worker("10.0.2.24:30001", running=2.0)
    made = planned(AddWorker(Role.DECODE, "10.0.2.24:30001"), cluster(there))
    assert made.guards == ()
    assert row(made, "Now") == "2 running"


def test_removing() -> None:
    made = planned(RemoveWorker(D3), cluster(worker(D3, running=0.0)))
    assert made.title == f"Remove decode worker {D3}"
    assert written(made) == [f'remove "{D3}" from decode.workers', f'take decode.worker."{D3}" out']
    assert (
        apply_edits(CONFIG, made.edits).rstrip()
        == CONFIG.replace(f'    "{D3}",\n', "").partition(f'\n[decode.worker."{D3}"]')[0].rstrip()
    )
    assert row(made, "How") == "smg: DELETE /workers/…, 5 s draining at the router, and it leaves config.toml"
    assert made.steps[2] == Step("r", f"DELETE /workers/… for {D3}, read back")


@pytest.mark.parametrize(
    ("request_", "title"),
    [
        (Apply(), "Apply config.toml"),
        (Apply(prune=True), "Apply config.toml and take out what it does not name"),
        (Restart(), "Restart the router"),
        (Undo(), "Undo the last change"),
        (Undo("a1"), "Undo change a1"),
    ],
)
def test_requests_that_are_planned_elsewhere_have_a_title_and_the_guards_of_the_file(
    request_: Request, title: str
) -> None:
    made = planned(request_)
    assert (made.title, made.guards, made.edits, made.nothing_to_do) == (title, (), (), "")
    assert targets(request_) == ()


def test_a_layout_that_cannot_be_edited() -> None:
    config = f'[[decode.workers]]\nx = "{D1}"\n'
    made = planned(AddWorker(Role.DECODE, D2), config=config)
    assert [g.kind for g in made.guards] == ["broken_config"]
    inline = f'decode = {{ workers = ["{D1}", "{D2}", "{D3}"], worker."{D1}".drain = true }}\n'
    made = planned(Undrain((D1,)), config=inline)
    assert [g.kind for g in made.guards] == ["cannot_edit"]
    assert made.guards[0].to_change == "edit the file by hand; it is read again at once"
    assert made.refusal is not None


def test_a_secret_is_not_repeated() -> None:
    made = planned(SetValue(("server", "url"), '"http://me:hunter2@10.0.0.10:30000"'))
    assert "hunter2" not in repr((made.title, made.rows, made.guards, made.steps))


def test_names_from_outside_are_harmless() -> None:
    evil = worker(D2, name="d2\x1b[2J", reason="boo\x07", state=State.REFUSED, usable=False)
    made = planned(Drain((D2,)), cluster(evil, routers=[router(name="r\x1b")]), engines={"r\x1b": "smg"})
    text = repr((made.title, made.rows, [g.text for g in made.guards], [s.where for s in made.steps]))
    assert "\\x1b" not in text
    assert "\\x07" not in text


def test_what_is_not_known_is_not_told_as_zero() -> None:
    silent = worker(
        D2,
        state=State.TIMEOUT,
        reason="no answer in 2 s",
        usable=False,
        unusable_because="does not answer",
        running=None,
        backlog=Backlog(None),
        kv_use=None,
    )
    made = planned(Drain((D2,)), cluster(silent))
    assert row(made, "Now") == "– running, no answer in 2 s, does not answer"
    blind = cluster(*(worker(key, kv_use=None, running=None, kv_use_worst=None) for key in (D1, D2, D3)))
    assert row(planned(Drain((D2,)), blind), "After") == "2 of 3 decode workers usable, KV not known"
    old = cluster(worker(D2, stale=True, age_s=41.0))
    assert row(planned(Drain((D2,)), old), "Now") == "4 running, 41 s ago"


def test_bigger_workers_count_by_their_size() -> None:
    sizes = {D1: 1000, D2: 3000, D3: 1000}
    made = planned(
        Drain((D2,)),
        cluster(*(worker(k, kv_use=0.1, identity=Identity(kv_capacity_tokens=n)) for k, n in sizes.items())),
    )
    assert row(made, "After").startswith("2 of 3 decode workers usable, KV 10 % → 25 %")
    assert made.overrides == (D2,)  # 60 % of the capacity
