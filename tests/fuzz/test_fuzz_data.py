"""Any file of rows is read, or refused in one line with the file's name and the line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import yaml
from fuzzing import command, components, dumped, files, numbers, refused, torn, trials, untouched, values, words
from hypothesis import example, given
from hypothesis import strategies as st

from coevolve.tasks import Rows
from coevolve.tasks import data as sources

ROWS: list[dict[str, Any]] = [
    {"id": "one", "post": "A café\n", "likes": 3, "score": 0.5, "tags": ["x", None]},
    {"id": "two", "post": "\U0001f600", "likes": -1, "score": 1e-9, "tags": []},
    {"id": "three", "post": "", "likes": 10**12, "score": -2.0, "tags": {"a": 1}},
]
WHOLE = "".join(json.dumps(row) + "\n" for row in ROWS).encode()

LINES = [
    b'{"post": "a", "post": "b"}', b'{"likes": NaN}', b'{"likes": -Infinity}', b'{"likes": 1e400}', b"", b"  ",
    b'{"likes": ' + b"9" * 5000 + b"}", b'{"post": "\\ud800"}', b'{"post": "\\ud83d\\ude00"}', b'{"post": "\x00"}',
    b'{"a":' * 5000, b"[" * 5000, b"\xef\xbb\xbf{}", b"{}\r", b"{} {}", b'{"post": "\xff"}', b"{'post': 1}", b"{,}",
    b"// x",     b'{"\\u0000": 1}', b'{"id": "one", "post": "again", "likes": 1, "score": 1, "tags": 1}',
]  # fmt: skip


def answer(texts: dict[str, str], **row: object) -> float:
    return 1.0


def use(path: Path, **settings: Any) -> None:
    task = Rows(data=str(path), prompts={"writer": "{post} {likes} {score}"}, reward=answer, test=0.5, **settings)
    for problem in (*task.train, *task.test):
        str(task.prompt(problem, "writer", [])).encode("utf-8")


@trials(180)
@given(content=st.one_of(torn(WHOLE), files, st.lists(st.sampled_from([*LINES, *WHOLE.splitlines()])).map(b"\n".join)),
       packed=st.booleans(), id=st.sampled_from([None, "id", "likes", "nothing"]))  # fmt: skip
@example(content=b'{"post": "a", "likes": NaN, "score": 1}\n' * 2, packed=False, id=None)
@example(content=b"\xef\xbb\xbf" + WHOLE, packed=False, id="id")
@example(content=WHOLE.replace(b"\n", b"\r\n"), packed=True, id="id")
@example(content=WHOLE + WHOLE, packed=False, id="id")
def test_a_file_of_rows(tmp_path: Path, content: bytes, packed: bool, id: str | None) -> None:
    path = tmp_path / ("rows.jsonl.gz" if packed else "rows.jsonl")
    path.write_bytes(gzip.compress(content) if packed else content)
    said = refused("files of rows", lambda: use(path, id=id))
    assert said is None or "rows.jsonl" in said or said.startswith("task.test"), said


TABLES = {
    "rows.csv": b'id,post,likes,score\none,A,3,0.5\n"t\nwo","B, ""b""",-1,1e-9\n',
    "rows.tsv": b"id\tpost\tlikes\tscore\none\tA\t3\t0.5\ntwo\tB\t-1\t1e-9\n",
    "rows.json": json.dumps(ROWS).encode(),
}


@trials(100)
@given(data=st.data(), name=st.sampled_from(sorted(TABLES)))
def test_a_table(tmp_path: Path, data: st.DataObject, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(data.draw(torn(TABLES[name])))
    said = refused("tables", lambda: use(path))
    assert said is None or name in said or said.startswith("task.test"), said


@trials(100)
@given(content=torn(gzip.compress(WHOLE * 50, mtime=0)))
def test_a_torn_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(content)
    said = refused("torn archives", lambda: sources.jsonl(path))
    assert said is None or str(path) in said


cells = st.one_of(words, components, st.integers(-3, 3), st.floats(), numbers)


@trials(150)
@given(
    rows=st.lists(
        st.fixed_dictionaries({"post": cells, "likes": cells, "score": cells}, optional={"id": cells, "": values}),
        min_size=1,
        max_size=4,
    ),
    id=st.sampled_from([None, None, "id"]),
)
def test_strange_columns(tmp_path: Path, rows: list[dict[str, Any]], id: str | None) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    said = refused("strange columns", lambda: use(path, id=id))
    assert said is None or "rows.jsonl" in said or said.startswith("task.test"), said


@trials(80)
@given(
    data=st.one_of(st.just("posts.jsonl"), words, components),
    test=st.one_of(words, st.floats(), st.integers(-2, 3), st.booleans()),
    template=st.one_of(st.sampled_from(["{post}", "{likes} {{}} {heard}", "{score:.2f}", "{tags}", "{post.x}"]), words),
)
@example(data="rows.csv", test=0.5, template="{post}")
@example(data="a" * 5000 + ".jsonl", test=0.5, template="{post}")
@example(data="here.jsonl", test=0.5, template="{post}")
def test_what_the_recipe_says_of_rows(tmp_path: Path, data: str, test: Any, template: str) -> None:
    Path("rows.csv").write_text("post\na\n")
    Path("here.jsonl").mkdir(exist_ok=True)
    Path("posts.jsonl").write_bytes(WHOLE)
    (tmp_path / "own.py").write_text("def answer(texts, **row):\n    return 1.0\n")
    recipe = yaml.safe_load(RECIPE)
    recipe["task"] |= {
        "data": str(Path(data).absolute()) if data == "posts.jsonl" else data,
        "test": test,
        "prompts": {"writer": template},
    }
    path = tmp_path / "mine.yaml"
    path.write_bytes(dumped(recipe, ascii_only=True))
    with untouched(tmp_path):
        command("rows in a recipe", ["train", "--dry-run", str(path)])


RECIPE = """
task: {name: rows, reward: "own.py:answer"}
play: chain
roles: {writer: ann}
policies: {ann: coevolve-coin}
algorithm: ppo
sampling: {max_new_tokens: 2}
"""


def test_a_table_beside_the_recipe_is_no_data_set_of_the_hub(tmp_path: Path) -> None:
    Path("rows.xlsx").write_text("post\na\n")
    task = Rows(data="rows.xlsx", prompts={"writer": "{post}"}, reward=answer)
    said = refused("rows in a recipe", lambda: len(task.train))
    assert said == "task rows.xlsx: a file of another kind; want .jsonl, .jsonl.gz, .json, .csv, .tsv, .parquet"
