"""Users of the trace store: gateways write; the registry may only read, for its console."""

import hashlib
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.manifests.rendering import PROJECT, Rendering

START = PROJECT / "manifests" / "components" / "trace-store" / "start.sh"


def pod_of(rendering: Rendering, name: str) -> dict[str, Any]:
    pod: dict[str, Any] = rendering.one("Service", name, group="serving.knative.dev")["spec"]["template"]["spec"]
    return pod


def test_the_registry_is_another_user_than_gateways_with_another_secret(production: Rendering) -> None:
    users, secrets = {}, {}
    for role in ("gateway", "registry"):
        pod = pod_of(production, role)
        env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        users[role] = env[f"SHOAL_{role.upper()}_TRACE_STORE_USER"]
        secrets[role] = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    assert users == {"gateway": "shoal", "registry": "shoal-reader"}
    assert "shoal-trace-store" in secrets["gateway"] and "shoal-trace-store-reader" not in secrets["gateway"]
    assert "shoal-trace-store-reader" in secrets["registry"] and "shoal-trace-store" not in secrets["registry"]


def test_the_reader_may_select_and_nothing_else(tmp_path: Path) -> None:
    for folder, password in (("trace-store", "writes"), ("trace-store-reader", "reads")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "trace-store-password").write_text(password + "\n")
    script = START.read_text().replace("/run/secrets/shoal", str(tmp_path))
    script = script.replace("/etc/clickhouse-server/users.d", str(tmp_path)).replace("exec clickhouse-server", "true")
    subprocess.run(["sh", "-c", script], check=True, timeout=30)
    made = ElementTree.fromstring((tmp_path / "shoal.xml").read_text())
    users = made.find("users")
    assert users is not None and [each.tag for each in users] == ["default", "shoal", "shoal-reader"]
    for user, password in (("shoal", "writes"), ("shoal-reader", "reads")):
        assert users.findtext(f"{user}/password_sha256_hex") == hashlib.sha256(password.encode()).hexdigest()
    assert [each.text for each in users.findall("shoal-reader/grants/query")] == ["GRANT SELECT ON shoal.*"]
    profile = users.findtext("shoal-reader/profile")
    assert made.findtext(f"profiles/{profile}/readonly") in ("1", "2")
