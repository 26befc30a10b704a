"""Token ids match the engine's, piece by piece or whole, and every token's end is known."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer

from functions.gateway.prefix import prompt_tokenizer
from functions.gateway.prefix.prompt_template import PromptTemplate, load_template
from functions.gateway.prefix.prompt_tokenizer import ModelPromptTokenizer
from tests.gateway.prompt_rig import CONVERSATIONS, POOL, TEMPLATE, TEXTS, model_dir, real_model_dir, trained
from tests.soak import sampled


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_dir(tmp_path_factory.mktemp("models")) / POOL


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> ModelPromptTokenizer:
    return ModelPromptTokenizer.load(directory)


WHOLE = Tokenizer.from_str(trained())
CHATML = PromptTemplate(TEMPLATE, {})


@settings(max_examples=200)
@given(CONVERSATIONS)
def test_token_ids_match_the_whole_text(tokenizer: ModelPromptTokenizer, messages: list[dict[str, str]]) -> None:
    assert tokenizer.in_pieces
    prompt = CHATML.render(messages)
    tokens = tokenizer.tokens(prompt, add_special_tokens=False)
    encoding = WHOLE.encode(prompt, add_special_tokens=False)
    assert list(tokens.ids) == encoding.ids
    assert list(tokens.ends) == [end for _, end in encoding.offsets]


@pytest.mark.parametrize("examples", sampled([300, 3000], keep=[300]))
def test_token_ids_match_the_real_model(examples: int) -> None:
    """Many conversations are tokenized with the base model's own tokenizer and template."""
    directory = real_model_dir()
    tokenizer, template = ModelPromptTokenizer.load(directory), load_template(directory)
    whole = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert template is not None and tokenizer.in_pieces

    @settings(max_examples=examples, database=None)
    @given(CONVERSATIONS)
    def same(messages: list[dict[str, str]]) -> None:
        prompt = template.render(messages)
        encoding = whole.encode(prompt, add_special_tokens=False)
        tokens = tokenizer.tokens(prompt, add_special_tokens=False)
        assert list(tokens.ids) == encoding.ids
        assert list(tokens.ends) == [end for _, end in encoding.offsets]

    same()


@given(TEXTS)
def test_cached_piece_gives_the_same_ids(tokenizer: ModelPromptTokenizer, text: str) -> None:
    first = tokenizer.tokens(text, add_special_tokens=False)
    assert tokenizer.tokens(text, add_special_tokens=False).ids == first.ids


def test_special_token_that_strips_spaces_disables_pieces(tmp_path: Path) -> None:
    content = json.loads(trained())
    content["added_tokens"] = [token | {"lstrip": True} for token in content["added_tokens"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = ModelPromptTokenizer.load(tmp_path)
    assert not tokenizer.in_pieces
    text = "one two  <|im_start|> three"
    whole = Tokenizer.from_str(json.dumps(content)).encode(text, add_special_tokens=False)
    assert list(tokenizer.tokens(text, add_special_tokens=False).ids) == whole.ids


def test_tokenizer_with_prefix_space_gives_exact_ids(tmp_path: Path) -> None:
    content = json.loads(trained())
    content["pre_tokenizer"]["add_prefix_space"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = ModelPromptTokenizer.load(tmp_path)
    text = "one<|im_start|>two"
    whole = Tokenizer.from_str(json.dumps(content)).encode(text, add_special_tokens=False)
    assert list(tokenizer.tokens(text, add_special_tokens=False).ids) == whole.ids


def test_piece_cache_is_bounded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_tokenizer, "MAX_REMEMBERED_BYTES", 2000)
    tokenizer = ModelPromptTokenizer.load(directory)
    for number in range(50):
        tokenizer.tokens(f"message {number}", add_special_tokens=False)
    assert len(tokenizer._remembered) <= 6
    assert tokenizer._remembered_bytes <= 2000


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": 7}'])
def test_invalid_tokenizer_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError):
        ModelPromptTokenizer.load(tmp_path)
