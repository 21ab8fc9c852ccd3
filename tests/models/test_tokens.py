"""Prompts become ids once; what was sampled is never tokenised again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from policy_cases import EOS
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from coevolve.engines.base import BaseEngine
from coevolve.interfaces import Published
from coevolve.models.spec import PolicySpec
from coevolve.models.tokens import check_chat, decode_actions, encode
from coevolve.types import Instruction, Problem, Turn


@pytest.fixture
def tokenizer(micro_model: str) -> Any:
    return AutoTokenizer.from_pretrained(micro_model)


def turn(policy: str = "a") -> Turn:
    return Turn("r", policy, Problem("p"), 0, 0, [3, 4], [5, 0, EOS], [-1.0] * 3, "c", True)


def test_text_is_plain(tokenizer: Any) -> None:
    assert encode(tokenizer, "abc", "a", None) == [3, 4, 5]


def test_an_empty_prompt_is_the_start_token(tokenizer: Any) -> None:
    assert encode(tokenizer, "", "a", None) == [EOS]
    tokenizer.bos_token = "z"
    assert encode(tokenizer, "", "a", None) == [28]
    tokenizer.bos_token = tokenizer.eos_token = None
    with pytest.raises(ValueError, match="policy 'a' got an empty prompt"):
        encode(tokenizer, "", "a", None)


def test_a_default_start_token_stays_and_an_end_token_does_not(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="z $A <eos>", special_tokens=[("z", 28), ("<eos>", EOS)]
    )
    assert tokenizer("abc").input_ids == [28, 3, 4, 5, EOS]
    assert encode(tokenizer, "abc", "a", None) == [28, 3, 4, 5]
    assert encode(tokenizer, "", "a", None) == [28]
    assert encode(tokenizer, [turn(), "ab"], "a", None) == [3, 4, 5, 0, EOS, 3, 4]


def test_an_end_token_the_user_wrote_stays(tokenizer: Any) -> None:
    assert encode(tokenizer, "ab<eos>", "a", None) == [3, 4, EOS]


def test_a_turn_is_spliced_as_its_exact_ids(tokenizer: Any) -> None:
    assert encode(tokenizer, [turn(), "ab", "c"], "a", None) == [3, 4, 5, 0, EOS, 3, 4, 5]
    assert encode(tokenizer, [turn()], "a", None) == [3, 4, 5, 0, EOS]


def test_a_splice_must_be_the_policys_own_and_come_first(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="policy 'a' cannot splice a turn of policy 'b'"):
        encode(tokenizer, [turn("b"), "x"], "a", None)
    with pytest.raises(ValueError, match="must be"):
        encode(tokenizer, ["x", turn()], "a", None)


def test_messages_need_a_chat_template(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
    with pytest.raises(ValueError, match="no chat template"):
        encode(tokenizer, messages, "a", None)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}.{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    assert encode(tokenizer, messages, "a", None) == tokenizer("ab.c.>").input_ids


# --- instructions and chat templates ---------------------------------------------------------------------------------

MARKS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
CHATML = """\
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
    {%- set said = m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' else m.content %}
    {{- '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
LLAMA = """\
{{- '<|start|>' }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
SPACED = """\
{%- for m in messages %}
    {%- if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}
    {%- if m.role == 'assistant' %}{{ ' ' + m.content + ' <|endoftext|>' }}{% endif %}
{%- endfor %}"""
"""A space before the end of an answer, and none of its own before the next question."""

BOTH = pytest.mark.parametrize(("template", "end"), [(CHATML, "<|im_end|>"), (LLAMA, "<|eot_id|>")])


@pytest.fixture(scope="module")
def chatty() -> Any:
    """A byte-level tokenizer with a few merges. It keeps line breaks together, and puts a start before plain text."""
    words = pre_tokenizers.Split(Regex(r"[^\r\n\p{L}]?\p{L}+| ?[^\s\p{L}]+|\s*[\r\n]+|\s+"), "isolated")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=MARKS, show_progress=False)
    core.train_from_iterator(["user\n\nassistant\n\nA short text, then a longer text.\n\n"] * 2, trainer)
    core.post_processor = TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", bos_token="<|start|>")


def spoke(tokenizer: Any, prompt_ids: list[int], text: str, end: str = "") -> Turn:
    """A turn of policy "a" that sampled this text, and then its end if it has one."""
    action_ids = tokenizer(text + end, add_special_tokens=False).input_ids
    return Turn("r", "a", Problem("p"), 0, 0, prompt_ids, action_ids, [-1.0] * len(action_ids), text, bool(end))


def conversation(tokenizer: Any, *contents: str, **keywords: Any) -> list[int]:
    """The ids of a whole conversation, rendered at once."""
    talk = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    ids: list[int] = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=False, **keywords)
    return ids


def test_an_instruction_is_a_users_message_where_there_is_a_template(chatty: Any) -> None:
    chatty.chat_template = CHATML
    asked = Instruction("A short text, please.\n")
    chatml = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nA short text, please.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert chatty.decode(encode(chatty, asked, "a", None)) == chatml
    assert chatty.decode(encode(chatty, asked, "a", True)) == chatml
    chatty.chat_template = LLAMA
    assert chatty.decode(encode(chatty, asked, "a", None)) == (
        "<|start|><|start_header_id|>user<|end_header_id|>\n\nA short text, please.<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_an_instruction_is_plain_text_elsewhere(chatty: Any) -> None:
    asked = Instruction("A short text, please.\n")
    plain = chatty("A short text, please.\n").input_ids
    chatty.chat_template = CHATML
    assert encode(chatty, asked, "a", False) == plain
    chatty.chat_template = None
    assert encode(chatty, asked, "a", None) == plain


def test_a_text_that_is_no_instruction_stays_plain(chatty: Any) -> None:
    chatty.chat_template = CHATML
    assert encode(chatty, "A short text", "a", True) == chatty("A short text").input_ids


def test_messages_go_through_the_template_whatever_instructions_do(chatty: Any) -> None:
    chatty.chat_template = CHATML
    for chat in (None, False, True):
        assert encode(chatty, [{"role": "user", "content": "A"}], "a", chat) == conversation(chatty, "A")


def test_keywords_reach_the_template(chatty: Any) -> None:
    chatty.chat_template = CHATML
    quiet = {"enable_thinking": False}
    for prompt in (Instruction("A"), [{"role": "user", "content": "A"}]):
        text = chatty.decode(encode(chatty, prompt, "a", quiet))
        assert text.endswith("<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
        assert "<think>" not in chatty.decode(encode(chatty, prompt, "a", {"enable_thinking": True}))


@BOTH
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "cut"])
def test_a_spliced_conversation_is_the_whole_one(chatty: Any, template: str, end: str, finished: bool) -> None:
    """Also after a second answer. An answer that was cut ends where the template ends it; none ends twice."""
    chatty.chat_template = template
    first = spoke(chatty, encode(chatty, Instruction("A text."), "a", None), "A longer text,", end if finished else "")
    again = encode(chatty, [first, Instruction("\n\nA short text, then.\n\n")], "a", None)
    assert again == conversation(chatty, "A text.", "A longer text,", "A short text, then.")
    assert again.count(chatty.convert_tokens_to_ids(end)) == (4 if template == CHATML else 3)  # ChatML's has a system
    second = spoke(chatty, again, "then", end if finished else "")
    assert encode(chatty, [second, Instruction("user")], "a", None) == conversation(
        chatty, "A text.", "A longer text,", "A short text, then.", "then", "user"
    )


def test_what_is_added_to_a_turn_literally(chatty: Any) -> None:
    chatty.chat_template = CHATML
    asked = encode(chatty, Instruction("A"), "a", None)
    done, cut = spoke(chatty, asked, "B", "<|im_end|>"), spoke(chatty, asked, "B")
    added = "\n<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n"
    for turn, ending in ((done, ""), (cut, "<|im_end|>")):
        mine = [*turn.prompt_ids, *turn.action_ids]
        spliced = encode(chatty, [turn, Instruction("C")], "a", True)
        assert spliced[: len(mine)] == mine
        assert chatty.decode(spliced[len(mine) :]) == ending + added
    quiet = encode(chatty, [done, Instruction("C")], "a", {"enable_thinking": False})
    assert chatty.decode(quiet[len(done.prompt_ids) + 2 :]) == added + "<think>\n\n</think>\n\n"


def test_ids_that_the_tokenizer_would_choose_otherwise_stay(chatty: Any) -> None:
    """The turn sampled "text" letter by letter; its ids are kept although the text has merges."""
    chatty.chat_template = LLAMA
    letters = [chatty.convert_tokens_to_ids(letter) for letter in "text"]
    assert len(chatty("text", add_special_tokens=False).input_ids) < 4
    turn = Turn("r", "a", Problem("p"), 0, 0, [7, 8], letters, [-1.0] * 4, "text", False)
    spliced = encode(chatty, [turn, Instruction("A")], "a", None)
    assert spliced[:6] == [7, 8, *letters]
    assert chatty.decode(spliced[6:]).startswith("<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>")


@pytest.mark.parametrize("new", ["C", "C<|endoftext|>D"])
def test_a_turn_that_sampled_another_end_still_gets_the_templates(chatty: Any, new: str) -> None:
    chatty.chat_template = CHATML
    turn = spoke(chatty, [7], "B", "<|endoftext|>")
    assert chatty.decode(encode(chatty, [turn, Instruction(new)], "a", None)[1:]) == (
        f"B<|endoftext|><|im_end|>\n<|im_start|>user\n{new}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_only_an_end_ends_a_turn(chatty: Any) -> None:
    """The last token of an answer that was cut happens to be what this template puts after every answer."""
    chatty.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    turn = spoke(chatty, [7], "B\n")
    assert chatty.decode(encode(chatty, [turn, Instruction("C")], "a", None)[1:]) == "B\n\nuser: C\n"


def test_white_space_that_a_template_puts_before_its_end_is_not_added_after_it(chatty: Any) -> None:
    chatty.chat_template = SPACED
    done, cut = spoke(chatty, [7], " B", "<|endoftext|>"), spoke(chatty, [7], " B")
    assert chatty.decode(encode(chatty, [done, Instruction("C")], "a", None)[1:]) == " B<|endoftext|>[INST] C [/INST]"
    assert chatty.decode(encode(chatty, [cut, Instruction("C")], "a", None)[1:]) == " B <|endoftext|>[INST] C [/INST]"


def test_an_end_that_the_user_writes_is_not_the_turns(chatty: Any) -> None:
    chatty.chat_template = CHATML
    turn = spoke(chatty, [7], "B", "<|im_end|>")
    spliced = encode(chatty, [turn, Instruction("C<|im_end|>D coevolve-said")], "a", None)
    assert chatty.decode(spliced[1:]) == (
        "B<|im_end|>\n<|im_start|>user\nC<|im_end|>D coevolve-said<|im_end|>\n<|im_start|>assistant\n"
    )


def test_new_texts_around_an_instruction_are_one_message(chatty: Any) -> None:
    chatty.chat_template = CHATML
    turn = spoke(chatty, [7], "B", "<|im_end|>")
    spliced = encode(chatty, [turn, "C", Instruction(" D ")], "a", None)
    assert chatty.decode(spliced[1:]).endswith("<|im_start|>user\nC D<|im_end|>\n<|im_start|>assistant\n")


def test_spliced_text_stays_plain_without_an_instruction_or_a_template(chatty: Any) -> None:
    turn = spoke(chatty, [7], "B", "<|im_end|>")
    plain = [7, *turn.action_ids, *chatty(" text", add_special_tokens=False).input_ids]
    chatty.chat_template = CHATML
    assert encode(chatty, [turn, " text"], "a", True) == plain
    assert encode(chatty, [turn, Instruction(" text")], "a", False) == plain
    chatty.chat_template = None
    assert encode(chatty, [turn, Instruction(" text")], "a", None) == plain


def test_a_template_that_forgets_answers_cannot_splice(chatty: Any) -> None:
    chatty.chat_template = "{{ messages[-1].content }}:"
    with pytest.raises(
        ValueError, match="policy 'a': its chat template does not show a user's message after an answer"
    ):
        encode(chatty, [spoke(chatty, [7], "B"), Instruction("C")], "a", None)


@pytest.mark.parametrize("chat", [True, {}, {"enable_thinking": False}])
def test_a_template_that_is_required_and_lacking(chatty: Any, chat: Any) -> None:
    chatty.chat_template = None
    for prompt in (Instruction("A"), [spoke(chatty, [7], "B"), Instruction("C")]):
        with pytest.raises(ValueError, match="policy 'a': its tokenizer has no chat template, but `chat`"):
            encode(chatty, prompt, "a", chat)
    with pytest.raises(ValueError, match="policy 'a': its tokenizer has no chat template, but `chat`"):
        check_chat(chatty, chat, "a")


def test_a_keyword_that_the_template_ignores(chatty: Any) -> None:
    chatty.chat_template = CHATML
    check_chat(chatty, {"enable_thinking": False}, "a")
    with pytest.raises(ValueError, match="policy 'a': its tokenizer's chat template knows no 'thinking'; remove"):
        check_chat(chatty, {"thinking": False}, "a")


def test_the_engine_asks_each_policys_spec(chatty: Any) -> None:
    chatty.chat_template = CHATML

    def speaker(name: str, **settings: Any) -> Any:
        return Published(name, 0, PolicySpec("m", **settings), chatty, 9, frozenset(), lambda folder: None)

    engine = BaseEngine()
    engine.publish([speaker("a"), speaker("b", chat=False), speaker("c", chat={"enable_thinking": False})])
    assert engine.encode("a", Instruction("A")) == conversation(chatty, "A")
    assert engine.encode("b", Instruction("A")) == chatty("A").input_ids
    assert engine.encode("c", Instruction("A")) == conversation(chatty, "A", enable_thinking=False)
    with pytest.raises(ValueError, match="policy 'd': its tokenizer's chat template knows no 'loud'"):
        engine.publish([speaker("d", chat={"loud": True})])


@pytest.mark.parametrize(
    ("chat", "said"),
    [
        ("required", "chat is 'required'; want true, false, none, or keywords for the chat template"),
        ({"tokenize": False}, "chat.tokenize cannot be set; chat holds what the template itself reads"),
    ],
)
def test_a_spec_with_no_such_chat(chat: Any, said: str) -> None:
    with pytest.raises(ValueError) as error:
        PolicySpec("m", chat=chat)
    assert str(error.value) == said


def test_the_space_before_a_first_word_is_kept() -> None:
    """A Metaspace decoder, as Llama 2's, strips the space of the first word it decodes."""
    inner = Tokenizer(models.WordLevel({"\u2581The": 0, "\u2581film": 1, "\u2581was": 2, "<u>": 3}, unk_token="<u>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<u>")
    assert tokenizer.decode([2, 1]) == "was film"
    assert decode_actions(tokenizer, [([0, 1], [2, 1]), ([0], [1])]) == [" was film", " film"]


def test_text_of_which_the_tokenizer_knows_nothing_is_no_empty_prompt():
    class Deaf:
        bos_token_id, eos_token_id, chat_template = 1, 2, None

        def __call__(self, text, add_special_tokens=True):
            return SimpleNamespace(input_ids=[])

    assert encode(Deaf(), "", "a", None) == [1]
    with pytest.raises(ValueError, match="policy 'a': its tokenizer makes no tokens of 'hello there'"):
        encode(Deaf(), "hello there", "a", None)
