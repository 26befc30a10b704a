"""Groups of test files that run on the same worker of xdist with `--dist loadfile`, in order: the longest first.

A fleet or an API server costs a minute of CPU to start, and each worker has its own. The files that share one are
therefore one group; a file that uses one of them must be listed here. A long group that starts last would keep one
worker busy while the others are idle, so long groups start first.
"""

from typing import Any

import pytest

# Shared fixtures, each with the files or folders whose tests may use it.
SHARED = {
    "api_server": (
        "tests/api/test_crds_in_a_server.py",
        "tests/cli/cluster/",
        "tests/controller/kubernetes/",
        "tests/manifests/",
    ),
    "sim_fleet": (
        "tests/cli/test_fleet.py",
        "tests/drills/test_disconnect.py",
        "tests/drills/test_drill_command.py",
        "tests/drills/test_gateway_restart.py",
        "tests/drills/test_replica_loss.py",
        "tests/e2e/test_git_push_refused.py",
        "tests/e2e/test_isolation.py",
        "tests/e2e/test_openai_client.py",
        "tests/e2e/test_pool_of_vectors.py",
        "tests/e2e/test_prefix_cache.py",
        "tests/loadtests/test_locust_run.py",
    ),
}
# The group of tests with the real engine, recognised by parameter or file.
ENGINE = "engine"
# Fixtures that end with their group: an idle fleet costs a fifth of a core and an idle API server a tenth.
ENDS_WITH = {**{name: (name,) for name in SHARED}, ENGINE: ("vllm_replica", "vllm_fleet")}
_ENGINE_IDS = ("[vllm", "tests/artifacts/test_base_facts.py")
# Folders in which `make test` looks for drills (Makefile); drills elsewhere are in soak.
DRILLS = ("tests/drills/",)
# Groups of half a minute and more on a quiet machine, the longest first.
LONGEST = (
    "sim_fleet",
    "api_server",
    "tests/docs/test_commands_run.py",
    ENGINE,
    "tests/e2e/test_git_push.py",
    "tests/e2e/test_adapter_push.py",
    "tests/drills/virtual/test_seeds.py",
    "tests/e2e/test_warm_promotion.py",
    "tests/e2e/test_hot_swap.py",
    "tests/e2e/test_many_gateways.py",
    "tests/e2e/test_overload_ladder.py",
    "tests/e2e/test_shared_slots.py",
    "tests/cli/test_plan.py",
    "tests/e2e/test_other_pools.py",
    "tests/drills/test_rollouts.py",
    "tests/replica/test_agent_health.py",
    "tests/controller/test_engine_environment.py",
)


def group_of(node_id: str) -> str:
    file = node_id.split("::", 1)[0]
    if any(part in node_id for part in _ENGINE_IDS):
        return ENGINE
    return next((name for name, places in SHARED.items() if file.startswith(places)), file)


def rank_of(node_id: str) -> int:
    """Return the rank of the test's group: the longest group has rank 0."""
    group = group_of(node_id)
    return LONGEST.index(group) if group in LONGEST else len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False  # do not reorder by number of tests
    return ByGroup(config, log)


@pytest.hookimpl(trylast=True)  # after pytest's own order by fixtures
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests with their own real engines first, then the longest groups.

    Shared engines stay to the end once they run, and take 4 GB each. Three more engines do not fit into 24 GiB with
    them, and a fleet without memory for another replica starts none.
    """
    items.sort(key=lambda item: (item.get_closest_marker("own_engines") is None, rank_of(item.nodeid)))
    for item in items:
        if (
            item.get_closest_marker("drill")
            and not item.get_closest_marker("soak")
            and not item.nodeid.startswith(DRILLS)
        ):
            raise pytest.UsageError(
                f"{item.nodeid} is a drill that `make test` does not run: add its folder to DRILLS, and in the Makefile"
            )
        for name in SHARED:
            if name in getattr(item, "fixturenames", ()) and group_of(item.nodeid) != name:
                raise pytest.UsageError(f"{item.nodeid} uses {name}: add its file to SHARED in tests/grouping.py")


@pytest.hookimpl(trylast=True)  # after the test's own fixtures and its module's
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the group's shared fixtures after its last test, rather than at the end of the session."""
    group = group_of(item.nodeid)
    if nextitem is not None and group_of(nextitem.nodeid) == group:
        return
    for name in ENDS_WITH.get(group, ()):
        for definition in item.session._fixturemanager.getfixturedefs(name, item) or ():
            definition.finish(item._request)  # type: ignore[attr-defined]
