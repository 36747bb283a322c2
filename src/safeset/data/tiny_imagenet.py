"""Tiny-ImageNet in its official layout: 64 × 64 pixels, 200 classes; the validation set is the test."""

from collections import Counter
from pathlib import Path

from safeset.data.dataset import PIXELS, Dataset, Progress
from safeset.data.images import decode_files, decode_folder
from safeset.data.source import Archive, Source
from safeset.errors import expected

SIZE = 64


def tiny_imagenet(*, progress: Progress | None = None) -> Dataset:
    """The official training set, and the validation set to test on; classes by their first name in WordNet.

    ``identifiers`` are WordNet's, by which a hierarchy of is-a edges names the classes.
    """
    folder = TINY_IMAGENET.folder()
    train, wnids = decode_folder(folder / "train", SIZE, skip_bad=False, progress=progress)
    place = {wnid: label for label, wnid in enumerate(wnids)}
    notes = folder / "val" / "val_annotations.txt"
    files = []
    for line in notes.read_text().splitlines():
        file, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in place:
            raise expected(f"a file and its class in each line of {notes}", repr(line[:60]))
        files.append((folder / "val" / "images" / Path(file).name, place[wnid]))
    missing = next((file for file, _ in files if not file.is_file()), None)
    if missing:
        raise expected(f"the images that {notes} names", f"no {missing}")
    test = decode_files(folder / "val", files, SIZE, skip_bad=False, progress=progress)
    names = _names(folder / "words.txt", wnids)
    return Dataset("tiny-imagenet", train.split, test.split, names, PIXELS, identifiers=wnids)


def _names(path: Path, wnids: tuple[str, ...]) -> tuple[str, ...]:
    """The first word for each class, with its identifier where two classes share it, or have none."""
    words = (
        dict(line.split("\t", 1) for line in path.read_text().splitlines() if "\t" in line) if path.is_file() else {}
    )
    first = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    count = Counter(first)
    return tuple(f"{name} ({wnid})" if count[name] > 1 else name for name, wnid in zip(first, wnids, strict=True))


TINY_IMAGENET = Source(
    "tiny-imagenet",
    "photographs, 64 × 64 pixels, 200 classes",
    tiny_imagenet,
    folders=("tiny-imagenet-200",),
    archive=Archive(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        md5="90528d7ca1a48142e341f4ef8d21d0de",
        size=248_100_043,
        folder="tiny-imagenet-200",
        citation="Le and Yang, Tiny ImageNet Visual Recognition Challenge, 2015",
    ),
)
