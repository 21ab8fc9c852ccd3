"""The endpoint, asked by OpenAI's own client over HTTP, and by who means ill or errs."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from exported import RECIPES, trained

from coevolve import Team
from coevolve.cli import _parser, main
from coevolve.teams import serve as server
from coevolve.teams.export import export
from coevolve.teams.serve import _LeftError, playable, serving
from coevolve.teams.team import described
from coevolve.teams.telling import Piece
from coevolve.types import Turn

pytestmark = pytest.mark.slow

openai = pytest.importorskip("openai", reason="wants the dev extra")

QUERY = "The soup at the harbour cafe was"
USER = [{"role": "user", "content": QUERY}]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(
        RECIPES / "quickstart.yaml", tmp_path_factory.mktemp("serve") / "opinions", "steps=1", "batch_size=2"
    )


@pytest.fixture(scope="module")
def team(run: Path) -> Iterator[tuple[Team, str]]:
    """A team, and the address of the server that plays it."""
    with playable(run, trust_code=False) as folder:
        loaded = Team.load(folder)
        with serving(loaded, described(folder).run) as address:
            yield loaded, address


@pytest.fixture(scope="module")
def client(team: tuple[Team, str]) -> Any:
    with openai.OpenAI(base_url=f"{team[1]}v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def ask(client: Any, **more: Any) -> Any:
    return client.chat.completions.create(model="opinions", messages=USER, seed=3, **more)


def test_the_team_is_the_one_model(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["opinions"]
    assert client.models.retrieve("opinions").owned_by == "coevolve"


def test_the_answer_is_the_last_turn_of_the_last_role(client: Any, team: tuple[Team, str]) -> None:
    episode = team[0].play(QUERY, seed=3)
    found = ask(client)
    [choice] = found.choices
    assert [turn.role for turn in episode.turns] == ["pioneer", "observer"]
    assert choice.message.content == episode.turns[1].text
    assert choice.finish_reason == ("stop" if episode.turns[1].finished else "length")
    transcript = choice.coevolve
    assert transcript["columns"] == {"query": QUERY}
    assert [turn["text"] for turn in transcript["turns"]] == [turn.text for turn in episode.turns]
    assert [turn["heard"] for turn in transcript["turns"]] == [[], [0]]
    assert (transcript["answer"], transcript["seed"]) == (1, 3)
    assert found.usage.completion_tokens == sum(len(turn.action_ids) for turn in episode.turns)
    assert found.usage.prompt_tokens == sum(len(turn.prompt_ids) for turn in episode.turns)


def test_a_stream_tells_the_turns_and_then_the_answer(client: Any) -> None:
    whole = ask(client).choices[0]
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    *spoken, usage = chunks
    turns = [
        chunk.choices[0].coevolve["turn"] for chunk in spoken if "turn" in getattr(chunk.choices[0], "coevolve", {})
    ]
    assert [turn["text"] for turn in turns] == [turn["text"] for turn in whole.coevolve["turns"]]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in spoken) == whole.message.content
    pieces = [
        chunk.choices[0].coevolve["piece"] for chunk in spoken if "piece" in getattr(chunk.choices[0], "coevolve", {})
    ]
    for turn in turns:
        assert "".join(piece["text"] for piece in pieces if piece["role"] == turn["role"]) == turn["text"]
    assert (spoken[-1].choices[0].finish_reason, spoken[-1].choices[0].coevolve) == (
        whole.finish_reason,
        whole.coevolve,
    )
    assert (usage.choices, usage.usage.total_tokens) == ([], ask(client).usage.total_tokens)
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_answer_is_streamed_while_it_is_sampled(client: Any, team: tuple[Team, str]) -> None:
    """Its first words are here before its turn is whole, and they are the unstreamed ones."""
    found = [chunk.choices[0] for chunk in ask(client, stream=True)]
    whole = next(
        n for n, one in enumerate(found) if getattr(one, "coevolve", {}).get("turn", {}).get("role") == "observer"
    )
    words = [one.delta.content for one in found[:whole] if one.delta.content]
    assert len(words) > 1
    assert "".join(words) == team[0].play(QUERY, seed=3).turns[-1].text == ask(client).choices[0].message.content


def test_what_is_told_is_what_is_sampled_and_characters_are_whole(team: tuple[Team, str]) -> None:
    """Of several turns side by side too, some of which end before others: as without anybody who listens."""
    heard: list[Any] = []
    queries = ["The soup", "Das Café überraschte 日本語 😀😀", QUERY]
    found = team[0].play_many(queries, seed=5, temperature=1.5, on_piece=heard.append)
    assert [[turn.text for turn in one.turns] for one in found] == [
        [turn.text for turn in one.turns] for one in team[0].play_many(queries, seed=5, temperature=1.5)
    ]
    turns = [said for said in heard if isinstance(said, Turn)]
    assert len(turns) == 6
    assert not any("\ufffd" in said.text for said in heard if isinstance(said, Piece))
    assert sum(len(said.text) for said in heard if isinstance(said, Piece)) > 0


def test_a_play_whose_last_word_is_not_known_tells_pieces_and_then_the_answer(run: Path, tmp_path: Path) -> None:
    """Two rounds: the first turn of the last role is no answer."""
    folder = shutil.copytree(export(run, tmp_path / "exported"), tmp_path / "team")
    about = yaml.safe_load((folder / "team.yaml").read_text())
    (folder / "team.yaml").write_text(yaml.safe_dump(about | {"play": {"name": "discussion"}}))
    with serving(Team.load(folder), "opinions") as address, openai.OpenAI(base_url=f"{address}v1", api_key="x") as two:
        found = [chunk.choices[0] for chunk in ask(two, stream=True)]
        answer = ask(two).choices[0].message.content
    _, draft, _, last = Team.load(folder).play(QUERY, seed=3).turns
    assert draft.text != last.text
    pieces = [one.coevolve["piece"] for one in found if "piece" in getattr(one, "coevolve", {})]
    assert {(piece["role"], piece["round"]) for piece in pieces} == {
        (role, number) for role in ("pioneer", "observer") for number in (0, 1)
    }
    assert [one.delta.content for one in found if one.delta.content] == [answer] == [last.text]


def left_unread(address: str, name: str, **more: Any) -> socket.socket:
    """A stream that nobody reads: the connection, with the least room for what comes."""
    where, body = urlsplit(address), json.dumps({"model": name, "messages": USER, "stream": True, **more}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.connect((where.hostname, where.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
    connection.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_who_does_not_read_keeps_nobody_waiting(team: tuple[Team, str]) -> None:
    """Every chunk has the team's name: one of 200 kB fills what a connection takes unread."""
    name = "x" * 200_000
    with serving(team[0], name) as address, left_unread(address, name) as silent:
        silent.recv(1)  # it is being answered, and waits for us from now on
        body = json.dumps({"model": name, "messages": USER, "seed": 3}).encode()
        code, found = raw(address, "/v1/chat/completions", body)
        assert code == 200
        assert found["choices"][0]["message"]["content"] == team[0].play(QUERY, seed=3).turns[-1].text


@pytest.mark.parametrize("stream", [True, False])
def test_who_goes_away_ends_the_play(team: tuple[Team, str], monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """Long before its 900 tokens, and the next one is answered right."""
    begun, ended = threading.Event(), threading.Event()
    told = list[Any]()
    play_many = team[0].play_many

    def watched(problems: Any, **how: Any) -> Any:
        def tell(said: Any) -> None:
            told.append(said)
            begun.set()
            how["on_piece"](said)

        try:
            return play_many(problems, **{**how, "on_piece": tell})
        except _LeftError:
            ended.set()
            raise

    name = "x" * 200_000
    with serving(team[0], name) as address:
        with monkeypatch.context() as here:
            here.setattr(team[0], "play_many", watched)
            with left_unread(address, name, max_tokens=900, temperature=2.0, stream=stream):
                assert begun.wait(60)
            assert ended.wait(60)
        assert len(told) < 900
        body = json.dumps({"model": name, "messages": USER, "seed": 3}).encode()
        assert raw(address, "/v1/chat/completions", body)[0] == 200


def test_a_connection_that_breaks_says_nothing_in_the_terminal(
    team: tuple[Team, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(team[0], team[1]) as address:
        for sent in (b"", b"GET /v1/mod", b"\xff\xfe\r\n\r\n"):
            with socket.create_connection((urlsplit(address).hostname, urlsplit(address).port)) as connection:
                connection.sendall(sent)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        assert raw(address, "/v1/models", method="GET")[0] == 200
    assert capsys.readouterr().err == ""


def test_what_a_request_may_choose(client: Any, team: tuple[Team, str]) -> None:
    greedy = [ask(client, temperature=0, extra_body={"seed": seed}).choices[0].message.content for seed in (1, 2)]
    assert greedy[0] == greedy[1] == team[0].play(QUERY, temperature=0).turns[-1].text
    assert all(turn["tokens"] == 2 for turn in ask(client, max_completion_tokens=2).choices[0].coevolve["turns"])
    several = [choice.message.content for choice in ask(client, n=3).choices]
    assert several == [episode.turns[-1].text for episode in team[0].play_many([QUERY] * 3, seed=3)]
    harmless = {"reasoning_effort": "none", "parallel_tool_calls": True, "stop": []}
    assert ask(client, **harmless).choices[0].message.content == ask(client).choices[0].message.content
    said = [{"role": "user", "content": "earlier"}, {"role": "assistant", "content": "so"}]
    last = [{"role": "user", "content": [{"type": "text", "text": QUERY}]}]
    after = client.chat.completions.create(model="opinions", messages=said + last, seed=3)
    assert after.choices[0].message.content == ask(client).choices[0].message.content
    unseeded = {
        client.chat.completions.create(model="opinions", messages=USER).choices[0].coevolve["seed"] for _ in "ab"
    }
    assert len(unseeded) == 2


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        ({"model": "gpt-9"}, "NotFoundError", "the model 'gpt-9' does not exist; this server has 'opinions'"),
        ({"messages": []}, "BadRequestError", "no message of the user"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "BadRequestError", "is no text"),
        ({"top_p": 0.5}, "BadRequestError", "top_p: a team is sampled as it was trained"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "BadRequestError", "tools: "),
        ({"reasoning_effort": "high"}, "BadRequestError", "reasoning_effort: "),
        ({"temperature": -1}, "BadRequestError", "temperature is -1"),
        ({"max_tokens": 0}, "BadRequestError", "max_tokens is 0"),
        ({"n": 2, "stream": True}, "BadRequestError", "one choice at a time"),
        ({"extra_body": {"temprature": 1}}, "BadRequestError", "unknown key temprature; did you mean 'temperature'?"),
        ({"extra_body": {"columns": {"question": "?"}}}, "BadRequestError", "no column query"),
        ({"max_tokens": 100_000}, "BadRequestError", "exceed the model's context"),
        ({"max_tokens": 100_000, "stream": True}, "BadRequestError", "exceed the model's context"),
    ],
)  # fmt: skip
def test_a_mistake_is_an_error_of_theirs(client: Any, wrong: dict[str, Any], kind: str, said: str) -> None:
    with pytest.raises(getattr(openai, kind)) as caught:
        client.chat.completions.create(**{"model": "opinions", "messages": USER} | wrong)
    assert said in caught.value.body["message"]
    assert caught.value.body["type"] == "invalid_request_error"
    assert ask(client).choices[0].message.content  # the server goes on


def raw(address: str, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> tuple[int, dict[str, Any]]:
    where = urlsplit(address)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=30)
    given = {"Content-Type": "application/json", "Content-Length": str(len(body))} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    connection.putrequest(method, path, skip_host="Host" in given)
    for name, value in given.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        ({"body": b"{"}, 400, "want a JSON object"),
        ({"body": b"[]"}, 400, "a list; want a JSON object"),
        ({"body": b"\xff"}, 400, "not UTF-8"),
        ({"body": b"{}"}, 400, "model"),
        ({"body": b"{}", "Content_Type": "text/plain"}, 415, "application/json"),
        ({"Content_Length": "-1"}, 411, "Content-Length"),
        ({"Content_Length": str(1 << 40)}, 413, "at most"),
        ({"path": "/v1/completions"}, 404, "no POST /v1/completions here"),
        ({"method": "GET", "path": "/"}, 404, "no GET / here"),
        ({"method": "DELETE"}, 501, "DELETE"),
        ({"Host": "evil.example"}, 403, "programs on this machine"),
        ({"Origin": "http://evil.example"}, 403, "programs on this machine"),
    ],
)
def test_whoever_asks_amiss_gets_an_error_object(
    team: tuple[Team, str], request_: dict[str, Any], status: int, said: str
) -> None:
    code, found = raw(team[1], **{"path": "/v1/chat/completions"} | request_)
    assert (code, set(found["error"])) == (status, {"message", "type", "param", "code"})
    assert said in found["error"]["message"]


def test_a_task_of_several_columns_says_which(tmp_path: Path) -> None:
    recipe = RECIPES / "magrpo-writing-mini.yaml"
    folder = export(trained(recipe, tmp_path / "run", "steps=1", "batch_size=1", "members=2"), tmp_path / "team")
    with serving(Team.load(folder), "writers") as address:
        body: dict[str, Any] = {"model": "writers", "messages": USER}
        code, found = raw(address, "/v1/chat/completions", json.dumps(body).encode())
        assert (code, found["error"]["param"]) == (400, "columns")
        assert "an object with text, opening" in found["error"]["message"]
        body["columns"] = {"text": "The soup was good. I liked it.", "opening": "The soup"}
        code, found = raw(address, "/v1/chat/completions", json.dumps(body).encode())
        assert code == 200
        assert {turn["role"] for turn in found["choices"][0]["coevolve"]["turns"]} == {"short", "detailed"}


def test_a_failure_of_ours_is_a_server_error_and_the_next_request_goes_well(
    client: Any, team: tuple[Team, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise RuntimeError("the machine is tired")

    with monkeypatch.context() as here:
        here.setattr(team[0], "play_many", broken)
        with pytest.raises(openai.InternalServerError, match="RuntimeError: the machine is tired"):
            ask(client)
    assert ask(client).choices


def test_unless_told_otherwise_only_programs_of_this_machine_reach_it() -> None:
    assert _parser()[0].parse_args(["serve", "team"]).host == "127.0.0.1"


def test_the_command(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], team: Any
) -> None:
    def visited() -> None:
        address = capsys.readouterr().out.split()[2]
        assert raw(address, "/v1/models", method="GET")[0] == 200

    monkeypatch.setattr(server, "until_interrupted", visited)
    assert main(["serve", str(run), "--port", "0"]) == 0
    taken = str(urlsplit(team[1]).port)
    for words, said in (
        ([str(tmp_path)], "is neither a team (team.yaml"),
        ([str(run), "--port", "70000"], "--port 70000: want 0 to 65535"),
        ([str(run), "--port", taken], f"--port {taken}: Address already in use; choose another"),
    ):
        assert main(["serve", *words]) == 2
        assert said in capsys.readouterr().err
