"""Which files are the user's, by files of libraries and by folders with names like theirs."""

import json
from pathlib import Path

import pytest
import torch

from deeppool import units
from deeppool.base.user_code import is_library, user_frame


@pytest.mark.parametrize("file", [json.__file__, torch.__file__, torch.distributed.__file__, units.__file__])
def test_code_of_python_torch_and_this_package_is_not_the_users(file: str) -> None:
    assert is_library(file)


@pytest.mark.parametrize(
    "file",
    [
        "/home/user/torch/train.py",
        "/home/user/.venv/lib/python3.11/site-packages/timm/models/resnet.py",
        f"{Path(units.__file__).parent}-models/train.py",
        "/tmp/ipykernel_1/2.py",
    ],
)
def test_code_in_any_other_folder_is_the_users(file: str) -> None:
    assert not is_library(file)


def test_the_line_of_an_error_is_the_innermost_one_of_the_user() -> None:
    def fails() -> None:
        torch.empty(2, 3) @ torch.empty(2, 3)

    with pytest.raises(RuntimeError) as raised:
        torch.func.vmap(lambda _: fails())(torch.empty(1))
    found = user_frame(raised.value)
    assert found is not None
    assert (found.filename, found.name) == (__file__, "fails")
