"""A ``vllm serve`` that this process starts: its flags for a team, and the wait until it answers."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coevolve.engines.arrival import unclear_to_gate
from coevolve.faults import ShortageError
from coevolve.interfaces import Published
from coevolve.models import names as models
from coevolve.models.load import load_config
from coevolve.runtime.child import Child, free_port, listens
from coevolve.runtime.free_memory import free_memory
from coevolve.runtime.requests import is_well

Flags = Mapping[str, bool | int | float | str]
"""Flags of ``vllm serve`` without the dashes; and ``devices``, the GPUs that it sees."""

ALIVE = 5.0
"""Seconds within which a healthy server answers ``/health``."""
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TRITON_F32_DEFAULT": "ieee",  # else attention in float32 multiplies in TF32 on GPUs, which the gate refuses
}
_LOADS_ADAPTERS = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Only for teams with adapters: vLLM refuses it together with several API servers (``data-parallel-size``)."""
_UNPICKLES = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
"""Only for IPC: the handles of tensors come pickled (vLLM has no other way)."""
_CARD = r"(\d+|(GPU|MIG)-[\w/-]+)"
_HERE = "127.0.0.1"
_ERROR = re.compile(r"(\b\w*(Error|Exception|error): |\d+ validation errors? for )")
_SHOWN = 300
"""Characters of what a server printed that an error shows."""
_CACHE, _CACHE_PART = 4 << 30, 0.25
"""The most bytes of the KV cache of a server on CPUs, and the most of what is free there."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM allows as ``max-lora-rank``."""


def serve(team: Sequence[Published], further: Flags, seconds: float, transfer: str) -> tuple[Child, str]:
    """Start a server for this team, wait until it answers, and return it with its url. transfer: how it gets full
    weights.

    Raises ShortageError if there is no program ``vllm`` or, with the reason that the server printed, if it ends or does
    not answer within ``seconds``; ValueError for an invalid port, and for one at which another server listens, whose
    turns would be taken for those of this one."""
    flags: dict[str, Any] = {**flags_of(team), "host": _HERE, "port": free_port()}
    around = dict(_ENVIRONMENT)
    if transfer != "disk" and any(new.spec.weights == "full" for new in team):
        flags["weight-transfer-config"] = {"backend": transfer}
        around |= _UNPICKLES if transfer == "ipc" else {}
    flags |= further
    if any(new.spec.weights == "lora" for new in team):
        around |= _LOADS_ADAPTERS
    if "devices" in flags:
        around["CUDA_VISIBLE_DEVICES"] = str(flags.pop("devices"))
    port = str(flags["port"])
    if not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError(f"start.port is {flags['port']!r}; want a number from 1 to 65535, or none for a free one")
    host = _reached_at(str(flags["host"]))
    if listens(int(port), host):
        raise ValueError(
            f"start.port is {port}, at which another server listens already; remove it, and a free port is taken, or "
            "name another one for each server that is started"
        )
    command = ["vllm", "serve", str(models.resolve(team[0].spec.model))]
    try:
        child = Child([*command, *itertools.starmap(_flag, flags.items())], around)
    except FileNotFoundError as error:
        if found := shutil.which(command[0]):
            raise ShortageError(f"{found} does not start: the program that its first line names is missing") from error
        raise ShortageError(
            "there is no program vllm on the PATH to start a server with; install vLLM (in an environment of its "
            "own, whose bin folder goes on the PATH), or name a server that runs: engine.url"
        ) from error
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    whose = f"the server of {', '.join(repr(new.name) for new in team)}, `{' '.join(command)}`"
    try:
        _wait(child, url, whose, seconds)
    except BaseException as error:
        child.close(keep_log=isinstance(error, ShortageError))
        raise
    return child, url


def _wait(child: Child, url: str, whose: str, seconds: float) -> None:
    """Wait until a server answers. Raises ShortageError, with the reason that it printed, if it ends or does not answer
    in time."""
    end = time.monotonic() + seconds
    while not answers(child, url):
        if child.ended is not None or time.monotonic() > end:
            how = "ended as it started" if child.ended is not None else f"did not answer in {seconds:g} s"
            lines = child.lines()
            said = _reason(lines) if child.ended is not None else "".join(lines[-1:])
            raise ShortageError(f"{whose}, {how}; it said {said[:_SHOWN]!r}, and all of it is in {child.log}")
        time.sleep(0.1)


def last_words(child: Child) -> str:
    """Return how a server that this process started ended, if it did, what it printed as the reason, and where."""
    how = "is not well" if child.ended is None else f"ended with exit code {child.ended}"
    said = _reason(child.lines())[:_SHOWN]
    return f"it {how} and said {f'{said!r}' if said else 'nothing'}; all of its output is in {child.log}"


def _reached_at(host: str) -> str:
    """Return the address at which a server that listens at this one is reached from here."""
    return {"": _HERE, "0.0.0.0": _HERE, "::": "::1"}.get(host, host)


def _reason(lines: Sequence[str]) -> str:
    """Return what a server that ended printed as the reason: the last error that does not refer to another one, without
    what the log puts before it, and, of settings that pydantic refused, the line that says why; the last line if there
    is no error."""
    errors = [i for i, line in enumerate(lines) if _ERROR.search(line) and "root cause" not in line]
    if not errors:
        return "".join(lines[-1:])
    found = lines[errors[-1]]
    why = lines[errors[-1] + 1 : errors[-1] + 2] if "validation error" in found else []
    match = _ERROR.search(found)
    return " ".join([found[match.start() :] if match else found, *why])


def kv_cache_flag(further: Flags) -> dict[str, int]:
    """Return the flag for the KV cache of a server on CPUs, in bytes; empty for one on GPUs, or if its size is said.

    vLLM would take 92 % of the machine's memory, and would not start where less is free."""
    said = {key.replace("_", "-") for key in further} & {"kv-cache-memory-bytes", "gpu-memory-utilization"}
    if _on_gpus(further) or said or os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
        return {}
    free = free_memory(torch.device("cpu"))
    return {} if free is None else {"kv-cache-memory-bytes": min(_CACHE, int(_CACHE_PART * free))}


def _on_gpus(further: Flags) -> bool:
    """Return whether a server that is started with these flags sees GPUs: those that are named, else those that we
    see."""
    devices = further.get("devices")
    return torch.cuda.is_available() if devices is None else str(devices) != ""


def answers(child: Child, url: str) -> bool:
    """Return whether a server that this process started is running and healthy."""
    return child.ended is None and is_well(url, ALIVE)


def flags_of(team: Sequence[Published]) -> dict[str, Any]:
    """Return the flags that ``vllm serve`` needs to sample this team."""
    ranks = [new.spec.lora.rank for new in team if new.spec.weights == "lora"]
    flags: dict[str, Any] = {
        "served-model-name": "base",
        "dtype": _learning(team)[0].spec.dtype,
        "skip-tokenizer-init": True,
        "enable-scale-out": True,
        "logprobs-mode": "processed_logprobs",
    }
    if ranks:  # one slot more than adapters: a new version is loaded before the old one is removed
        rank = next((size for size in _RANKS if size >= max(ranks)), max(ranks))
        flags |= {"enable-lora": True, "max-loras": len(ranks) + 1, "max-lora-rank": rank}
    return flags


def _learning(team: Sequence[Published]) -> Sequence[Published]:
    """Return the policies that learn; the whole team if all are frozen."""
    return [new for new in team if new.spec.trainable] or team


def check_devices(start: Flags) -> None:
    """Raise ValueError if ``devices`` is not a list of GPUs as CUDA_VISIBLE_DEVICES takes it."""
    devices = start.get("devices", "")
    if isinstance(devices, bool | float) or not re.fullmatch(f"({_CARD}(,{_CARD})*)?", str(devices)):
        raise ValueError(
            f"start.devices is {devices!r}; want the cards that the server may use as CUDA_VISIBLE_DEVICES names them, "
            'such as "4,5", or "" for none'
        )


def check_started(team: Sequence[Published], further: Flags) -> None:
    """Raise ValueError for a team that one started server cannot sample with the numerics of its training."""
    learning = _learning(team)
    first = learning[0]
    if other := next((new for new in learning if new.spec.dtype != first.spec.dtype), None):
        raise ValueError(
            f"one server computes in one dtype, and policy {first.name!r} has {first.spec.dtype} and policy "
            f"{other.name!r} {other.spec.dtype}; say the same dtype, or give each a server: policies.X.engine"
        )
    if "quantization" not in further and (small := next((new for new in learning if new.spec.load_in_4bit), None)):
        raise ValueError(
            f"policy {small.name!r} has a base in 4 bits (load_in_4bit), and the server that is started for it would "
            "sample one that is not; remove load_in_4bit, or sample with the local engine"
        )
    on_gpus = _on_gpus(further)
    if not on_gpus and (tied := [new.name for new in team if unclear_to_gate(new) and _tied(new.spec.model)]):
        raise ValueError(
            f"policy {tied[0]!r}: its output layer is tied to its embedding, and a vLLM of CPUs keeps the one it "
            "started with when full weights arrive, which the gate may not notice in bfloat16; say policies."
            f"{tied[0]}.weights: lora, or sample with the local engine"
        )
    adapted = [new.name for new in team if new.spec.weights == "lora" and new.spec.dtype == "float32"]
    if adapted and on_gpus:
        raise ValueError(
            f"policy {adapted[0]!r}: on GPUs vLLM computes adapters in bfloat16, not in float32; say "
            f'policies.{adapted[0]}.dtype: bfloat16 (or engine.start.devices: "" for a vLLM of CPUs)'
        )


def _tied(model: str) -> bool:
    """Return whether a model's output layer has the weights of its embedding."""
    return bool(load_config(model).get_text_config().tie_word_embeddings)


def _flag(key: str, value: Any) -> str:
    """Return a flag as a command-line argument."""
    if isinstance(value, bool):
        return f"--{key}" if value else f"--no-{key}"
    return f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
