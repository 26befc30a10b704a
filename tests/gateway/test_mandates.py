"""Work in a caller's name: allowed as long as the key is valid and the work goes on."""

import pytest

from functions.api.ids import KeyId, TenantId
from functions.gateway.errors import RequestRejected
from functions.gateway.http.headers import RequestHeaders
from tests.gateway.rig import NOW_UNIX_S, Rig, catalogue, key_entry, mint

OLD = mint("acme-soon", b"x")


def test_mandate_acts_as_the_key_until_the_work_ends() -> None:
    gateway = Rig().gateway
    assert gateway.services.state.catalogue is not None
    with gateway.services.intake.delegated.issued(TenantId("acme"), KeyId("acme-ci")) as token:
        caller = gateway.services.intake.identify(
            gateway.services.state.catalogue, RequestHeaders(authorization=token), NOW_UNIX_S
        )
        assert (caller.tenant, caller.key_id) == ("acme", "acme-ci")
    with pytest.raises(RequestRejected):
        gateway.services.intake.identify(
            gateway.services.state.catalogue, RequestHeaders(authorization=token), NOW_UNIX_S
        )


def test_mandates_end_with_a_revoked_expired_or_moved_key() -> None:
    gateway = Rig().gateway
    keys = (key_entry(OLD, "acme", expires_unix_s=NOW_UNIX_S + 10),)
    known = catalogue(2, keys=keys)
    delegated = gateway.services.intake.delegated
    with delegated.issued(TenantId("acme"), KeyId("acme-soon")) as token:
        assert delegated.caller(known, token, NOW_UNIX_S) is not None
        assert delegated.caller(known, token, NOW_UNIX_S + 10) is None
        assert delegated.caller(catalogue(3, keys=()), token, NOW_UNIX_S) is None
    with delegated.issued(TenantId("globex"), KeyId("acme-soon")) as token:
        assert delegated.caller(known, token, NOW_UNIX_S) is None


def test_guessed_mandates_are_refused() -> None:
    gateway = Rig().gateway
    assert gateway.services.state.catalogue is not None
    for guess in (None, "", "Delegated ", "Bearer x"):
        assert gateway.services.intake.delegated.caller(gateway.services.state.catalogue, guess, NOW_UNIX_S) is None
