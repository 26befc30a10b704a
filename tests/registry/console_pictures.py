"""Pictures of the console on a running local fleet, for people to look at: each view wide and light, wide and dark, and
as a phone shows it, and one request with its waterfall.

    .venv/bin/python -m tests.registry.console_pictures .shoal pictures          # all, as NAME-wide.png, -dark, -phone
    .venv/bin/python -m tests.registry.console_pictures .shoal docs/pictures --kept   # those that the docs show

PNGs have 128 colours, which a page of text needs no more than; what the browser complains of is printed.
"""

import argparse
import io
import json
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from functions.cli.context import CliContext, current_context
from tests.browser import Page, browsing

VIEWS = ("now", "fleet", "rollouts", "models", "tenants", "traces", "cost", "branch", "drills", "audit", "trace")
KEPT = {("now", "wide"): "console-now", ("fleet", "dark"): "console-fleet-dark", ("trace", "wide"): "console-trace"}
KEPT |= {("now", "phone"): "console-phone"}
WIDE, PHONE = (1280, 1000), (390, 844)
HIGH_MAX = 2600  # cut off: lower parts look the same
COLOURS = 128


def slow_request(context: CliContext, token: str) -> str:
    """Return the slowest answered request of the last hour; its waterfall is full enough for a picture."""
    url = f"{context.registry_url}/v1/traces?slowest=true&limit=50"
    asked = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
    trusted = ssl.create_default_context(cafile=str(context.layout.ca_file))
    with urllib.request.urlopen(asked, timeout=30, context=trusted) as answer:
        rows = json.load(answer)["data"]
    answered = [row["request_id"] for row in rows if row["status"] == 200]
    return str(answered[0]) if answered else ""


def shown(page: Page, view: str) -> bytes:
    page.run(f"location.hash = {view!r}")
    page.until(f"document.title.endsWith({view.partition('/')[0]!r})")
    page.until("document.querySelector('#view').innerText.length > 40")
    page.run("new Promise((done) => setTimeout(done, 1500))")  # parts load one after the other, and each may be slow
    return page.picture()


def pictures(url: str, token: str, request: str) -> Iterator[tuple[str, str, bytes]]:
    for look in ("wide", "dark", "phone"):
        with browsing(*WIDE, own_authority=True) as page:
            page.prefer("dark" if look == "dark" else "light")
            if look == "phone":
                page.phone(*PHONE)
            page.open(url)
            page.type("#token", token)
            page.click("#enter")
            page.until("!document.querySelector('#house').hidden")
            for view in VIEWS:
                if view != "trace" or request:
                    yield view, look, shown(page, f"trace/{request}" if view == "trace" else view)
            for complaint in page.complaints:
                sys.stderr.write(f"{look}: {complaint}\n")


def small(png: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    return image.crop((0, 0, image.width, min(image.height, HIGH_MAX))).quantize(COLOURS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("state", type=Path, help="the fleet's state directory; SHOAL_STATE_DIR names it as well")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kept", action="store_true", help="only those that the docs show")
    asked = parser.parse_args()
    context = current_context(clones=True)
    token = (asked.state / "secrets" / "internal-token").read_text().strip()
    url = f"{context.registry_url}/console"
    for view, look, png in pictures(url, token, slow_request(context, token)):
        name = KEPT.get((view, look)) if asked.kept else f"{view}-{look}"
        if name is not None:
            small(png).save(asked.folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
