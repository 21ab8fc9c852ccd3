"""Conversion of prompts to token ids. Sampled turns are spliced in as their token ids, never tokenised again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from coevolve.types import Asked, Instruction, Message, PolicyName, Prompt, ToolResult, Turn, WithTools

Chat = bool | Mapping[str, Any] | None
"""The type of ``PolicySpec.chat``."""

_CONTEXT = 8
"""Number of prompt tokens that are decoded together with an action."""

_SAID, _NEXT = "coevolve-said", "coevolve-next"
"""Placeholders for messages in a rendered template; without white space, which templates may strip."""


def encode(tokenizer: Any, prompt: Asked, policy: PolicyName, chat: Chat) -> list[int]:
    """Return the token ids of a prompt for this tokenizer.

    str: the tokenizer's own default (a start token if it adds one, never an end of sequence). Messages: the chat
    template with the generation prompt. Instruction: a user message where the policy uses its chat template
    (``PolicySpec.chat``), without the white space around it; else as str. [Turn, str, ...]: exactly the turn's prompt
    and action, then the new text; if it includes an Instruction and the policy uses its template, the new text is the
    next user message, and the turn is ended as the template ends it unless it sampled that end itself; ToolResults are
    rendered as the template's tool messages. WithTools: the template is given the tools, and text is a user message. An
    empty prompt becomes the start token.

    Raises ValueError if a needed chat template is missing or does not support tools, if there is no start token, if
    text gives no tokens, or if the spliced turn is another policy's.
    """
    if isinstance(prompt, WithTools):
        _check_tools(tokenizer, chat, policy)
        inner = Instruction(prompt.prompt) if isinstance(prompt.prompt, str) else prompt.prompt
        return _encode(tokenizer, inner, policy, {**_keywords(chat), "tools": list(prompt.tools)})
    return _encode(tokenizer, prompt, policy, chat)


def _encode(tokenizer: Any, prompt: Prompt, policy: PolicyName, chat: Chat) -> list[int]:
    if isinstance(prompt, Instruction) and speaks(tokenizer, chat):
        ids = _chat(tokenizer, [_by("user", prompt.strip())], policy, chat)
    elif isinstance(prompt, str):
        ids = _text(tokenizer, prompt)
        if not ids and prompt.strip():  # a tokenizer loaded as the wrong class knows none of the words
            raise ValueError(f"policy {policy!r}: its tokenizer makes no tokens of {prompt[:60]!r}; check its files")
    elif any(isinstance(part, Turn) for part in prompt):
        ids = _splice(tokenizer, cast(Sequence[Turn | str], prompt), policy, chat)
    else:
        ids = _chat(tokenizer, cast(Sequence[Message], prompt), policy, chat)
    return ids or [_start(tokenizer, policy)]


def speaks(tokenizer: Any, chat: Chat) -> bool:
    """Return whether an Instruction is sent as a chat message: if there is a template (None), never (False), or
    always."""
    return _has_template(tokenizer) if chat is None else chat is not False


def check_chat(tokenizer: Any, chat: Chat, policy: PolicyName) -> None:
    """Raise ValueError if the policy must use a chat template that it lacks, or one that ignores its keywords."""
    if chat is None or chat is False:
        return
    _need_template(tokenizer, policy)
    mentioned = set(re.findall(r"\w+", tokenizer.get_chat_template()))
    for key in _keywords(chat):
        if key not in mentioned:
            raise ValueError(f"policy {policy!r}: its tokenizer's chat template knows no {key!r}; remove chat.{key}")


def _check_tools(tokenizer: Any, chat: Chat, policy: PolicyName) -> None:
    if chat is False:
        raise ValueError(f"policy {policy!r} is to call tools and has chat: false; they are told by a chat template")
    _need_template(tokenizer, policy)
    if not re.search(r"\btools\b", tokenizer.get_chat_template()):
        raise ValueError(
            f"policy {policy!r} is to call tools, and its chat template knows none; use a model with tools"
        )


def _text(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text).input_ids
    end = [tokenizer.eos_token_id]
    if ids[-1:] != end or _ids(tokenizer, text)[-1:] == end:
        return ids  # the usual case, or the text itself names the token
    return ids[:-1]


def _ids(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of the text without special tokens around it."""
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def _splice(tokenizer: Any, parts: Sequence[Turn | str], policy: PolicyName, chat: Chat) -> list[int]:
    first, *rest = parts
    texts = [part for part in rest if isinstance(part, str)]
    if not isinstance(first, Turn) or len(texts) < len(rest):
        raise ValueError("a prompt that splices a Turn must be [the role's own last Turn, new text, ...]")
    if first.policy != policy:
        raise ValueError(f"policy {policy!r} cannot splice a turn of policy {first.policy!r}; pass its text instead")
    said = [*first.prompt_ids, *first.action_ids]
    results = [text for text in texts if isinstance(text, ToolResult)]
    if results and speaks(tokenizer, chat):
        if len(results) < len(texts):
            raise ValueError("a prompt that splices results of tools has them alone behind the Turn that called")
        return said + _next_results(tokenizer, first, results, chat)
    if any(isinstance(text, Instruction) for text in texts) and speaks(tokenizer, chat):
        return said + _next_message(tokenizer, first, "".join(texts).strip(), chat)
    return said + [id for text in texts for id in _ids(tokenizer, text)]


def _next_message(tokenizer: Any, turn: Turn, text: str, chat: Chat) -> list[int]:
    """Return the ids between the turn, an assistant message, and the next one: its end, and the user message."""
    talk = [_by("user", "."), _by("assistant", _SAID), _by("user", _NEXT)]
    _need_template(tokenizer, turn.policy)
    shown = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False, **_keywords(chat))
    _, was_said, after = shown.partition(_SAID)
    before, was_next, behind = after.partition(_NEXT)
    if not (was_said and was_next):
        raise ValueError(f"policy {turn.policy!r}: its chat template does not show a user's message after an answer")
    return _behind_the_end(tokenizer, turn, before, before + text + behind)


def _next_results(tokenizer: Any, turn: Turn, results: Sequence[ToolResult], chat: Chat) -> list[int]:
    """Return the ids between the turn, an assistant message that calls tools, and the next one: its end, and one
    message per result."""
    talk = [_by("user", "."), _by("assistant", _SAID)]
    told = [{"role": "tool", "name": result.tool, "content": str(result)} for result in results]
    options = {"tokenize": False, **_keywords(chat)}
    try:
        ended = tokenizer.apply_chat_template(talk, **options)
        silent, shown = (
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options)
            for messages in (talk, [*talk, *told])
        )
    except Exception as error:  # jinja2's, raised by the template itself, or an error inside it
        raise ValueError(f"policy {turn.policy!r}: its chat template takes no result of a tool: {error}") from error
    _, was_said, after = shown.partition(_SAID)
    if not was_said or shown == silent:
        raise ValueError(f"policy {turn.policy!r}: its chat template does not show a tool's result after an answer")
    return _behind_the_end(tokenizer, turn, ended.partition(_SAID)[2], after)


def _behind_the_end(tokenizer: Any, turn: Turn, before: str, after: str) -> list[int]:
    """Return the ids of ``after``, the template's text after a turn. before: the part of it that ends the turn.

    If the turn sampled the template's end token itself, the ids up to and including it are cut off; if the template
    ends messages with another token, nothing is."""
    ids = _ids(tokenizer, after)
    end = turn.action_ids[-1] if turn.finished else None
    return ids[ids.index(end) + 1 :] if end in _ids(tokenizer, before) else ids


def _chat(tokenizer: Any, messages: Sequence[Message], policy: PolicyName, chat: Chat) -> list[int]:
    _need_template(tokenizer, policy)
    ids: list[int] = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, return_dict=False, **_keywords(chat)
    )
    return ids


def _by(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _keywords(chat: Chat) -> Mapping[str, Any]:
    return chat if isinstance(chat, Mapping) else {}


def _has_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def _need_template(tokenizer: Any, policy: PolicyName) -> None:
    if not _has_template(tokenizer):
        raise ValueError(
            f"policy {policy!r}: its tokenizer has no chat template, but `chat` or a prompt that is a list of messages "
            "wants one; use an instruction-tuned model, chat: false, or a task whose prompts are text"
        )


def _start(tokenizer: Any, policy: PolicyName) -> int:
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise ValueError(f"policy {policy!r} got an empty prompt and its tokenizer has no start token; give it some text")


def decode_actions(tokenizer: Any, spoken: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[str]:
    """Return the text that each action adds to its prompt, from (prompt_ids, action_ids), without special tokens.

    Actions are decoded together with the end of their prompt, since some decoders drop the space before a first word.
    """
    tails = [list(prompt)[-_CONTEXT:] for prompt, _ in spoken]
    wholes = [[*tail, *action] for tail, (_, action) in zip(tails, spoken, strict=True)]
    before = tokenizer.batch_decode(tails, skip_special_tokens=True)
    after = tokenizer.batch_decode(wholes, skip_special_tokens=True)
    # If a prompt ends inside a character, its text is not a prefix of the whole, and the action is decoded alone.
    return [
        a[len(b) :] if a.startswith(b) else tokenizer.decode(list(action), skip_special_tokens=True)
        for a, b, (_, action) in zip(after, before, spoken, strict=True)
    ]
