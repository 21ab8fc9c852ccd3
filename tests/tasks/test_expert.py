"""Edits by an expert, against a server on this machine: good answers, rubbish, errors, slowness, nobody there."""

from __future__ import annotations

import json
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from coevolve.recipe.components import checked
from coevolve.tasks.expert import Expert, read_edits
from coevolve.types import ToolResult

pytest.importorskip("openai")

CODES = {"aux": "def aux(x):\n    return x", "main": "def f(x):\n    return 1"}
REPORTS = {"aux": "aux is not called.", "main": "1 of 2 tests pass."}


class Endpoint:
    """A server that gives its answers one after the other: (status, text of the model), or a number of seconds to wait.

    requests: the bodies that came in. keys: their authorization.
    """

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.requests.append({"path": self.path, **json.loads(body)})
                endpoint.keys.append(self.headers["Authorization"])
                answer = endpoint.answers.pop(0)
                if isinstance(answer, float):
                    time.sleep(answer)
                    return
                status, content, text = answer
                message = {"message": {"role": "assistant", "content": text}, "index": 0, "finish_reason": "stop"}
                plain = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "choices": [message]})
                sent = (plain if content == "application/json" else text).encode()
                self.send_response(status)
                self.send_header("Content-Type", content)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def says(self, text: str | None, status: int = 200, content: str = "application/json") -> None:
        self.answers.append((status, content, text))


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    found = Endpoint()
    threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def at(endpoint: Endpoint) -> Callable[..., Expert]:
    """at(**settings) -> an expert at this endpoint."""
    return lambda **settings: Expert(**{"model": "judge", "base_url": endpoint.url, "retries": 0, **settings})


def ask(expert: Expert) -> dict[str, str]:
    return expert.edits("Write f, the square.", CODES, REPORTS)


def test_each_part_gets_its_edit(endpoint: Endpoint, at: Callable[..., Expert]) -> None:
    endpoint.says('{"aux": "Return x * x.", "main": "Return aux(x)."}')
    assert ask(at()) == {"aux": "Return x * x.", "main": "Return aux(x)."}
    [request] = endpoint.requests
    assert request["path"] == "/v1/chat/completions"
    assert (request["model"], request["temperature"], request["max_tokens"]) == ("judge", 0.3, 2048)
    assert endpoint.keys == ["Bearer secret"]
    [message] = request["messages"]
    for told in ("Write f, the square.", *CODES.values(), *REPORTS.values(), '{"aux": "...", "main": "..."}'):
        assert told in message["content"]


def test_the_request_is_capped(endpoint: Endpoint, at: Callable[..., Expert]) -> None:
    endpoint.says('{"main": ""}')
    assert at().edits("p", {"main": "x" * 100_000}, {"main": "y" * 100_000}) == {}
    assert 16_000 < len(endpoint.requests[0]["messages"][0]["content"]) < 17_000


def test_a_part_without_an_edit_is_left_out(endpoint: Endpoint, at: Callable[..., Expert]) -> None:
    endpoint.says('Sure!\n```json\n{"aux": null, "main": " Call aux. ", "more": 3}\n```')
    expert = at()
    assert ask(expert) == {"main": "Call aux."}
    assert (expert.asked, expert.failed) == (1, 0)


def test_half_a_character_in_an_edit_is_a_question_mark() -> None:
    """Which JSON can escape, and no tokenizer reads."""
    assert read_edits('{"aux": "use \\ud83d", "main": "\\ud83d\\ude00"}', ["aux", "main"]) == {
        "aux": "use ?",
        "main": "\U0001f600",
    }
    found = ToolResult.of("look\ud83d", "hi \ud83d")
    assert (found, found.tool) == ("hi ?", "look?")


def test_braces_around_the_edits_are_passed_over() -> None:
    edits = '{"aux": "a", "main": "b {x}"}'
    for text in (f"Use {{x}} here. {edits}", f"{edits} Not {{'x': 1}}.", f'As in {{"y": {{}}}}: {edits}', f"{{{edits}"):
        assert read_edits(text, ["aux", "main"]) == {"aux": "a", "main": "b {x}"}
    assert read_edits(f'{edits} For example {{"main": "x"}}, or {{"aux": 3, "main": 1}}', ["aux", "main"])["aux"] == "a"
    assert read_edits("{x} " * 100 + edits, ["aux", "main"])["aux"] == "a"
    assert read_edits('{"aux": "draft", "main": ""} Better: {"aux": "last", "main": ""}', ["aux", "main"]) == {
        "aux": "last"
    }


@pytest.mark.parametrize(
    "text", ["", "no idea", "{", "[1, 2]", '{"aux": "x"}', '{"aux": "x", "main": 3}', "{" * 50_000 + "}", '{"a": NaN,}']
)
def test_an_answer_that_is_no_edit(text: str) -> None:
    with pytest.raises(ValueError, match="the answer"):
        read_edits(text, ["aux", "main"])


def test_rubbish_is_reported_once_and_the_next_request_goes_out(endpoint: Endpoint, at: Callable[..., Expert]) -> None:
    expert = at()
    endpoint.says("I would not change a thing.")
    endpoint.says("Nor now.")
    endpoint.says('{"aux": "a", "main": "b"}')
    with pytest.warns(UserWarning, match=r"expert 'judge' gave no edits: no JSON in the answer 'I would not") as said:
        assert [ask(expert), ask(expert)] == [{}, {}]
    assert len(said) == 1
    assert ask(expert) == {"aux": "a", "main": "b"}
    assert (expert.asked, expert.failed) == (3, 2)


def test_an_answer_that_is_no_completion(endpoint: Endpoint, at: Callable[..., Expert]) -> None:
    endpoint.says("<html>Welcome</html>", content="text/html")
    with pytest.warns(UserWarning, match="gave no edits"):
        assert ask(at()) == {}


def test_a_server_error_is_tried_again(endpoint: Endpoint, at: Callable[..., Expert]) -> None:
    endpoint.says("overloaded", status=500)
    endpoint.says('{"aux": "a", "main": "b"}')
    expert = at(retries=1)
    assert ask(expert) == {"aux": "a", "main": "b"}
    assert len(endpoint.requests) == 2
    assert (expert.asked, expert.failed) == (1, 0)


def test_a_slow_endpoint_is_not_waited_for(endpoint: Endpoint, at: Callable[..., Expert]) -> None:
    endpoint.answers.append(20.0)
    start = time.monotonic()
    with pytest.warns(UserWarning, match="APITimeoutError: Request timed out"):
        assert ask(at(timeout=0.2)) == {}
    assert time.monotonic() - start < 10


def test_an_endpoint_that_is_down_is_left_alone_for_a_minute(
    endpoint: Endpoint, at: Callable[..., Expert], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("coevolve.tasks.expert.monotonic", lambda: now)
    with socket.socket() as free:  # a port that nobody listens at
        free.bind(("127.0.0.1", 0))
        expert = at(base_url=f"http://127.0.0.1:{free.getsockname()[1]}/v1")
        with pytest.warns(UserWarning, match=r"APIConnectionError: Connection error\. \(.*refused"):
            assert ask(expert) == {}
    expert._client = at()._client  # it is up again
    endpoint.says('{"aux": "a", "main": "b"}')
    now += 59.0
    assert ask(expert) == {}
    assert endpoint.requests == []
    now += 2.0
    assert ask(expert) == {"aux": "a", "main": "b"}
    assert (expert.asked, expert.failed) == (3, 2)


def test_without_a_key_the_endpoint_is_asked_and_the_warning_says_so(
    endpoint: Endpoint, at: Callable[..., Expert], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    endpoint.says("who are you?", status=401)
    with pytest.warns(UserWarning, match=r"AuthenticationError: .* \(MY_KEY is not set\)"):
        assert ask(at(api_key_env="MY_KEY")) == {}
    endpoint.says('{"aux": "a", "main": ""}')  # one that wants no key
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask(at(api_key_env="MY_KEY")) == {"aux": "a"}


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"task.feedback.expert: unknown key modle; did you mean 'model'"):
        checked(Expert, {"modle": "x"}, "task.feedback.expert", ())
    with pytest.raises(ValueError, match=r"task.feedback.expert: model: missing, and without a default"):
        checked(Expert, {}, "task.feedback.expert", ())
    for settings, said in (
        ({"timeout": 0}, "timeout is 0; want above 0"),
        ({"retries": -1}, "retries is -1; want at least 0"),
        ({"temperature": -0.1}, "temperature is -0.1; want at least 0"),
        ({"max_tokens": 0}, "max_tokens is 0; want at least 1"),
        ({"timeout": float("nan")}, "timeout is nan; want"),
    ):
        with pytest.raises(ValueError, match=f"^task.feedback.expert: {said}"):
            checked(Expert, {"model": "x", **settings}, "task.feedback.expert", ())


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    with pytest.raises(ValueError, match=r"pip install 'coevolve\[expert\]'"):
        Expert(model="x")
