"""One head or network of one library in a process of its own, stepped on request, also in gloro's environment.

Reads a JSON description on the first line of standard input, builds it, takes a step and prints a line; then, for each
line it reads, takes steps and prints the wall and CPU seconds of the last. With ``memory`` it prints the megabytes that
one step adds at its peak. Only the standard library and the library measured are imported here.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = Callable[[], object]


def safeset_step(head: dict[str, Any]) -> Step:
    """Linear head, ⊥, cross-entropy; gradients to features, weights and bias if asked for."""
    import torch
    from torch.nn.functional import cross_entropy, linear

    from safeset import Affinity, HeadConstants, RelaxedTopK
    from safeset.certificates.margins import instrument
    from safeset.guarantees.guarantee import Guarantee

    torch.set_num_threads(head["threads"])
    torch.manual_seed(0)
    classes, features = head["classes"], head["features"]
    x = torch.randn(head["batch"], features, requires_grad=True)
    weight = (torch.randn(classes, features) / features**0.5).requires_grad_()
    bias = torch.zeros(classes, requires_grad=True)
    labels = torch.randint(classes, (head["batch"],))
    guarantee: Guarantee | None = None
    if head["sets"]:
        guarantee = Affinity(head["sets"])
    elif head["k"]:
        guarantee = RelaxedTopK(head["k"])

    def forward() -> torch.Tensor:
        logits = linear(x, weight, bias)
        return logits if guarantee is None else instrument(logits, HeadConstants(weight), 0.1, guarantee)

    def step() -> None:
        if head["backward"]:
            torch.autograd.grad(cross_entropy(forward(), labels), (x, weight, bias))
        else:
            with torch.no_grad():
                forward()

    return step


def gloro_step(head: dict[str, Any]) -> Step:
    """The same by gloro: a Keras model of one dense layer, instrumented, inside one tf.function."""
    import tensorflow as tf
    from gloro.models import GloroNet
    from gloro.relaxations import AffinityGloroNet, AffinitySet, RtkGloroNet

    tf.config.threading.set_intra_op_parallelism_threads(head["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.random.set_seed(0)
    inputs = tf.keras.Input(head["features"])
    outputs = tf.keras.layers.Dense(head["classes"])(inputs)
    if head["sets"]:
        sets = AffinitySet.from_class_indices(head["sets"])
        model = AffinityGloroNet(inputs, outputs, epsilon=0.1, affinity_sets=sets)
    elif head["k"] == 1:
        model = GloroNet(inputs, outputs, epsilon=0.1)
    elif head["k"]:
        model = RtkGloroNet(inputs, outputs, epsilon=0.1, k=head["k"])
    else:
        model = tf.keras.Model(inputs, outputs)
    x = tf.Variable(tf.random.normal((head["batch"], head["features"])))
    labels = tf.random.uniform((head["batch"],), maxval=head["classes"], dtype=tf.int32)
    several = head["sets"] or head["k"] > 1

    @tf.function  # type: ignore[untyped-decorator]
    def forward() -> Any:
        return model(x)[0] if several else model(x)

    @tf.function  # type: ignore[untyped-decorator]
    def both() -> Any:
        with tf.GradientTape() as tape:
            logits = model(x)[0] if several else model(x)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return tape.gradient(loss, [x, *model.trainable_variables])

    step = both if head["backward"] else forward

    def run() -> None:
        result = step()
        (result[0] if isinstance(result, list) else result).numpy()

    return run


def safeset_network(head: dict[str, Any]) -> Step:
    """A training step, or a prediction, of the paper's CIFAR-100 network: as `safeset train` takes it."""
    import torch
    from torch.nn.functional import cross_entropy

    from safeset import Affinity, CertifiedNet, RelaxedTopK, create_model
    from safeset.recipes.sections import Loss
    from safeset.system.memory import keep_freed_memory
    from safeset.training.step import objective

    if head["network"] == "step":
        keep_freed_memory()  # as `safeset train` does, for plain steps too
    torch.set_num_threads(head["threads"])
    torch.manual_seed(0)
    shape, classes = (3, 32, 32), head["classes"]
    guarantee = Affinity(head["sets"]) if head["sets"] else RelaxedTopK(head["k"] or 1)
    network = create_model("cnn-2c2f", input_shape=shape, classes=classes)
    net = CertifiedNet(network, input_shape=shape, guarantee=guarantee, epsilon=36 / 255)
    x, y = torch.rand(head["batch"], *shape), torch.randint(classes, (head["batch"],))
    if head["network"] == "prediction":
        frozen = net.frozen()
        frozen.bounds()
        plain = frozen.network if head["dtype"] == "float64" else network
        inputs = x.double() if head["dtype"] == "float64" else x

        def predict() -> None:
            with torch.no_grad():
                frozen.certify(inputs, method=head["method"]) if head["method"] else plain(inputs).argmax(dim=1)

        return predict
    parameters, vectors = dict(net.named_parameters()), net.start_vectors()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    value = objective(net, Loss(power_steps=2))

    def step() -> None:
        nonlocal vectors
        if head["k"] or head["sets"]:
            loss, vectors = value(parameters, vectors, x, y, 1.0)
        else:
            loss = cross_entropy(net(x), y)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def gloro_network(head: dict[str, Any]) -> Step:
    """The same by gloro, forward, backward and Adam inside one tf.function; predictions with the constant frozen."""
    import tensorflow as tf
    from gloro.layers import InvertibleDownsampling, MinMax
    from gloro.models import GloroNet
    from gloro.relaxations import AffinityGloroNet, AffinitySet, RtkGloroNet

    tf.config.threading.set_intra_op_parallelism_threads(head["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.random.set_seed(0)
    layers = tf.keras.layers
    inputs = z = tf.keras.Input((32, 32, 3))
    for width in (32, 64):
        z = InvertibleDownsampling()(MinMax()(layers.Conv2D(width, 3, padding="same")(z)))
    z = layers.Flatten()(z)
    for _ in range(2):
        z = MinMax()(layers.Dense(256)(z))
    outputs = layers.Dense(head["classes"])(z)
    options = {"epsilon": 36 / 255, "num_iterations": 2}
    if head["sets"]:
        sets = AffinitySet.from_class_indices(head["sets"])
        model = AffinityGloroNet(inputs, outputs, affinity_sets=sets, **options)
    elif head["k"] == 1:
        model = GloroNet(inputs, outputs, **options)
    elif head["k"]:
        model = RtkGloroNet(inputs, outputs, k=head["k"], **options)
    else:
        model = tf.keras.Model(inputs, outputs)
    several = head["sets"] or head["k"] > 1
    x = tf.random.uniform((head["batch"], 32, 32, 3))
    y = tf.random.uniform((head["batch"],), maxval=head["classes"], dtype=tf.int32)
    optimiser = tf.keras.optimizers.Adam(1e-3)
    if head["network"] == "prediction" and (head["k"] or head["sets"]):
        model.freeze_lipschitz_constant(converge=False)
    variables = model.trainable_variables
    if head["network"] != "prediction":
        optimiser.build(variables)

    @tf.function  # type: ignore[untyped-decorator]
    def both() -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)[0] if several else model(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        optimiser.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def predict() -> Any:
        return tf.argmax(model(x)[0] if several else model(x), axis=1)

    chosen = predict if head["network"] == "prediction" else both
    return lambda: chosen().numpy()


def resident(name: str) -> float:
    """VmRSS or VmHWM of this process in megabytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def main() -> None:
    """Serve steps until standard input ends."""
    head = json.loads(sys.stdin.readline())
    makers = {"safeset": safeset_step, "gloro": gloro_step}
    if head.get("network"):
        makers = {"safeset": safeset_network, "gloro": gloro_network}
    make = makers[head["library"]]
    if head["memory"]:
        make({**head, "batch": 8, "classes": 10, "k": 0, "sets": []})()  # the library's own first allocations
        step = make(head)
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        step()
        print(json.dumps(resident("VmHWM") - before), flush=True)
        return
    step = make(head)
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        step()  # wakes threads and caches up
        started = time.perf_counter(), time.process_time()
        step()
        print(json.dumps([time.perf_counter() - started[0], time.process_time() - started[1]]), flush=True)


if __name__ == "__main__":
    main()
