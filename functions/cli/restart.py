"""`shoal restart`: order it, then follow it to its end."""

import json
import os
import shlex
import sys
import time

from functions.cli.answers import demo_key
from functions.cli.controller_process import controller_status, order
from functions.cli.place import here
from functions.cli.refused import Refused
from functions.cli.terminal import TerminalReporter, make_console
from functions.controller.local.prepare.demo_keys import read_demo_keys

POLL_S = 0.25


def restart(name: str) -> None:
    place = here()
    order(place, {"do": "restart", "name": name})
    with TerminalReporter(make_console()).step(f"Restarting {name}") as step:
        while True:
            status = controller_status(place)
            if status is None:
                raise Refused("the controller ended meanwhile; `shoal up` starts it again")
            doing = status["controller"]["operation"]
            if not doing.startswith("restarting"):
                break
            step.update(doing)
            time.sleep(POLL_S)
        if doing.startswith("failed"):
            raise Refused(doing)
        step.note(doing)


# `shoal env`: what a shell needs so that any OpenAI client talks to the local fleet.


ALSO_TRUSTED_BY = ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")


def env(tenant: str | None, *, as_json: bool) -> None:
    place = here()
    chosen, key = demo_key(place, tenant)
    values = {
        "OPENAI_BASE_URL": f"{place.gateway_url}/v1",
        "OPENAI_API_KEY": key.key,
        "SSL_CERT_FILE": str(place.layout.ca_bundle_file),
        # For load tests, which are several tenants at once.
        "SHOAL_API_KEYS": ",".join(each.key for each in read_demo_keys(place.layout).values()),
    }
    # Where the shell has one of these already, it would win over SSL_CERT_FILE.
    values |= {name: values["SSL_CERT_FILE"] for name in ALSO_TRUSTED_BY if os.environ.get(name)}
    if as_json:
        sys.stdout.write(json.dumps({"tenant": chosen, **values}, indent=2) + "\n")
        return
    lines = [
        f'# shoal, as tenant {chosen}.  Use: eval "$(shoal env)"',
        "# SSL_CERT_FILE replaces the trusted authorities of EVERY program in this shell; so this file holds this",
        "# machine's own ones and the fleet's, which can only vouch for localhost.  Undo: unset SSL_CERT_FILE",
        *(f"export {name}={shlex.quote(value)}" for name, value in values.items()),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
