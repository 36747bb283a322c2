"""Several processes, as torchrun starts them: the same steps, the same metrics, and one that is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.worker_steps import steps
from safeset import SafesetError, train
from safeset.data.embedded import digits
from safeset.runs.run import Run
from safeset.system.workers import Workers

EPOCHS = 40
TRAINING = ["--data", "digits", "--guarantee", "rt3", "--epsilon", "0.3", "--batch", "101", "--epochs", str(EPOCHS)]
TRAINING += ["--hold-out", "0.1"]


def torchrun(*arguments, cwd, restarts=0):
    """Two workers on this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*command, "--max-restarts", str(restarts), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process, code=0):
    output, errors = process.communicate(timeout=120)
    assert (process.returncode == 0) == (code == 0), (output, errors)
    return output, errors


# -- a step -----------------------------------------------------------------------------------------------------------


STEPS = """
import json, sys
sys.path.insert(0, {tests!r})
from helpers.worker_steps import steps, told
from safeset.system.workers import join_workers

with join_workers("cpu") as workers:
    found = {{}}
    for seeds in (1, 2):
        losses, state = steps(workers, seeds)
        found[seeds] = dict(losses=losses, state=[tensor.double().flatten().tolist() for tensor in state.tensors()])
    found["told"] = told(workers)
    open(f"{{sys.argv[1]}}/{{workers.rank}}.json", "w").write(json.dumps(found))
"""


def test_two_workers_take_the_steps_of_one(tmp_path):
    script = tmp_path / "steps.py"
    script.write_text(STEPS.format(tests=str(Path(__file__).parents[1])))
    ended(torchrun(script, tmp_path, cwd=tmp_path))
    one, two = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for seeds in (1, 2):
        losses, state = steps(Workers(), seeds)
        mine = one[str(seeds)]
        assert mine == two[str(seeds)]  # losses, parameters, power vectors and moments: bit for bit
        assert len(losses) == 20
        assert torch.allclose(torch.tensor(mine["losses"]), torch.tensor(losses), rtol=2e-5)
        for got, wanted in zip(mine["state"], state.tensors(), strict=True):
            assert np.allclose(got, wanted.detach().flatten(), rtol=1e-3, atol=1e-4)
    first, second = (found.pop("told") for found in (one, two))
    same = "ArgumentError: Expected the same number on all 2 workers, but got another on worker 1."
    assert first.pop("messages") == [same, "SafesetError: no such thing"]
    assert second.pop("messages") == [same, "ReportedError: no such thing"]
    assert (first.pop("turns"), second.pop("turns")) == (0, 1)
    assert first == second == {"largest": 7, "decided": "by 0", "sum": [2, 1], "everyones": ["0", "1"]}


def test_shares_are_everything_in_order():
    for count in range(1, 6):
        for things in range(12):
            parts = [list(range(things))[Workers(rank, count).share(things)] for rank in range(count)]
            assert list(chain(*parts)) == list(range(things))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_batch_needs_a_point_for_each_worker():
    with pytest.raises(SafesetError, match="a point for each of 60 workers, but got 51"):
        steps(Workers(0, 60))


# -- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A training by two workers that nothing happens to."""
    path = tmp_path_factory.mktemp("workers")
    output, _ = ended(torchrun("-m", "safeset", "train", *TRAINING, "--out", "two", cwd=path))
    assert output.count("The run is two") == 1
    return path


@pytest.mark.slow
def test_a_run_of_two_is_a_run_of_one(undisturbed):
    net = train(
        {
            "data": {"source": "digits"},
            "guarantee": "rt3",
            "epsilon": 0.3,
            "batch": 101,
            "epochs": EPOCHS,
            "hold_out": 0.1,
        },
        out=undisturbed / "one",
        device="cpu",
    )
    one, two = Run(undisturbed / "one"), Run(undisturbed / "two")
    assert one.recipe.read_text() == two.recipe.read_text()
    losses = [[record["loss"] for record in run.records()] for run in (one, two)]
    assert len(losses[0]) == len(losses[1]) == EPOCHS
    assert np.allclose(losses[0][:3], losses[1][:3], rtol=1e-5)  # later, rounding has grown
    assert np.allclose(losses[0], losses[1], rtol=1e-2)
    assert json.loads(two.evaluation.read_text())["points"] == len(digits().test)
    assert set(os.listdir(one.path)) ^ set(os.listdir(two.path)) <= {"last.safetensors"}  # another epoch may be best
    assert {record["on"] for record in two.records()} == {"held-out"}
    assert net.classes == 10


@pytest.mark.slow
def test_evaluation_and_certification_are_shared(undisturbed):
    from safeset.runs.certify_files import certify_files
    from safeset.runs.evaluate import evaluate_run

    run = Run(undisturbed / "two")
    arguments = ["evaluate", "two", "--per-class", "--epsilon", "0.1,0.3", "--out", "shared.json"]
    ended(torchrun("-m", "safeset", *arguments, cwd=undisturbed))
    shared = json.loads((undisturbed / "shared.json").read_text())
    alone, _ = evaluate_run(run, epsilons=[0.1, 0.3], per_class=True, device="cpu")
    assert shared["rows"] == alone["rows"]
    assert sum(part["points"] for part in shared["rows"][0]["classes"].values()) == len(digits().test)

    x = digits().test.x[:150].numpy()
    np.savez(undisturbed / "some.npz", x=x)
    files = [str(undisturbed / name) for name in ("some.npz", "none.png", "some.npz")]
    output, errors = ended(torchrun("-m", "safeset", "certify", "two", *files, "--json", cwd=undisturbed), code=1)
    wanted = list(certify_files(run.path, files, device="cpu", stdin=None))
    assert [json.loads(line) for line in output.splitlines()] == wanted
    assert "1 of the points could not be read" in errors


@pytest.mark.slow
def test_workers_that_are_stopped_or_lost_go_on_where_they_were(undisturbed, tmp_path):
    metrics = tmp_path / "two" / "metrics.jsonl"

    def epochs():
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    def wait_for(count, job):
        deadline = time.monotonic() + 120
        while epochs() < count:
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def kill(job, rank):
        """Kill one of its workers outright."""
        for each in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
            if f"\0RANK={rank}\0" in Path(f"/proc/{each}/environ").read_text() and workers_of(each):
                os.kill(int(each), signal.SIGKILL)
                return
        raise AssertionError("no such worker")

    def workers_of(process):
        return b"safeset" in Path(f"/proc/{process}/cmdline").read_bytes()

    command = ["-m", "safeset", "train", *TRAINING, "--out", "two"]
    stopped = torchrun(*command, cwd=tmp_path, restarts=1)
    wait_for(2, stopped)
    kill(stopped, 0)  # all start again, and go on where they were, without --resume: it is their own run
    wait_for(epochs() + 2, stopped)
    stopped.send_signal(signal.SIGTERM)
    _, errors = ended(stopped, code=1)
    assert errors.count("All is saved; continue with: safeset train --resume --out two") == 1

    before = epochs()
    lost = torchrun(*command, "--resume", cwd=tmp_path)
    wait_for(before + 2, lost)
    kill(lost, 1)
    _, errors = ended(lost, code=1)
    assert "worker 0: Expected an answer from all 2 workers, but got none from one" in errors
    assert Run(tmp_path / "two").checkpoint.exists()

    refused = torchrun(*command, cwd=tmp_path, restarts=1)  # nor does a restart make another's run theirs
    _, errors = ended(refused, code=1)
    assert errors.count("Expected a new directory for the run, but got two") == 2
    output, _ = ended(torchrun(*command, "--resume", cwd=tmp_path))
    assert "The run is two" in output
    kept, wanted = (load_file(Run(path / "two").model) for path in (tmp_path, undisturbed))
    assert all(torch.equal(kept[name], wanted[name]) for name in wanted)
    assert epochs() == EPOCHS
