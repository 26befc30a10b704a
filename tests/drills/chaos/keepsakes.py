"""Promises that must hold at the end: files, batches, conversations, keys and pushes.

A promise is a success response: 200 to an upload, 201 to a key. A refused request is no promise. At the end each
promise is checked with its content.
"""

import asyncio
import json
import random
import ssl
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.drills.chaos.health import Balancer
from tests.drills.chaos.load import MODELS

_ANSWER_S = 60.0
_BATCH_DONE_S = 240.0
_KEY_KNOWN_S = 60.0
LINES = 6


@dataclass(slots=True)
class Keepsakes:
    urls: dict[str, str]  # gateways and registries by name
    keys: dict[str, str]
    token: str
    tls: ssl.SSLContext
    balancer: Balancer
    seed: int
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, str] = field(default_factory=dict)  # marker of the batch's lines
    talks: list[str] = field(default_factory=list)
    # lifetimes of conversations that lost their history
    forgotten: list[tuple[float, float]] = field(default_factory=list)
    made_keys: dict[str, str] = field(default_factory=dict)
    revoked_keys: dict[str, str] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    async def run(self, over: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for every_s, keep in ((15.0, self._batch), (12.0, self._talk), (20.0, self._key)):
                group.create_task(self._often(over, every_s, keep))

    async def _often(self, over: asyncio.Event, every_s: float, keep: Any) -> None:
        while not over.is_set():
            async with self._client() as client:
                with suppress(httpx.HTTPError):
                    await keep(client)
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s * self._rng.uniform(0.5, 1.5)):
                    await over.wait()

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(verify=self.tls, timeout=_ANSWER_S, trust_env=False)

    def _gateway(self) -> str:
        ready = [name for name, said in self.balancer.ready.items() if said]
        return self.urls[self._rng.choice(ready or list(self.balancer.ready))]

    def _seen(self, what: str, answer: httpx.Response, *good: int) -> bool:
        code = answer.status_code
        self.told[f"{what} {code}"] += 1
        if code not in good and ((code >= 500 and code not in (502, 503, 504)) or code in (400, 401, 403, 404, 405)):
            self.wrong.append(f"{what}: {code} {answer.text[:200]}")
        return code in good

    # Batches and their input and output files.

    async def _batch(self, client: httpx.AsyncClient) -> None:
        marker = f"b{self._rng.randrange(10**9)}"
        lines = [
            {"custom_id": f"{marker}-{number}", "method": "POST", "url": "/v1/chat/completions", "body": {
                "model": MODELS["acme"][0], "messages": [{"role": "user", "content": f"{marker} line {number}"}],
            }} for number in range(LINES)
        ]  # fmt: skip
        data = "\n".join(json.dumps(line) for line in lines).encode()
        headers = {"authorization": f"Bearer {self.keys['acme']}"}
        files = {"file": (f"{marker}.jsonl", data), "purpose": (None, "batch")}
        answer = await client.post(self._gateway() + "/v1/files", headers=headers, files=files)
        if not self._seen("upload", answer, 200):
            return
        file_id = str(answer.json()["id"])
        self.files[file_id] = data
        body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        answer = await client.post(self._gateway() + "/v1/batches", headers=headers, json=body)
        if self._seen("batch", answer, 200):
            self.batches[str(answer.json()["id"])] = marker

    async def settle(self) -> None:
        """Check every promise and add each broken one to `wrong`."""
        async with self._client() as client:
            for file_id, data in self.files.items():
                await self._same_file(client, file_id, data)
            until_s = time.monotonic() + _BATCH_DONE_S
            for batch_id, marker in self.batches.items():
                await self._whole_batch(client, batch_id, marker, until_s)
            await self._keys_hold(client)

    async def _get(self, client: httpx.AsyncClient, path: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys['acme']}"}
        return await client.get(self._gateway() + path, headers=headers)

    async def _same_file(self, client: httpx.AsyncClient, file_id: str, data: bytes) -> None:
        answer = await self._get(client, f"/v1/files/{file_id}/content")
        if answer.content != data:
            self.wrong.append(f"file {file_id}: {answer.status_code} {answer.content[:100]!r}")

    async def _whole_batch(self, client: httpx.AsyncClient, batch_id: str, marker: str, until_s: float) -> None:
        while True:
            batch = (await self._get(client, f"/v1/batches/{batch_id}")).json()
            if batch.get("status") in ("completed", "failed", "expired", "cancelled") or time.monotonic() > until_s:
                break
            await asyncio.sleep(1.0)
        self.told[f"batch {batch.get('status')}"] += 1
        if batch.get("status") != "completed":
            self.wrong.append(f"batch {batch_id}: {json.dumps(batch)[:300]}")
            return
        output = await self._get(client, f"/v1/files/{batch['output_file_id']}/content")
        said = {}
        for line in output.text.splitlines():
            row = json.loads(line)
            said.setdefault(row["custom_id"], []).append(row["response"]["body"]["choices"][0]["message"]["content"])
        wanted = {f"{marker}-{number}": [f"{marker} line {number}"] for number in range(LINES)}
        if said != wanted:
            self.wrong.append(f"batch {batch_id}: {said}")

    # Conversations: three turns, each with the earlier ones as history.

    async def _talk(self, client: httpx.AsyncClient) -> None:
        session, began_s = f"talk-{self._rng.randrange(10**9)}", time.time()
        headers = {"authorization": f"Bearer {self.keys['globex']}", "x-session-id": session}
        kept = 0
        for turn in range(3):
            body = {"model": MODELS["globex"][0], "messages": [{"role": "user", "content": f"{session} {turn}"}]}
            answer = await client.post(self._gateway() + "/v1/chat/completions", headers=headers, json=body)
            if not self._seen("turn", answer, 200):
                return
            said = answer.headers.get("x-shoal-conversation", "")
            recalled = int(said.partition("recalled=")[2].partition(";")[0] or 0)
            if recalled < kept:
                self.forgotten.append((began_s, time.time()))
                return
            if "not-kept" in said:
                self.told["turn not kept"] += 1
                return
            if answer.json()["choices"][0]["message"]["content"] != f"{session} {turn}":
                self.wrong.append(f"turn {turn} of {session}: {answer.text[:200]}")
            kept = recalled + 2
            await asyncio.sleep(self._rng.uniform(1.0, 4.0))
        self.talks.append(session)

    # Keys, created and revoked at either registry, and valid or not at both gateways.

    async def _key(self, client: httpx.AsyncClient) -> None:
        registry = self.urls[self._rng.choice(("registry-1", "registry-2"))]
        headers = {"authorization": f"Bearer {self.token}"}
        answer = await client.post(f"{registry}/v1/tenants/acme/keys", headers=headers, json={})
        if not self._seen("key", answer, 201):
            return
        made = answer.json()
        self.made_keys[made["id"]] = made["key"]
        if self._rng.random() < 0.6:
            answer = await client.delete(f"{registry}/v1/tenants/acme/keys/{made['id']}", headers=headers)
            if self._seen("revocation", answer, 204):
                self.revoked_keys[made["id"]] = self.made_keys.pop(made["id"])
            else:  # it may be revoked or not
                del self.made_keys[made["id"]]

    async def _keys_hold(self, client: httpx.AsyncClient) -> None:
        for keys, wanted in ((self.made_keys, 200), (self.revoked_keys, 401)):
            for key_id, key in keys.items():
                for gateway in ("gateway-1", "gateway-2"):
                    status = await self._status(client, gateway, key, wanted)
                    if status != wanted:
                        self.wrong.append(f"key {key_id} at {gateway}: {status}, not {wanted}")

    async def _status(self, client: httpx.AsyncClient, gateway: str, key: str, wanted: int) -> int:
        """Return the key's status; the snapshot with the latest key may still be on its way."""
        until_s = time.monotonic() + _KEY_KNOWN_S
        while True:
            answer = await client.get(self.urls[gateway] + "/v1/models", headers={"authorization": f"Bearer {key}"})
            if answer.status_code == wanted or time.monotonic() > until_s:
                return answer.status_code
            await asyncio.sleep(0.5)
