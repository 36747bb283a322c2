"""Test images with their certified sets: what relaxing recovers, and which classes go together.

The images are drawn at random from all that qualify; how many those are is said.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from safeset.certificates.certificate import Certificate
from safeset.certificates.promises import shown_epsilon
from safeset.data.dataset import Dataset
from safeset.drawing.images import Block, Name, Sample, paint
from safeset.drawing.sheet import words
from safeset.errors import expected
from safeset.paper.drawing import choices
from safeset.paper.predictions import Answers

COLUMNS, PAIRS = 4, 3  # images in a row, those with one set beneath and those with two


def draw_recovered(
    networks: Mapping[str, Answers], data: Dataset, *, relaxed: str, classes: Sequence[str], seed: int
) -> bytes:
    """Images of some classes that the standard network rejects and a relaxed one certifies, as the paper's figure.

    Two rows of each class by the paper's method, and a row of images of these classes that only `joint` certifies.

    Args:
        networks: ``standard``, and the relaxed one.
        data: whose test images were certified.
        relaxed: the name of the relaxed one.
        classes: names of classes.
        seed: of the draw.
    """
    strict, loose = networks["standard"], networks[relaxed]
    labels, title = same_labels(networks, data), relaxed.upper()

    def sample(method: str, titled: bool) -> Callable[[int], Sample]:
        def of(place: int) -> Sample:
            names = set_names(loose[method], place, int(labels[place]))
            return Sample(data.test.x[place], [names], _label(data, place) if titled else "")

        return of

    blocks = [
        _block(
            f"{words(name)}, rejected by standard, certified by {title} (uniform)",
            choices.is_recovered(strict["uniform"], loose["uniform"])
            & choices.has_label(labels, data.class_names, [name]),
            2 * COLUMNS,
            seed,
            sample("uniform", titled=False),
        )
        for name in classes
    ]
    more = choices.is_recovered(strict["joint"], loose["joint"]) & ~loose["uniform"].certified
    blocks.append(
        _block(
            f"Either, rejected by standard and {title} uniform, certified by {title} joint",
            more & choices.has_label(labels, data.class_names, classes),
            COLUMNS,
            seed,
            sample("joint", titled=True),
        )
    )
    caption = f"Beneath each image its certified set; bold: the label; + italic: may join. {_about(loose, data, seed)}"
    return paint(blocks, columns=COLUMNS, caption=caption)


def draw_together(answers: Answers, data: Dataset, *, network: str, seed: int, rows: int = 4) -> bytes:
    """Images that are classified correctly and certified with a set of more than one class, as the paper's figure.

    Args:
        answers: of a relaxed network, by the paper's method.
        data: whose test images were certified.
        network: its name.
        seed: of the draw.
        rows: of images.
    """
    labels, certificate = same_labels({network: answers}, data), answers["uniform"]
    heading = f"Right, and certified by {network.upper()} with more than one class"
    points = choices.has_several_classes(certificate, labels)

    def sample(place: int) -> Sample:
        return Sample(data.test.x[place], [set_names(certificate, place, int(labels[place]))])

    block = _block(heading, points, rows * COLUMNS, seed, sample)
    caption = f"Beneath each image its certified set (uniform); bold: the label. {_about(answers, data, seed)}"
    return paint([block], columns=COLUMNS, caption=caption)


def draw_gathered(
    networks: Mapping[str, Answers], data: Dataset, *, relaxed: str, grouped: str, seed: int, rows: int = 4
) -> bytes:
    """Images whose relaxed set matches no superclass while the network of superclasses certifies: both sets.

    Args:
        networks: a relaxed one, and one whose guarantee has the affinity sets.
        data: whose test images were certified; with superclasses.
        relaxed: the name of the relaxed one.
        grouped: the name of the other.
        seed: of the draw.
        rows: of three images.
    """
    one, other = networks[relaxed]["uniform"], networks[grouped]["uniform"]
    labels = same_labels(networks, data)
    titles = (relaxed.upper(), grouped)

    def sample(place: int) -> Sample:
        sets = [set_names(each, place, int(labels[place]), data.groups) for each in (one, other)]
        return Sample(data.test.x[place], sets, _label(data, place), titles)

    heading = f"{relaxed.upper()}'s set fits no superclass, {grouped} affinity certifies"
    block = _block(heading, choices.is_gathered(one, other), rows * PAIRS, seed, sample)
    caption = (
        "Beneath each image the certified sets of both networks (uniform); bold: the label; orange: of another "
        f"superclass than the label. {_about(networks[relaxed], data, seed)}"
    )
    return paint([block], columns=PAIRS, caption=caption)


def set_names(certificate: Certificate, place: int, label: int, groups: Sequence[str] | None = None) -> list[Name]:
    """The certified set at a point, best class first: the core, then what may join.

    Args:
        certificate: of several points.
        place: which point.
        label: its class.
        groups: the superclass of each class: those of another one than the label's are marked.
    """
    names = certificate.names
    core, optional = certificate.core[place], certificate.optional[place]
    return [
        Name(
            words(names[index]),
            bold=index == label,
            optional=bool(optional[index]),
            strange=groups is not None and groups[index] != groups[label],
        )
        for index in certificate.ranking[place].tolist()
        if core[index] or optional[index]
    ]


def same_labels(networks: Mapping[str, Answers], data: Dataset) -> Tensor:
    """The labels, which must be those of the data and of every network.

    Raises:
        SafesetError: if they are not: the networks were not evaluated at the same points.
    """
    for name, answers in networks.items():
        if not answers.labels.equal(data.test.y):
            remedy = "Train all of them on the same data."
            raise expected(f"answers of {name} at the {len(data.test):,} test points of {data.name}", "others", remedy)
    return data.test.y


def _block(heading: str, points: Tensor, count: int, seed: int, sample: Callable[[int], Sample]) -> Block:
    """So many of the points that qualify, drawn at random, under a heading that says how many those are."""
    chosen = choices.some_of(points, count, seed)
    return Block(f"{heading}: {len(chosen)} of {int(points.sum()):,}", [sample(place) for place in chosen])


def _label(data: Dataset, place: int) -> str:
    return f"label: {words(data.class_names[int(data.test.y[place])])}"


def _about(answers: Answers, data: Dataset, seed: int) -> str:
    epsilon = answers["uniform"].epsilon
    return (
        f"Drawn at random from all test images that qualify (seed {seed}). ε = "
        f"{shown_epsilon(epsilon)} (L2, {data.units}), "
        f"{len(answers):,} test images, proved bounds."
    )
