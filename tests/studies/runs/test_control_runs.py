"""A control loop executed speculatively, by a gin file."""

import json

import pytest

from specdec import execution
from specdec.runs.command_line import Given
from specdec.studies import cli
from specdec.studies.control import Pendulum
from specdec.studies.runs.control_runs import again
from tests.runs.decoding import ROOT

GIN = """
reproduce.control = [@pendulum/ControlRuns()]
pendulum/ControlRuns.name = "Pendulum"
pendulum/ControlRuns.distribution_steps = (40, 80)
pendulum/ControlRuns.decisions = 12
pendulum/ControlRuns.repetitions = 1
"""


def test_a_loop_again_computes_the_same_whatever_it_draws():
    computed = []

    def distribution(state):
        computed.append(("f", state))
        return [0.5, 0.5]

    def step(state, x):
        computed.append(("g", state, x))
        return "another"

    link = execution.Link(distribution, distribution, step)
    loop = [again(link, "first", 7), again(link, "second", 9)]
    execution.execute_plainly(loop, "start")
    assert computed == [("f", "first"), ("g", "first", 7), ("f", "second"), ("g", "second", 9)]


@pytest.mark.slow
def test_times_of_each_planner_and_going_on(tmp_path, monkeypatch, capsys):
    path = tmp_path / "control.gin"
    path.write_text(GIN)
    given = Given([str(path)], (), str(tmp_path / "out"), "again")
    assert cli.reproduce(given, ROOT) == 0
    assert capsys.readouterr().out.endswith("out: summary.json\n")
    first = json.loads((tmp_path / "out/summary.json").read_text())
    assert set(first["control"]["Pendulum"]) == {"distribution_steps40", "distribution_steps80"}
    for found in first["control"]["Pendulum"].values():
        # Of one repetition, so each median is the value.
        seconds = {name: each["median"] for name, each in found["seconds"].items()}
        distribution, guess, step = (seconds[name] for name in ("distribution", "guess", "step"))
        slowdown = found["slowdown"]["median"]
        assert slowdown == pytest.approx(seconds["side_by_side"] / max(distribution, guess + step))
        for alpha, told in ((found["accepted"] / 12, "counted"), (found["alpha"], "predicted")):
            expected = execution.speedup(alpha, distribution, guess, step, slowdown=slowdown)
            assert found[told]["median"] == pytest.approx(expected)
        measured = seconds["plain"] / seconds["speculative"]
        assert found["measured"]["median"] == pytest.approx(measured)
        over = measured / found["counted"]["median"]
        assert found["measured_over_counted"]["median"] == pytest.approx(over)
        assert 0.5 < found["alpha"] < 1
        assert 0 < found["accepted"] <= 12
    # What is on disk is not measured again.
    monkeypatch.setattr(Pendulum, "link", None)
    assert cli.reproduce(given, ROOT) == 0
    assert json.loads((tmp_path / "out/summary.json").read_text())["control"] == first["control"]
    # With other settings it is.
    path.write_text(GIN.replace("repetitions = 1", "repetitions = 2"))
    with pytest.raises(TypeError):
        cli.reproduce(given, ROOT)
