"""How often to send: intervals from times, beside a simulation of the steps."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casync.bench import simulate
from casync.bench.interval import Sync, advice, rows, streaming, waiting
from casync.errors import InvalidArgumentError

seconds = st.floats(1e-3, 1e3)


def waited(compute_s: float, round_s: float, every: int, delay: int, fragments: int = 1) -> float:
    """The seconds that a rank waits in many intervals, step by step: rounds share a link, and end one after another."""
    now = idle = link = 0.0
    ends: dict[int, float] = {}
    for step in range(1, 10 * every + 1):
        now += compute_s
        if step in ends:
            late = max(0.0, ends.pop(step) - now)
            now, idle = now + late, idle + late
        for fragment in range(fragments):
            if step % every == (fragment + 1) * every // fragments % every:
                begin = max(now + (compute_s if delay > 1 else 0.0), link)
                link = begin + round_s
                if delay:
                    ends[step + delay] = link
                else:
                    idle, now = idle + link - now, link
    return idle


@given(seconds, seconds, st.floats(0.05, 0.99))
def test_waiting_is_the_shortest_interval_that_is_enough(compute_s: float, round_s: float, wished: float) -> None:
    found = waiting(compute_s, round_s, wished)
    assert found.utilisation >= wished - 1e-6
    total = found.every * compute_s
    assert found.utilisation == pytest.approx(total / (total + round_s))
    if found.every > 1:
        shorter = total - compute_s
        assert shorter / (shorter + round_s) < wished + 1e-6


@settings(deadline=None)
@given(st.floats(0.1, 10), st.floats(0.01, 20), st.integers(1, 6))
def test_streaming_never_waits(compute_s: float, round_s: float, fragments: int) -> None:
    found = streaming(compute_s, round_s, fragments)
    assert found.delay < found.every
    idle = waited(compute_s, round_s, found.every, found.delay, fragments)
    assert idle <= 1e-6 * found.every * (compute_s + round_s)


def test_a_shorter_delay_would_wait() -> None:
    found = streaming(1.0, 7.5)
    assert (found.every, found.delay) == (10, 9)
    assert waited(1.0, 7.5, found.every, found.delay) == 0
    assert waited(1.0, 7.5, found.every, found.delay - 1) > 0


@pytest.mark.parametrize(("compute_s", "wished"), [(0.0, 0.5), (-1.0, 0.5), (1.0, 0.0), (1.0, 1.0), (math.nan, 0.5)])
def test_what_cannot_be_is_refused(compute_s: float, wished: float) -> None:
    with pytest.raises(InvalidArgumentError):
        waiting(compute_s, 1.0, wished)


def test_advice_is_to_send_in_every_step_where_that_is_enough() -> None:
    ways = {"none": Sync(2.0, 3.0), "onebit": Sync(0.1, 1.02)}
    assert advice(ways, 1.0, 0.95) == "Send in every step, under onebit: utilisation 0.98."
    assert advice({"none": Sync(0.1, 1.0)}, 1.0, 0.95) == "Send in every step, uncompressed: utilisation 1.00."


def test_advice_names_the_interval_and_the_delay() -> None:
    ways = {"none": Sync(12.0, 13.0), "onebit": Sync(2.5, 3.5)}
    assert advice(ways, 1.0, 0.95) == (
        "In every step the utilisation is 0.29 at most. Send every 5 steps, under onebit, with fragment_sync_delay=4: "
        "nobody waits. Or every 48 steps without a delay: utilisation 0.95."
    )
    assert rows(ways, 1.0, 0.95)[1] == ("onebit", "2.5 s", "0.29", "48", "5", "4")


def test_simulate_says_how_often(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--gradients", "24x1041667", "--rate", "95mbit", "--latency", "25ms", "--compute", "1s"]
    assert simulate.main(words) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("In every step the utilisation is 0.")
    assert "under onebit, with fragment_sync_delay=" in last
    assert simulate.main([*words[:2], "--rate", "100gbit", "--compute", "1s"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Send in every step, uncompressed")


def test_the_page_shows_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "send_less_often.md").read_text()
    (command,) = re.findall(r"^casync simulate (.+)$", page, re.MULTILINE)
    (shown,) = re.findall(r"```text\n(codec .+?)```", page, re.DOTALL)
    assert simulate.main(command.split()) == 0
    _, _, printed = capsys.readouterr().out.partition("A step computes for 1 s.\n")
    assert shown.split() == printed.split()


def test_the_page_has_the_figures_of_the_benchmark() -> None:
    docs = Path(__file__).parents[3] / "docs"
    page = (docs / "send_less_often.md").read_text()
    figures = json.loads((docs / "figures" / "local_steps.json").read_text())["figures"]
    cells = {cell.strip() for line in page.splitlines() if line.startswith("|") for cell in line.split("|")}
    for name, found in figures.items():
        for key in ("seconds", "predicted"):
            if (seconds := found["slowest"][key]) is not None:
                assert f"{seconds:.{0 if seconds > 100 else 1}f}" in cells, f"{name}: {key}"


@pytest.mark.parametrize("words", [["--compute", "0s"], ["--utilisation", "1"], ["--utilisation", "x"]])
def test_simulate_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        simulate.main(words)
    assert words[-2] in capsys.readouterr().err


def test_a_round_has_an_agreement_before_it() -> None:
    how: dict[str, Any] = {"nodes": 4, "rate": 12.5e6, "latency_s": 25e-3}
    alone = simulate.predict([(1000, 512)], **how)["step_s"]
    assert simulate.predict_round([(1000, 512)], **how) == pytest.approx(alone + 0.1, abs=0.06)


def test_bench_prints_intervals_as_json() -> None:
    from casync.bench.show import as_json
    from casync.bench.ways import Links, Measured, Way, step_of

    ways = {name: Way(1.0 + alone, 3, 0, 0.0, alone_s=alone) for name, alone in (("none", 3.0), ("onebit", 0.5))}
    measured = Measured(4, 4, ways, Links(None, None), "")
    told = json.loads(as_json("model", step_of({"w": (2, 2)}, 1.0), measured, 0.9))
    assert told["intervals"]["onebit"]["waiting"]["every"] == 5
    assert told["advice"].startswith("In every step the utilisation is 0.67 at most. Send every 3 steps, under onebit")
    assert "intervals" not in json.loads(as_json("model", step_of({"w": (2, 2)}, 1.0), measured))
