"""Git's push hook: calls the controller, prints its answer, exits 0 or 1. Standard library only: 30 ms, not 400.

    hook.py <pre-receive|post-receive> <repository> <project python> <control socket>…

The controller answers from its warm caches. Several sockets are of regions that follow one repository: the first
controller that answers speaks for all, since they judge alike. Where none answers, `pre-receive` judges in a process
of its own (`functions.controller.gitops.review_alone`): slower, equally strict. `post-receive` only tells that there is
news, and how that went; it never fails a push.

Law: nothing but git's own lines, quarantine and push options is believed; the rest of the environment is not passed on.
"""

import json
import os
import socket
import subprocess
import sys
from typing import Any

REVIEW_TIMEOUT_S = 120.0  # a cold start with tens of thousands of objects
FOLLOW_S = 5.0  # how long a pusher is kept for the good news
INPUT_MAX_BYTES = 1024 * 1024
ANSWER_MAX_BYTES = 4 * 1024 * 1024
MAX_OPTIONS = 20


def main(arguments: list[str]) -> int:
    hook, repository, python, *channels = arguments
    updates = read_updates(sys.stdin.buffer.read(INPUT_MAX_BYTES + 1))
    if updates is None:
        return refuse("this push names more references than can be judged")
    if hook == "post-receive":
        follow(channels, updates)
        return 0
    order = {
        "do": "review",
        "updates": updates,
        "options": read_options(),
        "objects": os.environ.get("GIT_QUARANTINE_PATH") or None,
    }
    try:
        verdict = ask(channels, order, REVIEW_TIMEOUT_S)
    except OSError:
        verdict = review_alone(python, repository, order)
    if not isinstance(verdict, dict):
        return refuse("the push could not be judged; try again")
    say(verdict["lines"])
    return 0 if verdict["accepted"] is True else 1


def read_updates(lines: bytes) -> list[list[str]] | None:
    if len(lines) > INPUT_MAX_BYTES:
        return None
    """One per line feed: `splitlines` knows further ends of lines, which git allows in names of references."""
    text = lines.decode("utf-8", "backslashreplace")
    return [line.split(" ", 2) for line in text.split("\n") if line.count(" ") >= 2]


def read_options() -> list[str]:
    count = os.environ.get("GIT_PUSH_OPTION_COUNT", "0")
    number = min(int(count), MAX_OPTIONS) if count.isdecimal() else 0
    return [os.environ.get(f"GIT_PUSH_OPTION_{index}", "") for index in range(number)]


def ask(channels: list[str], order: dict[str, Any], timeout_s: float) -> Any:
    """The controller's answer; OSError where none answers, None where it does not know how to."""
    with connected(channels, timeout_s) as client:
        client.sendall(json.dumps(order).encode() + b"\n")
        with client.makefile("rb") as answers:
            line = answers.readline(ANSWER_MAX_BYTES)
    answer = json.loads(line) if line.endswith(b"\n") else {}
    if not answer.get("ok"):
        say([answer.get("error", "the controller hung up")])
        return None
    return answer["result"]


def connected(channels: list[str], timeout_s: float) -> socket.socket:
    """To the first controller that takes the connection; OSError where none does."""
    refusal = OSError("no controller's socket is named")
    for channel in channels:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(timeout_s)
        try:
            client.connect(channel)
        except OSError as error:
            client.close()
            refusal = error
        else:
            return client
    raise refusal


def review_alone(python: str, repository: str, order: dict[str, Any]) -> Any:
    command = [python, "-I", "-m", "functions.controller.gitops.review_alone", repository]
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    document = json.dumps(order).encode()
    try:
        done = subprocess.run(
            command, input=document, stdout=subprocess.PIPE, env=environment, timeout=REVIEW_TIMEOUT_S, check=True
        )
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        say([f"no controller answers, and judging without it failed: {error}"])
        return None


def follow(channels: list[str], updates: list[list[str]]) -> None:
    try:
        told = ask(channels, {"do": "follow", "updates": updates, "wait_s": FOLLOW_S}, FOLLOW_S + 5.0)
    except OSError:
        say(["no controller runs: the next `shoal up` takes this up"])
        return
    if isinstance(told, dict):
        say(told["lines"])


def refuse(why: str) -> int:
    say([f"refused: {why}"])
    return 1


def say(lines: list[str]) -> None:
    """UTF-8 whatever the locale, as git itself does."""
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
