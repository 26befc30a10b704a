"""JSON bodies of every engine route through the complete intake: the result is an engine request, or a 4xx.

The first byte selects the route. An admitted request names the engine's model and has the tenant's own salt.
"""

import orjson

from functions.api.ids import KeyId, TenantId
from functions.gateway.errors import RequestRejected
from functions.gateway.intake.intake import RawRequest
from functions.gateway.intake.routes import ROUTES
from tests.fuzz.inputs import Input
from tests.gateway.rig import BOT_V1, NOW_UNIX_S, POOL, Rig, headers

_FIELDS = """
    model messages prompt input content role type text tools tool_choice function parameters name stream
    n max_tokens stop logprobs response_format json_schema schema image_url url documents query seed
    user stream_options include_usage session_id cache_salt service_tier metadata uuid tool_calls
    arguments token_ids tokens stop_token_ids logit_bias instructions system thinking echo suffix
"""
DICTIONARY = (
    '{"model":"acme/bot","messages":[{"role":"user","content":"hi"}]}',
    '{"model":"acme/bot","prompt":"hi"}',
    *(f'"{word}":' for word in _FIELDS.split()),
    '"user"', '"system"', '"tool"', '"image_url"', '"acme/bot:canary"', "null", "true", "1e999", "-1", "[[1]]",
    "18446744073709551616", '"\\ud800"', "\\u0000",
)  # fmt: skip
_gateway = Rig().gateway
_catalogue = _gateway.services.state.catalogue


def check(data: bytes) -> None:
    given = Input(data)
    route = given.one_of(ROUTES)
    raw = RawRequest("req-1", headers(), given.rest())
    assert _catalogue is not None
    intake = _gateway.services.intake
    known = intake.recognise(_catalogue, raw, NOW_UNIX_S)
    assert (known.caller.tenant, known.caller.key_id) == (TenantId("acme"), KeyId("acme-ci"))
    try:
        admitted = intake.admit(_catalogue, route, raw, known)
    except RequestRejected as refused:
        assert 400 <= refused.answer.status < 500, refused.answer
        orjson.loads(route.dialect.error_body(refused.answer, "req-1"))
        return
    sent = orjson.loads(admitted.upstream_body)
    assert sent["model"] in {BOT_V1, POOL, admitted.model.engine_name} and "session_id" not in sent
    assert sent["cache_salt"] == intake._salt_of(known.caller.tenant)
