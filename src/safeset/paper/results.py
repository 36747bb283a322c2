"""Results as JSON files: the published numbers of the network of a row and a seed."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safeset.errors import ArgumentError, SafesetError, expected
from safeset.guarantees.guarantee import Guarantee
from safeset.guarantees.text import parse
from safeset.paper.predictions import RATES, WAYS, Answers
from safeset.recipes.recipe import OWN_GROUPS, Recipe, absolute
from safeset.recipes.toml import flag_text
from safeset.runs.run import Run
from safeset.system.files import plain
from safeset.system.fingerprint import Fingerprint
from safeset.system.untrusted import read_json

RESULTS = Path("results/paper")
OPEN = ("seeds", "task")  # what a row's recipe leaves to each seed and to the data
FITTED = ("epsilon", "model", "epochs", "batch", "hold_out")  # the data decides them where a recipe does not
AGAIN = "Remove it, and they are made again."
KINDS = {"changes": (dict,), "weights": (str, dict)}  # results have one digest, analyses one for each row
KEYS = ("row", "seed", "epsilon", "weights", "split", *(f"{way}.{rate}" for way in WAYS for rate in RATES))


def file_of(out: Path, row: str, seed: int) -> Path:
    """Where the results of a row and a seed are, or the analyses of a data set and a seed."""
    return out / f"{row}-seed{seed}.json"


def result_of(out: Path, row: str, seed: int, recipe: Recipe, changes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the results of a row and a seed; None if there are none, and an error for anything wrong with them.

    Args:
        out: where they are.
        row: its name.
        seed: its number.
        recipe: of the row, with the changes; that of the results may differ only in what data and seed decide.
        changes: of the recipe that ships.
    """
    path = file_of(out, row, seed)
    if not path.exists():
        return None
    found = read_result(path, KEYS)
    check_result(found, path, row, seed, recipe, changes)
    return found


def check_result(
    found: Mapping[str, Any], path: Path, row: str, seed: int, recipe: Recipe, changes: Mapping[str, Any]
) -> None:
    """Raise an error for results that are not those of a row, a seed and a recipe, or that contradict themselves."""
    if (found["row"], found["seed"]) != (row, seed) or type(found["seed"]) is not int:
        got = f"those of {found['row']}, seed {found['seed']!r}"
        raise expected(f"results of {row}, seed {seed}, at {path}", got, AGAIN)
    if found.get("changes", {}) != changes:
        got = f"those with {flags(found.get('changes', {})) or 'no --set'}"
        remedy = "Choose another --out, and other --runs."
        raise expected(f"results of the recipe with {flags(changes) or 'no --set'} in {path}", got, remedy)
    fitted, guarantee, said = _recipe_of(found, path)
    wanted = _wanted_fingerprint(recipe, seed, fitted, guarantee)
    for key, asked, made in wanted.differences(_stored_fingerprint(recipe, found["recipe"], guarantee)):
        remedy = "Remove it, and they are made again; or choose another --out."
        what = f"results of the recipe with `{key}` {_text(asked)} in {path}"
        raise expected(what, f"those with `{key}` {_text(made)}", remedy)
    of_recipe = Fingerprint({"epsilon": fitted.epsilon, "split": fitted.split, "guarantee": guarantee})
    of_file = Fingerprint({"epsilon": found["epsilon"], "split": found["split"], "guarantee": said})
    for key, value, other in of_recipe.differences(of_file):
        got = str(other) if isinstance(other, Guarantee) else repr(other)
        raise expected(f"results with the `{key}` of their recipe, {value}, at {path}", got, AGAIN)


def _recipe_of(found: Mapping[str, Any], path: Path) -> tuple[Recipe, Guarantee, Guarantee]:
    """The recipe of results, its guarantee, and the guarantee that the file itself names."""
    if not isinstance(found.get("recipe"), dict):
        raise expected(f"results with their recipe at {path}", repr(found.get("recipe")), AGAIN)
    try:
        fitted = Recipe.from_table(found["recipe"])
        names = fitted.task.class_names if fitted.task else ()
        own, said = (parse(text or "").bind(names) for text in (fitted.guarantee, found.get("guarantee")))
    except (SafesetError, TypeError) as error:
        raise expected(f"results with a recipe and a guarantee at {path}", f"this: {error}", AGAIN) from None
    return fitted, own, said


def _wanted_fingerprint(recipe: Recipe, seed: int, fitted: Recipe, guarantee: Guarantee) -> Fingerprint:
    """What a row asks for; the guarantee of the results themselves where the data decides it."""
    table = recipe.json_table()
    table["data"] = {**table.get("data", {}), "source": absolute(recipe.data.source), "ranges": None}
    if recipe.guarantee not in (None, OWN_GROUPS):
        with suppress(ArgumentError):  # sets may name classes by the data's identifiers, which results do not keep
            guarantee = parse(recipe.guarantee or "").bind(fitted.task.class_names if fitted.task else ())
    return Fingerprint(_without_open({**table, "seed": seed, "guarantee": guarantee}))


def _stored_fingerprint(recipe: Recipe, table: Mapping[str, Any], guarantee: Guarantee) -> Fingerprint:
    """What results were made with, as far as a row asks for it."""
    asked, data = recipe.json_table(), table.get("data")
    fitted = [key for key in FITTED if key not in asked]
    own = {key: value for key, value in table.items() if key not in fitted}
    own["data"] = {**data, "ranges": None} if isinstance(data, Mapping) else data
    return Fingerprint(_without_open({**own, "seed": table.get("seed", Recipe.seed), "guarantee": guarantee}))


def _without_open(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in OPEN}


def _text(value: Any) -> str:
    """A value of a recipe in a message."""
    if value is None:
        return "of the default"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items() if each is not None)
    return str(value)


def check_alike(out: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Refuse results of a row that are not of several networks on the same points: their mean would say nothing."""

    def files(*several: Mapping[str, Any]) -> list[Path]:
        return [file_of(out, one["row"], one["seed"]) for one in several]

    seen: dict[str, Mapping[str, Any]] = {}
    for each in results:
        if seen.setdefault(each["weights"], each) is not each:
            first, path = files(seen[each["weights"]], each)
            raise expected(f"results of another network than that of {first} in {path}", "the same weights", AGAIN)
        if Fingerprint.of(results[0]).differences(Fingerprint.of(each), besides=("weights",)):
            first, path = files(results[0], each)
            remedy = "Remove those of the data that you no longer have, and they are made again."
            raise expected(f"results on the test points of {first} in {path}", "those on others", remedy)


def read_result(path: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Read a JSON file of results that has these keys; a dotted one is a fraction in a table."""
    remedy = "Remove it, and it is made again."
    try:
        found = read_json(path)
    except ArgumentError as error:
        raise ArgumentError(f"{error} {remedy}") from None
    lacking = ["all"]
    if isinstance(found, dict):
        lacking = [key for key in keys if not _has(found, key)]
        lacking += [key for key, kind in KINDS.items() if key in found and not isinstance(found[key], kind)]
    if not isinstance(found, dict) or lacking:
        raise expected(f"results at {path}", f"none of {', '.join(lacking)}", remedy)
    return found


def _has(table: Mapping[str, Any], key: str) -> bool:
    head, _, rest = key.partition(".")
    value = table.get(head)
    return head in table and (not rest or (isinstance(value, dict) and is_number(value.get(rest), 0, 1)))


def is_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Whether a value of a JSON file is a finite number in this range."""
    return type(value) in (int, float) and least <= value <= most and abs(value) < math.inf


def record(row: str, run: Run, seconds: float | None, answers: Answers, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one trained network as they are published; ``changes`` are those of its recipe, if any."""
    recipe = run.read_recipe()
    return {
        **answers.about,  # first, so that it cannot replace anything below
        "row": row,
        "seed": recipe.seed,
        "epsilon": answers["uniform"].epsilon,
        **{way: plain(answers.rates(way)) for way in WAYS},
        "prefer": "largest",  # of `vra`, `core_size` and `set_size`
        "points": len(answers),
        "guarantee": str(answers["uniform"].guarantee),
        "seconds": None if seconds is None else round(seconds, 3),
        "recipe": recipe.json_table(),
        **({"changes": dict(changes)} if changes else {}),
        "command": command_of([row], changes),
    }


def command_of(rows: Iterable[str], changes: Mapping[str, Any]) -> str:
    """The command that makes results of rows.

    >>> command_of(["cifar100/rt5"], {"epochs": 5})
    'safeset reproduce cifar100/rt5 --set epochs=5'
    """
    return f"safeset reproduce {' '.join(rows)} {flags(changes)}".strip()


def flags(changes: Mapping[str, Any]) -> str:
    """Changes of a recipe as the command line takes them.

    >>> flags({"validation": True, "optimiser.rate": "1e-3 -> 1e-4"})
    "--set validation=true --set 'optimiser.rate=1e-3 -> 1e-4'"
    """
    return " ".join(f"--set {shlex.quote(f'{key}={flag_text(value)}')}" for key, value in changes.items())
