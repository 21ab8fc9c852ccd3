"""Ranks in torchrun's processes; a run of them is in ``learners/test_sharded_run.py``."""

from __future__ import annotations

import json
import socket

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from coevolve.faults import ShortageError
from coevolve.runtime import launched


def test_a_first_process_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the process would end as if all had gone well, and the first one would wait for it forever."""
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        port, store = closed.getsockname()[1], HashStore()
        store.set(launched._WHERE, json.dumps(["127.0.0.1", port, "00" * 16]))
        monkeypatch.setattr(launched, "_met", lambda: (store, 1))
        monkeypatch.setenv("LOCAL_RANK", "0")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        with pytest.raises(
            ShortageError, match=f"process 1 of torchrun cannot reach the first one at 127.0.0.1:{port}"
        ):
            launched.serve()
