"""Episodes as JSON: who said what to whom, what it was paid, and what was learnt from every token.

A record, as a line of ``episodes.jsonl`` (with ``step``: the step that learnt from it) or ``samples.jsonl`` (with
``step``: how many steps had been learnt):

    problem, member, data
    turns     one each, in the order they were spoken:
              role, policy, round, text, reward, tokens, finished
              heard     what the play told it: the position of a turn of this episode, or a text
              prompt    what the model was given, special tokens and all, as one text; in ``samples.jsonl`` only
              pieces    the sampled tokens as text, the end of sequence among them
              logps     what each token's log-probability was, nats
              credit, adv, kl    what the update knew: a number for the turn; one number per token each (kl: nats
                                 against the reference); only where the policy learnt from the turn, or has a reference
    joints    what was judged together: positions of the turns, what each was paid, the position of the joint before
    parts     the task's components of what the episode came to
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coevolve.late import Tensor
from coevolve.runs.folder import plain
from coevolve.types import Batch, Episode, PolicyName, Targets, Turn

_DIGITS = 4  # significant ones of what is written for every token

_CONTEXT = 4  # tokens of the prompt that the first token is decoded behind
_PART = "\N{REPLACEMENT CHARACTER}"  # what the first bytes of a character decode to

Tokenizers = Mapping[PolicyName, Any]
"""Policy -> its transformers tokenizer."""

Lessons = Mapping[PolicyName, tuple[Batch, Targets | None]]
"""Policy -> what it learnt from: its turns in the order of the episodes, described, and what its loss aimed at."""


def records(
    episodes: Sequence[Episode], tokenizers: Tokenizers, lessons: Lessons, *, prompts: bool = False
) -> list[dict[str, Any]]:
    """The first episodes of those that the lessons were made of (or all), as JSON; with ``prompts`` as they were sent,
    which is most of what there is to write."""
    known = _prompts(episodes, tokenizers) if prompts else {}
    for policy, (batch, targets) in lessons.items():
        turns = [turn for episode in episodes for turn in episode.turns if turn.policy == policy]
        for turn, learnt in zip(turns, _learnt(batch, targets, len(turns)), strict=True):
            known[id(turn)] = known.get(id(turn), {}) | learnt
    return [_record(episode, tokenizers, known) for episode in episodes]


def _prompts(episodes: Sequence[Episode], tokenizers: Tokenizers) -> dict[int, dict[str, Any]]:
    turns = [turn for episode in episodes for turn in episode.turns if turn.policy in tokenizers]
    return {id(turn): {"prompt": _as_sent(tokenizers[turn.policy], turn.prompt_ids)} for turn in turns}


def _as_sent(tokenizer: Any, prompt_ids: Sequence[int]) -> str:
    """Token ids as the text that they stand for, special tokens by name."""
    return str(tokenizer.decode(list(prompt_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _learnt(batch: Batch, targets: Targets | None, rows: int) -> Iterator[dict[str, Any]]:
    """What was known of the first rows when the update began, one by one."""
    credits = batch.credit_B[:rows].tolist()
    tokens_B = (batch.length_B - batch.start_B)[:rows].tolist()
    known: dict[str, Tensor | None] = {"adv": targets.adv_BT if targets else None, "kl": batch.kl_BT}
    columns = {name: x_BT[:rows].tolist() for name, x_BT in known.items() if x_BT is not None}
    for row, tokens in enumerate(tokens_B):
        numbers = {name: _short(values[row][:tokens]) for name, values in columns.items()}
        yield numbers | ({"credit": credits[row]} if targets else {})


def _record(episode: Episode, tokenizers: Tokenizers, known: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    position = {id(turn): number for number, turn in enumerate(episode.turns)}
    return {
        "problem": episode.problem.id,
        "member": episode.member,
        "data": plain(episode.problem.data),
        "turns": [_turn(t, position, tokenizers.get(t.policy)) | known.get(id(t), {}) for t in episode.turns],
        "joints": [
            {"turns": [position[id(t)] for t in joint.turns], "rewards": list(joint.rewards), "after": joint.after}
            for joint in episode.joints
        ],
        "parts": dict(episode.parts),
    }


def _turn(turn: Turn, position: Mapping[int, int], tokenizer: Any) -> dict[str, Any]:
    heard = [part if isinstance(part, str) else position.get(id(part), part.text) for part in turn.heard]
    return {
        "role": turn.role,
        "policy": turn.policy,
        "round": turn.round,
        "text": turn.text,
        "reward": turn.reward,
        "tokens": len(turn.action_ids),
        "finished": turn.finished,
        "heard": heard,
        "pieces": [turn.text] if tokenizer is None else pieces(tokenizer, turn.prompt_ids, turn.action_ids),
        "logps": _short(turn.logps),
    }


def _short(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def pieces(tokenizer: Any, prompt_ids: Sequence[int], action_ids: Sequence[int]) -> list[str]:
    """Each action token's share of the text; a special token is its own name.

    A character that several tokens make is the last one's; the others are empty. Every token is decoded behind the ones
    before it, since some tokenizers drop a space at the beginning.
    """
    special = set(tokenizer.all_special_ids)
    ids = [*list(prompt_ids)[-_CONTEXT:], *action_ids]
    first = len(ids) - len(action_ids)
    found: list[str] = []
    begin, end = 0, first  # ids[begin:end]: the last tokens that ended with a whole character
    for place, token in enumerate(action_ids, first):
        before = tokenizer.decode(ids[begin:end], skip_special_tokens=True)
        now = tokenizer.decode(ids[begin : place + 1], skip_special_tokens=True)
        whole = not now.endswith(_PART) or place + 1 == len(ids)
        found.append(
            tokenizer.convert_ids_to_tokens(token) if token in special else now[len(before) :] if whole else ""
        )
        if whole:
            begin, end = end, place + 1
    return found
