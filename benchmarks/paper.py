"""The tables of docs/paper.md, from results/paper and results/analyses/paper."""

import statistics
from itertools import groupby
from typing import Any

from common import markdown
from safeset.certificates.margins import METHODS
from safeset.paper.table import PAPER, plus_minus, share_lines, spread, table_lines

OTHER_POINTS = "acasxu/targeted"  # than the paper's, which are not public: its numbers do not compare


def by_row(records: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """In the order of the paper's table, others after it, seed by seed."""
    order = {row: place for place, row in enumerate(PAPER)}
    return sorted(records, key=lambda each: (order.get(each["row"], len(order)), each["row"], each["seed"]))


def by_data(analyses: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """In the order of the paper's table, seed by seed."""
    order = [row.partition("/")[0] for row in PAPER]
    return sorted(analyses, key=lambda each: (order.index(each["data"]), each["seed"]))


def rows_of(records: tuple[dict[str, Any], ...]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Each row with its seeds."""
    return [(row, list(group)) for row, group in groupby(by_row(records), key=lambda each: str(each["row"]))]


def data_of(analyses: tuple[dict[str, Any], ...]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Each data set with its seeds."""
    return [(data, list(group)) for data, group in groupby(by_data(analyses), key=lambda each: str(each["data"]))]


def sizes_of(row: str, records: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """The results of a row that say how large its answers are; those of one class follow from their definition.

    Results that were published before sizes were counted do not have them. For standard robustness every certified
    answer is one class, whose accuracy is top-1; networks of the other rows were trained again by the same recipe.
    """
    several = [each for each in by_row(records) if each["row"] == row]
    known = [each for each in several if "set_size" in each["uniform"]]
    if known or not row.endswith("/standard"):
        return known
    one = dict.fromkeys(("core_size", "set_size", "smallest_core_size", "smallest_set_size"), 1.0)
    return [
        {
            way: {**each[way], **one, "top1": each[way]["accuracy"], "smallest_share": each[way]["vra"]}
            for way in METHODS
        }
        for each in several
    ]


def mean(several: list[dict[str, Any]], way: str, name: str, digits: int = 2) -> str:
    """The mean of a number over seeds, – where there is none."""
    return f"{statistics.fmean(each[way][name] for each in several):.{digits}f}" if several else "–"


HIGHLIGHTS = ("eurosat/rt3", "cifar100/standard", "cifar100/rt5", "cifar100/superclass", "tiny-imagenet/rt5")


def highlights(*records: dict[str, Any]) -> str:
    """A few rows in the fewest columns: VRA, and how many classes the answers have that are shown."""
    rows = []
    for row, several in rows_of(tuple(each for each in records if "set_size" not in each["uniform"])):
        if row in HIGHLIGHTS:
            ours = [spread([each[way]["vra"] for each in several]) for way in ("uniform", "joint")]
            size = mean(sizes_of(row, records), "joint", "smallest_set_size")
            rows.append([f"`{row}`", plus_minus(*PAPER[row][0]), *ours, size])
    return markdown(["row", "VRA: the paper", "uniform", "joint", "classes in an answer: joint, smallest"], rows)


def overview(*records: dict[str, Any]) -> str:
    """VRA, rejection rate, top-1 accuracy and sizes of answers of each row, beside the paper's VRA."""
    rows = []
    published = tuple(each for each in records if "set_size" not in each["uniform"])
    for row, several in rows_of(published):
        if row not in PAPER:
            continue
        vra, (rejected, _), _ = PAPER[row]
        ours = [spread([each[way]["vra"] for each in several]) for way in ("uniform", "joint")]
        kept = [mean(several, way, "rejection", 3) for way in ("uniform", "joint")]
        sized = sizes_of(row, records)
        sizes = [mean(sized, "uniform", "set_size"), mean(sized, "joint", "set_size")]
        sizes.append(mean(sized, "joint", "smallest_set_size"))
        mark = " ¹" if row == OTHER_POINTS else ""
        cells = [plus_minus(*vra), *ours, f"{rejected:.3f}", *kept, mean(sized, "joint", "top1", 3), *sizes]
        rows.append([f"`{row}`{mark}", str(len(several)), *cells])
    header = [
        "row",
        "seeds",
        "VRA: the paper",
        "uniform",
        "joint",
        "rejected: the paper",
        "uniform",
        "joint",
        "top-1 ²",
    ]
    header += ["classes in an answer ²: uniform", "joint", "joint, smallest"]
    return markdown(header, rows)


def sizes(*records: dict[str, Any]) -> str:
    """How large the answers of each row are, largest and smallest, and what the smallest hold; means over networks."""
    rows = []
    for row in PAPER:
        sized = sizes_of(row, records)
        for way in METHODS if sized else ():
            first = way == METHODS[0]
            cells = [f"`{row}`" if first else "", str(len(sized)) if first else "", way]
            cells += [mean(sized, way, name, 3) for name in ("top1", "accuracy", "vra")]
            cells += [mean(sized, way, name) for name in ("core_size", "set_size")]
            cells += [mean(sized, way, "smallest_share", 3)]
            cells += [mean(sized, way, name) for name in ("smallest_core_size", "smallest_set_size")]
            rows.append(cells)
    header = ["row", "networks", "method", "top-1", "accuracy", "VRA", "largest: core", "answer"]
    return markdown([*header, "smallest: label in core", "core", "answer"], rows)


def goals(*records: dict[str, Any]) -> str:
    """Whether each row's VRA, by the paper's method with proved bounds, is at least the paper's mean less its std."""
    rows = []
    for row, several in rows_of(records):
        if row in PAPER:
            (mean, deviation), *_ = PAPER[row]
            values, goal = [each["uniform"]["vra"] for each in several], mean - (deviation or 0.0)
            ours = statistics.fmean(values)
            said = ("yes" if ours >= goal else "no") if row != OTHER_POINTS else "other points"
            rows.append([f"`{row}`", str(len(values)), f"{goal:.3f}", f"{ours:.4f}", said])
    return markdown(["row", "seeds", "the paper's VRA less its std", "ours, uniform", "reached"], rows)


def classes(*results: dict[str, Any]) -> str:
    """VRA on the points of each class, of networks whose points are mostly of one class."""
    known = [each for each in by_data(results) if each["data"] == "acasxu" and "classes" in each]
    rows: list[list[str]] = []
    for name in known[0]["classes"]["targeted"] if known else ():
        each = [one["classes"]["targeted"][name] for one in known]
        cells = [spread([one[way] for one in each]) for way in METHODS]
        rows.append([name, str(len(known)) if not rows else "", f"{100 * each[0]['share']:.1f} %", *cells])
    return markdown(["advisory", "seeds", "of the test points", *(f"VRA, {way}" for way in METHODS)], rows)


def gains(*records: dict[str, Any]) -> str:
    """What our methods add to the paper's, on the same weights."""
    rows = []
    for row, several in rows_of(records):
        if not any(each["joint"]["rejection"] < each["uniform"]["rejection"] for each in several):
            continue
        cells = []
        for way in METHODS[1:]:
            cells.append(spread([1 - each[way]["rejection"] / each["uniform"]["rejection"] for each in several]))
            cells.append("+" + spread([each[way]["vra"] - each["uniform"]["vra"] for each in several]))
        rows.append([f"`{row}`", str(len(several)), *cells])
    header = ["row", "seeds", "floating certifies, of what uniform rejects", "VRA"]
    return markdown([*header, "joint certifies, of what uniform rejects", "VRA"], rows)


def table(*records: dict[str, Any]) -> str:
    """Every number of the paper's table, and ours by every method."""
    header = ["row", "", "seeds", "the paper", *METHODS, "uniform, by the power method"]
    return markdown(header, table_lines(by_row(tuple(each for each in records if each["row"] in PAPER))))


def analyses(*results: dict[str, Any]) -> str:
    """The shares of the text."""
    return markdown(["data", "share", "seeds", "the paper", *METHODS], share_lines(by_data(results)))


def membership(*results: dict[str, Any]) -> str:
    """Jia et al.'s property, top-k and relaxed top-k robustness: shares of the test points at ε, means over seeds."""
    rows = []
    for data, group in data_of(results):
        every = [each for each in group if each["membership"]]
        several, points_each = [each["membership"] for each in every], every[0]["points"] if every else 0
        for place, k in enumerate(several[0]["k"] if several else ()):
            columns = [[one[name] for one in several] for name in ("label_stays", "all_stay")]
            columns += [[one["relaxed"][way] for one in several] for way in METHODS]
            means = [f"{statistics.fmean(one[place] for one in column):.3f}" for column in columns]
            lost = [one["not_next"][place] for one in several if place < len(one["not_next"])]
            radii = [
                f"{statistics.fmean(one[name][place] for one in several):.3f}"
                for name in ("median_label_stays", "median_all_stay")
            ]
            points = statistics.fmean(lost) * points_each if lost else 0.0
            cells = [*means, f"{statistics.fmean(lost):.3f}, {points:,.0f} points" if lost else "—", *radii]
            rows.append([*([data, str(len(several))] if place == 0 else ["", ""]), str(k), *cells])
    header = ["data", "seeds", "k", "label stays in the top k", "all k stay: top-k robust"]
    header += [*(f"relaxed top-k, {way}" for way in METHODS), "top-k but not top-(k + 1)"]
    return markdown([*header, "median radius of label stays", "of all k stay"], rows)


def acasxu(*records: dict[str, Any]) -> str:
    """Targeted safe regions: both definitions of VRA, for each network; the paper has the same numbers for both."""
    (vra, rejected, accuracy) = (plus_minus(*each) for each in PAPER["acasxu/targeted"])
    rows = [["the paper's, not named", "10", "uniform", vra, vra, rejected, accuracy]]
    for row, several in rows_of(records):
        if not row.startswith("acasxu/"):
            continue
        name = several[0]["recipe"]["data"]["network"]
        for place, way in enumerate(METHODS):
            rates = [
                spread([each[way][rate] for each in several]) for rate in ("vra", "vra_top1", "rejection", "accuracy")
            ]
            start = [name, str(len(several))] if place == 0 else ["", ""]
            rows.append([*start, way, *rates])
    header = ["network", "seeds", "method", "VRA, label in the core", "VRA of the appendix, best class is the label"]
    return markdown([*header, "rejected", "accuracy"], rows)


def times(*results: dict[str, Any]) -> str:
    """The time to certify a point, in batches, after the proof of the network: medians over seeds."""
    rows = []
    for data, several in data_of(results):
        for row in several[0]["seconds_per_point"]:
            each = {way: statistics.median(one["seconds_per_point"][row][way] for one in several) for way in METHODS}
            rows.append([f"`{data}/{row}`", *(f"{1e6 * each[way]:.1f} µs" for way in METHODS)])
    return markdown(["row", *METHODS], rows)


def together(*results: dict[str, Any]) -> str:
    """The pairs of classes that certified sets of the first seed hold most often, by the uniform and joint method."""
    rows = []
    for each in by_data(results):
        for row, ways in each["together"].items() if each["seed"] == 0 else ():
            for way in ("uniform", "joint"):
                pairs = [f"{one} + {two} ({count:,})" for one, two, count in ways[way][:6]]
                rows.append([f"`{each['data']}/{row}`" if way == "uniform" else "", way, ", ".join(pairs)])
    return markdown(["row", "method", "pairs, and in how many sets"], rows)


def short(commit: str) -> str:
    """Seven digits of a commit, and the mark of changed files behind it."""
    return commit[:7] + "+" * commit.endswith("+")


def training(*records: dict[str, Any]) -> str:
    """What each network took to train."""
    rows = []
    for row, several in rows_of(records):
        seconds = statistics.fmean(each["seconds"] for each in several)
        cells = [f"{several[0]['points']:,}", f"{seconds:.0f}", several[0]["device"]]
        commits = ", ".join(dict.fromkeys(short(each["commit"]) for each in several))
        rows.append([f"`{row}`", str(len(several)), *cells, ", ".join(several[0]["bound_method"]), commits])
    header = ["row", "seeds", "test points", "seconds for a network", "device", "bounds proved by", "commits"]
    return markdown(header, rows)


def choices(*results: dict[str, Any]) -> str:
    """What was compared, one network each, and on which points."""
    rows = []
    for result in results:
        for place, each in enumerate(result["choices"]):
            ways = {one["method"]: one for one in each["rows"]}
            cells = [*(f"{ways[way]['vra']:.3f}" for way in METHODS), f"{ways['uniform']['rejection_rate']:.3f}"]
            cells += [f"{ways['uniform']['accuracy']:.3f}", f"{each['training_seconds']:.0f}"]
            changed = each["choice"].replace(",", ", ")
            rows.append(
                [f"`{result['recipe']}`" if place == 0 else "", changed, str(each["epochs"]), each["split"], *cells]
            )
    header = ["row", "changed", "epochs", "evaluated on", *(f"VRA, {way}" for way in METHODS)]
    return markdown([*header, "rejected, uniform", "accuracy", "seconds"], rows)


EVERY, TEXT = "paper/*/*.json", "analyses/paper/*.json"
SIZED = f"{EVERY} sizes/*/*.json"
TABLES = [
    ("README.md", "paper", SIZED, highlights),
    ("docs/paper.md", "overview", SIZED, overview),
    ("docs/paper.md", "table", EVERY, table),
    ("docs/paper.md", "sizes", SIZED, sizes),
    ("docs/paper.md", "goals", EVERY, goals),
    ("docs/paper.md", "gains", EVERY, gains),
    ("docs/paper.md", "classes", TEXT, classes),
    ("docs/paper.md", "analyses", TEXT, analyses),
    ("docs/paper.md", "membership", TEXT, membership),
    ("docs/paper.md", "acasxu", EVERY, acasxu),
    ("docs/paper.md", "times", TEXT, times),
    ("docs/paper.md", "together", TEXT, together),
    ("docs/paper.md", "choices", "analyses/choices/*.json", choices),
    ("docs/paper.md", "training", EVERY, training),
]
