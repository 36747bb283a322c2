"""Results as JSON files: what the network of a row and a seed was found to do, as it is published."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safeset.errors import ArgumentError, SafesetError, expected
from safeset.guarantees.guarantee import parse
from safeset.paper.predictions import RATES, WAYS, Answers
from safeset.recipes.recipe import OWN_GROUPS, Recipe, absolute
from safeset.recipes.toml import different_keys, flag_text
from safeset.runs.run import Run
from safeset.system.files import plain
from safeset.system.untrusted import parse_json, read_text

RESULTS = Path("results/paper")
OPEN = ("data", "guarantee", "seed", "seeds", "task")  # what a row's recipe leaves to its data and to each seed
ANEW = "Remove it, and they are made anew."
FITTED = ("epsilon", "model", "epochs", "batch", "hold_out")  # the data decides them where a recipe does not
KINDS = {"changes": (dict,), "weights": (str, dict)}  # of results a digest, of analyses one for each row
KEYS = ("row", "seed", "epsilon", "weights", "split", *(f"{way}.{rate}" for way in WAYS for rate in RATES))


def file_of(out: Path, row: str, seed: int) -> Path:
    """Where the results of a row and a seed are, or the analyses of a data set and a seed."""
    return out / f"{row}-seed{seed}.json"


def result_of(out: Path, row: str, seed: int, recipe: Recipe, changes: Mapping[str, Any]) -> dict[str, Any] | None:
    """The results of a row and a seed, if they are there; all that can be wrong with them is named.

    Args:
        out: where they are.
        row: its name.
        seed: its number.
        recipe: of the row, with the changes: theirs must be the same, but for what data and seed decide.
        changes: of the recipe that ships.
    """
    path = file_of(out, row, seed)
    if not path.exists():
        return None
    found = stored(path, KEYS)
    check_result(found, path, row, seed, recipe, changes)
    return found


def check_result(
    found: Mapping[str, Any], path: Path, row: str, seed: int, recipe: Recipe, changes: Mapping[str, Any]
) -> None:
    """Complain about results that are not those of a row, a seed and a recipe, or that contradict themselves."""
    if (found["row"], found["seed"]) != (row, seed) or type(found["seed"]) is not int:
        got = f"those of {found['row']}, seed {found['seed']!r}"
        raise expected(f"results of {row}, seed {seed}, at {path}", got, ANEW)
    if found.get("changes", {}) != changes:
        got = f"those with {flags(found.get('changes', {})) or 'no --set'}"
        remedy = "Choose another --out, and other --runs."
        raise expected(f"results of the recipe with {flags(changes) or 'no --set'} in {path}", got, remedy)
    before, now = found.get("recipe"), recipe.json_table()
    if not isinstance(before, dict):
        raise expected(f"results with their recipe at {path}", repr(before), ANEW)
    for key in different_keys(before, now):
        if key not in OPEN and (key in now or key not in FITTED):
            own, got = (f"`{key}` {table.get(key, 'of the default')}" for table in (now, before))
            remedy = "Remove it, and they are made anew; or choose another --out."
            raise expected(f"results of the recipe with {own} in {path}", f"those with {got}", remedy)
    own_data, got_data = ({**table.get("data", {}), "ranges": None} for table in (now, before))
    own_data["source"] = absolute(recipe.data.source)
    if own_data != got_data:
        raise expected(f"results on the data {_brief(own_data)} in {path}", f"those on {_brief(got_data)}", ANEW)
    try:
        fitted = Recipe.from_table(before)
        names = fitted.task.class_names if fitted.task else ()
        guarantees = [parse(text or "").bind(names) for text in (fitted.guarantee, found.get("guarantee"))]
    except (SafesetError, TypeError) as error:
        raise expected(f"results with a recipe and a guarantee at {path}", f"this: {error}", ANEW) from None
    for key, value in (("epsilon", fitted.epsilon), ("split", fitted.split)):
        if found[key] != value:
            raise expected(f"results with the `{key}` of their recipe, {value}, at {path}", repr(found[key]), ANEW)
    if fitted.seed != seed:
        raise expected(f"results of a recipe with seed {seed} at {path}", repr(fitted.seed), ANEW)
    wanted = guarantees[0]  # ``affinity:groups`` and no guarantee are for the data to decide
    if recipe.guarantee not in (None, OWN_GROUPS):
        with suppress(ArgumentError):  # sets may name classes by the data's identifiers, which results do not keep
            wanted = parse(recipe.guarantee or "").bind(names)
    for each in guarantees:
        if each != wanted:
            raise expected(f"results of the guarantee {wanted} in {path}", f"those of {each}", ANEW)


def _brief(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in data.items() if value is not None)


def check_alike(out: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Complain if results of a row are not of several networks on the same points: their mean would say nothing."""
    seen: dict[str, Mapping[str, Any]] = {}
    for each in results:
        if seen.setdefault(each["weights"], each) is not each:
            first, path = (file_of(out, one["row"], one["seed"]) for one in (seen[each["weights"]], each))
            raise expected(f"results of another network than that of {first} in {path}", "the same weights", ANEW)
        if each.get("test") != results[0].get("test"):
            first, path = (file_of(out, one["row"], one["seed"]) for one in (results[0], each))
            remedy = "Remove those of the data that you no longer have, and they are made anew."
            raise expected(f"results on the test points of {first} in {path}", "those on others", remedy)


def stored(path: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """What a JSON file of results holds, with these keys at least; a dotted one is a fraction in a table."""
    remedy = "Remove it, and it is made anew."
    try:
        found = parse_json(read_text(path), str(path))
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
        **answers.about,  # first: it cannot stand for anything below
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
