"""shoal_store_up: whether the object store answers, measured before it is needed."""

from typing import cast

from functions.artifacts.errors import StoreUnavailable
from functions.artifacts.s3 import S3Store
from functions.registry.store_watch import StoreWatch


class Store:
    is_away = False

    def size_of(self, key: str) -> int | None:
        if self.is_away:
            raise StoreUnavailable("connection refused")
        return None


async def test_store_outage_and_recovery_are_detected() -> None:
    store = Store()
    watch = StoreWatch(cast(S3Store, store))
    told = [watch.is_up]
    for is_away in (False, True, False):
        store.is_away = is_away
        await watch.check_store()
        told.append(watch.is_up)
    assert told == [None, True, False, True]
