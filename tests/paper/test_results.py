"""The results that are committed: whole, of the recipes that ship, and shown without data or training."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from helpers.commands import safeset
from safeset.errors import ArgumentError
from safeset.paper.reproduce import reproduce
from safeset.paper.results import file_of, result_of
from safeset.paper.rows import recipe_of
from safeset.paper.table import PAPER, seeds_of
from safeset.terminal import console

RESULTS = Path(__file__).parents[2] / "results"
OTHERS = [f"acasxu/targeted-{each}-1" for each in range(2, 6)]


@pytest.mark.parametrize("row", [*PAPER, *OTHERS])
def test_every_row_has_its_seeds_by_the_recipe_that_ships(row):
    for seed in range(seeds_of(row)):
        found = result_of(RESULTS / "paper", row, seed, recipe_of(row, {}), {})
        assert found is not None, seed
        assert found["recipe"]["data"] == recipe_of(row, {}).table()["data"]
        assert (found["split"], found["dtype"]) == ("test", "float64")


def test_no_other_result_is_committed():
    rows = {path.relative_to(RESULTS / "paper").as_posix() for path in (RESULTS / "paper").rglob("*.json")}
    assert rows == {str(file_of(Path(), row, seed)) for row in (*PAPER, *OTHERS) for seed in range(seeds_of(row))}


def test_all_is_shown_without_data(tmp_path):
    shutil.copytree(RESULTS, tmp_path / "results")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    output, errors = safeset("reproduce", cwd=tmp_path, SAFESET_DATA=str(tmp_path / "nowhere"))
    assert errors.count("not trained again") == len(PAPER)
    for row in PAPER:
        (line,) = (line for line in output.splitlines() if line.startswith(f"{row} "))
        assert str(seeds_of(row)) in line.split()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_results_of_a_recipe_that_is_another_now_are_reported(tmp_path):
    place = file_of(tmp_path, "cifar100/rt5", 0)
    place.parent.mkdir()
    whole = json.loads(file_of(RESULTS / "paper", "cifar100/rt5", 0).read_text())
    place.write_text(json.dumps(whole))
    (found,) = reproduce(["cifar100/rt5"], seeds=1, out=tmp_path)
    assert found == whole
    for change, told in (
        ({"epochs": 30}, "`epochs` 200 in .*, but got those with `epochs` 30"),
        ({"precision": "bfloat16"}, "`precision` of the default in .*, but got those with `precision` bfloat16"),
        ({"loss": {"name": "cross-entropy"}}, "`loss` .*trades.* in .*, but got those with `loss` .*cross-entropy"),
    ):
        place.write_text(json.dumps({**whole, "recipe": {**whole["recipe"], **change}}))
        with pytest.raises(ArgumentError, match=f"{told}.*Remove it, and they are made again"):
            reproduce(["cifar100/rt5"], seeds=1, out=tmp_path)
    place.write_text(json.dumps({**whole, "recipe": "lost"}))
    with pytest.raises(ArgumentError, match=r"results with their recipe .* but got 'lost'"):
        reproduce(["cifar100/rt5"], seeds=1, out=tmp_path)
    assert place.exists()


def test_no_number_is_cut_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(console.out, "width", 60)
    header = ["row", "", "paper", "uniform", "floating", "joint", "power method"]
    row = ["eurosat/highway-river-agriculture", "vra", *["0.749 ± 0.003"] * 5]
    console.print_table("", header, [row], texts=2)
    assert capsys.readouterr().out.splitlines() == [
        "eurosat/highway-river-agriculture",
        "  vra   paper: 0.749 ± 0.003   uniform: 0.749 ± 0.003",
        "  floating: 0.749 ± 0.003   joint: 0.749 ± 0.003",
        "  power method: 0.749 ± 0.003",
    ]
    console.print_table("some words " * 10, ["name", "what", "size"], [["a\nb", "some words " * 10, "3"]], texts=2)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert sorted(" ".join(lines).split()) == ["3", "a\\nb", "size:", *["some"] * 20, "what:", *["words"] * 20]
