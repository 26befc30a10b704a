"""Renew the lock files, with hashes, of `make up`, the development environment, the images and the engine.

    make lock                        # change only what pyproject.toml's bounds and the engine's pins require
    make lock ARGS="--upgrade"       # upgrade every version
    make lock ARGS="--upgrade-package httpx"

One resolution is valid for x86-64 and arm64 and CPython 3.11 to 3.14; pip selects pins by markers.
The locks of the images' roles are subsets of the one for development, so that tests run the versions of the images.

The engine's lock has three parts, because torch has two builds of which one is installed:

* `engine-torch-cpu.lock.txt`: the CPU build. It is not on PyPI, so its hashes come from `CPU_BUILD` below;
* `engine-torch.lock.txt`: the general build with the CUDA libraries that it is linked against, needed or not;
* `engine.lock.txt`: vLLM and everything else.

`nixl.lock.txt` is what `make soak` adds to two engines, one of which fetches the other's KV blocks.
"""

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

PROJECT = Path(__file__).parents[1]
LOCKS = PROJECT / "requirements"
ENGINE = PROJECT / "functions" / "controller" / "local" / "prepare"
EXTRAS = ("gateway", "registry", "controller", "replica")
DEVELOPMENT = "dev"

# Hashes of the published wheels of torch's CPU build, by platform. Replace them when you change TORCH.
TORCH = "2.13.0"
CPU_BUILD = {
    "cp311 x86_64": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    "cp312 x86_64": "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
    "cp313 x86_64": "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
    "cp314 x86_64": "d20fa53ee744502fa4c69818a720b05ca0d37abd055d4f6e66cae155114bc691",
    "cp311 aarch64": "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",
    "cp312 aarch64": "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",
    "cp313 aarch64": "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",
    "cp314 aarch64": "ca021f9eb2f8345c83fa03e3a04587308afb8df71bd472670b3ece00df58621c",
}
# vLLM requires the CPU build, which is not on PyPI; the general build can replace it.
OVERRIDES = (f"torch=={TORCH}",)
# Packages left out of the engine: those that only GPUs use and torch does not link against (triton, cuSOLVER, nvtx, the
# bindings), and those that text models do not use and that break `import transformers` with a torch of another build.
EXCLUDED = ("torchvision", "torchaudio", "torchcodec", "triton", "cuda-bindings", "nvidia-cusolver", "nvidia-nvtx")
# A requirement that only the Linux wheels name; the resolver reads one wheel's metadata for all platforms.
ADDED = ("intel-cmplr-lib-ur==2024.2.1 ; platform_machine == 'x86_64'",)

# NIXL without its dependencies: the engine has them, or only accelerators need them.
NIXL = ("nixl==1.5.1", "nixl-cu13==1.5.1")

HEADER = "# Made by `make lock`; not to be edited. For Linux on x86-64 and arm64, CPython 3.11 to 3.14.\n"


def main(arguments: Sequence[str]) -> int:
    development = LOCKS / f"{DEVELOPMENT}.txt"
    with tempfile.TemporaryDirectory() as folder:
        build = _lines(folder, "build", _build_system())
        _compile(["pyproject.toml", build, "--extra", DEVELOPMENT], development, arguments)
        _compile([build], LOCKS / "build.txt", ["--constraints", str(development)])
    for extra in EXTRAS:
        _compile(["pyproject.toml", "--extra", extra], LOCKS / f"{extra}.txt", ["--constraints", str(development)])
    _engine(arguments)
    with tempfile.TemporaryDirectory() as folder:
        _compile([_lines(folder, "nixl", NIXL)], ENGINE / "nixl.lock.txt", ["--no-deps", *arguments])
    return 0


def _engine(arguments: Sequence[str]) -> None:
    general, rest = ENGINE / "engine-torch.lock.txt", ENGINE / "engine.lock.txt"
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.txt"
        whole.write_text("".join(file.read_text() for file in (general, rest) if file.exists()))
        sources = [str(ENGINE / "engine-requirements.txt"), _lines(folder, "added", ADDED)]
        sources += ["--overrides", _lines(folder, "overrides", OVERRIDES)]
        sources += ["--excludes", _lines(folder, "excluded", EXCLUDED)]
        _compile(sources, whole, arguments)
        entries = list(_entries(whole.read_text()))
    general.write_text(HEADER + "".join(entry for entry in entries if _goes_with_torch(entry)))
    rest.write_text(HEADER + "".join(entry for entry in entries if not _goes_with_torch(entry)))
    hashes = " \\\n".join(f"    --hash=sha256:{digest}" for digest in sorted(CPU_BUILD.values()))
    (ENGINE / "engine-torch-cpu.lock.txt").write_text(f"{HEADER}torch=={TORCH}+cpu \\\n{hashes}\n")


def _goes_with_torch(entry: str) -> bool:
    name = entry.partition("==")[0]
    return name == "torch" or name.startswith(("nvidia-", "cuda-"))


def _compile(sources: Sequence[str], lock: Path, arguments: Iterable[str]) -> None:
    """Compile one lock. Versions in the existing lock are preferred: an unchanged project gives an unchanged lock.

    Versions without wheels are skipped, so that a machine without compilers can install every pin.
    """
    options = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-build"]
    plain = ["--no-header", "--no-annotate", "--no-emit-index-url", "--quiet"]
    argv = ["-m", "uv", "pip", "compile", *options, *plain, *arguments, *sources, "--output-file", str(lock)]
    subprocess.run([sys.executable, *argv], cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    lock.write_text(HEADER + "".join(_entries(lock.read_text())))


def _entries(lock: str) -> Iterator[str]:
    """Yield each pin with its hashes; comments are left out."""
    entry = ""
    for line in lock.splitlines(keepends=True):
        if line.startswith("#"):
            continue
        if not line.startswith(" ") and entry:
            yield entry
            entry = ""
        entry += line
    if entry:
        yield entry


def _lines(folder: str, name: str, lines: Iterable[str]) -> str:
    file = Path(folder) / f"{name}.txt"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def _build_system() -> list[str]:
    requires: list[str] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["build-system"]["requires"]
    return requires


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
