"""Changes in words: as a person would say them, without secrets, and empty if nothing changed."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, EngineName, KeyId, ModelId, PoolName, TenantId
from functions.api.snapshot import (
    AdmissionEntry,
    AutoscalingEntry,
    BandEntry,
    CascadeEntry,
    ClassifierEntry,
    ConversationsPart,
    FallbackEntry,
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    QuotaLimitsPart,
    RolloutEntry,
    RoutingEntry,
    Snapshot,
    StageEntry,
    TenantEntry,
    ToolEntry,
    VersionEntry,
)
from functions.controller.gitops.changes import Change, changes_of, describe, facts, summarize
from tests.controller.configs import base, load, lora, pool, tenant

HMAC, OTHER_HMAC = "0123456789abcdef" * 4, "fedcba9876543210" * 4


def version(name: str, digit: str = "1") -> VersionEntry:
    return VersionEntry(name, Digest("sha256:" + digit * 64), EngineName(f"acme/bot@{digit}"), f"s3://b/{name}")


ACME = TenantEntry(TenantId("acme"), "standard", ("acme/*",))
KEY = KeyEntry(KeyId("ci"), TenantId("acme"), HMAC, ("inference",), "interactive")
BOT = ModelEntry(ModelId("acme/bot"), PoolName("base"), "lora", (version("v1"), version("v2", "2")), {"stable": "v1"})
QUOTA = QuotaEntry("enterprise", 8.0, QuotaLimitsPart(requests_per_minute=6000, output_tokens_per_minute=500_000))
ROUTING = RoutingEntry("default", ("*",))
ADMISSION = AdmissionEntry("default", ("*",), (BandEntry("interactive", 0.6, 500),))
ROLLOUT = RolloutEntry("default", (StageEntry(10, 60.0, ("error_rate > 2%",)), StageEntry(100)), 50)
SCALING = AutoscalingEntry("base", PoolName("base"), 1, 8, 1, ("queue_seconds > 0.5: +5%",))
WORLD = Snapshot(
    snapshots.SCHEMA_VERSION,
    1,
    "r",
    0.0,
    tenants=(ACME,),
    keys=(KEY,),
    models=(BOT,),
    pools=(PoolEntry(PoolName("base"), 2048, 2, 2),),
    quotas=(QUOTA,),
    routing=(ROUTING,),
    admission=(ADMISSION,),
    rollouts=(ROLLOUT,),
    autoscaling=(SCALING,),
)
TOOL = ToolEntry("search", "d" * 1000, "https://tools.acme.example/search", "{}")
replace = msgspec.structs.replace


def words(**sections: Any) -> list[str]:
    return [change.words for change in describe(WORLD, replace(WORLD, **sections))]


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"tenants": (replace(ACME, tier="enterprise"),)}, "tenant acme: tier standard -> enterprise"),
        ({"tenants": (replace(ACME, models=("base",)),)}, "tenant acme: models base added; models acme/* removed"),
        ({"tenants": (replace(ACME, tools=(TOOL,)),)}, "tenant acme: tool search added"),
        (
            {"tenants": (replace(ACME, conversations=ConversationsPart(3600.0)),)},
            "tenant acme: conversations none -> ttl 3600 s",
        ),
        (
            {"tenants": (replace(ACME, context_overflow="slide"),)},
            "tenant acme: contextOverflow refuse -> slide",
        ),
        ({"keys": ()}, "tenant acme: key ci revoked"),
        ({"keys": (KEY, replace(KEY, key_id=KeyId("new")))}, "tenant acme: key new added"),
        ({"keys": (replace(KEY, hmac_sha256=OTHER_HMAC),)}, "tenant acme: key ci: secret replaced"),
        ({"keys": (replace(KEY, max_class="batch"),)}, "tenant acme: key ci: maxClass interactive -> batch"),
        ({"keys": (replace(KEY, expires_unix_s=1814400000.0),)}, "tenant acme: key ci: expires never -> 2027-06-30"),
        (
            {"quotas": (replace(QUOTA, limits=replace(QUOTA.limits, output_tokens_per_minute=800_000)),)},
            "quota enterprise: outputTokensPerMinute 500000 -> 800000 (+60 %)",
        ),
        (
            {"quotas": (replace(QUOTA, limits=replace(QUOTA.limits, requests_per_minute=None)),)},
            "quota enterprise: requestsPerMinute 6000 -> not limited",
        ),
        ({"quotas": (replace(QUOTA, weight=4.0),)}, "quota enterprise: weight 8 -> 4 (-50 %)"),
        ({"quotas": ()}, "quota enterprise removed"),
        (
            {"models": (replace(BOT, channels={"stable": "v2"}, versions=(*BOT.versions, version("v3", "3"))),)},
            "model acme/bot: version v3 added; stable v1 -> v2",
        ),
        ({"models": (replace(BOT, channels={"stable": "v1", "next": "v2"}),)}, "model acme/bot: next v2 added"),
        ({"models": (replace(BOT, channels={}),)}, "model acme/bot: stable removed (was v1)"),
        (
            {"models": (replace(BOT, versions=(version("v1", "9"), BOT.versions[1])),)},
            "model acme/bot: version v1: artifact sha256:111111111111 -> sha256:999999999999",
        ),
        ({"models": ()}, "model acme/bot removed"),
        ({"pools": (PoolEntry(PoolName("base"), 2048, 4, 4),)}, "pool base: replicas 2 -> 4 (+100 %)"),
        (
            {"pools": (PoolEntry(PoolName("base"), 2048, 2, 2, task="embed"),)},
            "pool base: task generate -> embed",
        ),
        (
            {"models": (replace(BOT, versions=BOT.versions[::-1]),)},
            "model acme/bot: versions rewritten",
        ),
        ({"pools": (PoolEntry(PoolName("base"), 2048, 2, 8),)}, "pool base: replicas 2 -> 2 to 8"),
        (
            {"pools": (PoolEntry(PoolName("base"), 2048, 2, 2, kv_transfer_bytes_per_s=1.25e10),)},
            "pool base: KV transfer bytes/s 0 -> 12,500,000,000",
        ),
        ({"routing": (replace(ROUTING, session_ttl_s=60.0),)}, "routing default: session.ttl 300 s -> 60 s"),
        ({"routing": (replace(ROUTING, unknown_fields="pass"),)}, "routing default: unknownFields strip -> pass"),
        ({"routing": (replace(ROUTING, hedge_after_s=0.5),)}, "routing default: retry.hedgeAfter never -> 0.5 s"),
        (
            {"routing": (replace(ROUTING, cascade=(CascadeEntry(PoolName("a"), PoolName("b")),)),)},
            "routing default: cascade a to b for all above 1 nats (mean of 32 tokens) added",
        ),
        (
            {"routing": (replace(ROUTING, classifier=ClassifierEntry("auto", PoolName("a"))),)},
            "routing default: classifier auto otherwise to a added",
        ),
        (
            {"routing": (replace(ROUTING, fallback=(FallbackEntry("saturated", PoolName("a"), PoolName("b")),)),)},
            "routing default: fallback a to b for all when saturated added",
        ),
        (
            {"admission": (replace(ADMISSION, bands=(BandEntry("interactive", 0.5),)),)},
            "admission default: interactive share 0.6 -> 0.5 (-17 %); interactive ttftSlo 500 ms -> none",
        ),
        (
            {"rollouts": (replace(ROLLOUT, stages=(StageEntry(10, 30.0), StageEntry(100))),)},
            "rollout default: stage 10 % for 60 s, halted by error_rate > 2% -> for 30 s",
        ),
        ({"autoscaling": (replace(SCALING, max_replicas=9),)}, "autoscaling base: replicas 1 to 8 -> 1 to 9"),
        ({"autoscaling": (replace(SCALING, scale_up=()),)},
         "autoscaling base: scaleUp queue_seconds > 0.5: +5% removed"),
    ],
)  # fmt: skip
def test_changes_are_described_in_plain_words(sections: dict[str, Any], says: str) -> None:
    assert words(**sections) == [says]


def test_new_objects_are_described_with_their_content() -> None:
    told = [change.words for change in describe(None, WORLD)]
    assert told[0] == "tenant acme added: tier standard, models acme/*, key ci"
    assert "model acme/bot added: pool base, type lora, versions v1, v2, stable v1" in told
    assert "quota enterprise added: weight 8, requestsPerMinute 6000, outputTokensPerMinute 500000" in told
    assert {change.verb for change in describe(None, WORLD)} == {"added"}


def test_no_change_has_no_description() -> None:
    assert describe(WORLD, replace(WORLD, epoch=9, revision="other")) == ()


def test_a_change_names_its_kind_and_thing() -> None:
    (change,) = describe(WORLD, replace(WORLD, models=()))
    assert change == Change("model", "acme/bot", "removed", "model acme/bot removed")


@given(st.sampled_from([KEY, replace(KEY, hmac_sha256=OTHER_HMAC), None]), st.sampled_from([KEY, None]))
def test_key_hashes_are_never_described(old: KeyEntry | None, new: KeyEntry | None) -> None:
    before, after = (replace(WORLD, keys=(key,) if key is not None else ()) for key in (old, new))
    told = " ".join(change.words for pair in ((before, after), (None, after)) for change in describe(*pair))
    assert HMAC[:8] not in told
    assert OTHER_HMAC[:8] not in told


def test_channels_named_like_other_fields_are_described() -> None:
    model = replace(BOT, channels={"pool": "v1", "type": "v1"})
    moved = replace(model, channels={"pool": "v2", "type": "v1"})
    (change,) = describe(replace(WORLD, models=(model,)), replace(WORLD, models=(moved,)))
    assert change.words == "model acme/bot: channel pool v1 -> v2"


def test_control_characters_are_not_printed() -> None:
    (change,) = describe(WORLD, replace(WORLD, models=(replace(BOT, declared_in="a\x1b[2J\nb"),)))
    assert change.words == "model acme/bot: declared in nowhere -> a?[2J?b"


def test_tool_change_is_described_completely_but_shortened() -> None:
    before = replace(WORLD, tenants=(replace(ACME, tools=(TOOL,)),))
    after = replace(TOOL, timeout_s=2.0, description="d" * 999 + "e", secret="token")
    (change,) = describe(before, replace(WORLD, tenants=(replace(ACME, tools=(after,)),)))
    assert change.words == (
        f"tenant acme: tool search: description {'d' * 99}… changed after the shown part; "
        "tool search: timeout 10 s -> 2 s; "
        "tool search: secret none -> token"
    )


class Knob(msgspec.Struct, frozen=True):
    level: int = 1


class Tomorrow(msgspec.Struct, frozen=True):
    """An entry with fields that have no description."""

    grace_s: float = 0.0
    is_spare: bool = False
    knob: Knob | None = None
    knobs: tuple[Knob, ...] = ()
    tools: tuple[ToolEntry, ...] = ()
    zones: dict[str, str] = msgspec.field(default_factory=dict)


def test_field_without_description_is_named_with_its_unit() -> None:
    full = Tomorrow(grace_s=3.0, is_spare=True, knob=Knob(3), knobs=(Knob(), Knob(2)), tools=(TOOL,), zones={"a": "b"})
    assert facts.entry_facts(Tomorrow(), briefly=True) == {}  # type: ignore[arg-type]
    assert facts.entry_facts(full, briefly=True) == {  # type: ignore[arg-type]
        "grace": "3 s",
        "isSpare": "true",
        "knob": "level 3",
        "knobs": {"1: all defaults", "2: level 2"},
        "tool": {"search"},
        "tool search: description": "d" * 1000,
        "tool search: url": "https://tools.acme.example/search",
        "tool search: parameters": "{}",
        "tool search: timeout": "10 s",
        "tool search: maxCalls": 4,
        "tool search: maxBytes": 65_536,
        "tool search: secret": "none",
        "zones a": "b",
    }


def test_long_description_is_cut() -> None:
    many = tuple(sorted(f"{'m' * 60}{number}" for number in range(100)))
    (change,) = describe(WORLD, replace(WORLD, tenants=(replace(ACME, models=many),)))
    assert len(change.words) <= 400
    assert "and 96 more added" in change.words


def test_thousands_of_changes_are_counted_and_the_first_described() -> None:
    tenants = tuple(TenantEntry(TenantId(f"t{number:04d}"), "standard", ()) for number in range(1000))
    changes = describe(WORLD, replace(WORLD, tenants=(ACME, *tenants), models=(), quotas=()))
    summary = summarize(changes, shown=2)
    assert summary.headline == "1,002 changes: 1,000 tenants added, 1 quota removed, 1 model removed"
    assert summary.lines[1:] == (
        "tenant t0000 added: tier standard",
        "tenant t0001 added: tier standard",
        "… and 1,000 more",
    )
    assert summarize(()).lines == ("no change",)


def test_a_configuration_is_compared_before_anything_is_published() -> None:
    before = load(pool(), tenant("acme", "ci"), base(), lora("acme/bot", "v1"))
    after = load(pool(), tenant("acme", "ci"), base(), lora("acme/bot", "v1", "v2", channels="{stable: v2}"))
    told = [change.words for change in changes_of(before, after)]
    assert told == ["model acme/bot: version v2 added; stable v1 -> v2"]
    assert changes_of(before, before) == ()
    assert [change.verb for change in changes_of(None, after)] == ["added"] * len(changes_of(None, after))
