"""A model as judge: the number that it answers, at any endpoint of OpenAI's chat completions API, rewards each turn."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from coevolve.faults import ShortageError
from coevolve.pay import is_payable
from coevolve.rewards.answers import Answer, Answers
from coevolve.rewards.endpoint import client, why
from coevolve.rewards.templates import Filled
from coevolve.rewards.waiting import Paid, Started, each
from coevolve.settings import Count, CountFromZero, NotNegative, Positive
from coevolve.types import Case, Metrics, Problem, Role

JUDGE = "judge"

_AMOUNT = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_NUMBER = re.compile(rf"(?<![\w.])[-+\u2212]?(?:{_AMOUNT}|\.\d+)(?:[eE][-+\u2212]?\d+)?")  # 7-8 has no minus
_STARRED = rf"[\s*_]*{_AMOUNT}[*_]*"
_POSSIBLE = r"(?:\s+(?:an?|the))?(?:\s+(?:possible|maximum|max|total))?(?:\s+of)?"
_MOST = (
    rf"(?:(?<=\d)[\s*_(]*(?:/|of\b{_POSSIBLE})|\bout\s+of\b{_POSSIBLE}){_STARRED}"
    rf"|\bscale\s+(?:of|from){_STARRED}(?:\s*\([^()]*\))?\s*(?:to\b|[-\u2013]){_STARRED}"
)
_SCALES = (
    rf"|\bscale\s+of{_STARRED}"
    rf"|\bon\s+(?:an?|the)\s+(?:{_AMOUNT}\s*(?:to\b|[-\u2013])\s*)?{_AMOUNT}(?:[-\s]points?)?(?:\s+\w+)?\s+scale\b"
    rf"|\(\s*max(?:imum|\.)?(?:\s+of)?[\s:]*{_AMOUNT}(?:\s+points?)?\s*\)"
)
_OUT_OF = [re.compile(found, re.IGNORECASE) for found in (_MOST + _SCALES, _MOST)]
"""The scale of a score, as in 8/10, **8** of 10, 8 out of a possible 10, 8 on a scale from 1 to 10; and, where another
number is left, 8 on a scale of 10, 8 on a 10-point scale, 8 (max 10)."""
_CUT = ("length", "content_filter")
"""Finish reasons of an answer that may have ended before its last number; one that is only a number counts as whole."""
_PRICED = 1e6
"""Number of tokens that ``price`` refers to."""


class Judge:
    """A reward that asks another model about each turn and pays the number in its answer.

    model: its name at the endpoint. ask: the question about each turn, a template (see ``Filled``); the last number
    of the answer is the reward ("8/10", "8 of 10" and "8 out of 10" are 8), 0 if there is none. base_url: the endpoint,
    OpenAI's own if None. api_key_env: the environment variable with the key; it may be unset for an endpoint without
    keys. cache: a file for answers, so that the same question costs nothing in the next step, run or resumption; None
    caches for the life of this process. price: (per million prompt tokens, per million completion tokens), in any
    currency. timeout: seconds for one request; retries: of a request that failed (a connection, a time-out, HTTP 408,
    409, 429 and 5xx). temperature, max_tokens: sampling settings of the answer.

    Logged, each as the mean over cases: ``judge_tokens`` and, with a price, ``judge_cost`` of the requests made,
    ``judge_asked`` (their number), ``judge_unclear`` (the share of answers without a number, or cut short by
    ``max_tokens`` or a filter; neither is cached, so that the question is asked again). Raises ValueError if the
    package ``openai`` is missing, and ShortageError if the endpoint does not answer.
    """

    tells = True
    name = JUDGE

    def __init__(
        self,
        *,
        model: str,
        ask: str,
        base_url: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        cache: str | None = None,
        price: tuple[NotNegative, NotNegative] | None = None,
        timeout: Positive = 60.0,
        retries: CountFromZero = 3,
        temperature: NotNegative = 0.0,
        max_tokens: Count = 512,
    ) -> None:
        self._text = Filled(ask, "task.reward, judge: ask")
        self._api_key_env, self._price = api_key_env, price
        self._how: dict[str, Any] = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        self._endpoint: dict[str, Any] = {"base_url": base_url, "timeout": timeout, "max_retries": retries}
        self._answers = Answers(cache, {**self._how, "base_url": base_url})
        self._told = False

    def check(self, p: Problem, roles: Sequence[Role]) -> None:
        """Raise ValueError for a name in ``ask`` that is neither a role nor a column."""
        self._text.check(p, roles)

    def start(self, cases: Sequence[Case]) -> Started:
        """Return what will ask about all turns concurrently; identical questions are asked once."""
        return partial(self._judge, [self._text.texts(case) for case in cases])

    async def _judge(self, questions: Sequence[Sequence[str]]) -> list[Paid]:
        distinct = list(dict.fromkeys(question for one in questions for question in one))
        known = {question: answer for question, answer in self._answers.of(distinct).items() if _read(answer.text)}
        new = [question for question in distinct if question not in known]
        asked = dict(zip(new, await each(partial(self._ask, question) for question in new), strict=True))
        found: list[Paid] = []
        for one in questions:
            made = {question: asked.pop(question) for question in dict.fromkeys(one) if question in asked}
            known |= made
            numbers = [self._number(known[question].text) for question in one]
            unclear = sum(number is None for number in numbers) / len(numbers)
            found.append(Paid([number or 0.0 for number in numbers], {**self._cost(made), "unclear": unclear}))
        return found

    def _cost(self, made: Mapping[str, Answer]) -> Metrics:
        """Return the number, tokens and, with a price, the cost of the requests for one case."""
        asked, answered = sum(a.asked for a in made.values()), sum(a.answered for a in made.values())
        found: Metrics = {"asked": len(made), "tokens": asked + answered}
        if self._price is not None:
            found["cost"] = (asked * self._price[0] + answered * self._price[1]) / _PRICED
        return found

    async def _ask(self, question: str) -> Answer:
        completions = self._client.chat.completions  # outside the try: a missing package is no shortage
        try:
            answer = await completions.create(messages=[{"role": "user", "content": question}], **self._how)
            choice, usage = answer.choices[0], answer.usage
            text = choice.message.content or ""
            if choice.finish_reason in _CUT and not _NUMBER.fullmatch(text.strip()):
                text = ""
        except Exception as error:  # of the library or its HTTP client, or from a malformed answer
            reason = why(error, self._api_key_env)
            raise ShortageError(f"the judge {self._how['model']!r} does not answer: {reason}") from error
        found = Answer(text, getattr(usage, "prompt_tokens", 0) or 0, getattr(usage, "completion_tokens", 0) or 0)
        if _read(text):  # an answer without a number is not cached: another try may have one
            self._answers.keep({question: found})  # at once: it is paid for, even if other requests fail
        return found

    def _number(self, text: str) -> float | None:
        """Return the last number of an answer; if there is none, return None and warn, once."""
        numbers = _read(text)
        if not numbers and not self._told:
            self._told = True
            warnings.warn(
                f"the judge {self._how['model']!r} answered {self._without(text)} (said once; see parts/judge_unclear)",
                stacklevel=2,
            )
        return numbers[-1] if numbers else None

    def _without(self, text: str) -> str:
        if text:
            return f"without a number, {text[:100]!r}, which is paid 0; ask for one"
        most = self._how["max_tokens"]
        return f"nothing, or not to its end within {most} tokens, which is paid 0; set max_tokens above {most}"

    @cached_property
    def _client(self) -> Any:
        return client("AsyncOpenAI", "task.reward, judge", self._api_key_env, **self._endpoint)


def _read(text: str) -> list[float]:
    """Return the numbers of an answer that are valid rewards, without the maximum that a score is out of."""
    found = next(filter(None, (_NUMBER.findall(scale.sub(" ", text)) for scale in _OUT_OF)), [])
    numbers = (float(number.replace(",", "").replace("\u2212", "-")) for number in found)
    return [number for number in numbers if is_payable(number)]
