"""The page that a rank and its background share: what one side writes, the other reads."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.processes.rank_group import private_folder
from deeppool.processes.shared_page import KINDS, SHARED_MEMORY, STAGES, Operator, SharedPage

OPERATORS = st.tuples(st.sampled_from(KINDS), st.integers(0, STAGES - 1))


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SharedPage, SharedPage]]:
    """The foreground's and the background's end of one page."""
    folder = tmp_path_factory.mktemp("run")
    ends = SharedPage(folder, 0), SharedPage(folder, 0)
    yield ends
    for end in ends:
        end.close()


def test_a_blank_page_allows_all(tmp_path: Path) -> None:
    page = SharedPage(tmp_path, 0)
    assert page.limits == (True, 1.0, frozenset())
    assert page.doing is None
    page.close()


@given(open=st.booleans(), share=st.floats(0.001, 1), banned=st.frozensets(OPERATORS, max_size=5), now=OPERATORS)
def test_the_background_reads_what_the_foreground_wrote(
    sides: tuple[SharedPage, SharedPage],
    open: bool,  # noqa: A002
    share: float,
    banned: frozenset[Operator],
    now: Operator,
) -> None:
    foreground, background = sides
    foreground.set_limits(open=open, share=share, banned=banned)
    foreground.begin(*now)
    assert background.limits == (open, share, banned)
    assert background.doing == now
    foreground.end()
    assert background.doing is None
    foreground.clear()
    assert background.limits == (True, 1.0, frozenset())


def test_a_page_has_its_memory_from_the_start(tmp_path: Path) -> None:
    page = SharedPage(tmp_path, 0)
    written = (tmp_path / "page-0").stat()
    assert written.st_blocks * 512 >= written.st_size > 0
    page.close()


WITHOUT_MEMORY = """
import sys
from deeppool.errors import RunError
from deeppool.processes.rank_group import private_folder
from deeppool.processes.shared_page import SharedPage
with private_folder() as folder:
    try:
        SharedPage(folder, 0).set_limits(open=True, share=0.5, banned=frozenset())
    except RunError as error:
        print(str(error).replace(folder.name, "RUN"))
"""


def test_a_page_without_room_is_an_error_and_not_the_end_of_its_process() -> None:
    def in_memory_of_4_kib(*command: str) -> "subprocess.CompletedProcess[str]":
        mount = 'mount -t tmpfs -o size=4k none /dev/shm && exec "$@"'
        whole = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *command]
        return subprocess.run(whole, capture_output=True, text=True, timeout=60, check=False)

    if in_memory_of_4_kib("true").returncode:
        pytest.skip("file systems may not be mounted here")
    done = in_memory_of_4_kib(sys.executable, "-c", WITHOUT_MEMORY)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("no 25040 bytes for /dev/shm/RUN/page-0: No space left on device (make room in /dev/shm)\n")


def test_what_a_foreground_left_that_was_lost_binds_nobody(tmp_path: Path) -> None:
    lost, background, restarted = SharedPage(tmp_path, 0), SharedPage(tmp_path, 0), SharedPage(tmp_path, 0)
    lost.set_limits(open=True, share=0.5, banned=frozenset({("sync", 1)}))
    lost.begin("sync", 1)
    assert background.limits == (True, 0.5, {("sync", 1)})
    restarted.clear()
    assert (background.limits, background.doing) == ((True, 1.0, frozenset()), None)
    restarted.set_limits(open=True, share=0.5, banned=frozenset())
    assert background.limits == (True, 0.5, frozenset())
    for page in (lost, background, restarted):
        page.close()


def test_each_rank_has_its_own_page(tmp_path: Path) -> None:
    first, second = SharedPage(tmp_path, 0), SharedPage(tmp_path, 1)
    first.begin("forward", 3)
    assert (first.doing, second.doing) == (("forward", 3), None)
    first.close()
    second.close()


def test_another_process_reads_it_and_it_outlives_its_folder(tmp_path: Path) -> None:
    page = SharedPage(tmp_path, 2)
    page.set_limits(open=False, share=0.5, banned=frozenset({("sync", 7)}))
    read = (
        "import sys\nfrom deeppool.processes.shared_page import SharedPage\n"
        "page = SharedPage(sys.argv[1], 2); print(page.limits); page.begin('sync', 7)"
    )
    told = subprocess.run([sys.executable, "-c", read, str(tmp_path)], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "(False, 0.5, frozenset({('sync', 7)}))"
    assert page.doing == ("sync", 7)
    (tmp_path / "page-2").unlink()
    page.begin("update", 1)
    assert page.doing == ("update", 1)
    page.close()


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="this machine has no file system in memory")
def test_a_page_of_a_run_is_in_memory_and_goes_with_the_run() -> None:
    with private_folder() as folder:
        page = SharedPage(folder, 0)
        in_memory = SHARED_MEMORY / folder.name
        assert [path.name for path in in_memory.iterdir()] == ["page-0"]
        assert in_memory.stat().st_mode & 0o777 == 0o700
        page.close()
    assert not in_memory.exists()
