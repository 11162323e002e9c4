"""What the processes of a run get is a file in its folder."""

from pathlib import Path

import cloudpickle
import pytest

from deeppool.base.pickling import save_pickled
from deeppool.errors import RunError


def test_a_value_is_written_with_its_code(tmp_path: Path) -> None:
    save_pickled(lambda x: x + 1, "the model", tmp_path / "model")
    assert cloudpickle.loads((tmp_path / "model").read_bytes())(1) == 2


def test_on_a_full_disk_the_error_says_what_was_to_be_written_where_and_how_to_go_on() -> None:
    with pytest.raises(RunError) as caught:
        save_pickled(bytes(20_480), "the model", Path("/dev/full"))
    assert str(caught.value) == (
        "cannot write the model to /dev/full: No space left on device (its processes read it there: make room for "
        "20.0 KiB, or set TMPDIR to a folder with more)"
    )
