"""What a server counts, as Prometheus reads it."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as TEXT
from torch import Tensor

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
POINTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The counters of one server: a registry of its own, so that several can live in a process."""

    content_type = TEXT

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self.requests = Counter(
            "safeset_requests",
            "Requests that have ended, by route and status; 499: the client left before the answer.",
            ["route", "status"],
            registry=own,
        )
        self.seconds = Histogram(
            "safeset_request_seconds", "From the first byte of a request to its answer.", registry=own, buckets=SECONDS
        )
        self.points = Counter("safeset_points", "Points that were answered.", ["certified"], registry=own)
        self.batches = Histogram("safeset_batch_points", "Points certified at once.", registry=own, buckets=POINTS)
        self.waiting = Gauge("safeset_waiting_points", "Points that wait for the certifying thread.", registry=own)
        self.running = Gauge("safeset_running_requests", "Requests that are being read or answered.", registry=own)
        self.model = Gauge("safeset_model", "The model that is served.", ["model", "weights", "version"], registry=own)

    def count_points(self, certified: Tensor) -> None:
        """Count points, each by whether it is certified."""
        found = int(certified.sum())
        self.points.labels("true").inc(found)
        self.points.labels("false").inc(len(certified) - found)

    def ended(self) -> dict[int, int]:
        """How many requests have ended, by status."""
        found: dict[int, int] = {}
        for one in self.requests.collect():
            for sample in one.samples:
                if sample.name.endswith("_total"):
                    status = int(sample.labels["status"])
                    found[status] = found.get(status, 0) + int(sample.value)
        return found

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self._registry)
