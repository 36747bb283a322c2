"""The addresses of the page: what is asked wrongly is refused, with a remedy."""

import io
import math

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from helpers.served import model
from safeset.serving.app import create_app
from safeset.serving.service import Service

GOOD = {"numbers": [0.5] * 64, "epsilon": 0.3}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"numbers": [0.5] * 63}, "Expected 64 finite numbers, but got 63"),
        ({"changed": [0.5] * 65}, "Expected 64 finite numbers, but got 65"),
        ({"epsilon": -1}, "greater than or equal to 0"),
        ({"epsilon": 1e300}, "less than or equal to"),
        ({"numbers": [1e300] * 64}, "less than or equal to"),
        ({"prefer": "best"}, "'smallest' or 'largest'"),
        ({"alpha": 1}, "less than 1"),
        ({"norm": 0.1}, "Extra inputs are not permitted"),
        ({"epsilon": "0.1"}, "valid number"),
        ({"epsilon": True}, "valid number"),
        ({"epsilon": math.inf}, "less than or equal to"),  # JSON of Python, not of the standard
        ({"epsilon": math.nan}, "Input should be"),
        ({"numbers": [math.nan] * 64}, "Input should be"),
    ],
)
def test_what_is_asked_wrongly_is_refused(ask, change, words):
    status, said = ask("page/answer", {**GOOD, **change})
    assert status == 422
    assert words in str(said["detail"])


def test_many_mistakes_are_one_message(ask):
    status, said = ask("page/answer", {**GOOD, "numbers": ["one"] * 1000})
    assert (status, len(said["detail"])) == (422, 1)
    assert "one" not in str(said)  # what was sent is not sent back


def test_a_server_that_stops_says_so_to_its_page():
    service = Service(model())
    served = TestClient(create_app(service))  # not entered: it closes nothing by itself
    service.close()
    answer = served.post("/page/answer", json=GOOD)
    assert (answer.status_code, answer.json()["detail"]) == (503, "The server is stopping: nothing more is taken.")


def test_the_digest_of_the_weights_is_that_of_proofs(ask):
    assert ask("page/about")[1]["weights"] == model().weights


@pytest.mark.filterwarnings("ignore:.*far outside:safeset.UnitsWarning")
def test_numbers_at_the_limits_are_answered(ask):
    for body in ({**GOOD, "numbers": [1e100] * 64, "changed": [-1e100] * 64}, {**GOOD, "epsilon": 1e100}):
        status, said = ask("page/answer", body)
        assert status == 200
        assert said["change"]["kind"] != "false"
        assert not (said["certified"] and body["epsilon"] > 1)
    assert ask("page/attack", {**GOOD, "epsilon": 0})[0] == 200


def test_an_image_file_becomes_numbers(ask, digits):
    file = io.BytesIO()
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    Image.fromarray(pixels[:8, :8]).save(file, "PNG")
    status, said = ask("page/image", file.getvalue())
    assert (status, said["notes"]) == (200, "")
    assert said["numbers"] == [number / 255 for number in pixels[:8, :8].flatten().tolist()]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    assert "resized from 16 × 16 to 8 × 8 pixels" in ask("page/image", file.getvalue())[1]["notes"]


def test_what_is_no_image_or_too_large_is_refused(ask):
    status, said = ask("page/image", b"not an image")
    assert status == 422
    assert "Expected an image that can be read" in said["detail"]
    file = io.BytesIO()
    Image.new("L", (40, 40)).save(file, "PNG")
    status, said = ask("page/image", file.getvalue())
    assert status == 422
    assert "40 × 40 pixels, more than 1,000" in said["detail"]
    assert ask("page/image", bytes(100_001))[0] == 413


def test_samples_are_of_every_class(ask, digits):
    status, said = ask("page/samples")
    assert status == 200
    assert said["why"] == ""
    assert {sample["label"] for sample in said["samples"]} == set(map(str, range(10)))
    assert ask("page/samples/0")[1]["numbers"] == digits.form.numbers_of(digits.samples()[0][0].x)
    assert ask("page/samples/20") == (404, {"detail": "Expected a sample in 0..19, but got 20."})
    assert ask("page/files/router.py")[0] == 404


def test_what_is_known_of_the_network(ask, digits):
    about = ask("page/about")[1]
    assert (about["name"], about["kind"], about["shape"], about["alpha"]) == ("digits", "image", [1, 8, 8], 0.1)
    assert about["units"] == "L2, pixels in [0, 1]"
    promised = digits.net.guarantee.in_words(list(map(str, range(10))))
    assert about["guarantee"] == f"{str(digits.net.guarantee).partition(':')[0]}: {promised}"
