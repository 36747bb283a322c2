"""The addresses of the page: its files, and what its script asks."""

from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from safeset.errors import SafesetError
from safeset.serving.page.shown import Shown
from safeset.serving.waiting import Workers, as_answer

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
OWN = "safeset.serving.page"
FILES = {  # by package; colours, type and tables are the report's
    "report.css": ("safeset.report", "page.css"),
    **{name: (OWN, name) for name in ("page.css", "page.js", "fields.js", "picture.js", "show.js")},
}

LARGEST = 1e100  # beyond it, norms could overflow, and JSON has no ∞
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, strict=True)]
Numbers = Annotated[list[Number], Field(fail_fast=True)]  # with a message for each of a million, memory would be full
Epsilon = Annotated[
    float, Field(ge=0, le=LARGEST, strict=True, description="radius of the ball, in units of the input")
]


class Asked(BaseModel):
    """An input, and what is asked of it."""

    model_config = ConfigDict(extra="forbid")

    numbers: Numbers
    epsilon: Epsilon
    prefer: Literal["smallest", "largest"] = "smallest"


class AskedOfBoth(Asked):
    """The same, with a change of the input, and a level of coverage."""

    changed: Numbers | None = None
    alpha: Annotated[float, Field(gt=0, lt=1, strict=True)] | None = None


def page_router(shown: Shown, workers: Workers) -> APIRouter:
    """The page and its addresses, under `/page`; the page itself is at `/`.

    Args:
        shown: what is shown.
        workers: decode images, a few at a time.
    """
    router = APIRouter(tags=["page"])

    @router.get("/", include_in_schema=False)
    def page() -> Response:
        return _file(OWN, "page.html")

    @router.get("/page/files/{name}", include_in_schema=False)
    def file(name: str) -> Response:
        if name not in FILES:
            raise HTTPException(404, "No such file of the page.")
        return _file(*FILES[name])

    @router.get("/page/about")
    def about() -> dict[str, Any]:
        """What network it is, what its inputs are, and where ε and α begin."""
        return shown.about

    @router.get("/page/samples")
    def samples() -> dict[str, Any]:
        """Some test points to begin with, or why there are none."""
        found, why = shown.samples()
        return {"samples": [sample.listed() for sample in found], "why": why}

    @router.get("/page/samples/{place}")
    def sample(place: int) -> dict[str, Any]:
        """The numbers of one of them."""
        found, _ = shown.samples()
        if not 0 <= place < len(found):
            raise HTTPException(404, f"Expected a sample in 0..{len(found) - 1}, but got {place}.")
        return {**found[place].listed(), "numbers": shown.form.numbers_of(found[place].x)}

    @router.post("/page/image")
    async def image(request: Request) -> dict[str, Any]:
        """An image file, the body of the request, as numbers."""
        content = await request.body()  # the server's door has a limit for it
        return await workers.run(shown.image, content)

    @router.post("/page/answer")
    def answer(asked: AskedOfBoth) -> dict[str, Any]:
        """What is certified at an input, and what a change of it does."""
        return _answered(
            lambda: shown.answer(
                asked.numbers, asked.changed, epsilon=asked.epsilon, prefer=asked.prefer, alpha=asked.alpha
            )
        )

    @router.post("/page/attack")
    def attack(asked: Asked) -> dict[str, Any]:
        """Try to break what is promised at an input."""
        return _answered(lambda: shown.attack(asked.numbers, epsilon=asked.epsilon, prefer=asked.prefer))

    return router


def _file(package: str, name: str) -> Response:
    content = files(package).joinpath(name).read_bytes()
    kind = KINDS[name[name.rindex(".") :]]
    return Response(content, media_type=f"{kind}; charset=utf-8", headers={**SAFE, "Cache-Control": "no-cache"})


def _answered(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a piece of work gives; an error becomes an answer with its status and remedy."""
    try:
        return work()
    except SafesetError as error:
        raise as_answer(error) from None
