"""What the OpenAPI description says of requests and answers that are more than one type of content."""

from typing import Any

NUMBER = {"type": "number"}
NAMES = {"type": "array", "items": {"type": "string"}}
OPTIONS: dict[str, Any] = {
    "epsilon": {"type": "number", "minimum": 0, "description": "L2 radius in the units of the input."},
    "guarantee": {"type": "string", "description": 'standard, top3, rt3, or affinity:[["cat", "dog"]].'},
    "method": {"type": "string", "enum": ["uniform", "floating", "joint"]},
    "prefer": {"type": "string", "enum": ["smallest", "largest"]},
    "alpha": {"type": "number", "description": "Calibrated runs: how often the true class may be missing."},
}
TENSOR: dict[str, Any] = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "parameters": {"type": "object"},
        "data": {"type": "array", "items": {}},
    },
}
CERTIFY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["inputs"],
                "additionalProperties": False,
                "properties": {
                    "inputs": {
                        "type": "array",
                        "items": {},
                        "minItems": 1,
                        "description": "A batch: nested lists of numbers as an .npz file has them, images in [0, 1].",
                    },
                    **OPTIONS,
                },
            }
        },
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["files"],
                "properties": {
                    "files": {
                        "type": "array",
                        "items": {"type": "string", "format": "binary"},
                        "minItems": 1,
                        "description": "Images; a CSV file where the network was trained on a table.",
                    },
                    **OPTIONS,
                },
            }
        },
    },
}
REQUEST: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["inputs"],
                "properties": {
                    "id": {"type": "string"},
                    "parameters": {"type": "object", "properties": OPTIONS},
                    "inputs": {"type": "array", "items": TENSOR, "minItems": 1, "maxItems": 1},
                    "outputs": {"type": "array", "items": {"type": "object"}},
                },
            }
        },
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    },
}


def _json(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


POINTS: dict[str, Any] = _json(
    {
        "type": "object",
        "required": ["model", "weights", "covers", "units", "points"],
        "properties": {
            "model": {"type": "string"},
            "weights": {"type": "string", "description": "Digest of the weights that were certified."},
            "covers": {"type": "string", "description": "What the proof is about."},
            "units": {"type": "string", "description": "Of ε and of radii."},
            "points": {
                "type": "array",
                "description": "A record for each point, as `safeset certify` writes it with --json.",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"type": "string"},
                        "problem": {"type": "string", "description": "Why a point was not read; then nothing else."},
                        "certified": {"type": "boolean"},
                        "core": {"type": "array"},
                        "optional": {"type": "array"},
                        "radius": {"type": ["number", "null"], "description": "null: no change can break it."},
                        "core_radius": {"type": ["number", "null"]},
                        "promise": {"type": "string"},
                    },
                },
            },
            "proof": {"type": ["object", "null"], "description": "For `safeset check`, where it is served."},
        },
    },
    "The answers.",
)
MODEL: dict[str, Any] = _json({"type": "object", "required": ["name", "inputs", "outputs"]}, "The model.")
RESPONSE: dict[str, Any] = {
    "description": "The outputs; with binary ones, their bytes follow the JSON.",
    "content": {
        "application/json": {"schema": {"type": "object", "required": ["model_name", "outputs"]}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    },
}
WHY = {
    400: "The request is not of the protocol.",
    404: "No such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "A content type that is not taken.",
    422: "A mistake in what is asked.",
    429: "Too much is waiting: try again.",
    503: "The server is stopping.",
}


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The answers that say why there is none."""
    return {status: _json({"type": "object"}, WHY[status]) for status in statuses}


def plain_answer(description: str) -> dict[int | str, dict[str, Any]]:
    """A small object."""
    return {200: _json({"type": "object"}, description)}
