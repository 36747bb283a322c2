"""The house: which room may know of which, how long a file may be, and how many stand outside the rooms."""

import ast
from pathlib import Path

import safeset

SOURCE = Path(safeset.__file__).parent
# Each room may import those above it, and itself. What stands in one line does not know of each other.
ORDER = """
errors
numerics values
inputs
system layers
terminal
guarantees
certificates
lipschitz
program
capture
proofs
nets
models losses margins coverage
data
drawing verification export
recipes
evaluation
runs
training
audit estimator
paper report
serving
cli
"""
RANK = {room: place for place, line in enumerate(ORDER.split("\n")) for room in line.split()}
LONG = {"proofs/check.py"}  # one file on purpose: a sceptic reads it alone


def room_of(module):
    """``safeset.data.npz`` is in the room ``data``."""
    return module.split(".")[1]


def imports(path):
    """The modules of safeset that a file imports anywhere, in functions and for types too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("safeset."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "safeset":
            if node.module != "safeset":
                yield node.module
            else:
                yield from (f"safeset.{alias.name}" for alias in node.names if not alias.name.startswith("__"))


def test_imports_point_one_way():
    wrong = []
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).with_suffix("").parts[0]
        if own in ("__init__", "__main__"):
            continue
        for module in imports(path):
            other = room_of(module)
            if other != own and RANK[other] >= RANK[own]:
                wrong.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_every_module_has_a_room():
    assert {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()} == {
        "__init__",
        "__main__",
        *RANK,
    }
    assert len(list(SOURCE.glob("*.py"))) <= 14


def test_files_are_short():
    long = {
        str(path.relative_to(SOURCE)): lines
        for path in SOURCE.rglob("*.py")
        if (lines := path.read_text().count("\n")) > 340
    }
    assert set(long) <= LONG, long
