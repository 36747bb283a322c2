"""The door: tokens, names, sizes and times, before anything is decoded."""

import asyncio
import base64

import pytest
from starlette.testclient import TestClient

from helpers.served import model
from safeset.errors import ArgumentError
from safeset.serving.app import create_app
from safeset.serving.guard import Guard, Limits
from safeset.serving.metrics import Metrics
from safeset.serving.service import Service


@pytest.fixture(scope="module")
def service():
    found = Service(model())
    yield found
    found.close()


def client(service, **options):
    return TestClient(create_app(service, page=False, **options))  # not entered: the service stays open


def test_a_token_is_asked_for_except_by_probes(service):
    served = client(service, token="secret")
    basic = {name: base64.b64encode(f"me:{name}".encode()).decode() for name in ("secret", "other")}
    for header, status in {
        "": 401,
        "Bearer other": 401,
        "Bearer secret": 200,
        f"Basic {basic['secret']}": 200,
        f"Basic {basic['other']}": 401,
        "Basic ÿ": 401,
    }.items():
        answer = served.get("/v2", headers={"Authorization": header.encode("latin-1")})
        assert answer.status_code == status, header
    assert served.get("/v2").headers["www-authenticate"].startswith("Basic")
    assert served.get("/metrics").status_code == served.post("/certify").status_code == 401
    assert served.get("/v2/health/ready").json() == {"ready": True}


def test_pages_of_other_sites_cannot_ask_by_another_name(service):
    served = client(service, hosts=frozenset({"localhost", "::1"}))
    for host, status in {"localhost:8000": 200, "[::1]:8000": 200, "evil.example": 421, "": 421}.items():
        assert served.get("/v2", headers={"Host": host}).status_code == status, host


def test_forms_of_other_sites_are_not_answered(service):
    served = client(service, hosts=frozenset({"localhost", "::1"}))
    here = {"Host": "localhost:8000"}
    for more, status in (
        ({}, 415),
        ({"Origin": "http://localhost:8000", "Sec-Fetch-Site": "same-origin"}, 415),
        ({"Origin": "http://[::1]:8000"}, 415),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ):
        assert served.post("/certify", headers=here | more).status_code == status, more
    assert served.get("/v2", headers=here | {"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link to here
    anywhere = client(service)  # behind a proxy it has other names
    assert anywhere.post("/certify", headers={"Origin": "https://proxy.example"}).status_code == 415
    assert anywhere.post("/certify", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


@pytest.mark.parametrize("token", ["", " ", "secret\n", "geheimnisträger"])
def test_a_token_that_none_or_all_could_show_is_refused(service, token):
    with pytest.raises(ArgumentError, match="a token of ASCII characters"):
        client(service, token=token)


def test_large_bodies_are_refused_by_their_header_and_by_their_bytes(service):
    served = client(service, limits=Limits(bytes=1000))
    answer = served.post("/certify", content=b" " * 1001, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "at most 1,000 bytes" in answer.json()["detail"]
    pieces = served.post("/v2/models/run/infer", content=(b" " * 100 for _ in range(11)))  # without a length
    assert pieces.status_code == 413
    assert "at most 1,000 bytes" in pieces.json()["error"]
    assert served.get("/v2", headers={"Content-Length": "1" * 5000}).status_code == 413
    assert served.get("/v2", headers={"Content-Length": "-1"}).status_code == 400


async def through(guard, *messages):
    """The statuses of what is sent, where a client sends these messages and then nothing more."""
    pending, sent = list(messages), []

    async def receive():
        return pending.pop(0) if pending else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    await guard({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)
    return [message["status"] for message in sent if "status" in message]


def part(body, more=True):
    return {"type": "http.request", "body": body, "more_body": more}


async def reached(scope, receive, send):
    assert await receive() == part(b"ab", more=False)
    await send({"type": "http.response.start", "status": 200, "headers": []})


def guard(**limits):
    return Guard(reached, limits=Limits(**limits), metrics=Metrics(), token=None, hosts=None)


def test_bodies_arrive_whole_in_time_or_not_at_all():
    usual = guard()
    assert asyncio.run(through(usual, part(b"a"), part(b"b", more=False))) == [200]
    assert asyncio.run(through(guard(seconds=0.01), part(b"a"))) == [408]
    assert asyncio.run(through(usual, part(b"a"), {"type": "http.disconnect"})) == []
    assert 'safeset_requests_total{route="none",status="499"} 1.0' in usual.metrics.text().decode()
    assert usual.held == 0


def test_all_bodies_together_are_bounded():
    full = guard(bytes=10, together=15)
    full.held = 10
    assert asyncio.run(through(full, part(b"abcdef"))) == [429]
    assert full.held == 10
