"""Clients for endpoints of the OpenAI chat completions API: creating one, and describing why a request failed."""

from __future__ import annotations

import os
from typing import Any, Literal

from coevolve.faults import one_line

_REASON = 200
"""Characters of an error message that are shown."""


def client(kind: Literal["OpenAI", "AsyncOpenAI"], where: str, api_key_env: str, **settings: Any) -> Any:
    """Create a client of this class of the package ``openai``. where: the recipe's key, for messages. settings:
    base_url, timeout, max_retries.

    Raises ValueError if the package is missing or refuses these settings.
    """
    try:
        import openai  # an optional dependency
    except ImportError as error:
        raise ValueError(f"{where} needs a package: pip install 'coevolve[expert]'") from error
    key = os.environ.get(api_key_env) or "none"  # the library wants a key even if the endpoint needs none
    try:
        return getattr(openai, kind)(api_key=key, **settings)
    except OSError:  # missing certificates: the machine's fault, not the recipe's
        raise
    except Exception as error:  # the HTTP client has its own errors for bad addresses
        raise ValueError(f"{where}: {type(error).__name__}: {one_line(error)[:_REASON]}") from error


def why(error: Exception, api_key_env: str) -> str:
    """Describe in one line why a request failed, and note if the API key is not set."""
    key = "" if os.environ.get(api_key_env) else f" ({api_key_env} is not set)"
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    cause = "" if one_line(first) in one_line(error) else f" ({one_line(first)[:_REASON]})"  # "Connection error." alone
    return f"{type(error).__name__}: {one_line(error)[:_REASON]}{cause}{key}"
