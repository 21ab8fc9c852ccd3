"""Prompts become ids once; what was sampled is never tokenised again."""

from __future__ import annotations

from typing import Any

import pytest
from policy_cases import EOS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from coevolve.policies.encode import encode, said
from coevolve.types import Problem, Turn


@pytest.fixture
def tokenizer(micro_model: str) -> Any:
    return AutoTokenizer.from_pretrained(micro_model)


def turn(policy: str = "a") -> Turn:
    return Turn("r", policy, Problem("p"), 0, 0, [3, 4], [5, 0, EOS], [-1.0] * 3, "c", True)


def test_text_is_plain(tokenizer: Any) -> None:
    assert encode(tokenizer, "abc", "a") == [3, 4, 5]


def test_an_empty_prompt_is_the_start_token(tokenizer: Any) -> None:
    assert encode(tokenizer, "", "a") == [EOS]
    tokenizer.bos_token = "z"
    assert encode(tokenizer, "", "a") == [28]
    tokenizer.bos_token = tokenizer.eos_token = None
    with pytest.raises(ValueError, match="policy 'a' got an empty prompt"):
        encode(tokenizer, "", "a")


def test_a_default_start_token_stays_and_an_end_token_does_not(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="z $A <eos>", special_tokens=[("z", 28), ("<eos>", EOS)]
    )
    assert tokenizer("abc").input_ids == [28, 3, 4, 5, EOS]
    assert encode(tokenizer, "abc", "a") == [28, 3, 4, 5]
    assert encode(tokenizer, "", "a") == [28]
    assert encode(tokenizer, [turn(), "ab"], "a") == [3, 4, 5, 0, EOS, 3, 4]


def test_an_end_token_the_user_wrote_stays(tokenizer: Any) -> None:
    assert encode(tokenizer, "ab<eos>", "a") == [3, 4, EOS]


def test_a_turn_is_spliced_as_its_exact_ids(tokenizer: Any) -> None:
    assert encode(tokenizer, [turn(), "ab", "c"], "a") == [3, 4, 5, 0, EOS, 3, 4, 5]
    assert encode(tokenizer, [turn()], "a") == [3, 4, 5, 0, EOS]


def test_a_splice_must_be_the_policys_own_and_come_first(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="policy 'a' cannot splice a turn of policy 'b'"):
        encode(tokenizer, [turn("b"), "x"], "a")
    with pytest.raises(ValueError, match="must be"):
        encode(tokenizer, ["x", turn()], "a")


def test_messages_need_a_chat_template(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
    with pytest.raises(ValueError, match="no chat template"):
        encode(tokenizer, messages, "a")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}.{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    assert encode(tokenizer, messages, "a") == tokenizer("ab.c.>").input_ids


def test_the_space_before_a_first_word_is_kept() -> None:
    """A Metaspace decoder, as Llama 2's, strips the space of the first word it decodes."""
    inner = Tokenizer(models.WordLevel({"\u2581The": 0, "\u2581film": 1, "\u2581was": 2, "<u>": 3}, unk_token="<u>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<u>")
    assert tokenizer.decode([2, 1]) == "was film"
    assert said(tokenizer, [([0, 1], [2, 1]), ([0], [1])]) == [" was film", " film"]
