"""Header lines of a request, read by the intake: the result is a caller, or a refusal with a status below 500.

The input has one header per line, `name: value`, as after the gateway's parser.
"""

from functions.gateway.errors import RequestRejected
from functions.gateway.http.headers import announced_bytes, request_id_of
from tests.fuzz.inputs import grown
from tests.gateway.rig import ACME_KEY, NOW_UNIX_S, Rig

DICTIONARY = (
    "host: a\n",
    "content-type: application/json",
    f"authorization: Bearer {ACME_KEY}",
    "x-shoal-class: batch",
    "x-shoal-deadline-ms: 100",
    "x-session-id: s",
    "x-request-id: r",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "content-length: 12",
    "x-api-key: ",
    "content-encoding: gzip",
    "charset=utf-8",
)
_HEAD_MAX_BYTES = 64 * 1024  # the parser refuses larger heads
_gateway = Rig().gateway
_catalogue = _gateway.services.state.catalogue


def check(data: bytes) -> None:
    headers = []
    for line in grown(data)[:_HEAD_MAX_BYTES].split(b"\n"):
        name, _, value = line.partition(b": ")
        headers.append((name, value))
    assert 0 < len(request_id_of(headers)) <= 128
    announced = announced_bytes(headers)
    assert announced is None or announced >= 0
    assert _catalogue is not None
    try:
        caller = _gateway.services.intake.precheck(_catalogue, headers, NOW_UNIX_S)
    except RequestRejected as refused:
        assert 400 <= refused.answer.status < 500
        refused.answer.body()
    else:
        assert caller.tenant == "acme"
