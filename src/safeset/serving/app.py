"""The application: every address of a server, over one service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import Request

from safeset import __version__
from safeset.serving.certifying import certify_router
from safeset.serving.documentation import documentation_router
from safeset.serving.guard import Guard, Limits, check_token
from safeset.serving.inference import inference_router
from safeset.serving.metrics import Metrics
from safeset.serving.page.router import page_router
from safeset.serving.page.shown import Shown
from safeset.serving.service import Service
from safeset.serving.waiting import Workers

ABOUT = (
    "Certified prediction sets over HTTP: `POST /certify` for people, the Open Inference Protocol v2 for programs. "
    "Every ε and radius is an L2 norm in the units of the network's input."
)


def create_app(
    service: Service,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    hosts: frozenset[str] | None = None,
    page: bool = True,
    samples: bool = True,
) -> FastAPI:
    """An application that answers for a service, which it closes at its end.

    Args:
        service: what is served.
        limits: how much a request may bring.
        token: that requests must show, if there is one.
        hosts: names under which it may be asked for; all if None.
        page: whether there is a page for people at `/`.
        samples: whether the page shows test points of the run's data.

    Raises:
        ArgumentError: for a token that no client could show, or anybody.
    """
    check_token(token)
    limits, metrics, workers = limits or Limits(), Metrics(), Workers()
    service.observe = metrics.batches.observe
    metrics.waiting.set_function(lambda: service.waiting)
    metrics.model.labels(service.name, service.weights, __version__).set(1)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="safeset",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # it loads scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.metrics = metrics
    app.include_router(certify_router(service, workers, metrics, limits))
    app.include_router(inference_router(service, workers, metrics))

    @app.get("/metrics", tags=["operations"], response_class=Response)
    def counted() -> Response:
        """Counters and times, as Prometheus reads them."""
        return Response(metrics.text(), media_type=metrics.content_type)

    app.include_router(documentation_router(app))
    if page:
        app.include_router(page_router(_shown(service, samples, limits.pixels), workers))
    app.add_exception_handler(RequestValidationError, _mistaken)
    app.add_exception_handler(HTTPException, _failed)
    app.add_middleware(Guard, limits=limits, metrics=metrics, token=token, hosts=hosts)
    return app


def _shown(service: Service, samples: bool, pixels: int) -> Shown:
    """What the page shows of a service; its questions go through the same thread as all others."""
    model = service.model
    return Shown(
        model.net,
        name=service.name,
        weights=service.weights,
        recipe=model.recipe,
        coverage=model.coverage,
        measure=service.measure,
        samples=samples,
        most_pixels=pixels,
    )


async def _failed(request: Request, error: Exception) -> Response:
    """A failure in the form of the protocol that was spoken."""
    assert isinstance(error, HTTPException)
    key = "error" if request.url.path.startswith("/v2") else "detail"
    return JSONResponse({key: error.detail}, status_code=error.status_code, headers=error.headers)


async def _mistaken(request: Request, error: Exception) -> Response:
    """What is wrong and where; what was sent is not sent back: it may be ∞, which JSON has not, or endless."""
    assert isinstance(error, RequestValidationError)
    detail = [{name: one[name] for name in ("loc", "msg", "type")} for one in error.errors()]
    return JSONResponse({"detail": detail}, status_code=422)
