"""Files that once were read as another network than onnxruntime runs: refused, or computed as it does."""

import numpy as np
import pytest
import torch

import safeset
from helpers.onnx_files import model, node, runtime, save
from safeset.capture.from_onnx import read_onnx

INTEGERS = {"low": np.array([0]), "three": np.array([3]), "four": np.array([4]), "first": np.array([0])}


def refused(made, folder, match):
    with pytest.raises(safeset.UnsupportedLayerError, match=match):
        read_onnx(save(made, folder))


def test_what_depends_on_the_batch_far_out_is_refused(tmp_path):
    """A clip at 10 times the size of the batch: in [0, 1] nothing of it is seen."""
    nodes = [
        node("Shape", "x", outputs=("s",), end=1),
        node("Cast", "s", outputs=("n",), to=11),
        node("Mul", "n", "ten", outputs=("end",)),
        node("Min", "x", "end"),
    ]
    refused(model(nodes, (5,), constants={"ten": np.array(10.0)}), tmp_path, "size of the batch")


def test_what_reads_the_batch_is_certified_for_one_point(tmp_path):
    """Differences below the tolerance of the comparison do not matter: what is proved is what one point gives."""
    nodes = [
        node("Shape", "x", outputs=("s",), end=1),
        node("Cast", "s", outputs=("n",), to=11),
        node("Mul", "n", "tiny", outputs=("t",)),
        node("Add", "x", "t"),
    ]
    path = save(model(nodes, (5,), constants={"tiny": np.array(2.0**-40)}), tmp_path)
    assert (
        read_onnx(path).run(torch.zeros(1, 5, dtype=torch.float64)).tolist() == runtime(path)(np.zeros((1, 5))).tolist()
    )


def test_parts_of_a_fixed_batch_are_refused(tmp_path):
    """The last of four points in front of the others: with three, as values are followed, nothing would move."""
    nodes = [
        node("Slice", "x", "low", "three", "first", outputs=("most",)),
        node("Slice", "x", "three", "four", "first", outputs=("last",)),
        node("Concat", "last", "most", axis=0),
    ]
    refused(model(nodes, (5,), batch=4, constants=INTEGERS), tmp_path, "mixed")


def test_sizes_that_fit_another_batch_are_read_for_one_point(tmp_path):
    """Of one point, rows of two; with three points, as values are followed, rows of six, whose parts change places.

    Only what exceeds 5 is moved, so that nothing of it is seen in [0, 1].
    """
    nodes = [
        node("Sub", "x", "five", outputs=("s",)),
        node("Relu", "s", outputs=("r",)),
        node("Reshape", "r", "rows", outputs=("t",)),
        node("Slice", "t", "zero", "two", "one", outputs=("a",)),
        node("Slice", "t", "two", "six", "one", outputs=("b",)),
        node("Concat", "b", "a", outputs=("c",), axis=1),
        node("Reshape", "c", "back", outputs=("d",)),
        node("Add", "x", "d"),
    ]
    integers = {"rows": [3, -1], "zero": [0], "two": [2], "one": [1], "six": [6], "back": [-1, 6]}
    constants = {"five": np.array(5.0), **{name: np.array(each) for name, each in integers.items()}}
    path = save(model(nodes, (6,), constants=constants), tmp_path)
    try:
        found = read_onnx(path)
    except safeset.UnsupportedLayerError:
        return
    x = np.arange(6.0)[None] * 2
    np.testing.assert_allclose(found.run(torch.tensor(x)).numpy(), runtime(path)(x))


def test_rows_of_a_fixed_batch_are_not_rows_of_another(tmp_path):
    """Twelve numbers of four points as three rows, of which the last numbers come first."""
    nodes = [
        node("Reshape", "x", "rows", outputs=("t",)),
        node("Slice", "t", "low", "three", "one", outputs=("a",)),
        node("Slice", "t", "three", "four", "one", outputs=("b",)),
        node("Concat", "b", "a", outputs=("c",), axis=1),
        node("Reshape", "c", "back"),
    ]
    constants = {**INTEGERS, "rows": np.array([3, -1]), "one": np.array([1]), "back": np.array([4, 3])}
    refused(model(nodes, (3,), batch=4, constants=constants), tmp_path, "mixed")


def test_large_batches_are_refused(tmp_path):
    made = model([node("Relu", "x")], (3,), batch=1000)
    with pytest.raises(safeset.ArgumentError, match="batch of 1 or of any size"):
        read_onnx(save(made, tmp_path))


def test_ranges_are_as_exact_as_their_ends(tmp_path):
    nodes = [node("Range", "a", "b", "c", outputs=("r",)), node("Add", "x", "r")]
    constants = {"a": np.array(0.1), "b": np.array(0.6), "c": np.array(0.1)}
    path = save(model(nodes, (5,), constants=constants), tmp_path)
    x = np.zeros((1, 5))
    np.testing.assert_allclose(read_onnx(path).run(torch.tensor(x)).numpy(), runtime(path)(x), rtol=1e-14)


@pytest.mark.parametrize("auto", ["VALID", "SAME_UPPER"])
def test_two_paddings_at_once_are_refused(auto, tmp_path):
    pooled = node("MaxPool", "x", outputs=("p",), kernel_shape=[3, 3], pads=[1, 1, 1, 1], auto_pad=auto)
    refused(model([pooled, node("Flatten", "p")], (2, 6, 6)), tmp_path, "pads beside auto_pad")


def test_same_padding_of_pooling_that_steps_over_pixels_is_refused(tmp_path):
    """The padding would be negative: onnxruntime fails, or pads nothing."""
    pooled = node("MaxPool", "x", outputs=("p",), kernel_shape=[1, 1], strides=[3, 3], auto_pad="SAME_UPPER")
    refused(model([pooled, node("Flatten", "p")], (2, 6, 6), double=False), tmp_path, "strides beyond the kernel")


def test_batch_norm_of_old_files_in_training_is_refused(tmp_path):
    norm = node("BatchNormalization", "x", "s", "s", "s", "s", outputs=("y", "mean", "variance", "m", "v"))
    refused(model([norm], (5,), opset=13, constants={"s": np.ones(5)}), tmp_path, "statistics of the batch")


@pytest.mark.parametrize("shape", [(1,), (1, 2), (6,)], ids=str)
def test_batch_norm_with_numbers_for_other_channels_is_refused(shape, tmp_path):
    """Of one channel it made three, with the bound of one; onnxruntime does not run such files, so nothing differed."""
    norm = node("BatchNormalization", "x", "s", "s", "s", "s", outputs=("p",))
    made = model([norm, node("Flatten", "p")], shape, constants={"s": np.ones(3)})
    refused(made, tmp_path, "points with 3 channels")


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_padding_that_also_cuts_off_is_refused(mode, tmp_path):
    """For 0 1 2 3 4, wrapped by −2 and 2, onnxruntime gives 2 3 4 2 3 and safeset gave 2 3 4 0 1."""
    nodes = [node("Pad", "x", "p", mode=mode)]
    refused(model(nodes, (5,), opset=19, constants={"p": np.array([0, -2, 0, 2])}), tmp_path, "also cuts off")


@pytest.mark.parametrize(("number", "kind"), [(2.0**31, 6), (float("nan"), 7), (2.0**63, 7)])
def test_casts_that_wrap_around_are_refused(number, kind, tmp_path):
    nodes = [
        node("Cast", "c", outputs=("i",), to=kind),
        node("Cast", "i", outputs=("d",), to=11),
        node("Mul", "x", "d"),
    ]
    refused(model(nodes, (5,), constants={"c": np.array(number)}), tmp_path, "a cast of numbers")


def test_parts_backwards_from_before_the_first_place_have_the_first(tmp_path):
    """Python's slices take nothing there: a maximum of all parts was once one of fewer values."""
    nodes = [node("Slice", "x", "start", "end", "axis", "step", outputs=("p",)), node("Concat", "x", "p", axis=1)]
    constants = {"start": np.array([-9]), "end": np.array([-99]), "axis": np.array([1]), "step": np.array([-1])}
    path = save(model(nodes, (5,), constants=constants), tmp_path)
    x = np.arange(5.0)[None]
    np.testing.assert_array_equal(read_onnx(path).run(torch.tensor(x)).numpy(), runtime(path)(x))


def test_no_axes_to_squeeze_are_refused_where_they_are_a_list(tmp_path):
    """Safeset took away none, onnxruntime all of size 1: a maximum along the first axis is then of other values."""
    nodes = [
        node("Squeeze", "x", "none", outputs=("s",)),
        node("ReduceMax", "s", outputs=("m",), axes=[0], keepdims=0),
        node("Flatten", "m", axis=0),
    ]
    made = model(nodes, (1, 4), batch=1, constants={"none": np.zeros(0, dtype=np.int64)})
    refused(made, tmp_path, "a list of axes without any")


def test_squeezing_without_axes_is_read_for_one_point(tmp_path):
    """An axis of size 1 may be that of the batch, also where the list of axes is left out by an empty name."""
    nodes = [
        node("Squeeze", "x", "", outputs=("s",)),
        node("Unsqueeze", "s", "first", outputs=("u",)),
        node("ReduceSum", "u", "last", keepdims=0),
    ]
    constants = {"first": np.array([1]), "last": np.array([-1])}
    with pytest.raises(safeset.SafesetError):  # of one point four logits, of more points one for each
        read_onnx(save(model(nodes, (1, 4), constants=constants), tmp_path))
