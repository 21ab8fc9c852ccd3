"""The supported kinds of servers (vLLM, SGLang, OpenAI-compatible): their routes, request bodies and responses.

Only tables and functions of plain data; ``engines.server`` sends the requests. Learning from a turn needs token ids in,
and token ids with their log-probabilities out. Log-probabilities are those of the distribution that was sampled,
temperature included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coevolve.engines.base import Sample
from coevolve.interfaces import Published
from coevolve.runtime.requests import FailedError
from coevolve.types import Sampling, Say

Body = dict[str, Any]

_VLLM_LOWEST = -9999.0
"""What vLLM answers for a log-probability that JSON cannot hold, which no sampled token of sound weights has."""


@dataclass(frozen=True)
class Routes:
    """One kind of server.

    generate: the route that samples. asks: (name of the policy's adapter or None, name of the base, both as the server
    calls them, policy, say) -> body of that request. reads: (answer, policy) -> sample; raises FailedError for a turn
    that the server aborted. load, unload: the routes for an adapter. reload: the routes that replace all weights
    by those of a folder, each with its body. reset_cache: the route that then empties the caches of what the weights
    before computed. sleep, wake: the routes that give GPU memory back and take it again.
    hints: by route, how to start a server that has it. schema: whether ``/openapi.json`` lists the routes. scores:
    whether the server gives log-probabilities, without which no policy can learn. reserved: tokens of the stated
    context that the server keeps for itself. coldest: the lowest temperature above 0 that it samples with; it raises
    lower ones.
    """

    name: str
    generate: str
    asks: Callable[[str | None, str | None, Published, Say], Body]
    reads: Callable[[Any, Published], Sample]
    load: str = ""
    unload: str = ""
    reload: Mapping[str, Callable[[Path], Body]] = field(default_factory=dict)
    reset_cache: str = ""
    sleep: str = ""
    wake: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)
    schema: bool = True
    scores: bool = True
    reserved: int = 0
    coldest: float = 0.0

    def needed(self, weights: set[str], transfer: Sequence[str] = ()) -> list[str]:
        """Return the routes that sampling policies with these kinds of ``weights`` requires. transfer: the routes by
        which full weights are sent, if not through the disk."""
        adapters = [self.load, self.unload] if "lora" in weights else []
        full = [*(transfer or self.reload), *([self.reset_cache] * bool(self.reset_cache))] if "full" in weights else []
        return [self.generate, *adapters, *full]


def _seed(say: Say) -> int:
    """Return the say's key as a seed: 0 instead of -1, which vLLM takes for no seed."""
    return say.key if say.key != -1 else 0


def _changed(sampling: Sampling) -> Body:
    """Return the sampling settings that change the model's own distribution."""
    plain, keys = Sampling(1), ("top_k", "top_p", "repetition_penalty")
    return {key: getattr(sampling, key) for key in keys if getattr(sampling, key) != getattr(plain, key)}


def _check_whole(reason: str | None) -> None:
    """Raise FailedError if the server aborted the turn; its answer may hold the tokens sampled until then."""
    if reason in ("abort", "error"):
        raise FailedError(f"it gave the turn up (finish_reason {reason!r})")


def _sample(ids: Sequence[int], logps: Sequence[float], speaker: Published) -> Sample:
    return Sample(list(ids), list(logps), bool(ids) and ids[-1] in speaker.eos)


def _ask_vllm(adapter: str | None, base: str | None, speaker: Published, say: Say) -> Body:
    how = {
        "max_tokens": say.sampling.length_range[1],
        "temperature": say.sampling.temperature,
        "seed": _seed(say),
        "logprobs": 0,
        "stop_token_ids": sorted(speaker.eos),
        "ignore_eos": True,  # stop_token_ids alone end a turn
        **_changed(say.sampling),
    }
    return {"model": adapter or base, "token_ids": list(say.prompt_ids), "sampling_params": how}


def _read_vllm(answer: Any, speaker: Published) -> Sample:
    [choice] = answer["choices"]
    _check_whole(choice.get("finish_reason"))
    logps = [token["logprob"] for token in choice["logprobs"]["content"]]
    return _sample(choice["token_ids"], [math.nan if logp == _VLLM_LOWEST else logp for logp in logps], speaker)


def _ask_sglang(adapter: str | None, base: str | None, speaker: Published, say: Say) -> Body:
    how = {
        "max_new_tokens": say.sampling.length_range[1],
        "temperature": say.sampling.temperature,
        "sampling_seed": say.key % (1 << 31),
        "stop_token_ids": sorted(speaker.eos),  # no ignore_eos: SGLang would ignore these, too
        **_changed(say.sampling),
    }
    whose = {} if adapter is None else {"lora_path": adapter}
    return {"input_ids": list(say.prompt_ids), "sampling_params": how, "return_logprob": True, **whose}


def _read_sglang(answer: Any, speaker: Published) -> Sample:
    _check_whole((answer["meta_info"].get("finish_reason") or {}).get("type"))
    said = answer["meta_info"]["output_token_logprobs"]  # (log-probability, id, text) each
    return _sample([one[1] for one in said], [one[0] for one in said], speaker)


def _ask_openai(adapter: str | None, base: str | None, speaker: Published, say: Say) -> Body:
    how = {
        "max_tokens": say.sampling.length_range[1],
        "temperature": say.sampling.temperature,
        "top_p": say.sampling.top_p,  # always: vLLM's default is that of the model's generation_config.json
        "seed": _seed(say),
        **_changed(say.sampling),
    }
    return {"model": base, "prompt": list(say.prompt_ids), **how}


def _read_openai(answer: Any, speaker: Published) -> Sample:
    """Return the answer's text as token ids of the policy's tokenizer, with NaN as log-probabilities: the server gives
    none."""
    [choice] = answer["choices"]
    _check_whole(choice["finish_reason"])
    ids = [int(i) for i in speaker.tokenizer(choice["text"], add_special_tokens=False).input_ids]
    end = speaker.tokenizer.eos_token_id
    ended = choice["finish_reason"] == "stop" or not ids  # nothing, or special tokens alone, which the text leaves out
    if ended and end is not None and (not ids or ids[-1] not in speaker.eos):
        ids.append(int(end))
    return _sample(ids, [math.nan] * len(ids), speaker)


VLLM = Routes(
    name="vLLM",
    coldest=0.01,
    generate="/inference/v1/generate",
    asks=_ask_vllm,
    reads=_read_vllm,
    load="/v1/load_lora_adapter",
    unload="/v1/unload_lora_adapter",
    reload={"/collective_rpc": lambda folder: {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}},
    reset_cache="/reset_prefix_cache?reset_external=true",  # and the cache of a KV connector, if any
    sleep="/sleep?level=1",  # weights to the computer's memory, the KV cache dropped
    wake="/wake_up",
    hints={
        "/inference/v1/generate": "start it with --enable-scale-out (vLLM 0.32 has it, older ones may not)",
        "/v1/load_lora_adapter": "start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
        "/collective_rpc": "start it with VLLM_SERVER_DEV_MODE=1",
        "/init_weight_transfer_engine": "start it with VLLM_SERVER_DEV_MODE=1 (and with --weight-transfer-config)",
    },
)

SGLANG = Routes(
    name="SGLang",
    reserved=2,
    generate="/generate",
    asks=_ask_sglang,
    reads=_read_sglang,
    load="/load_lora_adapter",
    unload="/unload_lora_adapter",
    reload={"/update_weights_from_disk": lambda folder: {"model_path": str(folder)}},
)

OPENAI = Routes(
    name="an OpenAI-compatible server",
    generate="/v1/completions",
    asks=_ask_openai,
    reads=_read_openai,
    schema=False,
    scores=False,
)
