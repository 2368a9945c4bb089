"""Cluster files of `casync simulate`: what they say shows in the prediction, and what they say wrong is named."""

from __future__ import annotations

import json
import re

import pytest

from casync import cli
from casync.bench import cluster
from casync.bench.cluster import Cluster, CodecCosts, Link
from casync.bench.simulate import gradients_of, predict
from casync.errors import InvalidArgumentError
from support.files import ROOT

CLUSTERS = ROOT / "casync/bench/clusters"


def write(tmp_path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def step(machines: Cluster, **how) -> float:
    return predict(gradients_of("20x1000000"), cluster=machines, topology="two_level", **how)["step_s"]


def test_a_file_says_what_it_says(tmp_path):
    text = """
    name = "two machines"
    source = "measured"
    hosts = 2
    ranks_per_host = 3
    known = ["hosts", "network.rate"]
    [network]
    rate = "10gbit"
    latency = "40us"
    message = "4us"
    [inside]
    rate = "12GB/s"
    [copy]
    rate = "6GB/s"
    [processors]
    for_codecs = 5
    [codecs."terngrad(bits=4)"]
    device = {encode = ["30us", "0.04ns"], decode = ["20us", "0.02ns"]}
    [models.vgg19]
    forward = "50ms"
    """
    found = cluster.load(write(tmp_path, text))
    assert found.host_of() == [0, 0, 0, 1, 1, 1]
    assert found.network == Link(1.25e9, pytest.approx(40e-6), pytest.approx(4e-6))
    assert found.inside == Link(12e9, Cluster.inside.latency_s, Cluster.inside.message_s)
    assert (found.copy_rate, found.processors) == (6e9, 5)
    assert found.costs("host") == {}
    assert found.costs("device")["terngrad(bits=4)"] == pytest.approx((30e-6, 4e-11, 20e-6, 2e-11))
    assert found.models["vgg19"].forward_s == pytest.approx(0.05)
    assert found.assumed["network.latency"] == "40us"
    assert "hosts" not in found.assumed and "network.rate" not in found.assumed
    left = found.left(["onebit", "terngrad(bits=4)"])
    assert [line.split(":")[0] for line in left] == ["inside.latency", "inside.message", "codecs.onebit"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("host = 3", "host is not known; known: name, source, known, hosts, "),
        ("hosts = 0", "hosts: it must be a whole number from 1 on, not 0"),
        ("hosts = true", "hosts: it must be a whole number from 1 on, not True"),
        ("network = 3", "network: it must be a table, not 3"),
        ("[network]\nrat = '1gbit'", "network.rat is not known; known: rate, latency, message"),
        ("[network]\nrate = 3", "network.rate: it must be a text, not 3"),
        ("[network]\nlatency = '3 days'", "network.latency: '3 days' is no time; write a number and one of s, ms"),
        ("[codecs.onebitt]", "codecs.onebitt: .*onebitt"),
        ("[codecs.onebit]\nboard = 1", "codecs.onebit.board is not known; known: device, host"),
        ("[codecs.onebit]\nhost = {encode = []}", "codecs.onebit.host: it must be a table of encode and decode"),
        ("[codecs.onebit]\nhost = {encode = [], decode = []}", "onebit.host: encode: it must be the times of a call"),
        ("[models.vgg20]", "models.vgg20 is not known; known: vgg19, "),
        ("[models.vgg19]\nbackwards = '1s'", "models.vgg19.backwards is not known; known: backward, forward"),
        ("known = ['hosts']", "known: the file says nothing of 'hosts'"),
        ("hosts = ]", "line 1"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, why):
    with pytest.raises(InvalidArgumentError, match=re.escape("mine.toml'") + f": .*{why}"):
        cluster.load(write(tmp_path, text))


@pytest.mark.parametrize("name", ["nowhere", "nowhere.toml"])
def test_an_unknown_cluster_is_an_error(name):
    with pytest.raises(
        InvalidArgumentError, match=f"cluster '{name}': (it is not known; known: .*hipress-ec2|No such)"
    ):
        cluster.load(name)


@pytest.mark.parametrize("name", cluster.shipped())
def test_shipped_files_mark_each_value_as_they_list_it(name):
    found = cluster.load(name)
    marks = re.findall(r"^\w+ = .* # (printed|assumed|fitted)", (CLUSTERS / f"{name}.toml").read_text(), re.MULTILINE)
    assert len(marks) == len(found.said)
    assert len(found.said) - marks.count("printed") == len(found.assumed)


def test_the_links_of_a_host_have_their_rate():
    fast, slow = (Cluster(hosts=2, ranks_per_host=4, inside=Link(rate, 2e-6, 5e-6)) for rate in (1e11, 1e8))
    assert step(slow) > 1.5 * step(fast)


def test_a_codec_takes_what_the_file_says_where_it_is_computed():
    slow, fast = (1e-3, 1e-9, 1e-3, 1e-9), (1e-6, 1e-12, 1e-6, 1e-12)
    machines = Cluster(network=Link(1.25e10, 5e-6, 5e-6), codecs={"onebit": CodecCosts(device=fast, host=slow)})
    assert step(machines, compression="onebit") < step(machines, compression="onebit", codecs_on="host") / 5
    with_copies = Cluster(**{**vars(machines), "copy_rate": 1e9})
    assert step(with_copies, compression="onebit") > step(machines, compression="onebit")
    gradients_copied = step(with_copies, compression="onebit", codecs_on="host")
    assert gradients_copied > step(machines, compression="onebit", codecs_on="host") + 80e6 / 1e9 / 2


def test_a_device_computes_one_job_at_a_time():
    costs = (0.0, 1e-9, 0.0, 1e-9)
    on_host, on_device = (
        Cluster(network=Link(1.25e10, 5e-6, 5e-6), processors=4, codecs={"onebit": CodecCosts(**{place: costs})})
        for place in ("host", "device")
    )
    assert step(on_host, compression="onebit") < step(on_device, compression="onebit") / 2


def test_the_command_takes_a_cluster_and_says_what_is_assumed(capsys, tmp_path):
    text = 'name = "mine"\nhosts = 2\n[models.lstm]\nforward = "1s"\nbackward = "2s"\n'
    timeline = tmp_path / "step.json"
    command = ["simulate", "--cluster", write(tmp_path, text), "--gradients", "lstm", "--topology", "ps"]
    assert cli.main([*command, "--codec", "onebit", "--rate", "100gbit", "--timeline", str(timeline)]) == 0
    out = capsys.readouterr().out
    assert "2 ranks on 2 hosts" in out
    assert 0.9 < float(out.splitlines()[2].split()[-3]) < 1
    assert "assumed by this file, where no option says otherwise:\n  hosts = 2\n  models.lstm.forward = 1s\n" in out
    assert "network.latency: 50 us" in out and "codecs.onebit: one core" in out
    names = {event["name"].split()[0] for event in json.loads(timeline.read_text())}
    assert {"encode", "send", "ALLREDUCE"} <= names
    assert cli.main([*command, "--nodes", "3"]) == 0
    assert "3 ranks on 3 hosts" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["simulate", "--cluster", "nowhere"])
    assert "known: bytecomp-nvlink, " in capsys.readouterr().err


def test_local_aggregation_needs_memory():
    """The two figures of docs/simulate.md."""
    machines = cluster.load("bytecomp-nvlink")
    how = {"cluster": machines, "compression": "onebit", "topology": "two_level", "backward_s": 0.09}
    usual, more = (predict(gradients_of("vgg16"), **how, pool_bytes=size << 20)["step_s"] for size in (24, 256))
    assert (usual, more) == pytest.approx((0.290, 0.106), rel=0.01)
