"""The Open Inference Protocol v2, which KServe, Triton and their clients speak."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from fastapi import APIRouter
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import Request
from torch import Tensor

from safeset import __version__
from safeset.data.points import Point, read_numbers
from safeset.errors import SafesetError, expected, nearest
from safeset.serving.metrics import Metrics
from safeset.serving.schemas import MODEL, OPTIONS, REQUEST, RESPONSE, failures, plain_answer
from safeset.serving.service import Answer, Question, Service
from safeset.serving.tensors import as_bytes, as_list, kind_of, read_tensor, split_body
from safeset.serving.waiting import MUCH, Workers, answer_to

INPUT = "input"
OF_PROTOCOL = ("binary_data_output", "priority", "timeout")
HEADER = "Inference-Header-Content-Length"


def inference_router(service: Service, workers: Workers, metrics: Metrics) -> APIRouter:
    """The addresses under /v2."""
    router = APIRouter(tags=["Open Inference Protocol v2"])

    @router.get("/v2", responses=plain_answer("The server."))
    def server() -> dict[str, Any]:
        """What this server is."""
        return {"name": "safeset", "version": __version__, "extensions": ["binary_tensor_data"]}

    @router.get("/v2/health/live", responses=plain_answer("It runs."))
    def live() -> dict[str, Any]:
        """Whether the server runs."""
        return {"live": True}

    @router.get("/v2/health/ready", responses=plain_answer("It answers."))
    def ready() -> dict[str, Any]:
        """Whether the server answers: the network was proved before it began to listen."""
        return {"ready": True}

    @router.get("/v2/models/{model}", responses={200: MODEL, **failures(404)})
    def about(model: str) -> dict[str, Any]:
        """What the model takes and gives."""
        _check_name(model, service)
        return metadata(service)

    @router.get("/v2/models/{model}/ready", responses={**plain_answer("It answers."), **failures(404)})
    def model_ready(model: str) -> dict[str, Any]:
        """Whether the model answers."""
        _check_name(model, service)
        return {"name": service.name, "ready": True}

    @router.post(
        "/v2/models/{model}/infer",
        openapi_extra={"requestBody": REQUEST},
        responses={200: RESPONSE, **failures(400, 404, 408, 413, 415, 429, 503)},
    )
    async def infer(model: str, request: Request) -> Response:
        """Certify a batch: logits, core and optional classes, radii, and what the proof covers."""
        _check_name(model, service)
        if request.headers.get("content-encoding", "identity") != "identity":
            raise HTTPException(415, "Expected a body that is not compressed.")
        body, header = await request.body(), request.headers.get(HEADER)
        asked, x, question = await workers.run(_read, body, header, service, size=len(body))
        answer = await answer_to(request, lambda: service.ask(x, question))
        metrics.count_points(answer.output("certified"))
        size = len(body) + 16 * len(x) * service.net.classes + answer.together.windows.nbytes
        written = MUCH if service.with_proof else size
        return await workers.run(_write, asked, x, question, answer, service, size=written)

    return router


def _check_name(model: str, service: Service) -> None:
    if model != service.name:
        raise HTTPException(404, f"Expected the model {service.name!r}, but got {model[:80]!r}.")


def metadata(service: Service) -> dict[str, Any]:
    """What the protocol calls the metadata of a model; what it has no words for are its parameters."""
    net = service.net
    classes = [-1, net.classes]
    shapes = {"logits": classes, "core": classes, "optional": classes, "certified": [-1], "radius": [-1], "covers": [1]}
    shapes |= {"coverage_set": classes} if service.model.coverage is not None else {}
    shapes |= {"proof": [1]} if service.with_proof else {}
    kinds = {"logits": "FP64", "radius": "FP64", "covers": "BYTES", "proof": "BYTES"}
    about = service.about()
    return {
        "name": service.name,
        "versions": [about["weights"][:12]],
        "platform": "safeset",
        "inputs": [{"name": INPUT, "datatype": "FP64", "shape": [-1, *net.input_shape]}],
        "outputs": [
            {"name": name, "datatype": kinds.get(name, "BOOL"), "shape": shape} for name, shape in shapes.items()
        ],
        "parameters": {
            **{name: about[name] for name in ("weights", "covers", "units")},
            "epsilon": net.epsilon,
            "guarantee": str(net.guarantee),
            "class_names": list(net.class_names or map(str, range(net.classes))),
        },
    }


def _read(body: bytes, header: str | None, service: Service) -> tuple[dict[str, Any], Tensor, Question]:
    """The request, its points and its question."""
    try:
        asked, rest = split_body(body, header)
        inputs, options = asked.get("inputs"), asked.get("parameters") or {}
        if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
            raise expected(f"one input, named {INPUT!r}", f"{len(inputs) if isinstance(inputs, list) else 'none'}")
        if inputs[0].get("name") != INPUT:
            raise expected(f"an input named {INPUT!r}", repr(inputs[0].get("name"))[:80])
        array, rest = read_tensor(inputs[0], rest)
        if len(rest):
            raise expected("no bytes after the tensors", f"{len(rest):,}")
        if not isinstance(options, dict):
            raise expected("an object of parameters", type(options).__name__)
        question = service.question(len(array) if array.ndim else 0, **_options(options))
        outputs_of(asked, service)
        x = torch.from_numpy(read_numbers(array, INPUT, **service.model.reading()))
        return asked, x, question
    except SafesetError as error:
        raise HTTPException(400, str(error)) from None


def _options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The question in the parameters of a request; a name that is mistyped is not left out silently."""
    for name, value in parameters.items():
        if name not in (*OPTIONS, *OF_PROTOCOL):
            raise expected(f"parameters among {', '.join(OPTIONS)}", repr(name)[:80], nearest(name, OPTIONS))
        if name in ("guarantee", "method", "prefer") and not isinstance(value, str):
            raise expected(f"{name!r} as a text", repr(value)[:80])
        if name == "alpha" and (isinstance(value, bool) or not isinstance(value, str | int | float)):
            raise expected("'alpha' as a number or a text", repr(value)[:80])
    return {name: parameters[name] for name in OPTIONS if name in parameters}


def outputs_of(asked: Mapping[str, Any], service: Service) -> dict[str, bool]:
    """The outputs that a request wants, in its order, and whether each goes as bytes."""
    known = [output["name"] for output in metadata(service)["outputs"]]
    plain = asked.get("parameters") or {}
    usual = plain.get("binary_data_output", False) is True
    wanted = asked.get("outputs")
    if wanted is None or wanted == []:
        return {name: usual for name in known if name != "proof"}
    if not isinstance(wanted, list) or not all(isinstance(one, dict) for one in wanted):
        raise expected("a list of outputs", repr(wanted)[:80])
    found = {}
    for one in wanted:
        name, parameters = one.get("name"), one.get("parameters") or {}
        if name not in known:
            remedy = nearest(name, known) or f"There are {', '.join(known)}."
            raise expected("an output of this model", repr(name)[:80], remedy)
        if not isinstance(parameters, dict) or "classification" in parameters:
            raise expected("outputs as they are", f"the parameters {parameters!r}"[:80])
        found[name] = parameters.get("binary_data", usual) is True
    return found


def _write(asked: dict[str, Any], x: Tensor, question: Question, answer: Answer, service: Service) -> Response:
    """The response: JSON, and after it the outputs that were asked for as bytes."""
    parts: list[bytes] = []
    outputs: list[dict[str, Any]] = []
    for name, binary in outputs_of(asked, service).items():
        array = _output(name, x, answer, service)
        one: dict[str, Any] = {"name": name, "datatype": kind_of(array), "shape": list(array.shape)}
        if binary:
            parts.append(as_bytes(array))
            one["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            one["data"] = as_list(array)
        outputs.append(one)
    about = service.about()
    said = {
        "model_name": service.name,
        "model_version": about["weights"][:12],
        **({"id": asked["id"]} if isinstance(asked.get("id"), str) else {}),
        "parameters": {
            **{name: about[name] for name in ("weights", "covers", "units")},
            "epsilon": question.epsilon,
            "guarantee": str(question.guarantee),
            "method": question.method,
            "prefer": question.prefer,
        },
        "outputs": outputs,
    }
    # An id may be half of a letter, which has no bytes in UTF-8 but an escape in JSON.
    start = json.dumps(said, ensure_ascii=False).encode(errors="backslashreplace")
    if not parts:
        return Response(start, media_type="application/json")
    content = b"".join([start, *parts])
    return Response(content, media_type="application/octet-stream", headers={HEADER: str(len(start))})


def _output(name: str, x: Tensor, answer: Answer, service: Service) -> np.ndarray:
    """An output as an array."""
    if name == "covers":
        return np.array([answer.together.covers], dtype=object)
    if name == "proof":
        points = [Point(f"{INPUT}[{place}]", each) for place, each in enumerate(x.cpu().numpy())]
        return np.array([json.dumps(service.model.proof(points, answer.certificate, files=False))], dtype=object)
    if name == "coverage_set":
        names = answer.together.names
        sets = [set(one["classes"]) for one in answer.sets or []]
        return np.array([[each in one for each in names] for one in sets], dtype=bool).reshape(len(x), len(names))
    array: np.ndarray = answer.output(name).cpu().numpy()
    return array
