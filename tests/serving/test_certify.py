"""POST /certify: what the command line answers, over HTTP; mistakes are messages with a status."""

import io
import json
import re
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from helpers.served import model, run_path
from safeset import train
from safeset.data.embedded import digits
from safeset.proofs import check
from safeset.runs.certify_files import certify_files
from safeset.runs.opened import open_model
from safeset.serving.app import create_app
from safeset.serving.guard import Limits
from safeset.serving.service import Service

X = digits().test.x[:6]


def picture(place, size=None):
    image, file = Image.fromarray(X[place, 0].numpy()), io.BytesIO()
    (image.resize(size) if size else image).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def client():
    with TestClient(create_app(Service(model()), limits=Limits(pixels=1000), page=False)) as found:
        yield found


def numbers(count=3):
    return (X[:count].double() / 255).tolist()


def ask(client, status=200, **asked):
    answer = client.post("/certify", json=asked)
    assert answer.status_code == status, answer.text
    return answer.json()


def by_command_line(files, **options):
    return [json.loads(json.dumps(each)) for each in certify_files(run_path(), files, stdin=None, **options)]


def test_numbers_get_the_records_of_the_command_line(client, tmp_path):
    np.savez(tmp_path / "inputs.npz", x=np.array(numbers()))
    options = {"epsilon": 0.2, "guarantee": "rt2", "method": "uniform", "prefer": "largest", "alpha": 0.3}
    for some in ({}, options):
        found = ask(client, inputs=numbers(), **some)
        wanted = by_command_line([str(tmp_path / "inputs.npz")], **some)
        assert [one | {"name": ""} for one in found["points"]] == [one | {"name": ""} for one in wanted]
        assert found["units"] == "L2, pixels in [0, 1]"
        assert "float64 program" in found["covers"]
        assert found["weights"] == model().weights


def test_images_get_the_records_of_the_command_line(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contents = {"a.png": picture(0), "b.png": picture(1, (20, 10)), "c.png": b"no image", "d.png": picture(2, (40, 40))}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    files = [("files", (name, content)) for name, content in contents.items()]
    answer = client.post("/certify", files=files, data={"epsilon": "0.1"})
    assert answer.status_code == 200
    found = answer.json()["points"]
    wanted = by_command_line(list(contents), epsilon=0.1)
    assert found[:3] == wanted[:3]
    assert found[1]["resized_from"] == {"width": 20, "height": 10}
    assert found[3] == {"name": "d.png", "problem": "40 × 40 pixels, more than 1,000"}


def test_requests_that_come_together_are_certified_together_and_equal_those_alone(client):
    service = Service(model())
    asked = [(X[place : place + 1 + place % 2].double() / 255, 0.1 * (place % 3)) for place in range(5)]
    work = [(x, service.question(len(x), epsilon=epsilon)) for x, epsilon in asked] + [(asked[0][0], None)]
    with patch.object(service, "observe") as observe:
        *found, measured = service._work(work)
    observe.assert_called_once_with(8)  # one pass of the network for all
    for (x, question), answer in zip(work, found, strict=False):
        alone = model().net.certify(x, epsilon=question.epsilon)
        assert torch.equal(answer.certificate.whole, alone.whole)
        torch.testing.assert_close(answer.certificate.windows, alone.windows, rtol=1e-9, atol=0)
        assert len(answer.sets) == len(x)
    torch.testing.assert_close(measured.certificate().windows, model().net.certify(asked[0][0]).windows)
    service.close()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"inputs": [[1, 2], [3]]}, "lists of numbers, all of one length"),
        ({"inputs": "abc"}, "lists of numbers"),
        ({"inputs": []}, "lists of numbers|1 to 1,024 points"),
        ({"inputs": numbers(1), "epsilon": -1}, "`epsilon` to be a finite number ≥ 0"),
        ({"inputs": numbers(1), "epsilon": "0.1"}, "`epsilon` to be a finite number ≥ 0"),
        ({"inputs": numbers(1), "guarantee": "rt10"}, r"1\.\.9"),
        ({"inputs": numbers(1), "guarantee": 3}, "'guarantee' as a text"),
        ({"inputs": numbers(1), "guarantee": "affinity:/etc/passwd"}, "affinity sets written out"),
        (
            {"inputs": numbers(1), "guarantee": 'affinity:{"hierarchy":{"edges":"/etc/passwd","depth":1}}'},
            "written out",
        ),
        ({"inputs": numbers(1), "method": "joined"}, "Did you mean 'joint'"),
        ({"inputs": numbers(1), "prefer": "best"}, "`prefer` to be one of"),
        ({"inputs": numbers(1), "alpha": 2}, "alpha"),
        ({"inputs": numbers(1), "epsilom": 1}, "Did you mean 'epsilon'"),
        ({"epsilon": 1}, "a JSON object with inputs"),
        ({"inputs": [[1.0, 2.0]]}, r"shape \(n, 1, 8, 8\), but got shape \(1, 2\)"),
        ({"inputs": [[1.0, 2.0], [3.0, 4.0]]}, r"shape \(n, 1, 8, 8\), but got shape \(2, 2\)"),
    ],
)
def test_mistakes_are_messages(client, asked, said):
    assert re.search(said, ask(client, 422, **asked)["detail"])


def test_points_that_cannot_be_read_do_not_stop_the_others(client):
    inputs = np.array(numbers(3))
    inputs[1] = 7.0
    found = ask(client, inputs=inputs.tolist())["points"]
    assert [("problem" in one) for one in found] == [False, True, False]
    assert "pixels in [0, 1]" in found[1]["problem"]


def test_images_are_too_much_together_before_one_is_decoded(client):
    large = picture(0, (30, 30))
    files = [("files", (f"{place}.png", large)) for place in range(5)]  # 4,500 pixels, where one may have 1,000
    with patch("safeset.serving.certifying.read_contents") as read:
        answer = client.post("/certify", files=files)
    read.assert_not_called()
    assert answer.status_code == 422
    assert "at most 4,000 pixels in all images of a request, but got 4,500" in answer.json()["detail"]
    files = [*files[:4], ("files", ("e.png", picture(0, (40, 40))))]  # one that is not decoded does not count
    assert [("problem" in one) for one in client.post("/certify", files=files).json()["points"]] == [False] * 4 + [True]


def test_rows_of_a_table_are_counted_before_they_are_read(tmp_path):
    lines = [f"{place % 2 + place / 1000},{place / 500},{'ab'[place % 2]}" for place in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["x,y,kind", *lines]) + "\n")
    small = {"model": "mlp-2x32", "guarantee": "standard", "epsilon": 0.05, "epochs": 1, "batch": 32}
    train(
        {**small, "data": {"source": str(tmp_path / "table.csv"), "label": "kind"}},
        out=tmp_path / "run",
        progress=False,
    )
    service = Service(open_model(tmp_path / "run", device="cpu"), most_points=10)
    with TestClient(create_app(service, page=False)) as client:

        def post(count):
            return client.post("/certify", files={"files": ("a.csv", "x,y\n" + "0.5,0.05\n" * count)})

        assert len(post(10).json()["points"]) == 10
        assert "1 to 10 points in a request, but got 11" in post(11).json()["detail"]
        with patch("safeset.serving.certifying.read_contents") as read:
            assert "1 to 10 points in a request, but got 101 lines" in post(100).json()["detail"]
        read.assert_not_called()


def test_content_that_is_neither(client):
    assert client.post("/certify", content=b"x", headers={"Content-Type": "text/plain"}).status_code == 415
    assert client.post("/certify", content=b"{", headers={"Content-Type": "application/json"}).status_code == 422
    deep = b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert client.post("/certify", content=deep, headers={"Content-Type": "application/json"}).status_code == 422
    many = [("files", (f"{place}.png", b"")) for place in range(1100)]
    assert client.post("/certify", files=many).status_code == 400
    assert client.post("/certify", data={"epsilon": "one"}, files={"files": picture(0)}).status_code == 422


def test_proofs_travel_and_files_of_the_server_are_not_looked_at(tmp_path):
    here = tmp_path / "here.png"
    here.write_bytes(picture(0))
    with TestClient(create_app(Service(open_model(run_path(), device="cpu", proof=True), proof=True))) as client:
        answer = client.post("/certify", files=[("files", (str(here), picture(0)))], data={"epsilon": "0.01"}).json()
    (one,) = answer["proof"]["certificates"]
    assert one["as in its file"] is False
    assert answer["proof"]["weights"] == answer["weights"]
    (tmp_path / "proof.json").write_text(json.dumps(answer["proof"]))
    assert check.main([str(tmp_path / "proof.json"), str(run_path() / "model.safetensors")]) == 0


def test_metrics_count_requests_and_points(client):
    before = client.get("/metrics").text
    ask(client, inputs=numbers(2), epsilon=0.0)
    ask(client, 422, inputs=numbers(1), epsilon=-1)
    after = client.get("/metrics").text

    def value(text, name):
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    for name, more in (("safeset_points_total", 2), ('safeset_requests_total{route="/certify",status="422"}', 1)):
        assert value(after, name) - value(before, name) == more
    assert f'weights="{model().weights}"' in after


def test_the_documentation_loads_nothing_from_elsewhere(client):
    page = client.get("/docs")
    assert "POST /certify" in page.text
    assert "http://" not in page.text.replace("http://localhost", "")
    assert "https://" not in page.text
    assert "<script" not in page.text
    assert "$ref" not in page.text
    assert "<code>POST /certify</code> for people" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert set(client.get("/openapi.json").json()["paths"]) >= {"/certify", "/v2/models/{model}/infer", "/metrics"}
