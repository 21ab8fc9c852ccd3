"""Records of episodes as JSON: turns, what each turn saw, rewards, and each token's advantage.

A record is a line of ``episodes.jsonl`` (with ``step``: the step that learnt from it) or ``samples.jsonl`` (with
``step``: how many steps had been learnt):

    problem, member, data
    turns     one entry each, in the order in which they were sampled:
              role, policy, round, text, reward, tokens, finished
              heard     what the play showed the role: positions of turns of this episode, and texts
              prompt    the model's input as one text, special tokens included; in ``samples.jsonl`` only
              pieces    the sampled tokens as texts, the end of sequence included
              logps     each token's log-probability, nats
              credit    the turn's credit, and adv, one advantage per token: only if the policy learnt from the turn
              kl        KL against the reference per token, nats: only if the policy has a reference
    joints    turns rewarded together: their positions, their rewards, and the position of the joint before (after)
    parts     the task's components of the episode's reward
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coevolve.late import Tensor
from coevolve.runs.folder import plain
from coevolve.types import Batch, Episode, PolicyName, Targets, Turn

_DIGITS = 4  # significant digits of the numbers per token

_CONTEXT = 4  # tokens of the prompt that are decoded before the first sampled token
_PART = "\N{REPLACEMENT CHARACTER}"  # what the first bytes of a character decode to

Tokenizers = Mapping[PolicyName, Any]
"""Policy -> its transformers tokenizer."""

Lessons = Mapping[PolicyName, tuple[Batch, Targets | None]]
"""Policy -> the batch of its turns, in the order of the episodes, and the targets of its loss, if it learnt."""


def records(
    episodes: Sequence[Episode], tokenizers: Tokenizers, lessons: Lessons, *, prompts: bool = False
) -> list[dict[str, Any]]:
    """Return the records of episodes: all or the first of those that the lessons were made of.

    prompts: add each turn's prompt as it was sent, which makes up most of a record."""
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
    """Return the text of token ids, special tokens by name."""
    return str(tokenizer.decode(list(prompt_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _learnt(batch: Batch, targets: Targets | None, rows: int) -> Iterator[dict[str, Any]]:
    """Yield credit, advantages and KL, as far as known, of the first rows of a batch, one row after the other."""
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
    """Return the part of the text that each action token makes; for a special token, its name.

    A character made of several tokens belongs to the last of them; the others get an empty text. Every token is decoded
    after those before it, since some tokenizers drop a space at the beginning.
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
