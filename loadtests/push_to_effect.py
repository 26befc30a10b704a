"""Seconds from `git push` to its effect on the gateway, for a change of policies only, under load.

    shoal up --engine sim && python -m loadtests.push_to_effect [--pushes 50] [--rate 20] [-o json]

Pushes to the running fleet's own repository. Each push lets a tenant of this test call a model, or revokes that again.
The effect is the first answer of `GET /v1/models/…` that shows it; the test polls every 5 ms. Meanwhile streams start
at a steady rate, and each must end complete.

The exit status is 1 if a request failed or an effect did not come. The branch's content is restored by further commits.
"""

import argparse
import asyncio
import json
import os
import secrets
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from functions.api.keys import keyed_hash, mint, parse
from functions.cli.context import CliContext, current_context
from functions.controller.local.prepare.secret_files import read_demo_keys, read_pepper

MODEL = "smollm2-135m"
FILE = "policies/push-to-effect.yaml"
ASK_EVERY_S = 0.005
EFFECT_TIMEOUT_S = 30.0
WORDS = 20


@dataclass(slots=True)
class Load:
    asked: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sample:
    push_s: float  # duration of `git push`
    from_start_s: float  # from the start of `git push` to the effect
    from_return_s: float  # from the end of `git push` to the effect; negative if the effect came first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pushes", type=int, default=50, help="number of pushes, at least 2")
    parser.add_argument("--rate", type=float, default=20.0, help="streams started per second")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    if arguments.pushes < 2 or arguments.rate <= 0:
        parser.error("--pushes must be at least 2, and --rate above 0")
    try:
        samples, load = asyncio.run(measure(current_context(), arguments.pushes, arguments.rate))
    except* httpx.ConnectError:
        sys.exit("no gateway answers: `shoal up --engine sim` first, then `shoal status`")
    figures = summary(samples, load, arguments.rate)
    sys.stdout.write(json.dumps(figures, indent=1) + "\n" if arguments.output == "json" else table(figures))
    return 1 if load.failed else 0


async def measure(place: CliContext, pushes: int, rate_per_s: float) -> tuple[list[Sample], Load]:
    key = mint("local", "push-to-effect", secrets.token_bytes(32))
    load, over = Load(), asyncio.Event()
    with checkout(place.layout.gitops_dir) as directory:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(keep_asking(place, rate_per_s, load, over))
                samples = []
                try:
                    for number in range(pushes):
                        (directory / FILE).write_text(tenant(place, key, may_call=number % 2 == 0))
                        samples.append(await one_push(place, directory, key, expected=200 if number % 2 == 0 else 404))
                finally:
                    over.set()
        finally:  # remove the tenant and its key
            (directory / FILE).unlink()
            await asyncio.to_thread(commit, directory)
            await asyncio.to_thread(push, directory)
    return samples, load


async def one_push(place: CliContext, directory: Path, key: str, expected: int) -> Sample:
    """Push once and measure. Polling starts with the push, because the effect may come before the command returns."""
    await asyncio.to_thread(commit, directory)
    started_s = time.monotonic()
    effect = asyncio.get_running_loop().create_task(first_answer(place, key, expected))
    await asyncio.to_thread(push, directory)
    returned_s = time.monotonic()
    effect_s = await effect
    return Sample(returned_s - started_s, effect_s - started_s, effect_s - returned_s)


async def first_answer(place: CliContext, key: str, expected: int) -> float:
    """Poll until an answer has the expected status; return the time of that answer."""
    async with client(place, key) as asker, asyncio.timeout(EFFECT_TIMEOUT_S):
        while True:
            answer = await asker.get(f"/models/{MODEL}")
            if answer.status_code == expected:
                return time.monotonic()
            await asyncio.sleep(ASK_EVERY_S)


async def keep_asking(place: CliContext, rate_per_s: float, load: Load, over: asyncio.Event) -> None:
    """Start streams at a steady rate, over the models of the first demo tenant."""
    key = next(iter(read_demo_keys(place.layout).values())).key
    async with client(place, key) as asker, asyncio.TaskGroup() as group:
        models = [str(model["id"]) for model in (await asker.get("/models")).json()["data"]]
        started_s = time.monotonic()
        while not over.is_set():
            group.create_task(one_stream(asker, models[load.asked % len(models)], load))
            load.asked += 1
            await asyncio.sleep(max(0.0, started_s + load.asked / rate_per_s - time.monotonic()))


async def one_stream(asker: httpx.AsyncClient, model: str, load: Load) -> None:
    prompt = " ".join(f"word{number}" for number in range(WORDS))
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": True, "max_tokens": 64}
    last = ""
    try:
        async with asker.stream("POST", "/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                last = line or last
        if answer.status_code != 200 or last != "data: [DONE]":
            load.failed.append(f"{model}: {answer.status_code} {last[:200]}")
    except httpx.HTTPError as error:
        load.failed.append(f"{model}: {error!r}")


def client(place: CliContext, key: str) -> httpx.AsyncClient:
    verify = ssl.create_default_context(cafile=str(place.layout.ca_file))
    return httpx.AsyncClient(
        base_url=f"{place.gateway_url}/v1",
        headers={"authorization": f"Bearer {key}"},
        verify=verify,
        timeout=httpx.Timeout(60.0),
        limits=httpx.Limits(max_connections=200, max_keepalive_connections=200),
        trust_env=False,
    )


def tenant(place: CliContext, key: str, *, may_call: bool) -> str:
    parsed = parse(key)
    assert parsed is not None
    hashed = keyed_hash(read_pepper(place.layout), parsed.secret)
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: Tenant
metadata: {{name: push-to-effect}}
spec:
  tier: standard
  keys: [{{id: {parsed.key_id}, hmacSha256: "{hashed}", scopes: [inference, models:read]}}]
  models: ["push-to-effect/*"{f', "{MODEL}"' if may_call else ""}]
"""


@contextmanager
def checkout(repository: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        git(Path.cwd(), "clone", "--quiet", str(repository), directory)
        yield Path(directory)


def commit(directory: Path) -> None:
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message", "push to effect")


def push(directory: Path) -> None:
    git(directory, "push", "--quiet", "origin", "HEAD:main")


def git(directory: Path, *arguments: str) -> None:
    who = {"GIT_AUTHOR_NAME": "load", "GIT_AUTHOR_EMAIL": "load@localhost"}
    who |= {"GIT_COMMITTER_NAME": "load", "GIT_COMMITTER_EMAIL": "load@localhost"}
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments],
        env={**os.environ, **who},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"git {arguments[0]} failed:\n{done.stderr}")


def summary(samples: list[Sample], load: Load, rate_per_s: float) -> dict[str, object]:
    columns = {
        "push_command_s": [sample.push_s for sample in samples],
        "push_start_to_effect_s": [sample.from_start_s for sample in samples],
        "push_return_to_effect_s": [sample.from_return_s for sample in samples],
    }
    return {
        "pushes": len(samples),
        "rate_per_s": rate_per_s,
        **{name: _percentiles(values) for name, values in columns.items()},
        "requests": load.asked,
        "failed_requests": len(load.failed),
        "failures": load.failed[:5],
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    """Return p50, p99 and maximum. With 50 values, p99 is practically the maximum."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3), "max": round(max(values), 3)}


def table(figures: dict[str, object]) -> str:
    lines = [f"{name:<26} {value}" for name, value in figures.items() if name != "failures" or value]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
