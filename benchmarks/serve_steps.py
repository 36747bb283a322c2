"""One head of one library in a process of its own, stepped on request; run by head.py, also in gloro's environment.

Reads a JSON description on the first line of standard input, builds the head, takes a step and prints a line; then, for
each line it reads, takes two steps and prints the seconds of the second. With ``memory`` it prints the megabytes
that one step adds at its peak. Only the standard library and the library measured are imported here.
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
    from safeset.guarantees import Guarantee
    from safeset.margins import instrument

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


def resident(name: str) -> float:
    """VmRSS or VmHWM of this process in megabytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def main() -> None:
    """Serve steps until standard input ends."""
    head = json.loads(sys.stdin.readline())
    make = {"safeset": safeset_step, "gloro": gloro_step}[head["library"]]
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
        started = time.perf_counter()
        step()
        print(json.dumps(time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    main()
