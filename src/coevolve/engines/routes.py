"""What kinds of servers there are: at which routes each is asked for what, and how its answers are read.

Tables and functions of plain data; ``engines.server`` sends them. To learn from a turn takes ids in, and ids and their
log-probabilities out. Log-probabilities are those of the distribution that was sampled, temperature included.
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


@dataclass(frozen=True)
class Routes:
    """One kind of server. asks: (the speaker's adapter if it has one, the base, both as the server calls them, the
    speaker, the say) -> body. reads: (answer, speaker) -> sample; raises FailedError for a turn that was given up.

    load, unload: of an adapter, each with the body that a name and a folder make. reload: of all weights, every route
    in turn with the body that a folder makes. hints: by route, how a server comes to have it. schema: whether
    ``/openapi.json`` lists its routes. scores: whether it gives log-probabilities; nobody learns without.
    """

    name: str
    generate: str
    asks: Callable[[str | None, str | None, Published, Say], Body]
    reads: Callable[[Any, Published], Sample]
    load: str = ""
    unload: str = ""
    reload: Mapping[str, Callable[[Path], Body]] = field(default_factory=dict)
    hints: Mapping[str, str] = field(default_factory=dict)
    schema: bool = True
    scores: bool = True

    def needed(self, weights: set[str]) -> list[str]:
        """The routes without which policies of these ``weights`` cannot be sampled."""
        adapters = [self.load, self.unload] if "lora" in weights else []
        return [self.generate, *adapters, *(self.reload if "full" in weights else ())]


def _seed(say: Say) -> int:
    """To vLLM -1 is no seed at all."""
    return say.key if say.key != -1 else 0


def _changed(sampling: Sampling) -> Body:
    """What is not as the model's own distribution is."""
    plain, keys = Sampling(1), ("top_k", "top_p", "repetition_penalty")
    return {key: getattr(sampling, key) for key in keys if getattr(sampling, key) != getattr(plain, key)}


def _check_whole(reason: str | None) -> None:
    """Raises FailedError where the server gave a turn up, of which it may send the tokens so far."""
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
        "ignore_eos": True,  # those above are all that end a turn here
        **_changed(say.sampling),
    }
    return {"model": adapter or base, "token_ids": list(say.prompt_ids), "sampling_params": how}


def _read_vllm(answer: Any, speaker: Published) -> Sample:
    [choice] = answer["choices"]
    _check_whole(choice.get("finish_reason"))
    return _sample(choice["token_ids"], [token["logprob"] for token in choice["logprobs"]["content"]], speaker)


def _ask_sglang(adapter: str | None, base: str | None, speaker: Published, say: Say) -> Body:
    how = {
        "max_new_tokens": say.sampling.length_range[1],
        "temperature": say.sampling.temperature,
        "sampling_seed": say.key % (1 << 31),
        "stop_token_ids": sorted(speaker.eos),  # which it would not look at with ignore_eos
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
        "top_p": say.sampling.top_p,  # left out, vLLM's would be that of the model's generation_config.json
        "seed": _seed(say),
        **_changed(say.sampling),
    }
    return {"model": base, "prompt": list(say.prompt_ids), **how}


def _read_openai(answer: Any, speaker: Published) -> Sample:
    """Its text, made ids by the policy's tokenizer; how probable each was, nobody says."""
    [choice] = answer["choices"]
    _check_whole(choice["finish_reason"])
    ids = [int(i) for i in speaker.tokenizer(choice["text"], add_special_tokens=False).input_ids]
    end = speaker.tokenizer.eos_token_id
    if choice["finish_reason"] == "stop" and end is not None and (not ids or ids[-1] not in speaker.eos):
        ids.append(int(end))
    return _sample(ids, [math.nan] * len(ids), speaker)


VLLM = Routes(
    name="vLLM",
    generate="/inference/v1/generate",
    asks=_ask_vllm,
    reads=_read_vllm,
    load="/v1/load_lora_adapter",
    unload="/v1/unload_lora_adapter",
    reload={
        "/collective_rpc": lambda folder: {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}},
        "/reset_prefix_cache?reset_external=true": lambda folder: {},  # of a KV connector, too, where there is one
    },
    hints={
        "/inference/v1/generate": "start it with --enable-scale-out (vLLM 0.32 has it, older ones may not)",
        "/v1/load_lora_adapter": "start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
        "/collective_rpc": "start it with VLLM_SERVER_DEV_MODE=1",
    },
)

SGLANG = Routes(
    name="SGLang",
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
