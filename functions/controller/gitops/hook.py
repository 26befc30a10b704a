"""Git's push hook: sends the push to the controller, prints its answer, exits with 0 or 1. Only the standard library
is imported: a start takes 30 ms, not 400.

    hook.py <pre-receive|post-receive> <repository> <project python> <control socket>…

The controller answers from its warm caches. Several sockets belong to regions that follow one repository: the first
controller that answers decides for all, since they judge alike. If none answers, `pre-receive` judges in a separate
process (`functions.controller.gitops.review_alone`), which is slower and equally strict. `post-receive` only notifies
the controller and prints the result; it never fails a push.

Only git's own lines, quarantine and push options are used; the rest of the environment is not passed on.
"""

import json
import os
import socket
import subprocess
import sys
from typing import Any

REVIEW_TIMEOUT_S = 120.0  # time for a cold start with tens of thousands of objects
FOLLOW_S = 5.0  # longest wait of the pusher for the result
INPUT_MAX_BYTES = 1024 * 1024
ANSWER_MAX_BYTES = 4 * 1024 * 1024
MAX_OPTIONS = 20


def main(arguments: list[str]) -> int:
    hook, repository, python, *channels = arguments
    updates = read_updates(sys.stdin.buffer.read(INPUT_MAX_BYTES + 1))
    if updates is None:
        return refuse("this push has more references than can be judged")
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
        verdict = send_order(channels, order, REVIEW_TIMEOUT_S)
    except OSError:
        verdict = review_alone(python, repository, order)
    if not isinstance(verdict, dict):
        return refuse("the push could not be judged; try again")
    print_lines(verdict["lines"])
    return 0 if verdict["accepted"] is True else 1


def read_updates(lines: bytes) -> list[list[str]] | None:
    if len(lines) > INPUT_MAX_BYTES:
        return None
    # Lines end at line feeds only: git allows the other line ends of `splitlines` in names of references.
    text = lines.decode("utf-8", "backslashreplace")
    return [line.split(" ", 2) for line in text.split("\n") if line.count(" ") >= 2]


def read_options() -> list[str]:
    count = os.environ.get("GIT_PUSH_OPTION_COUNT", "0")
    number = min(int(count), MAX_OPTIONS) if count.isdecimal() else 0
    return [os.environ.get(f"GIT_PUSH_OPTION_{index}", "") for index in range(number)]


def send_order(channels: list[str], order: dict[str, Any], timeout_s: float) -> Any:
    """Send the order to the first controller that accepts and return its result; None if the answer is an error, which
    is printed. Raise OSError if no controller accepts."""
    with connected(channels, timeout_s) as client:
        client.sendall(json.dumps(order).encode() + b"\n")
        with client.makefile("rb") as answers:
            line = answers.readline(ANSWER_MAX_BYTES)
    answer = json.loads(line) if line.endswith(b"\n") else {}
    if not answer.get("ok"):
        print_lines([answer.get("error", "the controller closed the connection")])
        return None
    return answer["result"]


def connected(channels: list[str], timeout_s: float) -> socket.socket:
    """Connect to the first controller that accepts; raise OSError if none does."""
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
        print_lines([f"no controller answers, and judging without it failed: {error}"])
        return None


def follow(channels: list[str], updates: list[list[str]]) -> None:
    try:
        told = send_order(channels, {"do": "follow", "updates": updates, "wait_s": FOLLOW_S}, FOLLOW_S + 5.0)
    except OSError:
        print_lines(["no controller runs: the next `shoal up` applies this push"])
        return
    if isinstance(told, dict):
        print_lines(told["lines"])


def refuse(why: str) -> int:
    print_lines([f"refused: {why}"])
    return 1


def print_lines(lines: list[str]) -> None:
    """Print the lines in UTF-8 in any locale, as git does."""
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
