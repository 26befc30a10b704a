"""Bills of a run: each gateway writes its usage to disk each second and reports it to the registry's database.

The spool is the product's, on a disk that survives its gateway, like the one database of all reports. A part of the
reports gets no answer: some never arrive, and some are counted before their answer is lost.

    what the registry has  =  what was charged at every end  -  what a killed gateway had not written down
"""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from functions.fleet.usage_report import UsageRow, decode
from functions.gateway.request.request import Ended
from functions.gateway.usage.delivery import SPOOL_EVERY_S, NotDelivered, UsageDelivery
from functions.gateway.usage.spool import UsageSpool
from functions.gateway.usage.sums import UsageSums
from functions.registry.sql import usage
from functions.registry.sql.database import Database
from functions.registry.sql.engine import SQLITE_FILE, database_url
from functions.registry.sql.usage import UsageFilter
from tests.gateway.usage_rig import killed

_NEVER_CAME, _ANSWER_LOST = 0.2, 0.15
_SLACK_S = 0.01

Charged = Counter[tuple[str, str, str]]  # tenant, pool, and `requests` or `tokens` of answers


class Bills:
    """The registry's side of the bills, and what it contains."""

    def __init__(self, folder: Path, schema: Path, rng: Random) -> None:
        self._folder, self._rng = folder, rng
        if not schema.exists():
            _prepared(schema)
        shutil.copy(schema, folder / SQLITE_FILE)
        self.database = Database(database_url(None, folder))
        self._spools: list[UsageSpool] = []
        self.heals = False
        self.charged: Charged = Counter()
        self.lost: Charged = Counter()
        self.breaches: list[str] = []
        self.gateways_killed = 0
        self._ends_s: dict[UsageSums, list[float]] = {}

    def account(self, place: str, sums: UsageSums, clock: Callable[[], float]) -> "Account":
        spool = UsageSpool(self._folder / place)
        self._spools.append(spool)
        return Account(self, UsageDelivery(sums, spool, self._post, place, clock))

    def close(self) -> None:
        """Close the files of every spool, however its gateway ended."""
        for spool in self._spools:
            killed(spool)
        self.database.close()

    def ended(self, sums: UsageSums, ended: Ended, now_s: float) -> None:
        """Record what the gateway will report for this end."""
        tokens = ended.usage.completion_tokens if ended.usage is not None else ended.delivered_tokens
        tenant, pool = ended.admitted.caller.tenant, ended.admitted.model.pool
        self.charged[tenant, pool, "tokens"] += tokens
        self.charged[tenant, pool, "requests"] += 1
        self._ends_s.setdefault(sums, []).append(now_s)

    def killed(self, account: "Account", now_s: float) -> None:
        """Record what the killed gateway had not written: only ends of the last second may be lost."""
        self.gateways_killed += 1
        sums = account.delivery.sums
        rows = sums.pop_rows()
        for row in rows:
            self.lost[row.tenant, row.pool, "tokens"] += row.completion_tokens
            self.lost[row.tenant, row.pool, "requests"] += row.requests
        lately = sum(now_s - at_s <= SPOOL_EVERY_S + _SLACK_S for at_s in self._ends_s.get(sums, ()))
        if sum(row.requests for row in rows) > lately:
            self.breaches.append(f"{sum(row.requests for row in rows)} requests are lost, {lately} ended lately")
        killed(account.delivery.spool)

    def found(self) -> Charged:
        rows = self.database.read(lambda c: usage.sums(c, UsageFilter(0, 10**6), ("tenant", "pool"), 1000))
        names = (("requests", "requests"), ("tokens", "completion_tokens"))
        return Counter({(row["tenant"], row["pool"], name): row[column] for row in rows for name, column in names})

    def differences(self) -> list[str]:
        """Describe differences between what was billed and what was charged, less what killed gateways had not
        written.
        """
        found = self.found()
        return self.breaches + [
            f"{name} of {tenant} at {pool}: {found[tenant, pool, name]} on the bill, {charged} charged, {lost} lost"
            for tenant, pool, name in sorted(self.charged.keys() | found.keys())
            if (charged := self.charged[tenant, pool, name]) - (lost := self.lost[tenant, pool, name])
            != found[tenant, pool, name]
        ]

    def table(self) -> Counter[str]:
        """Count requests and tokens of all tenants and pools together."""
        found: Counter[str] = Counter({"gateways killed": self.gateways_killed})
        for name, counted in (("charged", self.charged), ("not written", self.lost), ("billed", self.found())):
            for (_, _, what), count in counted.items():
                found[f"{what} {name}"] += count
        return found

    def _post(self, report: bytes) -> int:
        luck = self._rng.random() if not self.heals else 1.0
        if luck < _NEVER_CAME:
            raise NotDelivered("it did not come")
        read = decode(report)
        self.database.write_unaudited(lambda c: usage.count_report(c, read, 1000.0))
        if luck < _NEVER_CAME + _ANSWER_LOST:
            raise NotDelivered("the answer was lost")
        return 200


class Account:
    """Account of one gateway process."""

    def __init__(self, bills: Bills, delivery: UsageDelivery) -> None:
        self.bills = bills
        self.delivery = delivery

    def write_spool(self) -> None:
        """Write usage like `UsageDelivery.keep_once`, but in no thread: threads have no virtual time."""
        rows: list[UsageRow] = self.delivery.sums.pop_rows()
        if rows:
            self.delivery.spool.write(rows)

    def deliver(self) -> bool:
        try:
            self.delivery.deliver()
        except NotDelivered:
            return False
        return True

    def close(self) -> None:
        """Shut down in order; what cannot be reported now stays on disk."""
        self.write_spool()
        self.deliver()
        self.delivery.spool.close()


def _prepared(schema: Path) -> None:
    made = Database(database_url(None, schema.parent))
    made.prepare()
    made.close()
    (schema.parent / SQLITE_FILE).replace(schema)
