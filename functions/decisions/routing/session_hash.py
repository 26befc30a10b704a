"""What stands for a session: eight bytes of a hash, the first two of them the tenant's, never the id itself.

So what is kept by sessions can be bounded for each tenant apart. Neighbours: `session_table` keeps, and
`functions.fleet.session_pins` tells other gateways.
"""

import hashlib

from functions.api.ids import TenantId

HASH_BYTES = 8
MARK_BYTES = 2  # of them, the tenant's. 50,000 sessions of one tenant and rollout collide with a chance of 4 in 10^6


def session_hash(tenant: TenantId, session: str) -> bytes:
    """A tenant's name has no bar in it."""
    text = f"{tenant}|{session}".encode(errors="surrogatepass")
    rest = hashlib.blake2b(text, digest_size=HASH_BYTES - MARK_BYTES, person=b"shoal-session").digest()
    return hashlib.blake2b(tenant.encode(), digest_size=MARK_BYTES, person=b"shoal-tenant").digest() + rest
