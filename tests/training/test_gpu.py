import pytest
import torch

from helpers.gpu_checks import CHECKS


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode", "ignore:TensorFloat32", "ignore:.*_prims_common.check")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_the_gpu(check):
    check()
