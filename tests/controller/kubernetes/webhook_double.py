"""Plays KServe's mutating webhook: an HTTPS server on loopback that the API server asks about each InferenceService.

What it does to an object is what KServe's does: it writes the spec anew as Go would (without empty values), adds the
defaults that git does not mention, and refuses what it does not like. `refuses` and `is_down` are its moods.
"""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kubernetes.dynamic import DynamicClient

from tests.controller.kubernetes.fixtures import Space
from tests.gateway.certificates import self_signed

DEFAULT_TIMEOUT_S = 60
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@dataclass
class Webhook:
    refuses: str = ""  # the message of its refusal
    is_down: bool = False
    asked: int = 0

    def judge(self, review: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        request = review["request"]
        response: dict[str, Any] = {"uid": request["uid"], "allowed": not self.refuses}
        if self.refuses:
            response["status"] = {"message": self.refuses, "code": 422}
        else:
            patch = [{"op": "replace", "path": "/spec", "value": with_defaults(request["object"]["spec"])}]
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def with_defaults(spec: dict[str, Any]) -> dict[str, Any]:
    spec = _without_empty(spec)
    spec["predictor"].setdefault("timeout", DEFAULT_TIMEOUT_S)
    spec["predictor"]["model"].setdefault("protocolVersion", "v2")
    return spec


def _without_empty(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_empty(value) for key, value in node.items() if value not in ("", [], {}, None)}
    return [_without_empty(each) for each in node] if isinstance(node, list) else node


@contextmanager
def running_webhook(space: Space, folder: Path) -> Iterator[Webhook]:
    """Run a webhook for InferenceServices of the space's namespace."""
    webhook = Webhook()
    certificate, key = self_signed(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(webhook))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    name = f"kserve-{space.models}"
    try:
        _register(space, name, server.server_address[1], certificate.read_bytes())
        yield webhook
    finally:
        _request(space.client, "delete", f"{_CONFIGURATIONS}/{name}")
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(webhook: Webhook) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = b"" if webhook.is_down else json.dumps(webhook.judge(review)).encode()
            self.send_response(500 if webhook.is_down else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: Any) -> None:  # noqa: A002
            pass

    return Handler


def _register(space: Space, name: str, port: int, certificate: bytes) -> None:
    labels = {"webhook": name}
    _request(
        space.client,
        "patch",
        f"/api/v1/namespaces/{space.models}",
        body={"metadata": {"labels": labels}},
        content_type="application/merge-patch+json",
    )
    client_config = {"url": f"https://127.0.0.1:{port}/", "caBundle": base64.b64encode(certificate).decode()}
    rule = {
        "apiGroups": ["serving.kserve.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["inferenceservices"],
    }
    hook = {
        "name": "inferenceservice.kserve-webhook-server.defaulter",
        "clientConfig": client_config,
        "rules": [rule],
        "namespaceSelector": {"matchLabels": labels},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 30,
    }
    _request(space.client, "post", _CONFIGURATIONS, body={"metadata": {"name": name}, "webhooks": [hook]})


def _request(client: DynamicClient, method: str, path: str, **parameters: Any) -> Any:
    return client.request(method, path, serializer=lambda _client, data: data, **parameters)
