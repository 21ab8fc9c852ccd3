"""An inference server for tests: the routes of vLLM, SGLang and an OpenAI-compatible one over a local engine's copies.

It keeps a base and adapters by name as servers do, refuses what they refuse, and misbehaves as it is told: ``mishaps``
are the answers to the next requests for a turn, in the order they come.
"""

from __future__ import annotations

import base64
import json
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree
from tempfile import mkdtemp
from typing import Any

import torch

from coevolve.engines.local import LocalEngine
from coevolve.engines.transfer import FINISH, INIT, ROUTES, SIZE, START, UPDATE
from coevolve.learners.elsewhere import FrozenElsewhere
from coevolve.models.load import load_causal_lm
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.types import Problem, Sampling, Say
from over_gloo import joined

VLLM = ("/inference/v1/generate", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc")
SLEEP = ("/sleep", "/wake_up")
SGLANG = ("/generate", "/load_lora_adapter", "/unload_lora_adapter", "/update_weights_from_disk")


@dataclass
class FakeServer:
    """routes: those it has. forgets: weights that come are noted and not taken over. models: what it
    answers to who asks for its models, if not what it has. busy: how often it empties no cache when it is asked to."""

    model: str
    routes: tuple[str, ...] = (*VLLM, "/reset_prefix_cache", *SGLANG, "/v1/completions", "/version", *ROUTES, *SLEEP)
    schema: bool = True
    forgets: bool = False
    models: tuple[int, Any] | None = None
    busy: int = 0
    mishaps: list[str] = field(default_factory=list)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    adapters: dict[str, Path] = field(default_factory=dict)
    coming: dict[str, Any] | None = None
    sleeps: bool = False

    def __post_init__(self) -> None:
        self.engine, self.lock = LocalEngine(), threading.Lock()
        self.start = FrozenElsewhere("base", PolicySpec(self.model, weights="frozen", compute="torch"))
        self.engine.publish([self.start.published(0)])
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self.server.daemon_threads = True
        self.server.handle_error = lambda *given: None  # type: ignore[method-assign]  # of who went away: no traceback
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, route: str, body: Any) -> tuple[int, Any]:
        """The status and what is said."""
        if route == "/health":
            return 200, ""
        if route == "/v1/models":
            named = [{"id": "base", "parent": None}, *({"id": name, "parent": "base"} for name in self.adapters)]
            return self.models or (200, {"data": named})
        if route == "/openapi.json" and self.schema:
            return 200, {"paths": dict.fromkeys(self.routes)}
        if route not in self.routes:
            return 404, {"detail": "Not Found"}
        self.asked.append((route, body))
        if route == "/version":
            return 200, {"version": "0.0-fake"}
        if route.endswith("unload_lora_adapter"):
            return (200, "") if self.adapters.pop(body["lora_name"], None) else (404, "no such adapter")
        if route.endswith("load_lora_adapter"):
            return self.load(body["lora_name"], Path(body["lora_path"]))
        if route in ("/collective_rpc", "/update_weights_from_disk"):
            return self.reload(Path(body.get("model_path") or body["kwargs"]["weights_path"]))
        if route == "/reset_prefix_cache":
            self.busy -= 1
            return 200, {"success": self.busy < 0}
        if route in ROUTES:
            return self.transfer(route, body)
        if route in SLEEP:
            self.sleeps = route == "/sleep"
            return 200, {}
        return (500, "it sleeps") if self.sleeps else self.turn(route, body)

    def transfer(self, route: str, body: Any) -> tuple[int, Any]:
        """A worker's part in a transfer of weights: what comes after a start is taken over at the finish."""
        if route == SIZE:
            return 200, {"world_size": 1}
        if route == INIT and (place := body["init_info"].get("nccl_unique_id_b64")):
            self.group = joined(base64.b64decode(place), body["init_info"]["rank_offset"], 2)
        if route == START:
            if self.coming is not None:
                return 500, "start_weight_update called while a weight update is already active"
            self.coming = {}
        if route == UPDATE:
            assert self.coming is not None
            if self.mishaps and self.mishaps.pop(0) == "broken":
                self.coming = None
                return 500, "EngineCore died"
            self.coming |= self.received(body["update_info"])
        if route == FINISH:
            folder = Path(mkdtemp())
            model, came = load_causal_lm(self.model), self.coming
            assert came is not None
            self.coming = None
            missing, unknown = model.load_state_dict(came, strict=False)
            assert not unknown and set(missing) <= {"lm_head.weight"}
            model.save_pretrained(folder)
            return self.reload(folder)
        return 200, {}

    def received(self, info: Mapping[str, Any]) -> dict[str, Any]:
        if "ipc_handles_pickled" in info:
            return dict(zip(info["names"], pickle.loads(base64.b64decode(info["ipc_handles_pickled"])), strict=True))
        found = {}
        for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
            found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(found[name], 0)
        return found

    def load(self, name: str, folder: Path) -> tuple[int, Any]:
        if name in self.adapters:
            return 400, f"The lora adapter '{name}' has already been loaded."
        self.adapters[name] = folder
        if not self.forgets:
            config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
            lora = LoraSpec(config["r"], config["lora_alpha"], config["target_modules"])
            self.take(name, folder, PolicySpec(self.model, weights="lora", lora=lora, compute="torch"))
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def reload(self, folder: Path) -> tuple[int, Any]:
        if not self.forgets:
            self.take("base", folder, PolicySpec(self.model, weights="full", compute="torch"))
        return 200, {"results": [None]}

    def take(self, name: str, folder: Path, spec: PolicySpec) -> None:
        save = partial(copytree, folder, dirs_exist_ok=True)
        with self.lock:
            self.engine.publish([replace(self.start.published(0), name=name, spec=spec, save=save)])

    def turn(self, route: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        if self.mishaps:
            mishap = self.mishaps.pop(0)
            if mishap == "hang":
                time.sleep(2)
            elif mishap != "well":
                return {"500": (500, "EngineCore died"), "400": (400, "prompt too long")}.get(mishap, (0, mishap))
        name = body.get("lora_path") or body.get("model") or "base"
        if name != "base" and name not in self.adapters:
            return 404, {"error": {"message": f"The model `{name}` does not exist."}}
        with self.lock:
            known = name if name in self.engine.published else "base"
            self.engine.policies[known].eos = self.ends(route, body.get("sampling_params", {}))
            [said] = self.engine.sample({known: [_say(known, body)]})[known]
        reason = "stop" if said.finished else "length"
        if route == "/v1/completions":
            text = self.start.tokenizer.decode(said.action_ids, skip_special_tokens=True)
            return 200, {"choices": [{"text": text, "finish_reason": reason}]}
        if route == "/generate":
            pairs = [[logp, i, None] for logp, i in zip(said.logps, said.action_ids, strict=True)]
            return 200, {"text": "", "meta_info": {"output_token_logprobs": pairs, "finish_reason": {"type": reason}}}
        logps = {"content": [{"logprob": logp} for logp in said.logps]}
        return 200, {"choices": [{"token_ids": said.action_ids, "logprobs": logps, "finish_reason": reason}]}

    def ends(self, route: str, how: Mapping[str, Any]) -> frozenset[int]:
        """Ids that end a turn: with ignore_eos vLLM looks at stop_token_ids alone, and SGLang at nothing."""
        asked = frozenset(how.get("stop_token_ids", ()))
        if how.get("ignore_eos"):
            return frozenset() if route == "/generate" else asked
        return self.start.eos | asked


def _say(name: str, body: Mapping[str, Any]) -> Say:
    how = body.get("sampling_params", body)
    ids: Sequence[int] = body.get("token_ids") or body.get("input_ids") or body["prompt"]
    sampling = Sampling(how.get("max_tokens") or how["max_new_tokens"], temperature=how["temperature"])
    return Say("", name, Problem(""), 0, 0, ids, sampling, how.get("seed", how.get("sampling_seed")))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, fake: FakeServer, *args: Any) -> None:
        self.fake = fake
        super().__init__(*args)

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _answer(self, body: Any) -> None:
        status, said = self.fake.answer(self.path.partition("?")[0], body)
        text = (said if isinstance(said, str) else json.dumps(said)).encode()
        if (status, said) == (0, "reset"):
            self.close_connection = True
            return
        promised = len(text) + 100 * (said == "half")
        self.send_response(status or 200)
        self.send_header("content-length", str(promised))
        self.end_headers()
        self.wfile.write(text)
        self.close_connection |= said == "half"

    def log_message(self, *args: Any) -> None:
        pass


CANNED = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GETS = {"/health": "", "/version": {"version": "0.0"}, "/v1/models": {"data": [{"id": "base"}]}}
TURN = {"token_ids": [5, 1], "logprobs": {"content": [{"logprob": -1.0}, {"logprob": -2.0}]}}
POSTS = {"/inference/v1/generate": {"choices": [TURN]}, "/v1/load_lora_adapter": "", "/v1/unload_lora_adapter": ""}
GETS["/openapi.json"] = {"paths": GETS | POSTS}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps((GETS | POSTS)[self.path]).encode())

    do_POST = do_GET


port = next(flag for flag in sys.argv if flag.startswith("--port=")).removeprefix("--port=")
ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
"""A program that starts as vllm does and always says the same."""
