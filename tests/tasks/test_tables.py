"""Rows from every kind of file and from memory: the same rows, and the same errors with file and row."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coevolve.models.names import resolve
from coevolve.recipe.components import component
from coevolve.recipe.read import anchored, load_recipe, names_file
from coevolve.runs.signature import files_in
from coevolve.tasks import TASKS, Rows, data
from coevolve.tasks.tables import in_memory, load

ROWS = [
    {"post": "A café, open", "likes": 3, "score": 0.5, "code": "007"},
    {"post": 'Two\nlines "quoted"', "likes": -1, "score": 2.0, "code": "12"},
]
CSV = 'post,likes,score,code\n"A café, open",3,0.5,007\n\n"Two\nlines ""quoted""",-1,2,12\n'


def one(**anything: Any) -> float:
    return 1.0


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str | bytes], str]:
    """Writes a file into the working folder; returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, content: str | bytes) -> str:
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
        return name

    return write


def message(source: Any) -> str:
    with pytest.raises(ValueError) as error:
        load(source, "train")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_home_directory_is_found_as_in_a_shell(put: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    put("rows.json", json.dumps(ROWS))
    monkeypatch.setenv("HOME", str(Path.cwd()))
    assert load("~/rows.json", "train") == load(Path("~/rows.json"), "train") == ROWS
    assert anchored({"data": "~/rows.json"}, Path("elsewhere")) == {"data": str(Path.cwd() / "rows.json")}
    assert names_file("~/my rows/x.py:F")  # as a whole path, which may have blanks
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    assert resolve("~/model") == Path.cwd() / "model"


def test_every_kind_of_file_gives_the_same_rows(put: Callable[..., str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), "rows.parquet")
    put("rows.json", json.dumps(ROWS))
    put("rows.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    put("rows.csv", "\ufeff" + CSV.replace("\n", "\r\n").replace("Two\r\nlines", "Two\nlines"))
    put("rows.tsv", CSV.replace(",", "\t").replace("café\t", "café,"))
    for ending in ("parquet", "json", "jsonl", "csv", "tsv"):
        assert load(f"rows.{ending}", "train") == ROWS
        assert load(Path(f"rows.{ending}"), "train") == ROWS


def test_numbers_of_a_csv_are_columns_of_numbers(put: Callable[..., str]) -> None:
    text = "a,b,c,d,e,f,g,h\n1,1.50,007,1,nan,1_0,, 1\n-2,.5,8,x,1,2,3,2\n"
    assert load(put("x.csv", text), "train") == [
        {"a": 1, "b": 1.5, "c": "007", "d": "1", "e": "nan", "f": "1_0", "g": "", "h": " 1"},
        {"a": -2, "b": 0.5, "c": "8", "d": "x", "e": "1", "f": "2", "g": "3", "h": "2"},
    ]


@pytest.mark.parametrize(
    "values",
    [
        ["+4915112345678", "+4915112345679"],
        ["12e3", "9e1"],
        ["12", "9E1"],
        ["12345678901234567890", "1.5"],
        ["1.5e400", "1.5"],
        ["--5", "5"],
        ["1" * 41, "2"],
    ],
)
def test_identifiers_of_a_csv_stay_as_they_are(put: Callable[..., str], values: list[str]) -> None:
    assert [row["a"] for row in load(put("x.csv", "\n".join(["a", *values])), "train")] == values


def test_whole_numbers_of_a_csv_keep_their_digits(put: Callable[..., str]) -> None:
    assert load(put("x.csv", "a\n12345678901234567890\n-0\n"), "train") == [{"a": 12345678901234567890}, {"a": 0}]


def test_fractions_of_a_csv_are_numbers_however_they_are_written(put: Callable[..., str]) -> None:
    text = "a\n0.5\n1e-05\n2.5E+20\n-.5e3\n0.10000000000000000555\n"
    assert [row["a"] for row in load(put("x.csv", text), "train")] == [0.5, 1e-05, 2.5e20, -500.0, 0.1]


def test_two_csv_files_that_differ_in_what_is_a_number_are_told(put: Callable[..., str]) -> None:
    put("train.csv", "id,q,answer\n1,a,3\n2,b,4\n")
    put("test.csv", "id,q,answer\nx,c,5\ny,d,n/a\n")
    for train, test in (("train.csv", "test.csv"), ("test.csv", "train.csv")):
        with pytest.warns(UserWarning, match="column") as told:
            assert len(Rows(data=train, test=test, prompts={"solver": "{q}"}, reward=one, id="id").test) == 2
        assert [str(one.message) for one in told] == [
            "task test.csv, row 2: column 'answer' is 'n/a', so it holds text here, and in train.csv numbers, and a "
            "reward that compares it pays by two rules; write a number there, or rows of .jsonl, which say what is text"
        ]
    put("test.csv", "id,q,answer\nx,c,0.5\ny,d,12345678901234567890\n")
    with pytest.warns(UserWarning, match=r"^task test.csv, row 2: column 'answer' is '12345678901234567890', so it ho"):
        assert len(Rows(data="train.csv", test="test.csv", prompts={"solver": "{q}"}, reward=one, id="id").test) == 2
    put("test.csv", "id,q,answer,more\nx,c,5.5,z\n")  # an id may be of another kind, and so may a number
    put("same.jsonl", '{"q": "c", "answer": "5"}\n')  # says itself what is text
    assert len(Rows(data="train.csv", test="test.csv", prompts={"solver": "{q}"}, reward=one, id="id").test) == 1
    assert len(Rows(data="train.csv", test="same.jsonl", prompts={"solver": "{q}"}, reward=one).test) == 1


def test_numbers_of_a_csv_are_those_of_pandas(put: Callable[..., str]) -> None:
    """Also where whole numbers stand beside others: 3.0. ``datasets`` reads a csv by pandas."""
    pandas = pytest.importorskip("pandas")
    path = put("x.csv", "id,score,word\n1,3,a\n2,4.5,b\n")
    found = load(path, "train")
    assert found == pandas.read_csv(path).to_dict("records")
    assert [repr(row["score"]) for row in found] == ["3.0", "4.5"]


def test_rows_in_memory() -> None:
    datasets = pytest.importorskip("datasets")
    for source in (ROWS, tuple(ROWS), datasets.Dataset.from_list(ROWS), iter(ROWS)):
        assert load(source, "train") == ROWS
    both = datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS))
    assert message(both) == "task.data is a dict of train; want the rows of one of them, data[...]"


def test_a_table_of_pandas_is_its_rows() -> None:
    pandas = pytest.importorskip("pandas")
    found = in_memory(pandas.DataFrame({"prompt": ["a", "b"], "gold": [1, 2]}))
    assert found == [{"prompt": "a", "gold": 1}, {"prompt": "b", "gold": 2}]
    assert type(found[0]["gold"]) is int


def test_empty_lines_at_the_end_of_a_file_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 2}\n\n  \n')
    assert data.jsonl(tmp_path / "rows.jsonl") == [{"a": 1}, {"a": 2}]


def test_a_task_of_rows_in_memory_does_not_change_them() -> None:
    task = Rows(data=ROWS, test=ROWS[:1], prompts={"solver": "{post}"}, reward=one)
    assert [dict(p.data) for p in task.train] == ROWS
    assert task.train[0].data is not ROWS[0]
    assert [p.id for p in task.test] == ["1"]


def test_a_recipe_may_hold_the_rows_themselves() -> None:
    settings = {"name": "rows", "data": [{"n": 1}, {"n": 2}], "test": 0.5, "prompts": {"a": "{n}"}}
    with pytest.raises(ValueError, match=r"reward: no file .*mine\.py"):
        component({**settings, "reward": "mine.py:f"}, TASKS, "task")
    task = component({**settings, "reward": f"{__file__}:one"}, TASKS, "task")
    assert sorted(p.data["n"] for p in (*task.train, *task.test)) == [1, 2]


def test_files_of_a_recipe_are_relative_to_it(tmp_path: Path) -> None:
    words = {"w": "Turn {x} into data.json", "revise": "Write it to out.txt", "two": "Say\nit in a.csv"}
    assert anchored({"prompts": words}, Path("/in")) == {"prompts": words}
    (tmp_path / "my rows.csv").touch()
    assert anchored({"data": "my rows.csv"}, tmp_path) == {"data": str(tmp_path / "my rows.csv")}
    sentence = "Say it again and again. " * 20 + "Write it to out.json"
    assert anchored({"revise": sentence}, tmp_path) == {"revise": sentence}  # longer than a file's name can be
    (tmp_path / "my code.py").touch()
    assert anchored({"reward": ["my code.py:f"]}, tmp_path) == {"reward": [str(tmp_path / "my code.py:f")]}
    assert names_file("/home/ann smith/data.jsonl")
    assert names_file("/home/a{b}/10:30/mine.py:Mine") and names_file("/home/10:30/data.csv")
    assert not names_file("/home/10:30/mine:py") and not names_file("/say\n{x}.csv")
    found = anchored({"data": "a.csv", "more": ["b.csv", "c.py:f", {"test": "d.parquet"}], "e": "x.json"}, Path("/in"))
    assert found == {"data": "/in/a.csv", "more": ["b.csv", "/in/c.py:f", {"test": "/in/d.parquet"}], "e": "/in/x.json"}


def test_rows_of_a_recipe_stay_as_they_are_written(tmp_path: Path) -> None:
    """Names of files are texts there; over a base, the base may say that the task is `rows`."""
    rows = [{"file": "sales.csv", "kind": "table"}, {"file": "mine.py:f", "kind": "code"}]
    task = {
        "name": "rows",
        "data": rows,
        "test": rows[:1],
        "reward": "mine.py:f",
        "prompts": {"a": "{file}", "b": "{file}"},
    }
    recipe: dict[str, Any] = {"task": task, "play": "rounds", "roles": {"a": "ann", "b": "bob"}}
    recipe |= {"policies": {"ann": "coevolve-tiny", "bob": "coevolve-tiny"}, "algorithm": "magrpo"}
    (tmp_path / "mine.yaml").write_text(json.dumps(recipe))
    found = load_recipe(tmp_path / "mine.yaml").task
    assert (found["data"], found["test"], found["reward"]) == (rows, rows[:1], f"{tmp_path}/mine.py:f")
    (tmp_path / "over.yaml").write_text(json.dumps({"base": "mine.yaml", "task": {"data": rows[1:]}}))
    assert load_recipe(tmp_path / "over.yaml").task["data"] == rows[1:]
    assert list(files_in({"task": found})) == [f"{tmp_path}/mine.py"]  # what needs trust


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", "", "x.csv holds no rows; want at least one"),
        ("x.csv", "a,b\n", "x.csv holds no rows; want at least one"),
        ("x.csv", "a,b\n1,2\n3\n", "x.csv, line 3: 1 values for 2 columns"),
        ("x.csv", "a,b\n1,2,3\n", "x.csv, line 2: 3 values for 2 columns"),
        ("x.csv", "a,a\n1,2\n", "x.csv, line 1: the column 'a' is there twice; rename one"),
        ("x.csv", "a,,c\n1,2,3\n", "x.csv, line 1: column 2 has no name; the first line names the columns"),
        ("x.csv", ",a\n0,2\n", "x.csv, line 1: column 1 has no name; the first line names the columns (an index, as "
         "pandas writes one, is left out by to_csv(index=False))"),
        ("x.csv", 'a\n"x\n', "x.csv, line 2: unexpected end of data; quote a text with a quote or line break"),
        ("x.csv", b"a\n\xff\n", "x.csv is not UTF-8 text (line 2, byte 0xff); save it as UTF-8"),
        ("x.json", "{}", "x.json: a dict; want a list of JSON objects such as [{...}, {...}]"),
        ("x.json", "[]", "x.json holds no rows; want at least one"),
        ("x.json", '[{"a": 1}, 2]', "x.json, row 2: an int; want a JSON object such as {...}"),
        ("x.json", '[{"a": NaN}]', "x.json: NaN is no JSON; want a number, or null where there is none"),
        ("x.json", "[{]", "x.json: Expecting property name enclosed in double quotes at column 3; want a list of JSON "
         "objects"),
        ("x.json", '[{"a": "\\ud800"}]', "x.json, row 1: U+D800 is half a character, which no model can read; leave it "
         "out"),
        ("x.xlsx", "x", "task x.xlsx: a file of another kind; want .jsonl, .jsonl.gz, .json, .csv, .tsv, .parquet"),
    ],
)  # fmt: skip
def test_a_broken_file(put: Callable[..., str], name: str, content: str | bytes, said: str) -> None:
    assert message(put(name, content)) == said


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.json", "x.jsonl", "x.parquet"])
def test_no_file(put: Callable[..., str], name: str) -> None:
    assert message(name) == f"{name} does not exist; check the path"


def test_a_broken_parquet(put: Callable[..., str]) -> None:
    pytest.importorskip("pyarrow")
    for content in (b"", b"PAR1 and nothing more"):
        said = message(put("x.parquet", content))
        assert said.startswith("x.parquet: ") and said.endswith("; the file is damaged, or no Parquet file")


def test_parquet_without_its_package(put: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert message(put("x.parquet", b"")) == "x.parquet: reading it needs a package: pip install 'coevolve[hub]'"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (3, "task.data is 3; want a file, a hub data set, or a list of dicts"),
        ([], "data in memory holds no rows; want at least one dict"),
        ([{"a": 1}, "x"], "data in memory, row 2: 'x'; want a dict of column to value"),
        ([{1: 1}], "data in memory, row 1: {1: 1}; want a dict of column to value"),
        ([{"a": "\ud800"}], "data in memory, row 1: U+D800 is half a character, which no model can read; leave it out"),
    ],
)
def test_what_is_no_rows(source: Any, said: str) -> None:
    assert message(source) == said


def test_rows_may_hold_what_json_has_not() -> None:
    rows = [{"tests": {(1, 2): 3}, "when": object()}]
    assert load(rows, "train") == rows


def test_a_name_of_no_file_is_a_hub_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(data, "rows", lambda name, **named: asked.append((name, named)) or [{"a": 1}])
    assert load("me/set:some", "train") == [{"a": 1}]
    assert asked == [("set_some", {"dataset": "me/set", "split": "some", "config": None})]
    for name, config in (("me/set/main", "main"), ("me/set", None), ("set", None)):
        load(name, "train")
        dataset = name.removesuffix("/main")
        file = "set_main_train" if config else "set_train"
        assert asked[-1] == (file, {"dataset": dataset, "split": "train", "config": config})


def test_a_row_of_memory_that_lacks_a_column() -> None:
    task = Rows(data=[{"a": 1}, {"b": 1}], test=0.5, prompts={"solver": "{a}"}, reward=one)
    with pytest.raises(ValueError) as error:
        len(task.train)
    assert str(error.value) == "task data in memory, row 2: no column 'a', which prompts.solver names; it has b"
