"""The engines that sample completions: the values of a recipe's ``engine``, or of a policy's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from coevolve import defaults
from coevolve.interfaces import Engine
from coevolve.settings import Count, Positive


def local(*, max_tokens: Count = defaults.MAX_TOKENS) -> Engine:
    """Sample on this machine; max_tokens: positions decoded at a time (``LocalEngine``)."""
    from coevolve.engines.local import LocalEngine  # imports torch

    return LocalEngine(max_tokens=max_tokens)


def vllm(
    *,
    url: str | None = None,
    start: dict[str, bool | int | float | str] | None = None,
    folder: Path | None = None,
    model: str | None = None,
    seconds: Positive = defaults.SERVER_SECONDS,
    staleness: Literal[0, 1] = 0,
    transfer: Literal["disk", "nccl", "ipc"] = defaults.TRANSFER,
) -> Engine:
    """Sample with a vLLM server: the one at ``url``, or a ``vllm serve`` started with the flags in ``start``
    (``ServerEngine``)."""
    from coevolve.engines.routes import VLLM
    from coevolve.engines.server import ServerEngine

    return ServerEngine(
        VLLM,
        url=url,
        start=start,
        folder=folder,
        model=model,
        seconds=seconds,
        staleness=staleness,
        transfer=transfer,
    )


def sglang(
    *,
    url: str,
    folder: Path | None = None,
    model: str | None = None,
    seconds: Positive = defaults.SERVER_SECONDS,
    staleness: Literal[0, 1] = 0,
) -> Engine:
    """Sample with the SGLang server at ``url`` (``ServerEngine``)."""
    from coevolve.engines.routes import SGLANG
    from coevolve.engines.server import ServerEngine

    return ServerEngine(SGLANG, url=url, folder=folder, model=model, seconds=seconds, staleness=staleness)


def openai(*, url: str, model: str | None = None, seconds: Positive = defaults.SERVER_SECONDS) -> Engine:
    """Sample with the OpenAI-compatible server at ``url``, without log-probabilities: for frozen policies only."""
    from coevolve.engines.routes import OPENAI
    from coevolve.engines.server import ServerEngine

    return ServerEngine(OPENAI, url=url, model=model, seconds=seconds)


ENGINES: Mapping[str, Callable[..., Engine]] = {"local": local, "vllm": vllm, "sglang": sglang, "openai": openai}

SERVERS = frozenset({"vllm", "sglang", "openai"})
"""The engines that are one server for all policies that they sample (``one_server``)."""

FOR_FROZEN = frozenset({"openai"})
"""The engines whose turns no policy can learn from: they give no log-probabilities."""
