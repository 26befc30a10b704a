"""The parse cache reuses unchanged files, parses changed or renamed ones again, and stays within its bound."""

import pytest

from functions.api.file_result import FILE_OVERHEAD_BYTES, MEMORY_PER_BYTE, ParseCache
from functions.api.kinds.tenant import Tenant
from functions.api.loader import Loaded, load_texts
from functions.api.problems import ConfigInvalid
from tests.api.sources import FILES, T, edited


def load(files: dict[str, str], cache: ParseCache) -> Loaded:
    return load_texts(((name, text.encode()) for name, text in files.items()), cache=cache)


def test_an_unchanged_file_is_the_same_objects() -> None:
    cache = ParseCache()
    first, second = load(FILES, cache), load(FILES, cache)
    assert (cache.hits, cache.misses) == (len(FILES), len(FILES))
    assert all(one is other for one, other in zip(first.objects, second.objects, strict=True))


def test_a_changed_file_alone_is_judged_again() -> None:
    cache = ParseCache()
    load(FILES, cache)
    changed = load(edited(T, "tier: enterprise", "tier: standard"), cache)
    assert cache.misses == len(FILES) + 1
    assert [tenant.value.spec.tier for tenant in changed.objects_of(Tenant)] == ["standard", "standard"]


def test_the_same_content_under_another_name_has_that_names_places() -> None:
    cache = ParseCache()
    load(FILES, cache)
    renamed = {("policies/people.yaml" if name == T else name): text for name, text in FILES.items()}
    assert load(renamed, cache).objects_of(Tenant)[0].source == "policies/people.yaml:1"


def test_problems_are_remembered_and_told_again() -> None:
    cache = ParseCache()
    broken = edited(T, "tier: enterprise", "teir: enterprise")
    told = []
    for _ in range(2):
        with pytest.raises(ConfigInvalid) as caught:
            load(broken, cache)
        told.append(caught.value.problems)
    assert told[0] == told[1]
    assert cache.misses == len(FILES)


def test_what_is_wrong_between_files_is_judged_every_time() -> None:
    cache = ParseCache()
    load(FILES, cache)
    with pytest.raises(ConfigInvalid, match="there is no such QuotaPolicy"):
        load(edited(T, "tier: enterprise", "tier: gold"), cache)
    load(FILES, cache)


def test_the_bound_holds_and_the_longest_unused_go_first() -> None:
    cost_bytes = 10 * MEMORY_PER_BYTE + FILE_OVERHEAD_BYTES
    cache = ParseCache(max_bytes=2 * cost_bytes)
    for name in ("a", "b", "a", "c"):
        cache.result_of(name, b"# comment\n")
        assert cache.used_bytes <= cache.max_bytes
    before = cache.misses
    cache.result_of("a", b"# comment\n")
    assert cache.misses == before, "a was used after b"
    cache.result_of("b", b"# comment\n")
    assert cache.misses == before + 1


def test_a_file_larger_than_the_bound_is_judged_and_not_kept() -> None:
    cache = ParseCache(max_bytes=100)
    assert cache.result_of("a", b"# comment\n").problems == ()
    assert cache.used_bytes == 0
