"""The console: its data and access rules, and, in a real browser, its views, actions and resistance to injection."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.browser import Page, browsing
from tests.registry.console_rig import HOSTILE, ConsoleRig, console_rig
from tests.registry.test_process import TOKEN

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # several processes, each of which may be slow to start


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleRig]:
    with console_rig(tmp_path_factory.mktemp("console")) as rig:
        yield rig


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with browsing() as page:
        yield page


def test_console_page_is_public_and_blocks_foreign_scripts(rig: ConsoleRig) -> None:
    for path, media_type in (("", "text/html"), ("/app.js", "text/javascript"), ("/console.css", "text/css")):
        answer = httpx.get(f"{rig.url}/console{path}", timeout=60)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(media_type)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("token", [None, "wrong", "shoal_test_ci_" + "0" * 49])
def test_console_data_is_for_the_operator_only(rig: ConsoleRig, token: str | None) -> None:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    answer = httpx.get(f"{rig.url}/console/state", headers=headers, timeout=60)
    assert answer.status_code == 401
    assert "acme" not in answer.text


def test_console_state_has_every_part_and_is_not_cached(rig: ConsoleRig) -> None:
    rollout = rig.rollout("parts")
    answer = rig.client.get("/console/state", params={"search": "bot"})
    assert answer.headers["cache-control"] == "no-store"
    state = answer.json()
    assert (state["epoch"], state["revision"], state["database"]) == (7, "main@abc", "")
    assert [model["id"] for model in state["models"]] == ["acme/bot"]
    assert (state["models_found"], state["models_total"]) == (1, 2)
    shown = next(each for each in state["rollouts"] if each["id"] == rollout)
    assert shown["stages"] == [1, 10, 100]
    assert shown["actions"] == ["pause", "promote", "rollback"]
    assert shown["why"] == "stage 1 of 3 (1%): no gateway has reported yet"
    assert [row["name"] for row in shown["rows"]][:2] == ["requests", "failed"]
    assert state["audit"][0]["action"].startswith("rollout.")


def test_console_search_is_bounded(rig: ConsoleRig) -> None:
    assert rig.client.get("/console/state", params={"search": "x" * 200}).status_code == 400


def unexpected(page: Page) -> list[str]:
    """Return the browser's complaints except those about 503, which mark an unavailable part."""
    return [words for words in page.complaints if "503" not in words]


def enter(page: Page, rig: ConsoleRig, token: str = TOKEN, view: str = "rollouts") -> None:
    page.open(f"{rig.url}/console")
    page.run("sessionStorage.clear()")
    page.open(f"{rig.url}/console")
    page.type("#token", token)
    page.run(f"location.hash = {view!r}")
    page.click("#enter")


def test_in_a_browser_a_wrong_token_is_reported_and_discarded(browser: Page, rig: ConsoleRig) -> None:
    enter(browser, rig, "wrong")
    browser.until("document.querySelector('#door-trouble').textContent.includes('token')")
    assert browser.run("sessionStorage.length") == 0
    assert browser.run("document.querySelector('#house').hidden")
    assert [words for words in browser.complaints if "401" not in words] == []
    browser.complaints.clear()


def test_in_a_browser_a_rollout_is_watched_paused_and_rolled_back(browser: Page, rig: ConsoleRig) -> None:
    rollout = rig.rollout("acted")
    enter(browser, rig)
    card = f"[...document.querySelectorAll('article')].find((each) => each.textContent.includes('{rollout}'))"
    browser.until(f"{card} && {card}.id === '' && ({card}.id = 'mine')")
    assert "v1 → v2" in browser.run("document.querySelector('#mine').innerText")

    browser.click("#mine button")
    assert "Pause acme/bot:acted" in browser.until(
        "document.querySelector('#sure').open && document.querySelector('#sure').innerText"
    )
    browser.click("#sure-no")
    assert rig.state_of(rollout)["state"] == "running"

    browser.click("#mine button")
    browser.click("#sure-yes")
    browser.until("document.querySelector('#mine').innerText.includes('paused by operator')")
    assert rig.state_of(rollout)["state"] == "paused"

    browser.click("#mine button.danger")
    browser.type("#sure-why", HOSTILE)
    browser.click("#sure-yes")
    browser.until("document.querySelector('#mine').innerText.includes('rolled back by operator')")
    assert rig.state_of(rollout)["reason"] == f"rolled back by operator: {HOSTILE}"


def test_in_a_browser_hostile_text_is_not_markup(browser: Page, rig: ConsoleRig) -> None:
    """The rollback's reason is hostile text; an engine's messages and a tenant's names take the same path."""
    rollout = rig.rollout("hostile")
    answer = rig.client.post(f"/v1/rollouts/{rollout}/rollback", json={"reason": HOSTILE})
    assert answer.status_code == 200
    enter(browser, rig)
    browser.until(f"document.body.innerText.includes({HOSTILE!r})")
    assert browser.run("document.title") == "shoal console: rollouts"
    assert browser.run("document.querySelectorAll('img, article b, article script').length") == 0
    assert [words for words in browser.complaints if "503" not in words] == [], "here is no Prometheus"


def test_in_a_browser_it_fits_a_phone(rig: ConsoleRig) -> None:
    rig.rollout("narrow")
    with browsing(400, 900) as page:
        page.phone(360, 800)
        enter(page, rig)
        page.until("document.querySelectorAll('article').length > 0")
        assert page.run("document.documentElement.scrollWidth") <= 360
        small = "[...document.querySelectorAll('article button')].filter((each) => each.offsetHeight < 32).length"
        assert page.run(small) == 0


def test_in_a_browser_an_unreachable_registry_is_reported_and_reconnected(browser: Page, tmp_path: Path) -> None:
    with console_rig(tmp_path) as rig:
        rig.rollout()
        enter(browser, rig)
        browser.until("document.querySelectorAll('article').length === 1")
    browser.until("document.querySelector('.away').textContent.includes('does not answer')")
    assert browser.run("document.querySelectorAll('article').length") == 1, "what was known last is still shown"
    browser.complaints.clear()  # the browser reports refused connections itself


VIEWS = ("now", "fleet", "rollouts", "models", "tenants", "traces", "cost", "branch", "drills", "audit")
SETTLED = (
    "[...document.querySelectorAll('#view section')].every((each) => each.innerText.trim().split('\\n').length > 1)"
)
NAMELESS = (
    "[...document.querySelectorAll('button, input, select, a')].filter((each) => each.offsetParent"
    " && !(each.textContent.trim() || each.ariaLabel || each.labels?.[0]?.textContent)).length"
)
WORD = {
    "source": "main", "tip": "main@b", "tip_message": HOSTILE, "desired": "main@a", "applied": "main@a",
    "problems": [HOSTILE + "x" * 300], "problem_count": 40, "trouble": HOSTILE,
    "history": [{"revision": "main@b", "result": "refused", "message": HOSTILE, "detail": HOSTILE}],
    "objects": [{"kind": "model", "name": "acme/" + "b" * 120, "message": HOSTILE}], "object_count": 9,
}  # fmt: skip


def test_in_a_browser_every_view_works_by_keyboard_on_a_dark_phone(rig: ConsoleRig) -> None:
    """No view may complain, overflow the screen or render foreign markup; an unavailable part says so."""
    rig.rollout("walked")
    assert rig.client.put("/v1/branch", json=WORD).status_code == 204
    drills = rig.state_dir / "drills"
    drills.mkdir(exist_ok=True)
    checks = [{"what": HOSTILE, "ok": ok, "words": HOSTILE} for ok in (True, False, None)]
    (drills / "one.json").write_text(json.dumps({"drill": HOSTILE, "passed": False, "seconds": 3.5}))
    (drills / "two.json").write_text(json.dumps({"drill": "bus-away", "passed": False, "checks": checks}))
    with browsing(400, 900) as page:
        page.phone(390, 844)
        page.prefer("dark")
        enter(page, rig, view="now")
        said = {}
        for number, view in enumerate(VIEWS, start=1):
            page.until("!document.querySelector('#house').hidden")
            page.press(str(number % 10))
            page.until(f"document.title === 'shoal console: {view}' && {SETTLED}")
            said[view] = page.text()
            assert page.run("document.documentElement.scrollWidth") <= 390, view
            assert page.run(NAMELESS) == 0, view
            assert page.run("document.querySelectorAll('#view img, #view b, #view script').length") == 0, view
        assert page.run("document.title") == "shoal console: audit"
        assert "no Prometheus is configured" in said["now"]
        assert "no trace store is configured" in said["traces"]
        assert HOSTILE in said["branch"]
        assert HOSTILE in said["drills"]
        page.press("j")
        assert page.run("document.activeElement.tagName") == "TR"
        page.press("/")
        assert page.run("document.activeElement.type") == "search"
        page.press("Escape")
        page.press("?")
        assert page.run("document.querySelector('#help').open")
        page.run("document.querySelector('#help').close()")
        page.run("location.hash = 'runbook/kv-exhaustion'")
        page.until("document.querySelector('#view .prose')?.innerText.includes('KV cache exhausted')")
        assert unexpected(page) == []
