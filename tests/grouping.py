"""Which tests go to the same worker of xdist, with `--dist loadfile`: those of a file, and those that share a server.

A fleet or an API server costs a minute of CPU to start, and a worker has its own of each. So the files that share one
are one group; whoever adds a file that asks for one of them is told here.
"""

from typing import Any

import pytest

# The fixture that is shared, and the files or folders whose tests may ask for it.
SHARED = {
    "api_server": ("tests/api/test_crds_in_a_server.py", "tests/controller/kubernetes/", "tests/manifests/"),
    "sim_fleet": (
        "tests/cli/test_fleet.py",
        "tests/drills/",
        "tests/e2e/test_git_push_refused.py",
        "tests/e2e/test_isolation.py",
        "tests/e2e/test_openai_client.py",
        "tests/e2e/test_prefix_cache.py",
    ),
}


def group_of(node_id: str) -> str:
    file = node_id.split("::", 1)[0]
    return next((name for name, places in SHARED.items() if file.startswith(places)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in SHARED:
            if name in getattr(item, "fixturenames", ()) and group_of(item.nodeid) != name:
                raise pytest.UsageError(f"{item.nodeid} asks for {name}: tests/grouping.py is to name its file there")
