"""Clients of endpoints that speak OpenAI's chat completions: how one is made, and why a request failed."""

from __future__ import annotations

import os
from typing import Any, Literal

from coevolve.faults import one_line

_REASON = 200
"""Characters of an error that are told."""


def client(kind: Literal["OpenAI", "AsyncOpenAI"], where: str, api_key_env: str, **settings: Any) -> Any:
    """A client of this class of the package ``openai``. where: the recipe's key. settings: base_url, timeout,
    max_retries.

    Raises ValueError if the package is missing, or refuses these settings.
    """
    try:
        import openai  # an optional dependency
    except ImportError as error:
        raise ValueError(f"{where} needs a package: pip install 'coevolve[expert]'") from error
    key = os.environ.get(api_key_env) or "none"  # the library wants one where the endpoint does not
    try:
        return getattr(openai, kind)(api_key=key, **settings)
    except OSError:  # of certificates that are not there, which is the machine's
        raise
    except Exception as error:  # its HTTP client has errors of its own for addresses
        raise ValueError(f"{where}: {type(error).__name__}: {one_line(error)[:_REASON]}") from error


def why(error: Exception, api_key_env: str) -> str:
    """What went wrong with a request, in one line, and whether its key is missing."""
    key = "" if os.environ.get(api_key_env) else f" ({api_key_env} is not set)"
    return f"{type(error).__name__}: {one_line(error)[:_REASON]}{key}"
