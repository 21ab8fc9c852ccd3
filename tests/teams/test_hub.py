"""A team goes to a hub: the real client, over HTTP, to a hub that this test is."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from exported import RECIPES, trained
from huggingface_hub import HfApi, ModelCard, constants

from coevolve import Team
from coevolve.cli import main
from coevolve.teams.export import export
from coevolve.teams.hub import push_to_hub

pytestmark = pytest.mark.slow


class Hub(ThreadingHTTPServer):
    """What the hub answers to an upload of small files: it keeps them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.repos: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.licences: dict[str, str] = {}
        self.tokens: set[str | None] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.add(self.headers.get("Authorization"))
        if self.headers.get("Authorization") != "Bearer hf_right":
            return self.reply(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            code = 409 if repo in self.server.repos else 200
            self.server.repos.setdefault(repo, asked)
            return self.reply(code, {"url": f"{self.server.address}/{repo}", "id": repo})
        if self.path.endswith("/preupload/main"):
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return self.reply(200, {"files": files})
        if self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            repo = self.path.removeprefix("/api/models/").removesuffix("/commit/main")
            return self.reply(200, {"commitUrl": f"{self.server.address}/{repo}/commit/1", "commitOid": "1"})
        return self.reply(200, {})

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].removeprefix("/api/models/")
        if licence := self.server.licences.get(name):
            return self.reply(200, {"id": name, "cardData": {"license": licence}, "siblings": []})
        return self.reply(404, {"error": "Repository not found"}, "RepoNotFound")

    def reply(self, code: int, found: dict[str, Any], problem: str = "") -> None:
        body = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        if problem:
            self.send_header("X-Error-Code", problem)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # as tests are otherwise
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = RECIPES / "quickstart.yaml"
    return trained(recipe, tmp_path_factory.mktemp("hub") / "opinions", "steps=1", "batch_size=2")


@pytest.fixture
def team(run: Path, tmp_path: Path) -> Path:
    return export(run, tmp_path / "team")


def test_what_is_on_the_hub_is_the_team(
    run: Path, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    folder = tmp_path / "team"
    assert main(["export", str(run), str(folder), "--push-to", "me/opinions", "--private"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"team: {folder}", f"hub: {hub.address}/me/opinions"]
    assert hub.repos["me/opinions"]["visibility"] == "private"
    assert hub.tokens == {"Bearer hf_right"}
    for path, content in hub.files.items():
        target = tmp_path / "fetched" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    said = [turn.text for turn in Team.load(tmp_path / "fetched").play("The soup was", seed=1).turns]
    assert said == [turn.text for turn in Team.load(folder).play("The soup was", seed=1).turns]
    assert ModelCard.load(tmp_path / "fetched" / "README.md").data.license == "mit"


def test_again_into_the_same_model(team: Path, hub: Hub) -> None:
    api = HfApi(endpoint=hub.address, token="hf_right")
    assert push_to_hub(team, "me/opinions", api=api) == push_to_hub(team, "me/opinions", api=api)


@pytest.mark.parametrize(
    ("bases", "licence"),
    [(["a/apache"], "apache-2.0"), (["a/apache", "b/apache"], "apache-2.0"), (["a/apache", "c/other"], None),
     (["a/apache", "d/unknown"], None)],
)  # fmt: skip
def test_the_hub_knows_the_licence_of_its_models(team: Path, hub: Hub, bases: list[str], licence: str | None) -> None:
    hub.licences = {"a/apache": "apache-2.0", "b/apache": "apache-2.0", "c/other": "llama2"}
    card = ModelCard.load(team / "README.md")
    card.data.license, card.data.base_model = None, bases
    card.save(team / "README.md")
    push_to_hub(team, "me/opinions", api=HfApi(endpoint=hub.address, token="hf_right"))
    assert ModelCard(hub.files["README.md"].decode()).data.license == licence


def test_who_may_not_is_told(
    run: Path, team: Path, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"the hub does not let this token write me/opinions: .*401"):
        push_to_hub(team, "me/opinions", api=HfApi(endpoint=hub.address, token="hf_wrong"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with pytest.raises(ValueError, match="the hub wants a token; run `hf auth login`"):
        push_to_hub(team, "me/opinions")
    with pytest.raises(OSError, match="cannot be reached"):
        push_to_hub(team, "me/opinions", api=HfApi(endpoint="http://127.0.0.1:9", token="hf_right"))
    with pytest.raises(ValueError, match="is no team"):
        push_to_hub(tmp_path, "me/opinions", api=HfApi(endpoint=hub.address, token="hf_right"))
    for words, said in ((["--push-to", "opinions"], "want OWNER/NAME"), (["--private"], "--private is for --push-to")):
        assert main(["export", str(run), str(tmp_path / "never"), *words]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "never").exists()
    assert (hub.repos, hub.files) == ({}, {})
