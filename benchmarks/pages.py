"""The tables of README and docs, made from the JSON under results/; ``<!-- name -->`` marks where each stands.

python benchmarks/pages.py    # writes them; a test fails if a page differs from its results
"""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import beyond_pages
import coverage_pages
import gpu_pages
import paper
from common import markdown

ROOT = Path(__file__).parents[1]
METHODS = ("uniform", "floating", "joint")


def digits(result: dict[str, Any]) -> str:
    """What the demo says."""
    return f"```text\n$ make demo\n{result['said']}\n```"


def tightness(result: dict[str, Any]) -> str:
    """Share of the truly robust points that are certified, and mean certified radius over the true one."""
    header = ["guarantee", *METHODS, *(f"radius, {method}" for method in METHODS), "false certificates"]
    rows = [
        [
            name,
            *(f"{100 * row['share'][method]:.1f} %" for method in METHODS),
            *(f"{row['radius'][method]:.3f}" for method in METHODS),
            str(sum(row["false"].values())),
        ]
        for name, row in result["rows"].items()
    ]
    return markdown(header, rows)


def heads(result: dict[str, Any]) -> str:
    """Every head: time and memory of a step, ours and gloro's."""
    others = {(row["classes"], row["head"]): row for row in result["heads"] if row["library"] == "gloro"}
    rows = []
    for row in result["heads"]:
        if row["library"] != "safeset":
            continue
        cells = [f"{row['classes']:,}", row["head"], f"{row['forward_ms']:.2f}", f"{row['both_ms']:.2f}"]
        cells += [
            f"{row['both_mb']:.0f}",
            f"{row['both_ms'] / row['both_plain_ms']:.1f}" if row["head"] != "plain" else "1",
        ]
        other = others.get((row["classes"], row["head"]))
        if other:
            cells += [f"{other['forward_ms']:.1f}", f"{other['both_ms']:.1f}", f"{other['both_mb']:,.0f}"]
            cells.append(f"{other['both_ms'] / row['both_ms']:.1f} ×")
        rows.append(cells if other else [*cells, "—", "—", "—", "—"])
    header = ["classes", "head", "forward, ms", "and backward, ms", "added MB", "× plain"]
    return markdown([*header, "gloro: forward", "and backward", "added MB", "ours faster"], rows)


def summary(result: dict[str, Any]) -> str:
    """The heads of 1,000 classes, forward and backward."""
    found = {(row["library"], row["head"]): row for row in result["heads"] if row["classes"] == 1000}
    rows = []
    for library, head in found:
        if library == "safeset" and head != "plain":
            ours, other = found["safeset", head], found["gloro", head]
            cells = [f"{row['both_ms']:.1f} ms, {row['both_mb']:,.0f} MB" for row in (ours, other)]
            rows.append([f"1,000 classes, {head}", *cells, f"{other['both_ms'] / ours['both_ms']:.0f} ×"])
    return markdown(["forward and backward", "safeset", "gloro", "faster"], rows)


def methods(result: dict[str, Any]) -> str:
    """Microseconds for each point certified."""
    columns = (*METHODS, "floating_matrix")
    rows = [
        [f"{row['classes']:,}", f"rt{row['k']}", *(f"{row[name]:,.0f}" if name in row else "—" for name in columns)]
        for row in result["methods"]
    ]
    return markdown(["classes", "guarantee", *METHODS, "floating, from a matrix"], rows)


def steps(result: dict[str, Any]) -> str:
    """A training step of each kind, ours and gloro's, and its ratio to the plain step of the same library."""
    found = {(row["library"], row["kind"]): row for row in result["steps"]}
    rows = []
    for kind in dict.fromkeys(row["kind"] for row in result["steps"]):
        cells = [kind]
        for library in ("safeset", "gloro"):
            row = found[library, kind]
            cells += [f"{row['cpu_seconds']:.2f}", _ratio(row["cpu_ratio"], row["cpu_interval"])]
        rows.append(cells)
    return markdown(["step", "safeset, CPU s", "× plain", "gloro, CPU s", "× plain"], rows)


def predictions(result: dict[str, Any]) -> str:
    """Predictions for each second, and their share of the plain forward pass in the same dtype."""
    rows = []
    for row in result["predictions"]:
        share, *ends = (1 / value for value in (row["cpu_ratio"], *reversed(row["cpu_interval"])))
        plain = row["kind"] == "plain"
        per_second = f"{result['batch'] / row['cpu_seconds']:,.0f}"
        certified = "plain forward pass" if plain else f"certified, {row['kind']}, {row['method']}"
        told = _ratio(share, ends)
        if plain:
            told = f"{told} of float64" if row["dtype"] == "float32" and row["library"] == "safeset" else "1"
        rows.append([row["library"], certified, row["dtype"], per_second, told])
    return markdown(["library", "prediction", "dtype", "for each CPU second", "× plain"], rows)


def _ratio(value: float, interval: list[float]) -> str:
    return "1" if value == 1 else f"{value:.3f} ({interval[0]:.3f} to {interval[1]:.3f})"


def bounds(cpu: dict[str, Any], cuda: dict[str, Any]) -> str:
    """Every layer of the paper's networks: its norm, and by how much and in what time each method exceeds it."""

    def key(row: dict[str, Any]) -> tuple[str, str]:
        return row["network"], row["layer"]

    def shown(row: dict[str, Any] | None) -> str:
        return f"{max(row['ratio'] - 1, 0):.0e}, {row['seconds']:.2f} s" if row else "—"

    found = {(place, key(row), row["method"]): row for place, run in enumerate((cpu, cuda)) for row in run["layers"]}
    rows = []
    for row in {key(row): row for row in cpu["layers"]}.values():
        tight = "dense" if row["type"] == "Linear" else "exact"
        size = f"{row['weights'][0]} × {row['weights'][1]}"
        if row["type"] == "Conv2d":
            size += f" × {row['weights'][2]}², {row['input'][1]}² pixels"
        cells = [shown(found.get((0, key(row), method))) for method in (tight, "torus")]
        cells.append(shown(found.get((1, key(row), tight))))
        power = f"{row['power_method'] / row['estimate'] - 1:.0e}"
        rows.append([row["network"], row["layer"], size, f"{row['estimate']:.6f}", power, *cells])
    header = ["network", "layer", "weights", "norm", "power method", "proved, CPU", "torus, CPU", "proved, H200"]
    return markdown(header, rows)


def growth(cpu: dict[str, Any], cuda: dict[str, Any]) -> str:
    """Seconds for a 3 × 3 convolution."""
    rows = []
    for one, two in zip(cpu["growth"], cuda["growth"], strict=True):
        loss = f"{two['torus'] / two['exact'] - 1:.1e}"
        cells = [f"{run[name]:.2f}" if name in run else "—" for run in (one, two) for name in SECONDS]
        rows.append([str(one["channels"]), f"{one['size']}²", *cells, loss])
    return markdown(
        ["channels", "pixels", "torus, CPU", "exact, CPU", "torus, H200", "exact, H200", "torus above"], rows
    )


def precisions(result: dict[str, Any], speed: dict[str, Any]) -> str:
    """VRA after training in each arithmetic, and what a step costs."""
    times = {row["precision"]: row for row in speed["precisions"]}
    rows = []
    for row in result["precisions"]:
        rates = [f"{each['vra']:.4f} ± {each['std']['vra']:.4f}" for each in row["rows"]]
        cost = times[row["precision"]]
        rows.append([row["precision"], *rates, f"{cost['1_ms']:.2f}", f"{cost['10_ms']:.2f}"])
    return markdown(["training in", *METHODS, "a step, ms", "of 10 seeds, ms"], rows)


def audits(*results: dict[str, Any]) -> str:
    """Audits of trained networks."""
    rows = []
    for result in results:
        attack, accuracy = result["attack"], result["accuracy"]
        covered = [line["verdict"] for line in result["bounds"]]
        median = result["tightness"]["median"]
        broken = ", ".join(f"{row['broken']} / {row['windows']}" for row in result["control"])
        rows.append(
            [
                f"{result['data']}, {result['guarantee'].partition(':')[0]}, ε = {result['epsilon']:.3g}",
                f"{attack['answers']:,} of {attack['of_answers']:,}",
                f"{attack['windows']:,} of {attack['of_windows']:,}",
                f"{attack['steps']:,}",
                str(len(result["violations"])),
                broken,
                f"{median:.2f}" if median else "—",
                f"{accuracy['vra']:.3f} to {accuracy['under_attack']:.3f}",
                f"{covered.count('proved')} of {len(covered)}",
            ]
        )
    factors = ", ".join(f"{row['factor']:g}" for row in results[0]["control"])
    header = ["run", "answers attacked", "windows attacked", "gradients", "violations", f"control: broken at {factors}"]
    header += ["nearest violation / radius, median", "VRA to accuracy under attack", "bounds proved again"]
    return markdown(header, rows)


def regions(result: dict[str, Any]) -> str:
    """Certified points as a share of the truly robust ones, network by network."""
    rows = []
    for name, network in result["networks"].items():
        total = dict.fromkeys(METHODS, 0)
        robust = false = 0
        for row in network["rows"].values():
            robust, false = robust + row["robust"], false + sum(row["false"].values())
            total = {method: total[method] + row["certified"][method] for method in METHODS}
        shares = [f"{total[method] / robust:.3f}" for method in METHODS]
        rows.append([name, f"{network['points']:,}", f"{robust:,}", *shares, str(false)])
    return markdown(["network", "points", "truly robust", *METHODS, "false"], rows)


SECONDS = ("torus_seconds", "exact_seconds")
AUDITS = ("digits-rt3", "cifar100-rt5", "eurosat-rt3", "tiny-imagenet-rt5", "tiny-imagenet-standard", "acasxu-targeted")


def first_hour(result: dict[str, Any]) -> str:
    """What a person waits for."""
    rows = [[row["what"], f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}"] for row in result["rows"]]
    return markdown(["", "seconds", "CPU seconds"], rows)


def busy(result: dict[str, Any]) -> str:
    """Microseconds for each point, idle and busy, and their ratio."""
    rows = []
    for row in result["rows"]:
        cells = [row["what"]]
        for who in ("safeset", "all threads"):
            idle, taken = row[f"{who}, idle"], row[f"{who}, busy"]
            cells += [f"{idle:,.1f}", f"{taken:,.1f}", f"{taken / idle:.1f} ×"]
        rows.append(cells)
    header = ["µs for each point", "idle", "busy", "busy / idle", "all threads: idle", "busy", "busy / idle"]
    return markdown(header, rows)


def networks(result: dict[str, Any]) -> str:
    """Whole networks, proved by what each wish for convolutions chooses."""
    rows = [
        [row["network"], f"`{row['wish']}`", f"{row['seconds']:.1f}", f"{row['product']:.4g}", row["exact"]]
        for row in result["rows"]
    ]
    return markdown(["network", "convolutions", "seconds", "product of the bounds", "exact"], rows)


def captured(result: dict[str, Any]) -> str:
    """Networks of torchvision: seconds, memory, and how close each layer's bound is."""
    rows = [
        [
            f"{row['network']}, {row['pixels']}² pixels",
            *(f"{row['seconds'][part]:.1f}" for part in ("capture", "copy and tighten", "proof", "certify 64 points")),
            f"{row['peak_gib']:.1f} GiB",
            f"{row['bound_over_least']['median']:.4f}, {row['bound_over_least']['largest']:.4f}",
            f"{row['product_untightened_torus'] / row['product']:.3g} ×",
        ]
        for row in result["rows"]
    ]
    header = ["network", "capture, s", "copy and tighten, s", "proof, s", "64 points, s", "memory, at most"]
    return markdown([*header, "bound / lower bound of a layer: median, largest", "smaller than without both"], rows)


def other_libraries(result: dict[str, Any]) -> str:
    """What is claimed of other libraries' layers, what is proved, and a lower bound."""
    rows = [
        [row["library"], row["layer"], row["claim"], f"{row['proved']:.7f}", f"{row['least']:.7f}"]
        for row in result["rows"]
    ]
    return markdown(["library", "layer", "claimed", "proved", "at least"], rows)


def other_example(result: dict[str, Any]) -> str:
    """What the example with another library's network says."""
    return f"```text\n$ python examples/torchlip_digits.py\n{result['said']}\n```"


def published(result: dict[str, Any], ours: dict[str, Any]) -> str:
    """The ACAS Xu networks as they were published, beside one that was trained for it."""
    rows = []
    for form in ("as published", "rebalanced"):
        for guarantee in ("standard", "affinity"):
            found = [row[form][guarantee] for row in result["rows"]]
            radii = sorted(each["median_radius"] for each in found)
            shares = (sum(each["certified"][str(e)] for each in found) / len(found) for e in result["epsilons"])
            spread = f"{radii[len(radii) // 2]:.1e} ({radii[0]:.1e} to {radii[-1]:.1e})"
            rows.append([f"{len(found)}, {form}", guarantee, *(f"{100 * each:.1f} %" for each in shares), spread])
    share = f"{100 * (1 - ours['joint']['rejection']):.1f} %"
    rows.append(["ours, learnt from 1_1 at ε = 0.01", "affinity", "", "", share, ""])
    return markdown(["networks", "guarantee", *(f"ε = {each:g}" for each in result["epsilons"]), "median radius"], rows)


def trained(*results: dict[str, Any]) -> str:
    """The models that come with safeset: audit and evaluation of each in turn."""
    rows = []
    for path, audit, evaluation in zip(_files(MODELS), results[::2], results[1::2], strict=True):
        own = {row["method"]: row for row in evaluation["rows"] if row["epsilon"] == evaluation["recipe"]["epsilon"]}
        rows.append(
            [
                f"`{path.parent.parent.name}/{path.parent.name}`",
                f"{sum(file.stat().st_size for file in path.parent.iterdir()) / 1e6:.1f} MB",
                f"{evaluation['recipe']['epsilon']:g}",
                *(f"{own[method]['vra']:.3f}" for method in ("uniform", "joint")),
                f"{own['joint']['rejection_rate']:.3f}",
                f"{own['joint']['top1']:.3f}",
                f"{own['joint']['set_size']:.2f}, {own['joint']['smallest_set_size']:.2f}",
                f"{audit['verdict']}, {audit['attack']['answers']:,} answers attacked",
            ]
        )
    header = ["name", "size", "ε", "VRA, uniform", "joint", "rejected, joint", "top-1"]
    return markdown([*header, "classes in an answer: largest, smallest", "audit"], rows)


MODELS = "../models/*/*/evaluation.json"


def serve_throughput(result: dict[str, Any]) -> str:
    """Points a second by HTTP and in Python."""
    header = ["network", "in Python, points/s", "by HTTP", "ratio (of single turns)", "sets", "radii differ by"]
    rows = [
        [
            row["network"],
            f"{row['python']:,}",
            f"{row['http']:,}",
            f"{row['ratio']:.2f} ({row['ratios_of_turns'][0]:.2f}–{row['ratios_of_turns'][1]:.2f})",
            "the same" if row["same_sets"] else "**others**",
            f"{row['largest_difference_of_radii']:.0e}" if row["largest_difference_of_radii"] else "0",
        ]
        for row in result["throughput"]
    ]
    return markdown(header, rows)


def serve_load(result: dict[str, Any]) -> str:
    """What became of requests."""
    counts = ("sent", "answered", "refused", "cut", "left", "lost")
    rows = [
        [
            row["what"],
            *(f"{row[name]:,}" for name in counts),
            *(f"{row[name]:.0f}" if row[name] else "" for name in ("p50_ms", "p99_ms")),
        ]
        for row in result["rows"]
    ]
    return markdown(["clients", *counts, "p50, ms", "p99, ms"], rows)


def affinity_gains(result: dict[str, Any]) -> str:
    """What affinity sets certify between standard and relaxed top-K, and which pairs were proposed."""
    standard, relaxed, *between = result["rows"]
    rows = []
    for row in (standard, *between, relaxed):
        joint = row["joint"]
        rows.append(
            [
                row["name"].replace("-", " + "),
                *(str(row.get(key, "")) for key in ("pairs", "largest")),
                *(f"{row[method]['vra']:.3f}" for method in ("uniform", "joint")),
                "–" if row in (standard, relaxed) else f"{100 * row['recovered']['joint']:.0f} %",
                f"{joint['top1']:.3f}",
                *(f"{joint[f'{which}core_size']:.2f}, {joint[f'{which}set_size']:.2f}" for which in ("", "smallest_")),
            ]
        )
    header = ["sets", "pairs", "largest set", "VRA, uniform", "joint", "of the gain, joint", "top-1"]
    table = markdown([*header, "core, answer: largest", "smallest"], rows)
    proposed = [row for row in between if row.get("pairs", 0) <= result.get("most_pairs", 0) and "together" in row]
    if not proposed:
        return table
    pairs = ", ".join(" + ".join(pair) for pair in proposed[-1]["together"])
    return f"{table}\n\nThe {len(proposed[-1]['together'])} proposed: {pairs}."


TABLES: list[tuple[str, str, str, Callable[..., str]]] = [
    ("docs/performance.md", "first-hour", "benchmarks/first_hour.json", first_hour),
    ("docs/performance.md", "busy", "benchmarks/busy.json", busy),
    ("docs/performance.md", "networks", "benchmarks/networks-cuda.json", networks),
    ("docs/performance.md", "captured", "benchmarks/captured.json", captured),
    ("docs/index.md", "digits", "analyses/digits.json", digits),
    ("README.md", "summary", "benchmarks/head.json", summary),
    ("docs/mathematics.md", "tightness", "analyses/tightness.json", tightness),
    ("docs/performance.md", "heads", "benchmarks/head.json", heads),
    ("docs/performance.md", "methods", "benchmarks/head.json", methods),
    ("docs/performance.md", "steps", "benchmarks/step.json", steps),
    ("docs/performance.md", "predictions", "benchmarks/step.json", predictions),
    ("docs/performance.md", "bounds", "benchmarks/bounds-cpu.json benchmarks/bounds-cuda.json", bounds),
    ("docs/performance.md", "precisions", "analyses/precision.json benchmarks/gpu.json", precisions),
    ("docs/reliability.md", "audits", " ".join(f"audits/{name}.json" for name in AUDITS), audits),
    ("docs/reliability.md", "regions", "analyses/regions.json", regions),
    ("docs/performance.md", "growth", "benchmarks/bounds-cpu.json benchmarks/bounds-cuda.json", growth),
    ("docs/other-libraries.md", "other-libraries", "benchmarks/other-libraries.json", other_libraries),
    ("docs/other-libraries.md", "other-example", "benchmarks/other-libraries.json", other_example),
    ("docs/networks.md", "published", "benchmarks/acasxu-published.json paper/acasxu/targeted-seed0.json", published),
    ("docs/affinity.md", "affinity-gains", "affinity/eurosat.json", affinity_gains),
    ("docs/affinity.md", "wordnet-gains", "affinity/tiny-imagenet-small.json", affinity_gains),
    ("docs/models.md", "trained", "../models/*/*/[ae]*.json", trained),
    ("docs/serve.md", "serve-throughput", "benchmarks/serve.json", serve_throughput),
    ("docs/serve.md", "serve-load", "benchmarks/serve.json", serve_load),
    *paper.TABLES,
    *beyond_pages.TABLES,
    *coverage_pages.TABLES,
    *gpu_pages.TABLES,
]


def put(text: str, name: str, table: str) -> str:
    """The text of a page with a table between its markers."""
    before, rest = text.split(f"<!-- {name} -->")
    return f"{before}<!-- {name} -->\n{table}\n<!-- /{name} -->{rest.split(f'<!-- /{name} -->')[1]}"


def pages() -> dict[Path, str]:
    """What the pages should be, tables filled in."""
    texts: dict[Path, str] = {}
    for page, name, result, table in TABLES:
        path = ROOT / page
        numbers = [_read(file) for each in result.split() for file in _files(each)]
        texts[path] = put(texts.get(path, path.read_text()), name, table(*numbers))
    return texts


@cache
def _read(path: Path) -> dict[str, Any]:
    """What a JSON file holds; many tables are made of the same ones."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _files(pattern: str) -> list[Path]:
    """The files that a pattern names; a plain name must be there."""
    return sorted((ROOT / "results").glob(pattern)) if "*" in pattern else [ROOT / "results" / pattern]


if __name__ == "__main__":
    stale = {path: text for path, text in pages().items() if path.read_text() != text}
    if sys.argv[1:] == ["--check"]:
        sys.exit(f"run python benchmarks/pages.py: {', '.join(map(str, stale))} differ from results/" if stale else 0)
    for path, text in stale.items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
