"""Processes that begin with everything imported, which takes longer than most of what tests have them do."""

import multiprocessing

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(
    ["coevolve.trainer", "coevolve.compute.cpu.backend", "transformers.models.llama", "coevolve.learners.shard", "peft"]
)
