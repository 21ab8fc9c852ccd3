"""The trainer, unchanged, sampling from a real vLLM on GPUs: weights sent by NCCL and CUDA IPC, sleep mode, adapters.

Never run yet. The bounds are what is expected of rounding: in float32 those of the gate before an update, in bfloat16 a
little above the largest drift that was seen between other forward passes on CPUs. A publish that did not arrive would
be several times as far away (``tests/engines/test_transfer.py``).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from server_cases import LORA, MODEL, check_steps, training

from coevolve.engines.server import ServerEngine
from coevolve.models.spec import PolicySpec
from coevolve.sweep.slots import visible

DRIFT = {"float32": 1e-4, "bfloat16": 0.02}
"""The largest mean difference of log-probabilities that is allowed, in nats per token, by dtype."""

CARDS = [*visible(os.environ, torch.cuda.device_count()), "none", "none"]
SMALL = {"max-model-len": 256, "max-num-seqs": 32, "enforce-eager": True, "gpu-memory-utilization": 0.3}
BESIDE: dict[str, Any] = {**SMALL, "devices": CARDS[0]}
"""On the card of the learner."""
START: dict[str, dict[str, Any]] = {
    "nccl": {**SMALL, "devices": CARDS[1]},
    "ipc": {**BESIDE, "enable-sleep-mode": True},
}

two_cards = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs: NCCL refuses two ranks on one")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and a vLLM for GPUs")


@pytest.fixture(scope="module", autouse=True)
def of_gpus() -> Iterator[None]:
    """The program that COEVOLVE_VLLM names is on the PATH, if it is one for GPUs."""
    there = os.environ["COEVOLVE_VLLM"]
    asked = [Path(there) / "python", "-c", "import torch; print(torch.version.cuda)"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if said == "None":
        pytest.skip("needs a vLLM for GPUs, and that in COEVOLVE_VLLM is for CPUs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", there, prepend=os.pathsep)
        yield


@pytest.mark.parametrize("dtype", DRIFT)
@pytest.mark.parametrize("way", [pytest.param("nccl", marks=two_cards), "ipc"])
def test_whole_weights_arrive(way: Any, dtype: Any) -> None:
    """Those of the start and of two steps; after a sleep the server has those of before. The output layer is tied to
    the embedding, which on CPUs vLLM does not renew."""
    engine = ServerEngine(start=START[way], transfer=way)
    trainer = training(engine, "ann", spec=PolicySpec(MODEL, device="cuda:0", dtype=dtype, learning_rate=1e-3))
    try:
        check_steps(trainer, range(3), DRIFT[dtype])
        if engine.sleeps:
            free, _ = torch.cuda.mem_get_info(0)
            engine.rest()
            assert torch.cuda.mem_get_info(0)[0] > free + (1 << 30)
            check_steps(trainer, [3], DRIFT[dtype])
    finally:
        trainer.close()


def test_two_adapters_learn_on_the_card_of_their_server() -> None:
    engine = ServerEngine(start=BESIDE)
    trainer = training(engine, "ann", "bob", spec=replace(LORA, device="cuda:0", dtype="bfloat16"))
    try:
        check_steps(trainer, range(3), DRIFT["bfloat16"])
    finally:
        trainer.close()
