"""Where rows come from, and what is said when they do not come."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from coevolve import Trainer, chain, cory, fixed
from coevolve.tasks import Gsm8k, Tldr, data

Put = Callable[[str, str], Path]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Writes <name>.jsonl.gz into a folder that COEVOLVE_DATA names."""
    monkeypatch.setenv(data.FOLDER, str(tmp_path))

    def write(name: str, text: str) -> Path:
        path = tmp_path / f"{name}.jsonl.gz"
        path.write_bytes(gzip.compress(text.encode()))
        return path

    return write


def test_rows_of_a_file(put: Put) -> None:
    put("few", '{"text": "A caf\\u00e9", "label": 1}\n{"text": "B", "label": 0}\n')
    assert data.read("few") == [{"text": "A café", "label": 1}, {"text": "B", "label": 0}]


def test_the_folder_is_asked_before_the_hub(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("few", '{"a": 1}\n')
    monkeypatch.setattr(data, "hub", lambda dataset, split, config: [{"from": dataset, "split": split}])
    assert data.rows("few", dataset="some/set", split="train") == [{"a": 1}]
    monkeypatch.delenv(data.FOLDER)
    assert data.rows("few", dataset="some/set", split="train") == [{"from": "some/set", "split": "train"}]


def test_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.FOLDER, raising=False)
    with pytest.raises(ValueError, match=r"data 'few': COEVOLVE_DATA is not set; set it to the folder"):
        data.read("few")


def test_no_file(put: Put, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"few\.jsonl\.gz does not exist; put it there"):
        data.read("few")


def test_no_rows(put: Put) -> None:
    put("few", "")
    with pytest.raises(ValueError, match=r"few\.jsonl\.gz holds no rows"):
        data.read("few")


def test_a_line_that_is_no_json(put: Put) -> None:
    put("few", '{"a": 1}\n{"a": }\n')
    with pytest.raises(ValueError, match=r"few\.jsonl\.gz, line 2: Expecting value at column 7; want a JSON object"):
        data.read("few")


def test_a_line_that_is_no_object(put: Put) -> None:
    put("few", "[1, 2]\n")
    with pytest.raises(ValueError, match=r"few\.jsonl\.gz, line 1: a list; want a JSON object"):
        data.read("few")


def test_a_truncated_file(put: Put) -> None:
    path = put("few", '{"a": 1}\n' * 1000)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(
        ValueError, match=r"few\.jsonl\.gz: Compressed file ended .*; the file is damaged, copy it again"
    ):
        data.read("few")


def test_a_file_that_is_not_compressed(put: Put) -> None:
    put("few", "").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"few\.jsonl\.gz: Not a gzipped file .*; the file is damaged"):
        data.read("few")


def test_problems_are_named_by_their_id_or_their_position() -> None:
    rows = [
        {"id": None, "n": 1},
        {"id": 7, "n": 2},
        {"n": 3},
        {"id": "b", "n": 4},
        {"id": "", "n": 5},
        {"id": 7, "n": 2},
    ]
    found = data.problems(rows, "few", lambda row: {"n": row["n"]} if row["n"] != 2 else None)
    named = [("0", {"n": 1}), ("2", {"n": 3}), ("b", {"n": 4}), ("4", {"n": 5})]
    assert [(p.id, dict(p.data)) for p in found] == named  # those left out may have one name


@pytest.mark.parametrize(("ids", "place", "name"), [([1, 2, "1"], "2 (1)", "1"), ([2, None, None], "2", "2")])
def test_two_problems_of_one_name(ids: list[int | str | None], place: str, name: str) -> None:
    with pytest.raises(ValueError) as error:
        data.problems([{"key": id} for id in ids], "few", dict, "key")
    assert str(error.value) == f"few, row {place}: its name {name!r} is that of row 0 too; make column 'key' unique"


def test_a_row_that_cannot_be_read_is_named() -> None:
    rows = [{"id": "a", "text": "x"}, {"id": "b", "text": " ", "n": 1}, {"text": 3}]
    for some, said in ((rows, "few, row 1 (b): no text in column 'said' or 'text'; it has id, text, n"),
                       (rows[2:], "few, row 0: no text in column 'said' or 'text'; it has text"),
                       ([{}], "few, row 0: no text in column 'said' or 'text'; it has none")):  # fmt: skip
        with pytest.raises(ValueError) as error:
            data.problems(some, "few", lambda row: {"text": data.text(row, "said", "text")})
        assert str(error.value) == said


@pytest.mark.parametrize("task", [Gsm8k, Tldr])
def test_two_rows_of_one_id_are_no_two_problems(task: Any, put: Put) -> None:
    row = '{"id": 1, "question": "A", "answer": "#### 2", "prompt": "A"}\n'
    for name in ("gsm8k_train", "tldr_reddit2013"):
        put(name, row * 2)
    with pytest.raises(ValueError, match=r"row 1 \(1\): its name '1' is that of row 0 too; make column 'id' unique$"):
        len(task().train)


def test_hub_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'coevolve\[hub\]' or set COEVOLVE_DATA"):
        data.hub("some/set", "train")


def _hub_that(monkeypatch: pytest.MonkeyPatch, load: Callable[..., object]) -> None:
    fake = ModuleType("datasets")
    fake.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)


def test_hub_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(dataset: str, split: str) -> object:
        raise ConnectionError("Couldn't reach 'some/set' on the Hub\nof all\nand twenty more lines")

    _hub_that(monkeypatch, load)
    with pytest.raises(ValueError) as caught:
        data.hub("some/set", "train")
    assert str(caught.value) == (
        "data set 'some/set', split 'train': Couldn't reach 'some/set' on the Hub of all; "
        "check the name and the network, or set COEVOLVE_DATA"
    )


def test_hub_rows_are_plain_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    _hub_that(monkeypatch, lambda dataset, split: [{"text": f"{dataset} {split}"}])
    assert data.hub("some/set", "train") == [{"text": "some/set train"}]


def test_a_configuration_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    _hub_that(monkeypatch, lambda dataset, config, split: [{"text": f"{dataset} {config} {split}"}])
    monkeypatch.delenv(data.FOLDER, raising=False)
    assert data.rows("few", dataset="some/set", config="main", split="test") == [{"text": "some/set main test"}]


def test_hub_split_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    _hub_that(monkeypatch, lambda dataset, split: [])
    with pytest.raises(ValueError, match=r"'some/set', split 'dev' holds no rows"):
        data.hub("some/set", "dev")


def test_later_is_made_at_the_first_use_and_once() -> None:
    made = []
    later = data.Later(lambda: made.append("once") or ["a", "b"])
    assert made == []
    assert (len(later), later[1], later[:1], list(later), "b" in later) == (2, "b", ["a"], ["a", "b"], True)
    assert made == ["once"]


def test_what_cannot_be_made_says_so_again() -> None:
    later = data.Later(lambda: data.jsonl(Path("nowhere.jsonl")))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"nowhere\.jsonl cannot be read \(No such file or directory\); check"):
            len(later)


def test_a_trainer_names_the_task_whose_data_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, micro_model: str
) -> None:
    monkeypatch.setenv(data.FOLDER, str(tmp_path))
    with pytest.raises(ValueError, match=r"^task: data 'gsm8k_train': .* does not exist; put it there"):
        Trainer(
            task=Gsm8k(), play=chain(), cast=fixed({"solver": "ann"}), policies={"ann": micro_model}, algorithm=cory()
        )
