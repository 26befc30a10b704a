"""Files and batches as an optional service of a gateway, made once if a store is configured."""

import random
from functools import partial

from functions.artifacts.buckets import find_problem
from functions.artifacts.errors import StoreUnavailable, StoreUnfit
from functions.artifacts.s3 import S3Store
from functions.gateway.batch.collecting import Collecting
from functions.gateway.batch.conductor import Conductor
from functions.gateway.batch.files.shelf import Shelf
from functions.gateway.batch.files.store import FileStore
from functions.gateway.batch.files.upload import UploadSlots
from functions.gateway.batch.limits import BatchLimits
from functions.gateway.batch.log import BatchLog, LogBroken
from functions.gateway.batch.shared import BatchMetrics, BatchServices
from functions.gateway.errors import ErrorAnswer, RequestRejected, unavailable
from functions.gateway.services import RequestHandler, Services
from functions.gateway.tenant_limits import TenantShares, TenantSlots


class Batches:
    """Service of files and batches. Running batches have store threads of their own, so listings never delay them."""

    def __init__(self, services: Services, handle: RequestHandler, store: S3Store, limits: BatchLimits) -> None:
        self.services = services
        self.limits = limits
        self.store, self._owners_store = FileStore(store), FileStore(store)
        self.shelf = Shelf(self.store, limits.file_retention_s, services.wall_clock)
        self.log = BatchLog(self.store)
        self.uploads = UploadSlots(limits.uploads_at_once, limits.uploads_per_tenant)
        # Counting a tenant's batches and making one is serialised here. Across gateways, `BatchLog.open` counts by
        # markers.
        self.creations = TenantSlots(
            1, most_users=limits.open_per_tenant, refusal=partial(too_many_creations, limits.open_per_tenant)
        )
        most = limits.listings_per_tenant
        self.listings = TenantShares(most_per_tenant=most, refusal=partial(_too_many_listings, most))
        slots = TenantShares(limits.lines_in_flight, limits.lines_in_flight_per_tenant)
        bodies, answers = (TenantShares(limits.held_bytes, limits.held_bytes_per_tenant) for _ in range(2))
        metrics = BatchMetrics(services.metrics.registry, lambda: self.conductor.running, lambda: slots.held)
        shared = BatchServices(
            services,
            handle,
            limits,
            self._owners_store,
            Shelf(self._owners_store, limits.file_retention_s, services.wall_clock),
            BatchLog(self._owners_store),
            slots=slots,
            bodies=bodies,
            answers=answers,
            metrics=metrics,
            uniform=random.random,
        )
        self.conductor = Conductor(shared)
        self._collecting = Collecting(shared)
        self._unfit = ""  # reason why the store cannot exclude two owners of one batch; "" if it can, or if unknown

    def start(self) -> None:
        tasks = self.services.tasks
        tasks.forever("batches", self._conduct, expected=(StoreUnavailable,))
        tasks.forever("old files", self._collecting.run, expected=(StoreUnavailable,))

    async def close(self) -> None:
        """Stop the batch runs so that another gateway can continue them, and wait for that for a bounded time."""
        await self.conductor.leave()

    async def reader_of(self, tenant: str, file_id: str) -> str | None:
        for one in await self.log.all_open(tenant):
            try:
                if await self._reads(tenant, one.id, file_id):
                    return one.id
            except LogBroken:
                return one.id  # its input file is unknown
        return None

    async def _reads(self, tenant: str, batch_id: str, file_id: str) -> bool:
        progress = await self.log.progress(tenant, batch_id)
        if progress is None or progress.input_file_id != file_id:
            return False
        latest = await self.log.latest(tenant, batch_id)
        return latest is not None and not latest.is_over  # else its marker is about to be deleted

    def close_store(self) -> None:
        """Close the store; waiting calls are dropped. To be called after everything that uses the store has ended."""
        self._owners_store.close()
        self.store.close()

    def check_store(self) -> None:
        if self._unfit:
            message = (
                "Batches are not available: the object store lacks an operation that they need. Contact the operator."
            )
            raise RequestRejected(unavailable(message, "batches_not_offered", None))

    async def _conduct(self) -> None:
        """Create the bucket if needed, check the store and run the conductor.

        Raises StoreUnfit if the store lacks conditional writes: without them, every gateway would run each batch.
        """
        await self.store.ensure_bucket()
        self._unfit = await self.store.call(find_problem, self.store.raw)
        if self._unfit:
            raise StoreUnfit(f"batches are not run: {self.store.raw.bucket}: {self._unfit}")
        await self.conductor.run()


def too_many_creations(most: int) -> RequestRejected:
    message = f"{most} of your batches are being created, which is the limit. Wait for one to be created."
    return RequestRejected(ErrorAnswer(429, "requests", "too_many_batches", message, retry_after_s=1))


def _too_many_listings(most: int) -> RequestRejected:
    """Return the error for too many listings of files or batches; each may read a thousand records."""
    message = f"You have {most} listings under way, which is the limit. Wait for one to end."
    return RequestRejected(ErrorAnswer(429, "requests", "too_many_listings", message, retry_after_s=1))
