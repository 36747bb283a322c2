"""EuroSAT, RGB (Helber et al., 2019): 27,000 satellite images of 64 × 64 pixels, 10 classes."""

from safeset.data.dataset import PIXELS, Dataset, Progress
from safeset.data.images import decode_folder
from safeset.data.source import Archive, Source


def eurosat(*, progress: Progress | None = None) -> Dataset:
    """All images, a third of each class to test."""
    images, names = decode_folder(EUROSAT.folder(), None, skip_bad=False, progress=progress)
    return Dataset("eurosat", *images.split.held_out(1 / 3), names, PIXELS)


EUROSAT = Source(
    "eurosat",
    "satellite images, 64 × 64 pixels, 10 classes",
    eurosat,
    folders=("EuroSAT_RGB", "2750"),
    archive=Archive(
        "https://zenodo.org/records/7711810/files/EuroSAT_RGB.zip?download=1",
        md5="f46e308c4d50d4bf32fedad2d3d62f3b",
        size=94_658_721,
        folder="EuroSAT_RGB",
        citation="Helber et al., EuroSAT: A Novel Dataset and Deep Learning Benchmark for Land Use and Land Cover "
        "Classification, 2019",
    ),
)
