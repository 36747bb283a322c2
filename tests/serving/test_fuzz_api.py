"""Requests that a machine makes up from the API's own description: every answer is one that it describes."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from helpers.served import model
from safeset.serving.app import create_app
from safeset.serving.service import Service

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def described():
    service = Service(model())
    yield schemathesis.openapi.from_asgi("/openapi.json", create_app(service, page=False))
    service.close()


OPERATIONS = [
    ("/certify", "POST"),
    ("/metrics", "GET"),
    ("/v2", "GET"),
    ("/v2/health/live", "GET"),
    ("/v2/health/ready", "GET"),
    ("/v2/models/{model}", "GET"),
    ("/v2/models/{model}/ready", "GET"),
    ("/v2/models/{model}/infer", "POST"),
]


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_answers_are_as_described(described, path, method):
    @given(case=described[path][method].as_strategy())
    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    def answer(case):
        if "{model}" in path and case.path_parameters["model"] != "other":
            case.path_parameters["model"] = "run"
        case.call_and_validate(checks=CHECKS)

    answer()


def test_every_operation_is_among_them(described):
    found = {(one.ok().path, one.ok().method.upper()) for one in described.get_all_operations()}
    assert found == set(OPERATIONS)
