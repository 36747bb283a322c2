"""Checks that need a CUDA device; plain functions, so that they also run where there is no pytest:

PYTHONPATH=src:tests python tests/helpers/gpu_checks.py
"""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from helpers.heads import heads_in_one_pass
from helpers.power_methods import compare_batched, compare_power_methods
from safeset import (
    Affinity,
    CertifiedNet,
    HeadConstants,
    Recipe,
    RelaxedTopK,
    Standard,
    TopK,
    certify_logits,
    create_model,
    membership_radii,
    target_table,
)
from safeset.certificates.constants import MatrixConstants
from safeset.certificates.margins import METHODS, instrument
from safeset.data.dataset import Split
from safeset.evaluation import Metrics
from safeset.layers import (
    ChannelShift,
    HalfAbs,
    InvertibleDownsampling,
    MinMax,
    Normalize,
    OrthogonalConv1x1,
    PositionBias,
    Residual,
)
from safeset.lipschitz.convolution import Axis, Convolution
from safeset.lipschitz.convolution_proof import exact_bound, torus_bound
from safeset.lipschitz.dense import spectral_bound
from safeset.numerics.integers import Deadline, incidences
from safeset.numerics.splitting import banded, is_proved
from safeset.recipes.sections import Task
from safeset.runs.load import build_net
from safeset.runs.run import Run
from safeset.training.engine import Engine
from safeset.training.gpu import blocks
from safeset.training.state import State
from safeset.training.teacher import Teachers, train_teachers

GUARANTEES = [
    Standard(),
    TopK(3),
    RelaxedTopK(5),
    Affinity([range(start, start + 5) for start in range(0, 50, 5)]),
    Affinity(everyone_with=[3, 7]),
]


def head(classes=50, features=64, batch=300, seed=0):
    make = torch.Generator().manual_seed(seed)
    rows = torch.randn(classes, features, generator=make, dtype=torch.float64)
    logits = torch.randn(batch, features, generator=make, dtype=torch.float64) @ rows.T / 8
    logits[:5, :3] = logits[:5, 3:6]  # ties
    logits[5, 0], logits[6, 1] = float("nan"), float("inf")
    rows[1] = rows[0]
    rows[3] = rows[2] * (1 + 1e-9)
    return logits, rows


def check_certificates_agree_with_the_cpu():
    logits, rows = head()
    matrix = HeadConstants(rows).upper(torch.arange(50))
    labels = torch.randint(50, (300,), generator=torch.Generator().manual_seed(1))
    for guarantee in GUARANTEES:
        for method in METHODS:
            for constants in (HeadConstants(rows, 1.1), matrix):
                if method == "joint" and constants is matrix:
                    continue
                cpu = certify_logits(logits, constants, 0.05, guarantee, method=method)
                gpu = certify_logits(logits.cuda(), constants, 0.05, guarantee, method=method)
                assert gpu.windows.is_cuda
                assert gpu.core.is_cuda
                # Where a radius is huge because normals nearly cancel, last bits are amplified.
                assert torch.allclose(gpu.windows.cpu().clamp(max=1e3), cpu.windows.clamp(max=1e3), rtol=1e-9)
                assert torch.equal((gpu.windows == 0).cpu(), cpu.windows == 0)
                assert torch.equal(gpu.to("cpu").core, cpu.core)
                assert torch.equal(gpu.optional.cpu(), cpu.optional)
                counted = Metrics([0.1]).update(gpu, labels.cuda())
                assert counted.compute() == Metrics([0.1]).update(cpu, labels).compute()
    assert torch.allclose(
        membership_radii(logits.cuda(), rows_of(rows), 3).cpu(), membership_radii(logits, rows_of(rows), 3)
    )
    assert torch.allclose(target_table(logits.cuda(), rows_of(rows)).cpu(), target_table(logits, rows_of(rows)))


def rows_of(rows):
    return HeadConstants(rows, 1.1)


def check_constants_are_upper_bounds():
    for features in (1, 3, 64, 1000):
        _, rows = head(classes=8, features=features)
        for factor in (1.0, 1e-170, 1e170):
            scaled = HeadConstants((rows * factor).cuda())
            upper = scaled.upper(torch.arange(8, device="cuda")).cpu()
            for j, first in enumerate((rows * factor).tolist()):
                for i, second in enumerate((rows * factor).tolist()):
                    exact = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(first, second, strict=True))
                    assert Fraction(upper[j, i].item()) ** 2 >= exact
                    assert Fraction(upper[j, i].item()) ** 2 <= exact * (1 + Fraction(1, 10**11))


def check_losses_never_wait_and_can_be_captured():
    side = torch.cuda.Stream()
    for guarantee in GUARANTEES:
        guarantee.prepare(50, "cuda")
        for method in METHODS[:2]:
            for factored in (True, False):
                with torch.cuda.stream(side):  # autograd remembers the stream of a leaf: all before the capture on one
                    capture(guarantee, method, factored)


def capture(guarantee, method, factored):
    logits, rows = (part.float().nan_to_num(0.0, 0.0, 0.0).cuda().requires_grad_() for part in head())
    scale, epsilon = torch.tensor(1.1, device="cuda", requires_grad=True), torch.tensor(0.05, device="cuda")
    matrix = torch.cdist(rows.detach(), rows.detach()).requires_grad_()
    labels = torch.randint(51, (300,), device="cuda")
    constants = HeadConstants(rows, scale) if factored else MatrixConstants(matrix)
    wanted = (logits, rows, scale) if factored else (logits, matrix)

    def step():
        g = instrument(logits, constants, epsilon, guarantee, method=method)
        loss = torch.nn.functional.cross_entropy(g, labels)
        return (loss, *torch.autograd.grad(loss, wanted))

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        captured = step()
    with torch.no_grad():
        logits.copy_(torch.randn(300, 50, generator=torch.Generator().manual_seed(7)).cuda())
    graph.replay()
    for got, plain in zip(captured, step(), strict=True):
        assert torch.allclose(got, plain, rtol=1e-4, atol=1e-6), (guarantee, method)


def check_kernels_of_blocks_compute_what_torch_does():
    if not blocks.TRITON:
        return
    from safeset.training.gpu import kernels

    make = torch.Generator("cuda").manual_seed(0)
    for batch, channels, height, width, size, flat, dtype in (
        (256, 32, 64, 64, 2, False, torch.float32),
        (256, 64, 32, 32, 2, True, torch.float32),
        (256, 64, 64, 64, 1, False, torch.bfloat16),
        (256, 256, 8, 8, 1, True, torch.bfloat16),
        (7, 6, 12, 8, 4, True, torch.float32),
        (7, 6, 12, 8, 4, False, torch.bfloat16),
        (3, 10, 5, 7, 1, True, torch.bfloat16),
        (1, 2, 2, 2, 2, True, torch.float32),
    ):
        found = torch.randn(batch, height, width, channels, generator=make, device="cuda").to(dtype).permute(0, 3, 1, 2)
        bias, found[:, :, 0, 0] = torch.randn(channels, generator=make, device="cuda"), 0.5
        bias[channels // 2] = bias[0]  # ties
        block, both = blocks.Block(nn.Conv2d(1, 1, 1), size, flat), []
        for passes in (blocks, kernels):
            out, swapped = blocks._room(1, found, block)
            passes.finish(found, bias, out[0], swapped[0], size)
            gradient, of_found = torch.linspace(-1, 1, out.numel(), device="cuda"), torch.empty_like(found)
            gradient = torch.empty_like(out[0]).copy_(gradient.view_as(out[0]))
            of_bias = passes.unfinish(gradient, swapped[0], of_found, size)
            both.append((out, swapped, of_found, of_bias))
        assert all(torch.equal(one, other) for one, other in zip(*(each[:3] for each in both), strict=True))
        assert torch.allclose(both[0][3], both[1][3], rtol=1e-4, atol=1e-3), (both[0][3] - both[1][3]).abs().max()


def check_layers_of_shift_nets_compute_what_torch_does():
    """Both passes by Triton beside torch's, and a whole layer beside float64: forward, and each gradient."""
    if not blocks.TRITON:
        return
    from safeset.training.gpu import shift_kernels, shifts

    make = torch.Generator("cuda").manual_seed(0)
    for batch, height, width, channels, part, even in (
        (256, 8, 8, 1024, 8, True),
        (7, 4, 4, 64, 8, False),
        (33, 5, 3, 72, 16, True),
        (3, 1, 2, 8, 4, False),
    ):
        for dtype in (torch.float32, torch.bfloat16):
            shape = (batch, height, width, channels)
            found, gradient = (torch.randn(shape, generator=make, device="cuda").to(dtype) for _ in range(2))
            bias, both = torch.randn(shape[1:], generator=make, device="cuda"), []
            for passes in (shifts, shift_kernels):
                out, of_found = torch.empty_like(found), torch.empty_like(found)
                passes.finish(found, bias, out, channels // part, even)
                of_bias = passes.unfinish(gradient, found, bias, of_found, channels // part, even)
                both.append((out, of_found, of_bias))
            assert all(torch.equal(one, other) for one, other in zip(*(each[:2] for each in both), strict=True))
            assert torch.allclose(both[0][2], both[1][2], rtol=1e-4, atol=1e-3)
        torch.manual_seed(0)
        layers = nn.Sequential(
            OrthogonalConv1x1(channels, channels), ChannelShift(part), PositionBias(height, width, channels),
            HalfAbs("even" if even else "first"),
        ).cuda()  # fmt: skip
        x = torch.randn(batch, channels, height, width, device="cuda", requires_grad=True)
        fused = blocks.InBlocks(layers, half=True, shifts=True)(x)
        slope = torch.randn(fused.shape, device="cuda")
        inputs = [x, *layers.parameters()]
        got = [fused, *torch.autograd.grad(fused.float(), inputs, slope)]
        plain = layers.double()(x.double())
        truth = [plain, *torch.autograd.grad(plain, [x, *layers.parameters()], slope.double())]
        most = 0.05 if batch * channels > 1000 else 0.2  # signs near 0 differ in bfloat16: of few numbers, one is a lot
        for one, other in zip(got, truth, strict=True):
            assert (one.double() - other).norm() <= most * other.norm(), (one.double() - other).norm() / other.norm()


def check_shift_nets_train_captured_with_all_that_recipes_offer():
    """Muon, EMMA, moves, mixes, a teacher and an average in one captured step: the first losses are the eager ones."""
    make = torch.Generator().manual_seed(0)
    y = torch.randint(10, (600,), generator=make)
    patterns = torch.randint(256, (10, 3, 16, 16), generator=make)
    noise = torch.randint(256, (600, 3, 16, 16), generator=make)
    split = Split(((patterns[y] + noise) // 2).to(torch.uint8), y).to("cuda")
    table = {"guarantee": "rt3", "epsilon": 0.1, "epochs": 4, "batch": 50, "data": {"source": "x"}}
    table |= {"precision": "bfloat16", "model": "shift-net", "sizes": {"depth": 3, "width": 64}}
    table |= {"loss": {"name": "emma", "temperature": 4.0, "relaxation": "window", "relaxed": 0.5}}
    table |= {"augmentation": {"rotation": 8.0, "scale": 0.1, "cutmix": 0.2, "mixup": 0.2}}
    table |= {"teacher": {"epochs": 2, "width": 8, "noise": 0.1}}
    for name in ("muon", "nadam"):
        table |= {"optimiser": {"name": name, "rate": "5e-3 -> 0 cosine, warm-up 0.1", "average": 0.9, "clip": 5.0}}
        task = Task((3, 16, 16), tuple("abcdefghij"), "pixels")
        recipe = replace(Recipe.from_table(table), task=task).as_fitted()
        networks = train_teachers(split, recipe.augmentation, 10, recipe.teacher, seed=0, path=None, label="")
        losses = []
        for captured in (False, True):
            net = build_net(recipe).to("cuda")
            net.guarantee.prepare(10, "cuda")
            engine = Engine(net, recipe, split, State.start([net], recipe, [0]), [0], captured=captured)
            engine.teachers = Teachers(networks, replace(recipe.teacher, noise=0.0))
            for epoch in range(4):
                engine.start(epoch)
                for _ in range(engine.steps):
                    engine.step()
                if epoch == 0:
                    losses.append(engine.total.item() / engine.steps)
            assert engine.last.isfinite().all()
            assert all(each.isfinite().all() for each in engine.state.average.values())
        assert abs(losses[0] - losses[1]) < 0.02 * abs(losses[0]), (name, losses)


def check_heads_in_one_pass():
    heads_in_one_pass(torch.device("cuda"))


def check_power_methods_in_few_kernels():
    compare_power_methods(torch.device("cuda"))
    compare_batched(torch.device("cuda"))


def check_losses_compile():
    logits, rows = (part.float().nan_to_num(0.0, 0.0, 0.0).cuda() for part in head())
    guarantee = GUARANTEES[3]
    guarantee.prepare(50, "cuda")

    def g(f, w):
        return instrument(f, HeadConstants(w), 0.05, guarantee, method="floating")

    assert torch.allclose(torch.compile(g, fullgraph=True)(logits, rows), g(logits, rows), rtol=1e-4, atol=1e-5)


def check_bounds_agree_with_the_cpu():
    make = torch.Generator().manual_seed(0)
    for shape in ((7, 5), (64, 300), (3, 40, 20)):
        matrix = torch.randn(shape, generator=make, dtype=torch.float64)
        truth = torch.linalg.matrix_norm(matrix, 2).amax().item()
        assert truth * (1 - 1e-14) <= spectral_bound(matrix.cuda()) <= truth * (1 + 1e-8)
    for size, kernel, stride, dilation, padding in ((9, 3, 1, 1, 1), (8, 4, 2, 1, 1), (7, 2, 3, 2, 0), (6, 3, 1, 2, 4)):
        weights = torch.randn(3, 2, kernel, kernel, generator=make, dtype=torch.float64)
        axis = Axis(size, kernel, stride, dilation, padding, padding)
        exact = exact_bound(Convolution(weights, axis, axis))
        on_gpu = Convolution(weights.cuda(), axis, axis)
        assert abs(exact_bound(on_gpu) / exact - 1) < 1e-9
        for bound in (torus_bound(on_gpu), torus_bound(Convolution(weights, axis, axis))):
            assert exact * (1 - 1e-9) <= bound <= exact * 1.5  # which waves are set apart is a matter of rounding


def check_convolutions_of_the_paper_are_proved_again():
    """CIFAR-100's and EuroSAT's second, and those of Tiny-ImageNet, by residuals without error."""
    torch.manual_seed(0)
    device, sizes = torch.device("cuda"), [(128, 64, 16, 3, 1), (128, 64, 32, 3, 1), (64, 64, 64, 3, 1)]
    for into, out, size, kernel, stride in [*sizes, (64, 64, 64, 4, 2), (256, 256, 16, 4, 2)]:
        weights = torch.randn(out, into, kernel, kernel, dtype=torch.float64) / (kernel * into**0.5)
        axis = Axis(size, kernel, stride, 1, 1, 1)
        reads = incidences(size, (size + 2 - kernel) // stride + 1, kernel, stride, 1, 1)
        bound = Fraction(float(exact_bound(Convolution(weights.cuda(), axis, axis))))
        matrix, end = banded(weights.numpy(), reads, reads), Deadline(time.perf_counter() + 300)
        assert is_proved(matrix, bound, end, device)
        assert not is_proved(matrix, bound * Fraction(999, 1000), end, device)


def check_nets_certify_as_on_the_cpu():
    torch.manual_seed(0)
    layers = [Normalize([0.5] * 3, [0.25] * 3), nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), MinMax()]
    layers += [InvertibleDownsampling(2), Residual(nn.Conv2d(32, 32, 1)), nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(128, 20), nn.LeakyReLU(0.1), nn.Linear(20, 10)]
    net = CertifiedNet(nn.Sequential(*layers), input_shape=(3, 8, 8), guarantee="rt3", epsilon=0.01)
    x = torch.rand(700, 3, 8, 8)
    here = net.certify(x)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    net.cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        there = net.certify(x)
    assert torch.backends.cudnn.enabled
    assert torch.backends.cudnn.allow_tf32
    assert there.windows.device.type == "cuda"
    assert "cuda" in there.covers
    assert torch.allclose(there.windows.cpu(), here.windows, rtol=1e-9, atol=1e-9)
    assert torch.equal(net.frozen().certify(x.cuda()).windows, there.windows)


def check_estimates_can_be_captured():
    torch.manual_seed(0)
    network = create_model("cnn-1c1f", input_shape=(1, 8, 8), classes=10)
    net = CertifiedNet(network, input_shape=(1, 8, 8), guarantee="rt3", epsilon=0.1).cuda()
    vectors = net.start_vectors()
    x = torch.rand(64, 1, 8, 8, device="cuda")
    weights = dict(net.named_parameters())

    def step():
        constants, later = net.estimate(weights, vectors, 2)
        loss = net.instrument(net(x), constants)[:, -1].sum()
        return (loss, *torch.autograd.grad(loss, list(weights.values())), *later.values())

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            plain = step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = step()
        graph.replay()
        torch.cuda.synchronize()
    for got, expected in zip(captured, plain, strict=True):
        assert torch.allclose(got, expected, rtol=1e-3, atol=1e-5)


def check_captured_steps_are_those_of_the_cpu():
    """The first 20 losses of training, one network and three seeds at once, captured, against the eager CPU's."""
    make = torch.Generator().manual_seed(0)
    y = torch.randint(10, (600,), generator=make)
    patterns = torch.randint(256, (10, 3, 16, 16), generator=make)
    noise = torch.randint(256, (600, 3, 16, 16), generator=make)
    split = Split(((patterns[y] + noise) // 2).to(torch.uint8), y)
    torch.backends.cudnn.allow_tf32 = False
    for guarantee, loss in (("rt3", "trades"), ('affinity:{"sets":[[0,1,2],[3,4]]}', "cross-entropy")):
        table = {"guarantee": guarantee, "epsilon": 0.1, "epochs": 9, "batch": 50, "loss": {"name": loss}}
        table |= {"optimiser": {"rate": 1e-5}}  # small steps: large ones on so little data are chaotic
        table |= {"augmentation": {"flips": "both", "turns": True, "shift": 2}, "data": {"source": "x"}}
        recipe = replace(
            Recipe.from_table(table), model="cnn-2c2f", task=Task((3, 16, 16), tuple("abcdefghij"), "pixels")
        ).as_fitted()
        for seeds in ([0], [0, 1, 2]):
            losses = {}
            for device in ("cpu", "cuda"):
                nets = [build_net(replace(recipe, seed=seed)).to(device) for seed in seeds]
                nets[0].guarantee.prepare(10, device)
                state = State.start(nets, recipe, seeds)
                engine = Engine(nets[0], recipe, split.to(device), state, seeds, captured=device == "cuda")
                found = []
                for epoch in range(2):
                    engine.start(epoch)
                    for _ in range(10):
                        engine.step()
                        found.append(engine.last.cpu().clone())
                losses[device] = torch.stack(found)
            assert torch.allclose(losses["cpu"], losses["cuda"], rtol=2e-3), (
                (losses["cpu"] - losses["cuda"]).abs().max()
            )


def check_training_on_the_gpu_never_waits():
    split = Split(torch.randint(256, (300, 1, 8, 8), dtype=torch.uint8), torch.randint(10, (300,)))
    recipe = replace(
        Recipe.from_table({"guarantee": "rt3", "epsilon": 0.1, "epochs": 9, "batch": 50, "data": {"source": "x"}}),
        model="cnn-1c1f",
        task=Task((1, 8, 8), tuple("abcdefghij"), "pixels"),
    ).as_fitted()
    net = build_net(recipe).cuda()
    engine = Engine(net, recipe, split.to("cuda"), State.start([net], recipe, [0]), [0], captured=True)
    engine.start(0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert engine.last.isfinite().all()


def check_runs_resume_and_workers_talk_by_nccl():
    """An interrupted run goes on where it was, and a worker of torchrun's, alone, takes the same captured steps."""
    command = ["-m", "safeset", "train", "--data", "digits", "--guarantee", "rt3", "--epsilon", "0.3", "--epochs", "12"]
    command += ["--set", "precision=float32", "--set", "optimiser.rate=1e-4"]

    def losses(path):
        return torch.tensor([record["loss"] for record in Run(path).records()])

    with TemporaryDirectory() as folder:
        whole, parts, worker = (Path(folder) / name for name in ("whole", "parts", "worker"))
        subprocess.run([sys.executable, *command, "--out", whole], check=True)
        begun = subprocess.Popen([sys.executable, *command, "--checkpoint-minutes", "0", "--out", parts])
        while len(Run(parts).records()) < 3:
            time.sleep(0.01)
        begun.send_signal(signal.SIGTERM)
        assert begun.wait() == 143
        subprocess.run([sys.executable, *command, "--resume", "--out", parts], check=True)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        subprocess.run([*launcher, *command, "--out", worker], check=True)
        for path in (parts, worker):
            assert torch.allclose(losses(path), losses(whole), rtol=1e-3), (losses(path), losses(whole))


CHECKS = [
    check_certificates_agree_with_the_cpu,
    check_constants_are_upper_bounds,
    check_losses_never_wait_and_can_be_captured,
    check_heads_in_one_pass,
    check_power_methods_in_few_kernels,
    check_losses_compile,
    check_kernels_of_blocks_compute_what_torch_does,
    check_layers_of_shift_nets_compute_what_torch_does,
    check_shift_nets_train_captured_with_all_that_recipes_offer,
    check_bounds_agree_with_the_cpu,
    check_convolutions_of_the_paper_are_proved_again,
    check_nets_certify_as_on_the_cpu,
    check_estimates_can_be_captured,
    check_captured_steps_are_those_of_the_cpu,
    check_training_on_the_gpu_never_waits,
    check_runs_resume_and_workers_talk_by_nccl,
]

if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    for check in CHECKS:
        check()
        print("ok", check.__name__, flush=True)
