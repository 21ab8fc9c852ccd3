"""Tests against a real vLLM, for ``make test-server``: COEVOLVE_VLLM names the folder that has the program."""

import os

collect_ignore_glob = [] if "COEVOLVE_VLLM" in os.environ else ["*"]
