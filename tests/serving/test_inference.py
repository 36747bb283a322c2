"""The Open Inference Protocol v2, as its clients speak it: a real client, a real server, two processes."""

import json

import numpy as np
import pytest
import tritonclient.http as triton
from starlette.testclient import TestClient
from tritonclient.utils import InferenceServerException

from helpers.served import model, run_path, serving
from safeset.data.embedded import digits
from safeset.serving.app import create_app
from safeset.serving.service import Service

X = digits().test.x[:5]
PIXELS = (X.double() / 255).numpy()
OUTPUTS = ("logits", "core", "optional", "certified", "radius")


@pytest.fixture(scope="module")
def server():
    with serving("--proof") as found:
        yield found


@pytest.fixture(scope="module")
def client(server):
    with triton.InferenceServerClient(server.address) as found:
        yield found


def tensor(array, kind, binary=True):
    found = triton.InferInput("input", list(array.shape), kind)
    found.set_data_from_numpy(array, binary_data=binary)
    return found


def test_what_a_client_asks_before_it_begins(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("run")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    found = client.get_model_metadata("run")
    assert found["inputs"] == [{"name": "input", "datatype": "FP64", "shape": [-1, 1, 8, 8]}]
    assert [one["name"] for one in found["outputs"]] == [*OUTPUTS, "covers", "coverage_set", "proof"]
    assert found["parameters"]["weights"] == model().weights
    assert found["parameters"]["units"] == "L2, pixels in [0, 1]"


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("kind", ["FP64", "FP32", "UINT8"])
def test_outputs_are_those_of_python(client, binary, kind):
    array = {"FP64": PIXELS, "FP32": PIXELS.astype(np.float32), "UINT8": X.numpy()}[kind]
    x = PIXELS if kind == "UINT8" else array.astype(np.float64)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in (*OUTPUTS, "coverage_set", "covers")]
    options = {"epsilon": 0.2, "guarantee": "rt2", "method": "floating", "prefer": "largest", "alpha": 0.3}
    found = client.infer("run", [tensor(array, kind, binary)], outputs=outputs, parameters=options, request_id="7")
    measured = model().net.measure(x)
    wanted = measured.certificate(epsilon=0.2, guarantee="rt2", method="floating", prefer="largest")
    assert np.array_equal(found.as_numpy("logits"), measured.logits.numpy())
    for name in ("core", "optional", "certified", "radius"):
        assert np.array_equal(found.as_numpy(name), getattr(wanted, name).numpy()), name
    assert np.array_equal(found.as_numpy("coverage_set"), model().coverage.at(0.3).sets(measured, 0.2).numpy())
    (covers,) = found.as_numpy("covers")
    assert (covers.decode() if binary else covers) == wanted.covers
    response = found.get_response()
    assert response["id"] == "7"
    said = response["parameters"]
    assert (said["epsilon"], said["guarantee"], said["method"]) == (0.2, "rt2", "floating")
    assert said["weights"] == model().weights


def test_without_a_wish_all_outputs_come_as_bytes(client):
    found = client.infer("run", [tensor(PIXELS, "FP64")])
    wanted = model().net.certify(PIXELS)
    assert np.array_equal(found.as_numpy("core"), wanted.core.numpy())
    assert found.get_output("core")["parameters"] == {"binary_data_size": 50}
    assert found.as_numpy("proof") is None  # only where it is asked for


def test_a_proof_that_travels(client):
    outputs = [triton.InferRequestedOutput("proof"), triton.InferRequestedOutput("certified")]
    found = client.infer("run", [tensor(PIXELS, "FP64")], outputs=outputs, parameters={"epsilon": 0.01})
    proof = json.loads(found.as_numpy("proof")[0])
    assert len(proof["certificates"]) == int(found.as_numpy("certified").sum()) > 0
    assert proof["weights"] == model().weights


@pytest.mark.parametrize(
    ("array", "kind", "options", "said"),
    [
        (PIXELS[:, :, :4], "FP64", {}, "shape"),
        (PIXELS * 3, "FP64", {}, r"input\[\d\]: Expected pixels in \[0, 1\]"),
        (PIXELS * np.nan, "FP64", {}, "NaN or infinite"),
        (PIXELS, "FP64", {"epsilom": 1.0}, "Did you mean 'epsilon'"),
        (PIXELS, "FP64", {"epsilon": -1.0}, "finite number ≥ 0"),
        (PIXELS, "FP64", {"guarantee": "affinity:/etc/passwd"}, "written out"),
        (PIXELS[:0], "FP64", {}, "1 to 1,024 points"),
        (PIXELS > 0.5, "BOOL", {}, "datatype"),
    ],
)
def test_mistakes_are_messages(client, array, kind, options, said):
    with pytest.raises(InferenceServerException, match=said):
        client.infer("run", [tensor(np.ascontiguousarray(array), kind)], parameters=options)


def test_another_model_is_not_here(client):
    with pytest.raises(InferenceServerException, match="Expected the model 'run'"):
        client.infer("other", [tensor(PIXELS, "FP64")])


@pytest.mark.parametrize(
    ("asked", "header", "said"),
    [
        (b"{", None, "a request in JSON"),
        (b"[]", None, "a JSON object"),
        (b"{}", "9", "Inference-Header-Content-Length"),
        (b"{}", "-1", "Inference-Header-Content-Length"),
        (b'{"inputs":[{"name":"input","shape":[2],"datatype":"FP64",'
            b'"parameters":{"binary_data_size":9}}]}', None, "16 bytes"),
        (b'{"inputs":[{"name":"input","shape":[-1,64],"datatype":"FP64","data":[]}]}', None, "list of integers"),
        (b'{"inputs":[{"name":"input","shape":[1,2],"datatype":"INT8","data":[1,300]}]}', None, "numbers of INT8"),
        (b'{"inputs":[{"name":"input","shape":[1,2],"datatype":"INT8","data":[1,0.5]}]}', None, "integers in 'input'"),
        (b'{"inputs":[{"name":"input","shape":[1,2],"datatype":"FP32","data":[1]}]}', None, "2 numbers"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}', None, "an input named 'input'"),
        (b'{"inputs":[],"parameters":3}', None, "one input"),
        (b'{"inputs":[{"name":"input","shape":[0,2147483647,2147483647,2147483647],"datatype":"FP64","data":[]}]}',
            None, "memory could hold"),
    ],
)  # fmt: skip
def test_requests_that_no_client_would_send(asked, header, said):
    service = Service(model())
    served = TestClient(create_app(service, page=False))
    headers = {} if header is None else {"Inference-Header-Content-Length": header}
    answer = served.post("/v2/models/run/infer", content=asked, headers=headers)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    service.close()


@pytest.mark.parametrize("binary", [True, False])
def test_an_id_is_sent_back_whatever_it_is(binary):
    service = Service(model())
    served = TestClient(create_app(service, page=False))
    one = {"name": "input", "shape": [1, 1, 8, 8], "datatype": "FP64", "data": PIXELS[0].ravel().tolist()}
    asked = json.dumps({"id": "\ud83d é", "inputs": [one], "parameters": {"binary_data_output": binary}})
    answer = served.post("/v2/models/run/infer", content=asked)
    assert answer.status_code == 200
    length = int(answer.headers.get("Inference-Header-Content-Length", len(answer.content)))
    assert json.loads(answer.content[:length])["id"] == "\ud83d é"
    service.close()


def test_stopping_by_a_signal_is_no_failure():
    with serving("--token", "secret") as server:
        assert f"{run_path().name} is served at http://127.0.0.1:{server.port}/" in server.said
        with triton.InferenceServerClient(server.address) as client:
            shown = {"Authorization": "Bearer secret"}
            with pytest.raises(InferenceServerException, match="Bearer TOKEN"):
                client.get_model_metadata("run")
            assert client.get_model_metadata("run", headers=shown)["name"] == "run"
        code, errors = server.stop()
    assert code == 0, errors
    assert errors.splitlines()[-1] == "Stopped. Of 2 requests 1 answered, 1 refused, 0 left by their clients."
