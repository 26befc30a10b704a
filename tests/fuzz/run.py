"""Coverage-guided fuzzing of one target, in a separate process.

    python -m tests.fuzz.run TARGET --seconds 20            the corpus and libFuzzer's mutations of it
    python -m tests.fuzz.run TARGET --seconds 600 --keep    also add inputs that reach new code to the corpus
    python -m tests.fuzz.run TARGET --replay FILE           one input, with its traceback
    python -m tests.fuzz.run TARGET --rounds 20             repeat the corpus and print the memory growth in KB

A finding ends the run with status 1, and its input stays in the printed folder. Add it as a test with the input
written out, and as a file of the corpus. Limits are 2 GB of memory, ten seconds per input and 120,000 inputs per run;
for more inputs, run again with another seed.
"""

import argparse
import importlib
import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.fuzz.corpora import KEPT_MAX_BYTES, KEPT_MAX_FILES, folder_of, name_of, target_names
from tests.fuzz.inputs import DEEP

_INPUT_SECONDS = 10
_MEMORY_MB = 2048
_INPUTS_MAX = 120_000  # libFuzzer stores some 10 KB for each: a fast target reaches the memory limit in 14 s
_INPUT_MAX_BYTES = 4096
_INSTRUMENTED = ["functions", "python_multipart", "prometheus_client.parser", "ruamel.yaml", "lark"]


def main(arguments: Sequence[str]) -> None:
    options = _parse(arguments)
    if options.replay is not None:
        importlib.import_module(f"tests.fuzz.targets.{options.target}").check(options.replay.read_bytes())
        return
    if options.rounds:
        print(_left_taken_kb(options.target, options.rounds))
        return
    import atheris

    logging.disable(logging.CRITICAL)  # invalid input is logged: thousands of lines a second
    with atheris.instrument_imports(include=_INSTRUMENTED):
        target = importlib.import_module(f"tests.fuzz.targets.{options.target}")
    work = Path(tempfile.mkdtemp(prefix=f"shoal-fuzz-{options.target}-"))
    found = work / "corpus"
    found.mkdir()
    dictionary = work / "dictionary"
    dictionary.write_text("".join(f'"{_escaped(word)}"\n' for word in (*target.DICTIONARY, *DEEP)))
    kept = folder_of(options.target)
    if options.keep:
        _keep_at_exit(found, kept)
    atheris.Setup(
        [
            "fuzz",
            f"-max_total_time={options.seconds}",
            f"-runs={_INPUTS_MAX}",
            f"-timeout={_INPUT_SECONDS}",
            f"-rss_limit_mb={_MEMORY_MB}",
            f"-max_len={_INPUT_MAX_BYTES}",
            f"-seed={options.seed}",
            f"-artifact_prefix={work}/",
            f"-dict={dictionary}",
            "-print_final_stats=1",
            "-verbosity=1",
            str(found),
            *([str(kept)] if kept.is_dir() else []),
        ],
        target.check,
    )
    atheris.Fuzz()


def _left_taken_kb(target: str, rounds: int) -> int:
    """Return the growth of the process in KB, from the first quarter of the rounds to the last. The target is not
    instrumented, because libFuzzer stores some KB for each input."""
    logging.disable(logging.CRITICAL)
    check = importlib.import_module(f"tests.fuzz.targets.{target}").check
    inputs = [file.read_bytes() for file in sorted(folder_of(target).iterdir())]
    sizes = []
    for _ in range(rounds):
        for data in inputs:
            check(data)
        sizes.append(psutil.Process().memory_info().rss // 1024)
    return sizes[-1] - sizes[rounds // 4]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description="Fuzz one target.")
    parser.add_argument("target", choices=target_names())
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="seed of libFuzzer's mutations")
    parser.add_argument(
        "--keep", action="store_true", help="add new inputs that reach new code to the corpus, the newest first"
    )
    parser.add_argument("--rounds", type=int, default=0, help="rounds over the corpus, to measure memory growth")
    parser.add_argument("--replay", type=Path, help="a file with one input")
    return parser.parse_args(arguments)


def _escaped(word: str) -> str:
    """Return the word in the syntax of libFuzzer's dictionaries."""
    return "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogatepass"))


def _keep_at_exit(found: Path, kept: Path) -> None:
    """Fork; the child fuzzes and the parent copies inputs afterwards, because libFuzzer ends its process itself."""
    import os

    child = os.fork()
    if child == 0:
        return
    _, status = os.waitpid(child, 0)
    kept.mkdir(parents=True, exist_ok=True)
    room = KEPT_MAX_FILES - len(list(kept.iterdir()))
    small = sorted((file for file in found.iterdir() if file.stat().st_size <= KEPT_MAX_BYTES), key=_newest_first)
    for file in small[: max(0, room)]:
        shutil.copyfile(file, kept / name_of(file.read_bytes()))
    sys.exit(os.waitstatus_to_exitcode(status))


def _newest_first(file: Path) -> float:
    return -file.stat().st_mtime


if __name__ == "__main__":
    main(sys.argv[1:])
