"""Operations of PyTorch that have no Lipschitz constant, and what to use instead."""

from collections.abc import Mapping

SQUARES = "a square has no Lipschitz constant, unless its sum is under a root"
_NO_CONSTANT = "has no global Lipschitz constant"
GATES = (
    "a product of two values that both depend on the input, as in gates and squeeze-and-excitation, has no Lipschitz "
    "constant; products with constants, x·sigmoid(x) and GELU have one"
)
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"),
        f"layer norm {_NO_CONSTANT}, because it divides by the spread of its own input. Use batch norm, whose "
        "statistics are constants in evaluation, or only centre: safeset.layers has layers that need no norm",
    ),
    **dict.fromkeys(
        ("group_norm", "native_group_norm", "instance_norm"),
        f"a norm over the data of each input {_NO_CONSTANT}. Use batch norm, whose statistics are constants in "
        "evaluation",
    ),
    **dict.fromkeys(
        ("var", "var_mean", "std", "std_mean", "rsqrt"),
        f"what is divided by the spread of an input's own data, as in a norm written by hand, {_NO_CONSTANT}. Use "
        "batch norm, whose statistics are constants in evaluation",
    ),
    **dict.fromkeys(
        (
            "scaled_dot_product_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_native_multi_head_attention",
            "bmm",
            "baddbmm",
        ),
        f"attention, a product of values that both depend on the input, {_NO_CONSTANT}. Use convolutions, or mix "
        "places by a matrix of constants (nn.Linear along their axis)",
    ),
    **dict.fromkeys(
        ("softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "_safe_softmax"),
        "softmax inside a network is not supported. At the end, leave it out: the network must give plain logits, and "
        "softmax keeps their order",
    ),
    **dict.fromkeys(("glu", "prod", "bilinear"), GATES),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), "recurrent layers are not supported: use convolutions"),
    "sqrt": "a root is infinitely steep at 0, unless it is that of a sum of squares",
    "pow": "a power other than a square under a root is arbitrarily steep",
    "exp": f"exp {_NO_CONSTANT}",
    "log": f"log {_NO_CONSTANT}",
    "reciprocal": f"1/x {_NO_CONSTANT}",
    **dict.fromkeys(
        """
        where gt lt ge le eq ne sign round floor ceil argmax argmin argsort threshold hardshrink bernoulli
        """.split(),  # noqa: SIM905
        "a choice that depends on the input jumps. Write it with relu, maximum, minimum or clamp",
    ),
}
