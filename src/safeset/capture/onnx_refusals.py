"""Operations of ONNX that have no Lipschitz constant, and what to use instead."""

from collections.abc import Mapping

from safeset.capture.aten_refusals import REFUSED as ATEN

_QUANTISED = "quantised networks are not read: export the network in floating point"
_INSIDE = "branches and loops are not read: export the network with sizes that are fixed but for the batch"
_TURNED = "transposed convolutions are not supported: use upsampling and a convolution"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "ReduceLogSumExp"), ATEN["softmax"]),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "LpNormalization"), ATEN["layer_norm"]),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"), ATEN["group_norm"]),
    **dict.fromkeys(("Attention", "RotaryEmbedding", "Einsum"), ATEN["bmm"]),
    **dict.fromkeys(
        ("Where", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "And", "Or", "Not"), ATEN["where"]
    ),
    **dict.fromkeys(("Sign", "Round", "Floor", "Ceil", "Mod", "TopK", "NonZero", "ThresholdedRelu"), ATEN["where"]),
    "ArgMax": "the place of the largest logit jumps. At the end, leave it out: the network must give plain logits",
    "ArgMin": "the place of the least score jumps. At the end, leave it out, and negate the scores",
    "Exp": ATEN["exp"],
    "Log": ATEN["log"],
    "Reciprocal": ATEN["reciprocal"],
    "ConvTranspose": _TURNED,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), ATEN["gru"]),
    **dict.fromkeys(("If", "Loop", "Scan", "SequenceMap"), _INSIDE),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"), _QUANTISED),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"), _QUANTISED),
    **dict.fromkeys(
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"),
        "what is random has no certificate: export the network in evaluation mode",
    ),
}
