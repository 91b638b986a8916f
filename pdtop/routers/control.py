"""Add a worker to a router and take one out of it, each read back; 202 means "queued", not "done"."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from pdtop.cluster.address import Address, AddressError
from pdtop.cluster.model import Health, Role, State
from pdtop.cluster.readings import Answer
from pdtop.routers.change import (
    READ_BACK_EVERY_S,
    READ_BACK_S,
    Ask,
    Clock,
    Result,
    Sleep,
    accepted,
    change_worker,
    outcome_unknown,
    words_of,
)
from pdtop.routers.dialect import Dialect
from pdtop.routers.effective import Effective, read_effective
from pdtop.routers.spec import (
    RawWorker,
    WorkerSpec,
    body_of,
    raw_worker,
    read_raw,
    spec_from_dict,
    spec_of,
    spec_to_dict,
)
from pdtop.routers.talk import Call, Controlled, Problem, Talk
from pdtop.routers.values import json_of, mapping_of, text_of

__all__ = [
    "Call",
    "Control",
    "Controlled",
    "Problem",
    "RawWorker",
    "WorkerSpec",
    "spec_from_dict",
    "spec_of",
    "spec_to_dict",
]

#: A removal that is due may come a little late.
SETTLE_MARGIN_S = 0.5
#: Of nothing else a path is made; a name of dots alone would lead to another one.
_ID = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,100}\Z")
_SEE_LOG = "see the router's log"
_NO_WORKERS = "this router takes no workers through its API"


class Control:
    """One router. Keep it as long as the router is watched: it remembers when removals are due.

    ``clock`` in seconds. The names of the key variables are for advice only; ``ask`` sends the keys.
    """

    def __init__(
        self,
        ask: Ask,
        dialect: Dialect,
        name: str,
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        api_key_env: str = "PDTOP_API_KEY",
        admin_key_env: str = "PDTOP_ADMIN_KEY",
    ) -> None:
        self._ask = ask
        self._dialect = dialect
        self._name = name
        self._clock = clock
        self._sleep = sleep
        self._api_key_env = api_key_env
        self._admin_key_env = admin_key_env
        self._settled_at: dict[str, float] = {}  # by address: when a removal of ours has surely happened

    async def list(self) -> tuple[RawWorker, ...] | Controlled:
        """The router's workers, or why they cannot be read."""
        return await self._read(self._talk())

    async def effective(self) -> Effective | Controlled | None:
        """The settings that a router which reads config.toml itself has in force; None: it tells none."""
        talk = self._talk()
        if not self._dialect.powers.reads_file:
            return None
        answer = await talk("GET", "/config", None)
        if answer.status == 404 and answer.failure is None:
            return None
        if answer.failure is not None or answer.status != 200:
            return self._refusal(talk, answer, "its settings cannot be read")
        return read_effective(answer.body)

    async def add(
        self, spec: WorkerSpec, *, api_key: str | None, read_back_s: float = READ_BACK_S * 2
    ) -> Controlled:
        """Register the worker and wait until the router shows it healthy and as it was meant.

        A worker that is there already is only looked at. smg refuses an address that still drains, and its
        removal goes by address: so wait until it is gone, and see that a late removal does not take the new
        one. ``api_key`` is the worker's own: routers do not pass theirs on to workers added by API.
        """
        talk = self._talk(api_key)
        powers = self._dialect.powers
        if powers.reads_file:
            return await self._await_file(talk, spec.url, spec, read_back_s)
        if powers.drain_by != "removal":
            return talk.failed(_NO_WORKERS, "no_power", self._no_power_fix())
        try:
            key = Address.parse(spec.url).key
            body = body_of(spec, health_table=powers.live_health, api_key=api_key)
        except AddressError as error:
            return talk.failed(str(error), "refused")
        except KeyError:
            return talk.failed("its role is not known", "refused", "say whether it is prefill or decode")
        settle_s = max(float(spec.health.get("drain_settle_secs", 0)), powers.settle_s)
        there = await self._once_free(talk, key, settle_s + read_back_s)
        for _ in range(2):  # the second time: a removal that was still due took the first away
            if isinstance(there, Controlled):
                return there
            if there is None:
                sent = await self._post(talk, key, body, settle_s + read_back_s)
                if isinstance(sent, Controlled):
                    return sent
            else:
                sent = _Sent(there.worker_id or None, "it is there already", True)
            done = await self._registered(talk, key, spec, sent, api_key, read_back_s)
            if done.result is not Result.DONE or await self._outlives_removal(talk, key, done.worker_id):
                return done
            there = None
        return talk.done(
            Result.ACCEPTED_NOT_APPLIED, "added, but an earlier removal took it away again", "add it again"
        )

    async def remove(self, worker_id: str, url: str, *, read_back_s: float = READ_BACK_S * 2) -> Controlled:
        """Take the worker out and wait until no new work can reach it; what runs on it goes on.

        Never a second removal: at smg that would end the draining, and the first one would stay due.
        """
        talk = self._talk()
        powers = self._dialect.powers
        if powers.reads_file:
            return await self._await_file(talk, url, None, read_back_s)
        if powers.drain_by != "removal":
            return talk.failed("this router cannot take single workers out", "no_power", self._no_power_fix())
        place = _place(url)
        for _ in range(2):  # the second time: the id was another one by then
            workers = await self._read(talk, lambda url: _place(url) == place)
            if isinstance(workers, Controlled):
                return workers
            there = next((worker for worker in workers if worker.url == url), next(iter(workers), None))
            if there is None:
                return talk.done(Result.DONE, "it is not in the router's list")
            if there.draining:
                return talk.done(
                    Result.DONE, "the router takes it out already", worker_id=there.worker_id or None
                )
            wanted, spelled, spec = there.worker_id or worker_id, there.url, there.spec
            if not _ID.match(wanted):
                fix = "restart the router without this worker"
                return talk.failed("the router gives it no id to remove it by", "no_power", fix)
            answer = await talk("DELETE", f"/workers/{wanted}", None)
            if answer.status != 404 or answer.failure is not None:
                break
        if answer.status == 404 and answer.failure is None:
            return talk.failed(
                "the router lists it under an id that it does not know", "refused", "try again"
            )
        sure = accepted(answer)
        if not sure and not outcome_unknown(answer):
            return self._refusal(talk, answer, "not removed")
        settle_s = powers.settle_s
        if spec is not None:
            settle_s = float(spec.health.get("drain_settle_secs", settle_s))
        self._settled_at[_key(url)] = self._clock() + settle_s + SETTLE_MARGIN_S
        return await self._gone(talk, spelled, wanted, sure, words_of(answer), read_back_s)

    async def change(
        self, worker_id: str, fields: Mapping[str, object], *, read_back_s: float = READ_BACK_S
    ) -> Controlled:
        """Change fields of a registered worker (``priority``, ``cost``, ``labels``, smg: ``health``)."""
        talk = self._talk()
        powers = self._dialect.powers
        if powers.update_method is None or not _ID.match(worker_id):
            return talk.failed("this router cannot change single workers", "no_power", self._no_power_fix())
        if "health" in fields and not powers.live_health:
            words = "this router takes health settings only when it starts"
            return talk.failed(words, "no_power", "restart it with the new settings")
        changed = await change_worker(
            talk,
            worker_id,
            fields,
            methods=(powers.update_method,),
            read_back_s=read_back_s,
            hidden=powers.hidden_fields,
            clock=self._clock,
            sleep=self._sleep,
        )
        if changed.result is Result.FAILED and talk.refused is not None:
            return self._refusal(talk, talk.refused, "not changed")
        words = changed.words
        if powers.update_zeroes_load and changed.result is not Result.FAILED:
            words += "; the router now counts its running requests from 0: do not judge a drain by that count"
        problem: Problem = "job" if changed.result is Result.FAILED else ""
        fix = "" if changed.result is Result.DONE else _SEE_LOG
        return talk.done(changed.result, words, fix, worker_id, problem)

    def _talk(self, secret: str | None = None) -> Talk:
        return Talk(self._ask, self._name, secret)

    def _no_power_fix(self) -> str:
        if self._dialect.engine == "unknown":
            return "say which router it is: engine in [server]"
        if self._dialect.powers.reads_file:
            return "change config.toml: this router reads it itself"
        return "change its command line and restart it"

    async def _read(
        self, talk: Talk, of: Callable[[str], bool] | None = None
    ) -> tuple[RawWorker, ...] | Controlled:
        """The router's list; ``of``: only workers with such an address, for it is read again and again."""
        for path in self._dialect.list_paths:
            answer = await talk("GET", path, None)
            if answer.status != 404 or answer.failure is not None:
                break
        if answer.failure is not None or answer.status != 200:
            return self._refusal(talk, answer, "its worker list cannot be read")
        workers = read_raw(answer.body, of)
        if workers is None:
            words = "its worker list cannot be read: 200, but there is no list in it"
            return talk.failed(words, "no_list", "see whether this is the router's address")
        return workers

    async def _find(self, talk: Talk, key: str) -> RawWorker | Controlled | None:
        workers = await self._read(talk, lambda url: _key(url) == key)
        return workers if isinstance(workers, Controlled) else next(iter(workers), None)

    async def _look(self, talk: Talk, key: str, worker_id: str | None) -> _Seen:
        """The worker by its id, where also a job still at work is told, else from the list."""
        if worker_id is not None and _ID.match(worker_id):
            answer = await talk("GET", f"/workers/{worker_id}", None)
            entry = mapping_of(json_of(answer.body)) if answer.status == 200 else {}
            worker = raw_worker(entry)
            if worker is not None and _key(worker.url) == key:
                return _Seen(worker, mapping_of(entry.get("job_status")))
        found = await self._find(talk, key)
        return _Seen(found if isinstance(found, RawWorker) else None, {}, not isinstance(found, Controlled))

    async def _once_free(self, talk: Talk, key: str, limit_s: float) -> RawWorker | Controlled | None:
        """None as soon as the address is not listed; the worker if it is there to stay."""
        deadline = self._clock() + limit_s
        while True:
            there = await self._find(talk, key)
            if not isinstance(there, RawWorker) or not there.draining:
                return there
            if self._clock() >= deadline:
                words = f"not added: after {limit_s:g} s it still drains from before"
                return talk.failed(words, "timed_out", "try again when the router no longer lists it")
            await self._sleep(READ_BACK_EVERY_S)

    async def _post(
        self, talk: Talk, key: str, body: Mapping[str, object], limit_s: float
    ) -> _Sent | Controlled:
        content = json.dumps(body).encode()
        answer = await talk("POST", "/workers", content)
        if answer.status == 409 and answer.failure is None:
            there = await self._once_free(talk, key, limit_s)
            if isinstance(there, Controlled):
                return there
            if there is not None:
                return _Sent(there.worker_id or None, "it is there already", True)
            answer = await talk("POST", "/workers", content)
        if accepted(answer):
            worker_id = text_of(mapping_of(json_of(answer.body)).get("worker_id"), 100)
            known = worker_id if worker_id is not None and _ID.match(worker_id) else None
            return _Sent(known, f"accepted ({answer.status})", True)
        if outcome_unknown(answer):
            return _Sent(None, words_of(answer), False)
        if answer.status == 404 and answer.failure is None:
            return talk.failed(_NO_WORKERS, "no_power", self._no_power_fix())
        return self._refusal(talk, answer, "not added")

    async def _registered(
        self, talk: Talk, key: str, spec: WorkerSpec, sent: _Sent, api_key: str | None, limit_s: float
    ) -> Controlled:
        """Wait until the router shows the worker healthy; sglang-router takes any nonsense with 202."""
        deadline = self._clock() + limit_s
        while True:
            seen = await self._look(talk, key, sent.worker_id)
            worker = seen.worker
            if worker is not None and worker.usable:
                return _as_meant(talk, worker, spec, sent)
            if reason := _failure(seen.job, "AddWorker"):
                words = f"{sent.words}, then the router gave up: {reason}"
                return talk.failed(words, "job", _reach_fix(spec.url, api_key))
            if self._clock() + READ_BACK_EVERY_S > deadline:
                break
            await self._sleep(READ_BACK_EVERY_S)
        if worker is None and not sent.sure:
            words = f"{sent.words}; after {limit_s:g} s no read shows the worker"
            return talk.failed(words, "timed_out", "see whether the router hangs, then add it again")
        if worker is None:
            how = "no read shows it" if seen.readable else "the router's list cannot be read"
        elif worker.listed.role is Role.UNKNOWN or worker.listed.health is Health.PENDING:
            how = "the router has not registered it: it still tries to reach the worker, and goes on trying"
        else:
            how = "it is listed, but the router does not call it healthy"
        return talk.done(
            Result.ACCEPTED_NOT_APPLIED,
            f"{sent.words}, but after {limit_s:g} s {how}",
            _reach_fix(spec.url, api_key),
            worker.worker_id or None if worker is not None else sent.worker_id,
        )

    async def _outlives_removal(self, talk: Talk, key: str, worker_id: str | None) -> bool:
        """Watch until our last removal of this address is surely over; False if it took the new worker."""
        until = self._settled_at.pop(key, None)
        while until is not None and self._clock() < until:
            await self._sleep(READ_BACK_EVERY_S)
            seen = await self._look(talk, key, worker_id)
            if seen.readable and seen.worker is None:
                return False
        return True

    async def _gone(
        self, talk: Talk, url: str, worker_id: str, sure: bool, words: str, limit_s: float
    ) -> Controlled:
        """``url`` as the router spells it: it may list the worker a second time, with a slash at the end."""
        deadline = self._clock() + limit_s
        while True:
            workers = await self._read(talk, lambda listed: listed == url)
            there = None
            if not isinstance(workers, Controlled):
                there = next(iter(workers), None)
                if there is None:
                    return talk.done(Result.DONE, "it is out of the router's list")
                if there.draining:
                    words = "it gets no new work; the router still lists it as draining"
                    return talk.done(Result.DONE, words, worker_id=worker_id)
            if self._clock() + READ_BACK_EVERY_S > deadline:
                break
            await self._sleep(READ_BACK_EVERY_S)
        if isinstance(workers, Controlled):
            result = Result.ACCEPTED_NOT_APPLIED if sure else Result.FAILED
            return replace(workers, result=result, words=f"removal sent, but {workers.words}")
        if not sure:
            words = f"{words}; after {limit_s:g} s the router still lists it"
            return talk.failed(words, "timed_out", "see whether the router hangs, then try again")
        job = (await self._look(talk, _key(there.url), worker_id)).job if there is not None else {}
        if reason := _failure(job, "RemoveWorker"):
            return talk.failed(f"the router did not remove it: {reason}", "job", _SEE_LOG)
        words = f"accepted, but after {limit_s:g} s the router still lists it"
        return talk.done(Result.ACCEPTED_NOT_APPLIED, words, _SEE_LOG, worker_id)

    async def _await_file(self, talk: Talk, url: str, spec: WorkerSpec | None, limit_s: float) -> Controlled:
        """The router reads config.toml itself: wait until its list shows what the file says."""
        deadline = self._clock() + limit_s
        key = _key(url)
        while True:
            found = await self._find(talk, key)
            if not isinstance(found, Controlled):
                if spec is None and (found is None or found.draining):
                    words = "it is out of the router's list" if found is None else "it gets no new work"
                    return talk.done(Result.DONE, words)
                if spec is not None and found is not None and found.usable:
                    wrong = _difference(found, spec)
                    if not wrong:
                        return talk.done(
                            Result.DONE, "the router lists it as ready", worker_id=found.worker_id or None
                        )
            if self._clock() + READ_BACK_EVERY_S > deadline:
                break
            await self._sleep(READ_BACK_EVERY_S)
        if isinstance(found, Controlled):
            return found
        how = "the router does not list it" if found is None else "the router does not show it so"
        if spec is not None and found is not None and not found.usable:
            how = "the router does not call it healthy"
        return talk.done(
            Result.ACCEPTED_NOT_APPLIED,
            f"config.toml says so, but after {limit_s:g} s {how}",
            "see the router's log: a file with an error in it leaves the last good one in force",
        )

    def _refusal(self, talk: Talk, answer: Answer, doing: str) -> Controlled:
        """A failed request as a result, with what to do about it."""
        words = f"{doing}: {words_of(answer)}"
        if answer.failure is State.TIMEOUT:
            return talk.failed(words, "timed_out", "see whether the router hangs")
        if answer.failure is State.REDIRECT:
            return talk.failed(words, "refused", "write the address that it redirects to in [server] url")
        if answer.failure is not None:
            return talk.failed(words, "unreachable", "see whether the router runs and the address is right")
        if answer.status in (401, 403):
            return talk.failed(words, "auth", self._key_fix(answer))
        if answer.status in (405, 501):
            return talk.failed(words, "no_power", self._no_power_fix())
        return talk.failed(words, "refused", _SEE_LOG)

    def _key_fix(self, answer: Answer) -> str:
        admin, plain = self._admin_key_env, self._api_key_env
        if answer.status == 403:
            return f"the key is valid but may not change workers: put one with the role admin in ${admin}"
        if "control-plane" in answer.headers.get("www-authenticate", ""):
            return f"put an admin key (of the router's --control-plane-api-keys) in ${admin}"
        return f"put the key that the router was started with (--api-key) in ${admin}, or in ${plain}"


_Place = tuple[str, str | None]


class _Sent(NamedTuple):
    """A POST that was taken, or may have been (not ``sure``)."""

    worker_id: str | None
    words: str
    sure: bool


class _Seen(NamedTuple):
    """One look at a worker: what is shown, its job, and whether the router could be read at all."""

    worker: RawWorker | None
    job: Mapping[str, object]
    readable: bool = True


def _failure(job: Mapping[str, object], kind: str) -> str:
    """Why the router's job failed; "" if it did not. An old job of another kind says nothing."""
    if job.get("status") != "failed" or job.get("job_type", kind) != kind:
        return ""
    return text_of(job.get("message")) or "it does not say why"


def _as_meant(talk: Talk, worker: RawWorker, spec: WorkerSpec, sent: _Sent) -> Controlled:
    wrong = _difference(worker, spec)
    if wrong:
        fix = "take it out of the router, then add it again"
        return talk.failed(f"{sent.words}, but {wrong}", "mismatch", fix)
    return talk.done(
        Result.DONE, f"{sent.words}; the router calls it healthy", worker_id=worker.worker_id or None
    )


def _difference(worker: RawWorker, spec: WorkerSpec) -> str:
    """What of role and bootstrap port the router shows otherwise; "" if nothing."""
    listed = worker.listed
    if listed.role is not spec.role:
        return f"it is listed as {listed.role.value}, not as {spec.role.value}"
    if spec.bootstrap_port is not None and listed.bootstrap_port != spec.bootstrap_port:
        shown = "none" if listed.bootstrap_port is None else str(listed.bootstrap_port)
        return f"its bootstrap port there is {shown}, not {spec.bootstrap_port}"
    return ""


def _reach_fix(url: str, api_key: str | None) -> str:
    fix = f"see that {_key(url)} answers /health from the router's machine"
    return fix if api_key else f"{fix}; if it wants a key, name the variable in its api_key_env"


@lru_cache(maxsize=20_000)
def _place(url: str) -> _Place:
    """Worker and rank: routers that schedule ranks list a worker once for each."""
    try:
        address = Address.parse(url)
    except AddressError:
        return url, None
    return address.key, address.rank


def _key(url: str) -> str:
    return _place(url)[0]
