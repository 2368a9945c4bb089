"""Codecs by name in `CASYNC_COMPRESSION`, seen in what `CASYNC_PLAN=explain` says of a job."""

from __future__ import annotations

import json
import re
from pathlib import Path

ABSMAX = Path(__file__).parents[2] / "compll" / "quantisers" / "absmax.cll"
STEP = """
    model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 100), torch.nn.Linear(100, 100))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for _ in range(2):
        model(torch.ones(1, 100)).sum().backward()
        optimizer.step()
    note(codecs={name: plan.codec for name, plan in hvd.plans().items()})
"""


def test_rules_from_the_environment_reach_the_planner(job, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("CASYNC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "own-codecs"))
    monkeypatch.setenv("CASYNC_PLAN", "explain")
    table = {"*.bias": "none", "0.*": "onebit", "1.*": str(ABSMAX), "2.*": f"auto({ABSMAX}, terngrad(bits=8))"}
    monkeypatch.setenv("CASYNC_COMPRESSION", json.dumps(table))
    status, output, notes = job(2, STEP, timeout=60)
    assert status == 0, output
    assert notes[0]["codecs"] == notes[1]["codecs"]
    # Of the last plan: the first run of a gradient that is left open goes uncompressed.
    explained = dict(re.findall(r"allreduce\.([012]\.\w+) \(.*?\) float32: ([\w@]+)", output))
    assert {name: explained[name] for name in ("0.weight", "0.bias", "1.bias", "2.bias")} == {
        "0.weight": "onebit", "0.bias": "none", "1.bias": "none", "2.bias": "none"
    }  # fmt: skip
    assert explained["1.weight"].startswith("absmax@")
    assert re.search(r"allreduce\.2\.weight .*auto: .*absmax@\w+.* \d", output) and "terngrad(bits=8) " in output


def test_a_typo_in_a_rule_is_the_same_error_on_every_rank(job, monkeypatch):
    """Of `init()`: before ranks meet."""
    monkeypatch.setenv("CASYNC_COMPRESSION", '{"*.bias": "none", "*": "threebit"}')
    status, output, _ = job(2, STEP)
    assert status == 1, output
    for rank in (0, 1):
        assert re.search(rf"\[{rank}\]<stderr>: \S*InvalidArgumentError: compression=.*'threebit' is not known", output)
