"""``deeppool interference``: what is asked for, what is saved and told, what an interrupt leaves."""

from functools import partial

import pytest

import deeppool as dp
from deeppool.collocation.interference import measure as interference_measure
from deeppool.simulation.device.idle_harvest import IdleHarvest
from deeppool.simulation.device.interference import Arrangement, Interference

FOUND = Interference(
    "a device",
    "2026-11-22",
    "by hand",
    (1.0,),
    (1e-3,),
    (Arrangement("lowest", ((0.9,),), ((0.1,),)),),
    IdleHarvest((1e-3,), (0.6,)),
)


@pytest.fixture
def interference(deeppool, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return partial(deeppool, "interference")


def test_it_saves_what_was_measured_and_says_how_to_simulate_with_it(interference, monkeypatch):
    asked = []

    def measure(**options):
        options.pop("on_progress")("pairs of kernels", 0.5)
        asked.append(options)
        return FOUND

    monkeypatch.setattr(interference_measure, "measure_interference", measure)
    code, out, _ = interference("-o", "my pairs.json", "--device", "cpu")
    assert (code, asked) == (0, [{"device": "cpu"}])
    assert dp.load("my pairs.json") == FOUND
    assert str(FOUND) in out and "60 % of waits of 1 ms" in out
    assert out.endswith("Simulate with it: deeppool simulate PLAN … --interference 'my pairs.json'\n")


def test_a_file_that_cannot_be_written_is_refused_before_minutes_of_work(interference, monkeypatch):
    monkeypatch.setattr(interference_measure, "CpuBench", None)
    code, out, error = interference("-o", "nowhere/pairs.json")
    assert (code, out) == (1, "")
    assert error.startswith("error: cannot write nowhere/pairs.json: there is no folder nowhere")


def test_an_interrupt_leaves_no_file(interference, monkeypatch, tmp_path):
    def measure(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr(interference_measure, "measure_interference", measure)
    code, out, error = interference("-o", "pairs.json")
    assert (code, out) == (1, "")
    assert error == "error: interrupted; every process was ended, nothing was saved\n"
    assert list(tmp_path.iterdir()) == []
