"""`POST /certify`: images or numbers, a batch at a time; answers as `safeset certify` writes them."""

import json
import warnings
from typing import Any

import numpy as np
import torch
from fastapi import APIRouter
from fastapi.responses import Response
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from safeset.data.points import Point, read_contents
from safeset.errors import ArgumentError, expected, nearest
from safeset.serving.guard import Limits
from safeset.serving.images import check_together, too_many_pixels
from safeset.serving.metrics import Metrics
from safeset.serving.schemas import CERTIFY, OPTIONS, POINTS, failures
from safeset.serving.service import Answer, Question, Service
from safeset.serving.tensors import as_numbers
from safeset.serving.waiting import Workers, answer_to
from safeset.system.untrusted import parse_json

MOST_FIELDS = 32  # of a form, beside its files
LONGEST_NAME = 200
LINES = 4  # of a table for each point: some may be empty, or parts of a text


def certify_router(service: Service, workers: Workers, metrics: Metrics, limits: Limits) -> APIRouter:
    """The address /certify."""
    router = APIRouter(tags=["certify"])

    @router.post(
        "/certify",
        openapi_extra={"requestBody": CERTIFY},
        responses={200: POINTS, **failures(400, 408, 413, 415, 422, 429, 503)},
    )
    async def certify(request: Request) -> Response:
        """Certify images (multipart/form-data) or numbers (application/json)."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            points, question = await workers.run(_from_json, await request.body(), service)
        elif kind == "multipart/form-data":
            async with request.form(max_files=service.most_points, max_fields=MOST_FIELDS) as form:
                contents, options = await _contents(form)
            points, question = await workers.run(_from_files, contents, options, service, limits)
        else:
            raise HTTPException(415, "Expected application/json or multipart/form-data with files.")
        x = [point.x for point in points if point.x is not None]
        answer = None
        if x:
            batch = torch.from_numpy(np.stack(x))
            answer = await answer_to(request, lambda: service.ask(batch, question))
            metrics.count_points(answer.output("certified"))
        return Response(await workers.run(_written, points, answer, service), media_type="application/json")

    return router


def _from_json(body: bytes, service: Service) -> tuple[list[Point], Question]:
    """The points and the question of a JSON object."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise expected("JSON in UTF-8", "other bytes") from None
    asked = parse_json(text, "the request")
    if not isinstance(asked, dict) or "inputs" not in asked:
        raise expected("a JSON object with inputs", type(asked).__name__ if not isinstance(asked, dict) else "none")
    options = {name: value for name, value in asked.items() if name != "inputs" and value is not None}
    for name in ("guarantee", "method", "prefer"):
        if not isinstance(options.get(name, ""), str):
            raise expected(f"{name!r} as a text", repr(options[name])[:80])
    array = as_numbers(asked["inputs"], "`inputs`")
    question = _question(service, len(array), options)
    points = _read([("inputs", array)], service)
    if points[0].name == "inputs":  # not one of them, which are numbered, but all: their shape, for example
        raise ArgumentError(points[0].problem)
    return points, question


async def _contents(form: FormData) -> tuple[list[tuple[str, bytes]], dict[str, Any]]:
    """The files and the other fields of a form."""
    contents: list[tuple[str, bytes]] = []
    options: dict[str, Any] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            contents.append(((value.filename or name)[:LONGEST_NAME], await value.read()))
        elif value:
            options[name] = value
    return contents, options


def _from_files(
    contents: list[tuple[str, bytes]], options: dict[str, Any], service: Service, limits: Limits
) -> tuple[list[Point], Question]:
    """The points of files, and the question of the other fields."""
    if not contents:
        raise expected("one or more files in the field files", "none")
    if "epsilon" in options:
        try:
            options["epsilon"] = float(options["epsilon"])
        except ValueError:
            raise expected("`epsilon` to be a finite number ≥ 0", repr(options["epsilon"])[:80]) from None
    question = _question(service, len(contents), options)
    are_tables = service.model.reading()["ranges"] is not None
    if are_tables:
        _check_lines([content for _, content in contents], service.most_points)
    else:
        check_together((content for _, content in contents), limits.pixels)
    points: list[Point] = []
    for name, content in contents:
        problem = "" if are_tables else too_many_pixels(content, limits.pixels)
        points += [Point(name, None, problem)] if problem else _read([(name, content)], service)
    if len(points) > len(contents):  # rows of tables
        question = _question(service, len(points), options)
    return points, question


def _check_lines(tables: list[bytes], most: int) -> None:
    """Refuse tables that can only have too many rows, before these are read."""
    lines = sum(max(table.count(b"\n"), table.count(b"\r")) for table in tables)
    if lines > LINES * (most + len(tables)):
        raise expected(f"1 to {most:,} points in a request", f"{lines:,} lines", "Send them in parts.")


def _read(contents: list[tuple[str, bytes | np.ndarray]], service: Service) -> list[Point]:
    with warnings.catch_warnings(action="ignore"):  # clients do not see what is printed here
        return list(read_contents(contents, **service.model.reading()))


def _question(service: Service, points: int, options: dict[str, Any]) -> Question:
    for name in options:
        if name not in OPTIONS:
            raise expected(f"fields among {', '.join(OPTIONS)}", repr(name)[:80], nearest(name, OPTIONS))
    return service.question(points, **options)


def _written(points: list[Point], answer: Answer | None, service: Service) -> bytes:
    """The answer: what every answer says of the model, and a record for each point."""
    found = None if answer is None else answer.certificate
    said = service.about() | {"points": service.model.records(points, found, None if answer is None else answer.sets)}
    if service.with_proof:
        said["proof"] = None if found is None else service.model.proof(points, found, files=False)
    return json.dumps(said, ensure_ascii=False).encode(errors="backslashreplace")
