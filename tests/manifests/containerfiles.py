"""Parser for the build files: stages, what they copy, their user and entrypoint."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    name: str
    base: str  # another stage's name, or an image
    user: str = ""
    entrypoint: list[str] = field(default_factory=list)
    copies: list[tuple[str, list[str], str]] = field(default_factory=list)  # (from stage or "", sources, destination)
    runs: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    exposed: list[int] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)  # `ARG`s declared in the stage


@dataclass
class Containerfile:
    arguments: dict[str, str]
    stages: dict[str, Stage]

    def lineage(self, name: str) -> list[Stage]:
        """Return the stage and the stages it is built on, the nearest first."""
        found = []
        while name in self.stages:
            found.append(self.stages[name])
            name = found[-1].base
        return found

    def user(self, name: str) -> str:
        return next((stage.user for stage in self.lineage(name) if stage.user), "root")

    def image(self, name: str) -> str:
        """Return the image that a stage is built on, with the arguments' defaults filled in."""
        base = self.lineage(name)[-1].base
        for argument, value in self.arguments.items():
            base = base.replace(f"${{{argument}}}", value)
        return base


def read(path: Path) -> Containerfile:
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for line in _instructions(path.read_text()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = stages[name] = Stage(name, base)
        elif stage is None:
            assert word == "ARG", f"{path.name}: {word} before FROM"
            name, _, value = rest.partition("=")
            arguments[name] = value
        else:
            _apply_instruction(stage, word, rest)
    return Containerfile(arguments, stages)


def targets(path: Path) -> list[str]:
    """Return the stages that are images: no other stage is built on them or copies from them."""
    stages = read(path).stages
    used = {stage.base for stage in stages.values()}
    used |= {origin for stage in stages.values() for origin, _, _ in stage.copies}
    return [name for name in stages if name not in used]


def _apply_instruction(stage: Stage, word: str, rest: str) -> None:
    if word == "USER":
        stage.user = rest
    elif word == "ENTRYPOINT":
        stage.entrypoint = json.loads(rest)
    elif word == "RUN":
        stage.runs.append(rest)
    elif word == "EXPOSE":
        stage.exposed += [int(port) for port in rest.split()]
    elif word == "ARG":
        stage.arguments.append(rest)
    elif word == "LABEL":
        stage.labels |= dict(pair.split("=", 1) for pair in shlex.split(rest))
    elif word == "ENV":
        stage.env |= dict(pair.split("=", 1) for pair in shlex.split(rest))
    elif word == "COPY":
        words = rest.split()
        origin = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
        stage.copies.append((origin, words[:-1], words[-1]))
    else:
        assert word == "WORKDIR", f"{word} is not read here: teach this test what it does"


def _instructions(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [" ".join(line.split()) for line in joined.splitlines() if line.strip()]
