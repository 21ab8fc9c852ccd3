"""Text of models, tasks and recipes stays text in every report, whatever it looks like."""

import json
from html.parser import HTMLParser

from coevolve.report.page.build import write_page
from coevolve.report.paper import write_paper
from coevolve.report.runs import find

EVIL = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "-->",
    "]]>",
    "<!--blobs-->",
    "/*scripts*/",
    "/*css*/</style>",
    '"><svg onload=alert(1)>',
    "\u2028</SCRIPT\t>",
]


class Tags(HTMLParser):
    """Every tag with its attributes, without what is between them."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, [a for a in attrs if tag != "script" or a[0] != "id"]))  # ids are of what is in them

    def handle_endtag(self, tag):
        self.found.append(tag)

    def handle_comment(self, data):
        self.found.append(("comment", data))


def run_of(folder, text):
    """A run of one step in which everything that can be said is this."""
    folder.mkdir()
    turn = {"role": text, "policy": text, "round": 0, "text": text, "reward": 1.0, "tokens": 1, "finished": False,
            "heard": [text], "pieces": [text], "logps": [-1.0]}  # fmt: skip
    record = {"step": 0, "problem": text, "member": 0, "data": {text: text}, "turns": [turn], "parts": {text: 1.0},
              "joints": [{"turns": [0], "rewards": [1.0], "after": None}]}  # fmt: skip
    line = {"step": 0, "cast": {text: text}, "turns": 1, "reward": 1.0, f"agents/{text.replace('/', '')}/reward": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    for name in ("episodes", "samples"):
        (folder / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
    (folder / "recipe.yaml").write_text(json.dumps({"task": {"name": text}, "note": text}))
    (folder / "environment.json").write_text(json.dumps({"step": 0, text: text}))
    return folder


def test_the_page(tmp_path):
    def tags(number, text):
        page = write_page(find([run_of(tmp_path / f"run-{number}", text)]), tmp_path / f"{number}.html").read_text()
        parser = Tags()
        parser.feed(page)
        parser.close()
        return parser.found

    honest = tags("honest", "hello")
    for number, text in enumerate(EVIL):
        assert tags(number, text) == honest, text


def test_the_paper(tmp_path):
    for number, text in enumerate(EVIL):
        written = write_paper(find([run_of(tmp_path / f"run-{number}", text)]), tmp_path / f"{number}.md")[
            0
        ].read_text()
        assert "<" not in written.replace("\\<", ""), text
