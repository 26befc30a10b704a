"""Batch: jobs through the batch API, and single requests of the class `batch`, streamed and unstreamed.

A user creates a job from one file, polls it to its end and reads the results. A line that is missing or twice in the
results is a failure of the job. A job that is still running when the load ends is cancelled and its file deleted.
"""

import json
import time
from typing import Any

from locust import task

from loadtests.locust.answers import WrongAnswer
from loadtests.locust.client import Reply, Unreachable
from loadtests.locust.conversation import words
from loadtests.locust.refusals import REFUSALS, retry_after_s
from loadtests.locust.user import TenantUser

_LINES = (8, 24)
_TOKENS = 16
_POLL_S = 1.0
_CLOSING_S = 10.0
_BOUNDARY = "lines-of-a-batch"
_OVER = ("completed", "failed", "expired", "cancelled")


class BatchUser(TenantUser):
    """A user whose tasks are jobs in two of ten cases."""

    def on_start(self) -> None:
        super().on_start()
        self._open: dict[str, str] = {}  # batch under way -> its input file

    def on_stop(self) -> None:
        closing = self.connected(_CLOSING_S)  # the user's own connection may be busy with an answer
        for batch, file in self._open.items():
            for method, path in (("POST", f"/batches/{batch}/cancel"), ("DELETE", f"/files/{file}")):
                try:
                    closing.send(method, path, b"", {})
                except (Unreachable, WrongAnswer):
                    break  # the batch expires at the end of its window
        closing.close()
        super().on_stop()

    @task(8)
    def single(self) -> None:
        body = {"messages": [{"role": "user", "content": words(self.rng, 40)}], "max_tokens": _TOKENS}
        headers = {"x-shoal-class": "batch"}
        self.chat("batch-class", self.rng.choice(self.models).id, body, headers, stream=self.rng.random() < 0.5)
        self.think(0.2, 1.0)

    @task(2)
    def job(self) -> None:
        began_s = time.perf_counter()
        error: Exception | None = None
        try:
            self._run(self.rng.randint(*_LINES))
        except (WrongAnswer, Unreachable) as problem:
            error = problem
        self.record_end("job", "batch-job", time.perf_counter() - began_s, error)
        self.think(0.5, 2.0)

    def _run(self, lines: int) -> None:
        model = self.rng.choice(self.models).id
        asked = [_line(number, model, words(self.rng, 30)) for number in range(lines)]
        content = "\n".join(json.dumps(line) for line in asked).encode()
        headers = {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}
        file = str(self._call("POST", "/files", _multipart(content), headers)["id"])
        body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = self._call("POST", "/batches", json.dumps(body).encode(), {"content-type": "application/json"})
        self._open[batch["id"]] = file
        while batch["status"] not in _OVER:  # if Locust stops the user here, on_stop cancels the batch
            self.think(_POLL_S, _POLL_S)
            batch = self._call("GET", f"/batches/{batch['id']}")
        del self._open[batch["id"]]
        if batch["status"] != "completed":
            raise WrongAnswer(f"the batch is {batch['status']}")
        self._read(batch, {str(line["custom_id"]) for line in asked})
        for each in (file, batch["output_file_id"]):
            self._call("DELETE", f"/files/{each}")

    def _read(self, batch: dict[str, Any], asked: set[str]) -> None:
        reply = self._sent("GET", f"/files/{batch['output_file_id']}/content")
        answered = [json.loads(line)["custom_id"] for line in reply.body.splitlines() if line]
        if sorted(answered) != sorted(asked):
            raise WrongAnswer("not every line once in the batch's results")

    def _call(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> dict[str, Any]:
        return dict(json.loads(self._sent(method, path, body, headers).body))

    def _sent(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Reply:
        """Send a request; retry a refused one, as often as a chat request."""
        for _ in range(self.tries):
            reply = self.client.send(method, path, body, headers or {})
            wait_s = retry_after_s(reply.headers.get("retry-after"))
            if reply.status not in REFUSALS or wait_s is None:
                break
            self.record_refusal("batch-job", reply)
            self.think(wait_s, wait_s)
        if reply.status != 200:
            raise Unreachable(f"{method} {path.split('/')[1]}: {reply.status} {reply.code}")
        return reply


def _line(number: int, model: str, question: str) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": _TOKENS}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def _multipart(content: bytes) -> bytes:
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{_BOUNDARY}\r\n'
    head += (
        'Content-Disposition: form-data; name="file"; filename="lines.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n'
    )
    return head.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
