"""Who imports whom, read from the source: no circle, and no room that another one must not know."""

import ast
from pathlib import Path

import coevolve

ROOT = Path(coevolve.__file__).parent
FORBIDDEN = {"engines": {"learners", "report"}, "learners": {"engines", "report"}, "tasks": {"pretrain"}}
"""folder -> folders that nothing in it imports."""
IN_LOOP = {
    f"coevolve.{part}"
    for part in ("play", "live", "overlap", "rollout", "cast", "collate", "trainer", "measure", "evaluate")
}
FAR = ("server", "started", "routes", "routed", "sharded", "shard", "processes")
"""Modules of engines and learners that are not in this process."""


def graph():
    """module -> modules of ours that it imports, wherever the import stands."""
    trees = {name(file): ast.parse(file.read_text("utf-8")) for file in ROOT.rglob("*.py")}
    return {module: {one for node in ast.walk(tree) for one in named(node, trees)} for module, tree in trees.items()}


def name(file):
    return ".".join(("coevolve", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def named(node, modules):
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & modules.keys()
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        deep = {f"{node.module}.{alias.name}" for alias in node.names}
        return {one if one in modules else node.module for one in deep} & modules.keys()
    return set()


def folder(module):
    return module.split(".")[1] if "." in module else ""


def reached(imports, start):
    seen, todo = set(), [start]
    while todo:
        fresh = imports[todo.pop()] - seen
        seen |= fresh
        todo.extend(fresh)
    return seen


def test_there_is_no_circle():
    imports = graph()
    assert len(imports) > 200
    assert [module for module in imports if module in reached(imports, module)] == []


def test_rooms_know_only_whom_they_may():
    imports = graph()
    wrong = [(a, b) for a in imports for b in imports[a] if folder(b) in FORBIDDEN.get(folder(a), ())]
    loop = [(a, b) for a in sorted(IN_LOOP) for b in imports[a] if folder(b) == "report"]
    assert wrong + loop == []


def test_no_engine_or_learner_is_known_by_name():
    """But to the registries of recipes and to the local ones, with which a trainer begins."""
    imports = graph()
    who = [a for a in imports if folder(a) in ("plays", "algorithms", "tasks", "maths", "rewards") or a in IN_LOOP]
    far = {b for b in imports if folder(b) in ("engines", "learners") and b.rpartition(".")[2] in FAR}
    assert len(far) == len(FAR)
    assert [(a, b) for a in who for b in imports[a] & far] == []


def test_no_room_is_a_house():
    lines = {file: len(file.read_text("utf-8").splitlines()) for file in ROOT.rglob("*.py")}
    rooms = {}
    for file, count in lines.items():
        rooms[folder(name(file))] = rooms.get(folder(name(file)), 0) + count
    assert {room for room, count in rooms.items() if count > 0.2 * sum(lines.values())} == set()
