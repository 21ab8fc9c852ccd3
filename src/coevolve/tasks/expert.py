"""The feedback mode ``expert``: edits by another model, behind any endpoint with OpenAI's chat completions."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Mapping
from time import monotonic
from typing import Any

from coevolve.files import json_objects
from coevolve.rewards.endpoint import client, why
from coevolve.settings import Count, CountFromZero, NotNegative, Positive
from coevolve.types import Role, whole_characters

ASK = """\
Python code that several authors wrote separately is put together and tested. Suggest to each author a short edit of \
their own part.

Problem:
{problem}

{parts}
Answer with one JSON object and nothing else: {keys}. The value is the edit in words or code, "" if there is none.
"""

PART = """\
Part {role}:
{code}

What running it said about part {role}: {report}

"""

_REST = 60.0
"""Seconds for which a failed endpoint is not asked again, so that one that is down does not delay training."""

_LONGEST = 8000
"""Characters of a part, and of the report on it, that are sent at most."""

_REASON = 200


class Expert:
    """Another model as a reviewer, which suggests edits of the authors' parts; its failures never stop training.

    model: its name at the endpoint. base_url: the endpoint, OpenAI's own if None. api_key_env: the environment variable
    with the key, which may be missing if the endpoint needs none. timeout: seconds for one request; retries: of a
    request that failed (a connection, a time-out, HTTP 408, 409, 429 and 5xx). temperature, max_tokens: of its answer.

    On any failure ``edits`` returns {}, and the first one is reported as a warning; ``failed`` of ``asked`` requests
    failed so far. Ranges are checked where a recipe is read. Raises ValueError if the package ``openai`` is missing.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        timeout: Positive = 30.0,
        retries: CountFromZero = 3,
        temperature: NotNegative = 0.3,
        max_tokens: Count = 2048,
    ) -> None:
        self._api_key_env = api_key_env
        how: dict[str, Any] = {"base_url": base_url, "timeout": timeout, "max_retries": retries}
        self._client = client("OpenAI", "task.feedback.expert", api_key_env, **how)
        self._settings = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        self._silent_until = 0.0
        self._counting, self._told = threading.Lock(), False  # reviews may be requested in parallel
        self.asked = self.failed = 0

    def edits(self, problem: str, codes: Mapping[Role, str], reports: Mapping[Role, str]) -> dict[Role, str]:
        """Return role -> the edit of its part, for the parts that should change; {} if there is no answer."""
        with self._counting:
            self.asked += 1
        reason = ""
        if monotonic() >= self._silent_until:
            messages = [{"role": "user", "content": _question(problem, codes, reports)}]
            try:
                answer = self._client.chat.completions.create(messages=messages, **self._settings)
                said = answer.choices[0].message.content or ""
            except Exception as error:  # noqa: BLE001  (of the library, its HTTP client, ...: none may end a training)
                self._silent_until = monotonic() + _REST
                reason = why(error, self._api_key_env)
            else:
                try:
                    return read_edits(said, list(codes))
                except ValueError as error:
                    reason = str(error)
        with self._counting:
            self.failed += 1
            if reason and not self._told:
                self._told = True
                self._warn(reason)
        return {}

    def _warn(self, reason: str) -> None:
        warnings.warn(
            f"feedback expert {self._settings['model']!r} gave no edits: {reason}; agents hear the report instead "
            "(said once; see parts/expert_failed)",
            stacklevel=2,
        )


def read_edits(text: str, roles: list[Role]) -> dict[Role, str]:
    """Return the edits in an answer: the last JSON object that has text or null for each role.

    Roles without an edit (null or blank) are left out. Raises ValueError if there is no such object.
    """
    objects = list(json_objects(text))
    if not objects:
        raise ValueError(f"no JSON in the answer {text[:_REASON]!r}")
    whole = [one for one in objects if all(isinstance(one.get(role, 0), str | None) for role in roles)]
    if not whole:
        raise ValueError(f"want JSON with a text for each of {', '.join(roles)}; the answer is {text[:_REASON]!r}")
    edits = {role: whole_characters(whole[-1][role] or "").strip() for role in roles}
    return {role: edit for role, edit in edits.items() if edit}


def _question(problem: str, codes: Mapping[Role, str], reports: Mapping[Role, str]) -> str:
    parts = (
        PART.format(role=role, code=code[:_LONGEST], report=reports[role][:_LONGEST]) for role, code in codes.items()
    )
    keys = json.dumps(dict.fromkeys(codes, "..."))
    return ASK.format(problem=problem, parts="".join(parts), keys=keys)
