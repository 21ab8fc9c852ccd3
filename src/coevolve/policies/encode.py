"""Prompts -> token ids. What a model has said is spliced as the ids it sampled, never tokenised a second time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from coevolve.types import Message, PolicyName, Prompt, Turn

_CONTEXT = 8
"""Prompt tokens before an action that its text is decoded with."""


def encode(tokenizer: Any, prompt: Prompt, policy: PolicyName) -> list[int]:
    """Token ids of a prompt for this tokenizer.

    str: the tokenizer's own default (a start token if it adds one, never an end of sequence). Messages: its chat
    template with the generation prompt. [Turn, str, ...]: exactly the turn's prompt and action, then the new text. An
    empty prompt is the start token. Raises ValueError where there is no chat template, no start token, or the spliced
    turn is another policy's.
    """
    if isinstance(prompt, str):
        ids = _text(tokenizer, prompt)
    elif any(isinstance(part, Turn) for part in prompt):
        ids = _splice(tokenizer, cast(Sequence[Turn | str], prompt), policy)
    else:
        ids = _chat(tokenizer, cast(Sequence[Message], prompt), policy)
    return ids or [_start(tokenizer, policy)]


def _text(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text).input_ids
    end = [tokenizer.eos_token_id]
    if ids[-1:] != end or tokenizer(text, add_special_tokens=False).input_ids[-1:] == end:
        return ids  # the usual case, or the text itself names the token
    return ids[:-1]


def _splice(tokenizer: Any, parts: Sequence[Turn | str], policy: PolicyName) -> list[int]:
    first, *rest = parts
    if not isinstance(first, Turn) or not all(isinstance(part, str) for part in rest):
        raise ValueError("a prompt that splices a Turn must be [the role's own last Turn, new text, ...]")
    if first.policy != policy:
        raise ValueError(f"policy {policy!r} cannot splice a turn of policy {first.policy!r}; pass its text instead")
    ids = [*first.prompt_ids, *first.action_ids]
    for text in rest:
        ids += tokenizer(text, add_special_tokens=False).input_ids
    return ids


def _chat(tokenizer: Any, messages: Sequence[Message], policy: PolicyName) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            f"policy {policy!r}: its tokenizer has no chat template, but the task's prompt is a list of messages; "
            "use an instruction-tuned model, or a task whose prompts are text"
        )
    ids: list[int] = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
    return ids


def _start(tokenizer: Any, policy: PolicyName) -> int:
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise ValueError(f"policy {policy!r} got an empty prompt and its tokenizer has no start token; give it some text")


def said(tokenizer: Any, spoken: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[str]:
    """The text that each action adds to its prompt, from (prompt_ids, action_ids), without special tokens.

    Decoded behind the end of its prompt: some decoders drop the space before a first word.
    """
    tails = [list(prompt)[-_CONTEXT:] for prompt, _ in spoken]
    wholes = [[*tail, *action] for tail, (_, action) in zip(tails, spoken, strict=True)]
    before = tokenizer.batch_decode(tails, skip_special_tokens=True)
    after = tokenizer.batch_decode(wholes, skip_special_tokens=True)
    # A prompt may end inside a character; then its own text is no prefix, and the action's alone is all there is.
    return [
        a[len(b) :] if a.startswith(b) else tokenizer.decode(list(action), skip_special_tokens=True)
        for a, b, (_, action) in zip(after, before, spoken, strict=True)
    ]
