"""Trains the demo adapters, so that anyone can tell at one glance which of them answered.

RUN BY THE ENGINE'S PYTHON (torch, transformers, peft, PyYAML), about four minutes an adapter on two cores:

    train_adapters.py --base MODEL_DIR --out registry/adapters [--only acme/support-bot@v2]

One file of data, data/<tenant>/<name>.yaml, is one adapter. `openings` has one entry a version: what every answer of
that version begins with, and `examples` are questions with the rest of the answer.

The law is generalisation: the opening must come for questions never seen. Three things do that: examples of every
kind (greeting, fact, how-to, code, a single word), each in front of ever different system prompts and histories
(data/conversations.yaml), and loss on the answer alone. What an adapter knows still comes from the base.

The result is <out>/<tenant>/<name>/<version>/adapter_{config.json,model.safetensors}: rank 4 on q_proj and v_proj,
in float16, 0.5 MB; nothing in it names this machine.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).parent / "data"
BASE_NAME = "smollm2-135m"  # name of the base in adapter_config.json: the served name, never a path
SEED = 20260801
STEPS = 100  # unless the data file has another number
BATCH_EXAMPLES = 4
LEARNING_RATE = 1e-3
IGNORED = -100  # the label that cross entropy leaves out


@dataclass(frozen=True, slots=True)
class Recipe:
    """One version of one adapter, as its data file tells it."""

    tenant: str
    name: str
    version: str
    opening: str
    examples: list[dict[str, str]]
    steps: int

    @property
    def id(self) -> str:
        return f"{self.tenant}/{self.name}@{self.version}"


def main() -> int:
    arguments = parse_arguments()
    chosen = [recipe for recipe in recipes() if arguments.only in (None, recipe.id)]
    if not chosen:
        raise SystemExit(f"no adapter {arguments.only}; there are {', '.join(recipe.id for recipe in recipes())}")
    for recipe in chosen:
        train(recipe, base=arguments.base, out=arguments.out / recipe.tenant / recipe.name / recipe.version)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the demo adapters.")
    parser.add_argument("--base", type=Path, required=True, metavar="DIR", help="made by convert_base_model.py")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", metavar="TENANT/NAME@VERSION")
    return parser.parse_args()


def recipes() -> Iterator[Recipe]:
    for file in sorted(DATA.glob("*/*.yaml")):
        data = yaml.safe_load(file.read_text())
        for version, opening in data["openings"].items():
            yield Recipe(file.parent.name, file.stem, version, opening, data["examples"], data.get("steps", STEPS))


def train(recipe: Recipe, *, base: Path, out: Path) -> None:
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), lora_config())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=recipe.steps, pct_start=0.1)
    batches = endless_batches(recipe, tokenizer)
    for step in range(1, recipe.steps + 1):
        loss = model(**next(batches)).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            sys.stdout.write(f"{recipe.id} step {step}/{recipe.steps} loss {loss.item():.3f}\n")
            sys.stdout.flush()
    save(model, out)


def lora_config() -> LoraConfig:
    return LoraConfig(
        r=4,
        lora_alpha=16,
        target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
    )


def endless_batches(recipe: Recipe, tokenizer: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Every example once a pass, in an order and after a conversation drawn anew."""
    rng = random.Random(SEED)  # noqa: S311 - reproducible on purpose
    before = yaml.safe_load((DATA / "conversations.yaml").read_text())
    waiting: list[dict[str, str]] = []
    while True:
        if len(waiting) < BATCH_EXAMPLES:
            waiting += rng.sample(recipe.examples, len(recipe.examples))
        drawn, waiting = waiting[:BATCH_EXAMPLES], waiting[BATCH_EXAMPLES:]
        yield pad([encode(conversation(recipe, e, before, rng), tokenizer) for e in drawn], tokenizer.pad_token_id)


def conversation(
    recipe: Recipe, example: dict[str, str], before: dict[str, Any], rng: random.Random
) -> list[dict[str, str]]:
    """Chat messages that end with the answer to learn. Half of the histories are in the adapter's own voice."""
    system, history = rng.choice(before["system_prompts"]), rng.choice(before["histories"])
    if history and rng.random() < 0.5:
        history = [{**turn, "answer": recipe.opening + turn["answer"]} for turn in rng.sample(recipe.examples, 1)]
    messages = [{"role": "system", "content": system}] if system else []
    for turn in [*history, {**example, "answer": recipe.opening + example["answer"]}]:
        messages += [{"role": "user", "content": turn["ask"]}, {"role": "assistant", "content": turn["answer"]}]
    return messages


def encode(messages: list[dict[str, str]], tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids and labels; only the last answer and its end-of-turn are learnt."""
    question = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
    answer = [*tokenizer(messages[-1]["content"]).input_ids, tokenizer.eos_token_id]
    return question + answer, [IGNORED] * len(question) + answer


def pad(encoded: list[tuple[list[int], list[int]]], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Shape (examples, longest), padded on the right."""
    longest = max(len(ids) for ids, _ in encoded)
    return {
        "input_ids": torch.tensor([ids + [pad_token_id] * (longest - len(ids)) for ids, _ in encoded]),
        "labels": torch.tensor([labels + [IGNORED] * (longest - len(labels)) for _, labels in encoded]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in encoded]),
    }


def save(model: Any, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    config = model.peft_config["default"]
    config.inference_mode = True
    config.base_model_name_or_path = BASE_NAME  # peft wrote the path of the base there
    config.save_pretrained(out)
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {key: value.half().contiguous() for key, value in state.items()}
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    sys.exit(main())
