"""A judge against a server on this machine: what it is asked, what it costs, what is kept, and what goes wrong."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coevolve.faults import ShortageError, blame
from coevolve.recipe.trust import code_in
from coevolve.rewards.answers import Answer
from coevolve.rewards.judge import Judge
from coevolve.rewards.several import rewards_of
from coevolve.rewards.templates import Filled
from coevolve.types import Case, Problem, Turn

pytest.importorskip("openai")

ASK = "How kind is {said}, of 10?"


class Endpoint:
    """Answers with the number of letters of the question's word; 10 tokens asked and 2 answered each. A first question
    about "busy" fails."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.fails = False
        self.answered = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.asked.append(body)
                word = body["messages"][0]["content"].split()[3].rstrip(",")
                text = "I cannot say" if word == "odd" else f"Out of 10, I say {len(word)}.5"
                ends = "length" if word in ("cut", "digit") and body["max_tokens"] < 100 else "stop"
                ends = "content_filter" if word == "filtered" else ends
                said = {"silent": None, "digit": "7"}.get(word, text)
                choice = {"message": {"role": "assistant", "content": said}, "index": 0, "finish_reason": ends}
                usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
                sent = json.dumps(
                    {
                        "id": "1",
                        "object": "chat.completion",
                        "created": 0,
                        "model": "m",
                        "choices": [choice],
                        "usage": usage,
                    }
                ).encode()
                if word == "fails":
                    assert endpoint.answered.wait(20)
                    time.sleep(0.2)  # behind the others, also as they arrive
                busy = word == "busy" and len(endpoint.asked) == 1
                self.send_response(500 if busy else 400 if endpoint.fails or word == "fails" else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Retry-After-Ms", "1")  # where it is asked again
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)
                self.wfile.flush()
                endpoint.answered.set()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture(scope="module")
def server() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.shutdown()


@pytest.fixture
def endpoint(server: Endpoint) -> Endpoint:
    server.asked, server.fails = [], False
    server.answered.clear()
    return server


def case(**texts: str) -> Case:
    problem = Problem("p", {"n": 1})
    return Case(problem, tuple(Turn(role, "llm", problem, 0, 0, (), (), (), t, True) for role, t in texts.items()))


def judge(endpoint: Endpoint, **settings: Any) -> Any:
    return rewards_of({"name": "judge", "model": "m", "ask": ASK, "base_url": endpoint.url, "retries": 0, **settings})


def test_the_last_number_of_the_answer_is_paid_and_the_cost_is_logged(endpoint: Endpoint) -> None:
    rewards = judge(endpoint, price=[1.0, 100.0])
    parts = rewards.parts()
    cases = [case(a="yes", b="maybe"), case(a="yes", b="yes")]
    assert rewards(cases) == [[3.5, 5.5], [3.5, 3.5]]
    assert parts(cases) == [
        {"judge_asked": 2, "judge_tokens": 24, "judge_cost": pytest.approx(420e-6), "judge_unclear": 0},
        {"judge_asked": 0, "judge_tokens": 0, "judge_cost": 0, "judge_unclear": 0},
    ]
    assert sorted(body["messages"][0]["content"] for body in endpoint.asked) == [
        "How kind is maybe, of 10?",
        "How kind is yes, of 10?",
    ]
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in endpoint.asked} == {("m", 0.0, 512)}


def test_how_it_is_to_answer_is_part_of_the_request(endpoint: Endpoint) -> None:
    assert judge(endpoint, temperature=0.5, max_tokens=7)([case(a="yes")]) == [[3.5]]
    assert [(body["temperature"], body["max_tokens"]) for body in endpoint.asked] == [(0.5, 7)]


def test_the_same_question_is_asked_once_in_every_run(endpoint: Endpoint, tmp_path: Path) -> None:
    file = str(tmp_path / "answers.sqlite")
    others: list[dict[str, Any]] = [{"temperature": 1.0}, {"model": "other"}, {"max_tokens": 99}]
    for number, settings in enumerate([{}, {}, *others, {"base_url": f"{endpoint.url}/other"}]):
        rewards = judge(endpoint, cache=file, **settings)
        assert rewards([case(a="yes")]) == [[3.5]]
        assert rewards.parts()([case(a="yes")])[0]["judge_tokens"] == 0  # asked a moment ago
        assert len(endpoint.asked) == (1, 1, 2, 3, 4, 5)[number]  # of another judge other answers


def test_without_a_file_a_process_remembers(endpoint: Endpoint) -> None:
    rewards = judge(endpoint)
    for _ in range(2):
        assert rewards([case(a="yes")]) == [[3.5]]
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ("I give 7.5", 7.5),
        ("1,250 points", 1250.0),
        ("3,5 or 7,5", 5.0),  # commas of thousands only
        ("1e3", 1000.0),
        ("-2", -2.0),
        ("7-8", 8.0),
        (".5", 0.5),
        ("-.5", -0.5),
        ("\\boxed{.75}", 0.75),
        ("4, so .5.", 0.5),
        ("1.2.3", 1.2),
        ("7...5", 7.0),
        ("\u22123", -3.0),  # the sign of mathematics
        ("7\u22128", 8.0),
        ("5e\u22121", 0.5),
        (f"4, or {'9' * 400}", 4.0),
        ("8/10", 8.0),
        ("**8.5** / 10.", 8.5),
        ("8 of 10", 8.0),
        ("8 out of 10", 8.0),
        ("8 points out of 10", 8.0),
        ("Score: 8 (of 10)", 8.0),
        ("7 (on a scale of 1 to 10)", 7.0),
        ("On a scale from 1-10: 7", 7.0),
        ("1,250/2,000", 1250.0),
        ("3 of 5 rules hold: 6/10,7", 7.0),
        ("Out of 10.", None),
        ("8 on a 10-point scale", 8.0),
        ("I rate this 7 on a scale of 10.", 7.0),
        ("Score: 8 (on a 1-10 scale)", 8.0),
        ("7.5 on a 1 to 10 scale", 7.5),
        ("8 (out of a possible 10)", 8.0),
        ("4 out of a maximum of 5", 4.0),
        ("Rating: 8 (max 10)", 8.0),
        ("At a maximum 3", 3.0),
        ("This falls on a scale of 8", 8.0),  # where nothing else is left
        ("(max 3)", 3.0),
        ("7 out of the 10", 7.0),
        ("7 (of a possible 10)", 7.0),
        ("7 (maximum 10 points)", 7.0),
        ("8 on an 11-point Likert scale", 8.0),
        ("8 on a scale of **1** to *10*", 8.0),
        ("7 on a scale from 0 (worst) to 10 (best)", 7.0),
    ],
)
def test_the_last_number_is_read_as_it_is_written(said: str, want: float | None) -> None:
    assert Judge(model="m", ask=ASK, base_url="http://127.0.0.1:1/v1")._number(said) == want


def test_an_answer_without_a_number(endpoint: Endpoint) -> None:
    rewards = judge(endpoint)
    parts = rewards.parts()
    with pytest.warns(UserWarning, match="answered without a number, 'I cannot say', which is paid 0"):
        assert rewards([odd := case(a="odd", b="yes")]) == [[0.0, 3.5]]
    assert parts([odd])[0]["judge_unclear"] == 0.5


def test_an_answer_without_a_number_is_asked_for_again(endpoint: Endpoint, tmp_path: Path) -> None:
    """Also where an older version kept it."""
    file = str(tmp_path / "answers.sqlite")
    for times in (1, 2):
        with pytest.warns(UserWarning, match="answered without a number"):
            assert judge(endpoint, cache=file, temperature=0.0)([case(a="odd")]) == [[0.0]]
        assert len(endpoint.asked) == times
    with closing(sqlite3.connect(file)) as base:
        assert base.execute("SELECT count(*) FROM answers").fetchone() == (0,)
    rewards = judge(endpoint)
    rewards.scorers[0]._answers.keep({"How kind is odd, of 10?": Answer("I cannot say", 1, 1)})
    with pytest.warns(UserWarning, match="answered without a number"):
        rewards([case(a="odd")])
    assert len(endpoint.asked) == 3


def test_beside_a_function(endpoint: Endpoint) -> None:
    settings = {"name": "judge", "model": "m", "ask": ASK, "base_url": endpoint.url}
    rewards = rewards_of([settings, lambda a: 1.0], [0.1, 1.0])
    assert rewards([one := case(a="yes")]) == [[1.35]]
    assert set(rewards.parts()([one])[0]) == {"judge", "judge_asked", "judge_tokens", "judge_unclear", "lambda"}


def test_an_endpoint_that_does_not_answer(endpoint: Endpoint) -> None:
    endpoint.fails = True
    with pytest.raises(ShortageError, match=r"^the judge 'm' does not answer: BadRequestError: .*$"):
        judge(endpoint)([case(a="yes")])


def test_a_request_that_failed_is_tried_again_as_often_as_asked(endpoint: Endpoint) -> None:
    assert judge(endpoint, retries=1)([case(a="busy")]) == [[4.5]]
    assert len(endpoint.asked) == 2


def test_without_the_package_nothing_is_short(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ValueError, which ends a run, not a ShortageError, after which it would go on."""
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ValueError, match=r"^task.reward, judge needs a package: pip install 'coevolve\[expert\]'$"):
        judge(endpoint)([case(a="yes")])


def test_an_address_that_is_none_is_no_shortage(endpoint: Endpoint) -> None:
    with pytest.raises(ValueError, match=r"^task.reward, judge: InvalidURL: Invalid port"):
        judge(endpoint, base_url="http://[::1/v1")([case(a="yes")])


def test_what_was_paid_for_is_kept_if_another_request_fails(endpoint: Endpoint, tmp_path: Path) -> None:
    file = str(tmp_path / "answers.sqlite")
    with pytest.raises(ShortageError):
        judge(endpoint, cache=file)([case(a="yes", b="fails")])
    assert judge(endpoint, cache=file)([case(a="yes")]) == [[3.5]]
    assert [body["messages"][0]["content"].split()[3] for body in endpoint.asked].count("yes,") == 1


@pytest.mark.parametrize(("word", "later"), [("cut", 3.5), ("silent", 0.0), ("filtered", 0.0)])
def test_an_answer_that_was_cut_short_is_no_number_and_not_kept(
    endpoint: Endpoint, tmp_path: Path, word: str, later: float
) -> None:
    file = str(tmp_path / "answers.sqlite")
    rewards = judge(endpoint, cache=file, max_tokens=7)
    with pytest.warns(UserWarning, match=r"not to its end within 7 tokens, which is paid 0; set max_tokens above 7"):
        assert rewards([case(a=word)]) == [[0.0]]
    assert rewards.parts()([case(a=word)])[0]["judge_unclear"] == 1
    asked = len(endpoint.asked)
    assert judge(endpoint, cache=file, max_tokens=7)([case(a=word)]) == [[0.0]]
    assert len(endpoint.asked) == asked + 1  # asked again
    assert judge(endpoint, cache=file, max_tokens=100)([case(a=word)]) == [[later]]


def test_a_number_alone_is_whole_however_short_the_limit(endpoint: Endpoint) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert judge(endpoint, max_tokens=1)([case(a="digit")]) == [[7.0]]


def test_a_full_disk_is_no_fault_of_the_caches_name(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **named: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    paid = judge(endpoint, cache=str(tmp_path / "kept.sqlite"))
    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(ShortageError, match=r"^the reward: the disk is full \("), blame("the reward"):
        paid([case(a="yes")])


def test_a_table_of_another_kind_is_no_cache(endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(file)) as base:
        base.execute("CREATE TABLE answers (id, said)")
    with pytest.raises(ValueError, match=r"^task.reward, judge: cache .*other.sqlite: no such column: key; name"):
        judge(endpoint, cache=str(file))([case(a="yes")])


def test_a_file_that_is_no_cache(endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a data base, but long enough to be taken for one" * 10)
    with pytest.raises(
        ValueError, match=r"^task.reward, judge: cache .*notes.txt: file is not a database; name another"
    ):
        judge(endpoint, cache=str(file))([case(a="yes")])
    assert file.read_text().startswith("not a data base")


def test_a_recipe_with_a_judge_is_not_run_unasked() -> None:
    assert code_in({"task": {"reward": [{"name": "judge", "model": "m"}]}}) == ["a reward by a judge"]


def test_a_column_that_is_null_is_nothing() -> None:
    problem = Problem("p", {"hint": None, "asked": 4})
    case = Case(problem, (Turn("solver", "ann", problem, 0, 0, (), (), (), "six", True),))
    assert Filled("{asked}: {said}, by {hint}.", "here").texts(case) == ["4: six, by ."]


def test_a_role_with_the_name_of_a_column_is_read_in_its_place() -> None:
    assert Filled("{n}", "here").texts(case(n="six")) == ["six"]  # and not 1
