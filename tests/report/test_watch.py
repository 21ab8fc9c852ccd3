"""A page that follows a run while it is written."""

import json
import time
import urllib.request
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from until import until

from coevolve.report.watch import _signature, serving, watch

pytestmark = pytest.mark.slow

Y = "plot => plot?.data?.find(trace => trace.name === 'team, ann')?.y"
PLOT = "document.querySelector('[data-panel=\"reward\"] .plot')"


def step(run, i, torn=""):
    line = {"step": i, "cast": {"solo": "ann"}, "turns": 1, "reward": float(i), "agents/ann/reward": float(i)}
    turn = {"role": "solo", "policy": "ann", "round": 0, "text": f"text {i}", "reward": 1.0, "tokens": 1,
            "finished": False, "heard": [], "pieces": [f"text {i}"], "logps": [-1.0]}  # fmt: skip
    joint = {"turns": [0], "rewards": [1.0], "after": None}
    record = {
        "step": i,
        "problem": "p",
        "member": 0,
        "data": {"a": "b"},
        "turns": [turn],
        "joints": [joint],
        "parts": {},
    }
    for name, value in (("episodes", record), ("metrics", line)):
        with (run / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(value) + "\n" + torn)


def rewards(tab, values):
    until(tab, f"wanted => JSON.stringify(({Y})({PLOT})) === wanted", arg=json.dumps(values, separators=(",", ":")))


def test_the_page_grows_with_the_run_and_the_reader_stays_where_he_is(visit, tmp_path):
    run = tmp_path / "mine-0"
    run.mkdir()
    (run / "metrics.jsonl").write_text("")
    with serving([run]) as address:
        tab = visit(address, "curves")
        until(tab, "document.querySelector('#status').textContent.includes('has not finished a step')")
        for i in range(3):
            step(run, i)
        rewards(tab, [0, 1, 2])
        tab.evaluate(f"Plotly.relayout({PLOT}, {{'xaxis.range': [0, 1]}})")
        tab.click("header nav a[href='#dialogues']")
        tab.fill("#step", "0")
        tab.wait_for_selector(".token:text('text 0')")  # a key pressed before has nothing to move
        tab.focus("#dialogues-part")
        tab.keyboard.press("ArrowRight")
        tab.wait_for_selector(".token:text('text 1')")
        tab.click(".problem summary")
        tab.click("header nav a[href='#curves']")
        step(run, 3, torn='{"step": 4, "rew')
        rewards(tab, [0, 1, 2, 3])
        assert tab.evaluate(f"{PLOT}._fullLayout.xaxis.range") == [0, 1]
        tab.click("header nav a[href='#dialogues']")
        assert tab.inner_text(".token") == "text 1"
        assert tab.get_attribute(".problem", "open") is None
        assert tab.inner_text("output") == "step 1, 2 of 4"
        assert "4 steps, live" in tab.inner_text("#status")
        tab.close()  # before the server, which it would ask again


def asked(address):
    with urllib.request.urlopen(address) as answer:
        return json.loads(answer.read())


def test_news_are_told_once_and_waiting_runs_named(tmp_path):
    for name in ("ready-0", "empty-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("")
    step(tmp_path / "ready-0", 0)
    with serving([tmp_path]) as address:
        news = asked(f"{address}data?seen=")
        assert news["overview"]
        [waiting] = news["waiting"]
        assert waiting.startswith("Waiting: ") and "empty-0 has no metrics yet" in waiting
        assert "overview" not in asked(f"{address}data?seen={news['version']}")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            asked(f"{address}chunk/none")


def test_a_broken_file_beside_the_metrics_is_named_and_the_page_stays(tmp_path):
    run = tmp_path / "mine-0"
    run.mkdir()
    step(run, 0)
    with serving([tmp_path]) as address:
        assert asked(f"{address}data?seen=")["overview"]
        (run / "diagnostics.json").write_text('{"rows": [{"setting": "team"}]}')
        step(run, 1)
        found = until_told(address)
        assert "diagnostics.json" in found


def test_a_file_that_is_deleted_while_it_is_looked_at_is_left_out(tmp_path):
    step(tmp_path, 0)
    before = _signature([tmp_path])
    (tmp_path / "eval.json").symlink_to("nowhere")  # listed, and gone when it is asked for its size
    assert _signature([tmp_path]) == before
    (tmp_path / "nowhere").write_text("{}")
    assert _signature([tmp_path]) != before


def until_told(address):
    """The first thing that is waited for."""
    for _ in range(200):
        if waiting := asked(f"{address}data?seen=")["waiting"]:
            return waiting[0]
        time.sleep(0.05)
    raise AssertionError("nothing was told")


def test_a_taken_port_and_a_missing_folder_are_named(tmp_path):
    with serving([tmp_path]) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(ValueError, match=rf"--port {port}: .*choose another"):
            watch([tmp_path], port)
    with pytest.raises(ValueError, match="--port 99999: a port is a number from 0 to 65535; choose another"):
        watch([tmp_path], 99999)
    with pytest.raises(ValueError, match="nowhere does not exist; start the training"):
        watch([tmp_path / "nowhere"])


def status(address, path="/", **headers):
    """What a request with exactly these headers is answered."""
    host = urlsplit(address)
    connection = HTTPConnection(host.hostname, host.port, timeout=10)
    connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
    for name, values in headers.items():
        for value in values if isinstance(values, list) else [values]:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_only_its_own_page_reads_it(tmp_path):
    """A name of a stranger that leads to this machine (DNS rebinding) is refused, and so is another site's script."""
    (tmp_path / "run-0").mkdir()
    (tmp_path / "run-0" / "metrics.jsonl").write_text("")
    step(tmp_path / "run-0", 0)
    with serving([tmp_path]) as address:
        port = urlsplit(address).port
        own = [f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", f"LOCALHOST:{port}"]
        for host in own:
            for path in ("/", "/data?seen="):
                assert status(address, path, Host=host)[0] == 200
            assert status(address, "/data?seen=", Host=host, Origin=f"http://{host}")[0] == 200
        hosts = [
            "evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", f"localhost.evil.example:{port}",
            "127.0.0.1", "localhost", "[::1]", f"127.0.0.1:{port + 1}", f"0.0.0.0:{port}", f"[::]:{port}",
            f"127.1:{port}", f"2130706433:{port}", f"[::ffff:127.0.0.1]:{port}", f"::1:{port}", f"127.0.0.1:{port}0",
            f"127.0.0.1:{port}@evil.example", f"user@127.0.0.1:{port}", f"127.0.0.1:{port}, evil.example", "",
            f":{port}", [f"127.0.0.1:{port}", "evil.example"], [],
        ]  # fmt: skip
        for host in hosts:
            for path in ("/", "/data?seen=", "/chunk/none", "http://127.0.0.1/data"):
                code, body = status(address, path, Host=host)
                assert code == 403, (host, path)
                assert b"text 0" not in body
        for origin in ("null", "http://evil.example", f"https://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}", "",
                       [f"http://127.0.0.1:{port}", "http://evil.example"]):  # fmt: skip
            assert status(address, "/data?seen=", Host=own[0], Origin=origin)[0] == 403, origin
