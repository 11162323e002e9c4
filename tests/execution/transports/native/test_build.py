"""The native engine: compiled once into a private folder, by Python's rule, or replaced by Python with a line."""

import logging
from pathlib import Path

import pytest

from deeppool.collectives.partial.firing import FiringRule
from deeppool.collectives.partial.state import RoundSpec
from deeppool.errors import RunError
from deeppool.execution.transports.native import build
from deeppool.execution.transports.tcp import TcpRounds
from deeppool.execution.transports.tcp_engine import tcp_rounds


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.load_engine.cache_clear()
    yield tmp_path / "deeppool"
    build.load_engine.cache_clear()


def test_without_a_compiler_python_delivers_the_messages_and_one_line_says_so(cache, monkeypatch, caplog) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            rounds = tcp_rounds(0, {}, RoundSpec(FiringRule(1), 1))
            assert isinstance(rounds, TcpRounds)
            rounds.close(agreed=True)
    (line,) = caplog.messages
    assert "run in Python, which is many times slower: there is no C++ compiler (install g++" in line
    with pytest.raises(RunError, match="native engine cannot be had"):
        tcp_rounds(0, {}, RoundSpec(FiringRule(1), 1), engine="native")


def test_a_compiler_that_fails_is_named_with_its_first_line(cache, tmp_path: Path, monkeypatch, caplog) -> None:
    broken = tmp_path / "broken-compiler"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "no such machine" >&2\nexit 3\n')
    broken.chmod(0o700)
    monkeypatch.setenv("CXX", str(broken))
    assert build.load_engine() is None
    assert f"{broken} ended with exit code 3: no such machine" in caplog.text
    assert [path.name for path in cache.iterdir()] == ["compiling.lock"]


def test_a_folder_that_others_could_write_to_is_not_loaded_from(cache, caplog) -> None:
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    assert build.load_engine() is None
    assert "others could use or replace what it holds" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(build.load_engine() is None, reason="the native engine cannot be compiled here")
def test_the_engine_is_compiled_once_into_a_private_folder(cache: Path) -> None:
    assert build.load_engine() is not None
    (library,) = cache.glob("*.so")
    assert not cache.stat().st_mode & 0o077
    made = library.stat().st_mtime_ns
    build.load_engine.cache_clear()
    assert build.load_engine() is not None
    assert library.stat().st_mtime_ns == made
    assert {path.suffix for path in cache.iterdir()} == {".so", ".lock"}


@pytest.mark.skipif(build.load_engine() is None, reason="the native engine cannot be compiled here")
def test_both_engines_draw_the_same_initiators() -> None:
    engine = build.load_engine()
    for ranks, seed in ((1, 0), (3, 7), (32, 1), (64, -5), (7, 2**63)):
        rule = FiringRule(ranks, "majority", seed=seed)
        drawn = [engine.deeppool_initiator(ranks, seed % 2**64, number) for number in range(200)]
        assert drawn == [rule.initiator(number) for number in range(200)]
