"""Metrics before and after a session, Prometheus' text, and the page that serves it."""

import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import casync.torch as hvd
import pytest
import torch

import casync.metrics
from casync.config.settings import Config
from casync.observe import prometheus as exposition
from casync.session import default
from casync.session.session import Session
from support.ports import free_port

parser = pytest.importorskip("prometheus_client.parser")


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and the values of labels, in order, but for rank and process_set."""
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name not in ("rank", "process_set")}
            key = (sample.name, *(labels[name] for name in sorted(labels)))
            found[key] = sample.value
    return found


def fetch(port: int) -> str:
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


@pytest.fixture
def port() -> int:
    """A free port, and the next one is free too."""
    return free_port(2)


@pytest.fixture
def fresh(monkeypatch):
    """As if no session had been opened in this process."""
    monkeypatch.setattr(default._current, "last_metrics", {})


@pytest.mark.parametrize("call", [hvd.metrics, casync.metrics.prometheus])
def test_before_init(fresh, call):
    with pytest.raises(ValueError, match=r"CaSync has not been initialized; use hvd.init\(\)."):
        call()


def test_after_shutdown(fresh):
    hvd.init()
    hvd.allreduce(torch.ones(10), name="t")
    hvd.shutdown()
    assert hvd.metrics().codecs["none"].operations == 1
    assert samples(casync.metrics.prometheus())[("casync_operations_total", "none")] == 1
    hvd.init()
    assert hvd.metrics().codecs == {}
    hvd.shutdown()


def test_of_a_session_of_its_own():
    with Session(Config()) as session:
        metrics = session.metrics()
        assert (metrics.steps, metrics.size, metrics.pool.capacity_bytes) == (0, 1, 24 << 20)
    assert session.metrics().queues.operations == 0


def test_prometheus_has_all_numbers(world):
    for _ in range(3):
        hvd.allreduce(torch.ones(1000), name="t")
    metrics = hvd.metrics()
    text = casync.metrics.prometheus()
    assert 'casync_steps_total{process_set="0",rank="0"} 3.0' in text
    found = samples(text)
    assert found[("casync_tensor_bytes_total", "none")] == 12_000
    assert found[("casync_step_seconds_count",)] == 2
    assert found[("casync_step_seconds_sum",)] == pytest.approx(metrics.step_seconds.sum)
    assert found[("casync_step_seconds_bucket", "+Inf")] == 2
    buckets = [value for key, value in found.items() if key[0] == "casync_step_seconds_bucket"]
    assert buckets == sorted(buckets) and len(buckets) == len(metrics.step_seconds.counts)
    assert found[("casync_waited_seconds_total",)] >= found[("casync_exposed_seconds_sum",)]
    assert found[("casync_queue_length", "operations")] == 0
    assert found[("casync_pool_capacity_bytes",)] == 24 << 20
    # A number of the snapshot that is nowhere in the text is forgotten.
    names = {name for name, *_ in found}
    assert {"casync_transport_bytes_total", "casync_codec_seconds_total", "casync_late_seconds_total"} <= names


def test_a_port_that_is_asked_for_is_served(port):
    hvd.init(metrics_port=port)
    hvd.allreduce(torch.ones(10), name="t")
    assert samples(fetch(port))[("casync_operations_total", "none")] == 1
    hvd.shutdown()
    with pytest.raises(OSError):
        fetch(port)
    hvd.init(metrics_port=port)  # it is free again
    hvd.shutdown()


def listening(port):
    """Addresses at which somebody listens at `port`, as the kernel writes them."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                found.add(local.rpartition(":")[0])
    return found


def test_only_this_host_reads_them_unless_an_address_is_named(monkeypatch, port):
    hvd.init(metrics_port=port)
    assert listening(port) == {"0100007F"}
    hvd.shutdown()
    monkeypatch.setenv("CASYNC_METRICS_ADDRESS", "0.0.0.0")
    hvd.init(metrics_port=port)
    assert listening(port) == {"00000000"}
    hvd.shutdown()
    monkeypatch.setenv("CASYNC_METRICS_ADDRESS", "192.0.2.1")
    with pytest.raises(ValueError, match="CASYNC_METRICS_ADDRESS=192.0.2.1: Cannot assign requested address"):
        hvd.init(metrics_port=port)


def test_a_port_that_is_taken_is_named(monkeypatch, port):
    monkeypatch.setenv("CASYNC_METRICS_PORT", str(port))
    with socket.create_server(("", port)):
        with pytest.raises(ValueError, match=rf"CASYNC_METRICS_PORT={port}: .* port {port}, .*already in use"):
            hvd.init()
        assert not hvd.is_initialized()
    hvd.init()
    hvd.shutdown()


def test_ports_that_are_none(monkeypatch):
    for wrong in ("0", "65536", "-1", "http"):
        monkeypatch.setenv("CASYNC_METRICS_PORT", wrong)
        with pytest.raises(ValueError, match=f"CASYNC_METRICS_PORT='{wrong}'"):
            hvd.init()
    with pytest.raises(
        ValueError, match="CASYNC_METRICS_PORT=65535: local rank 1 .* port 65536, and 65535 is the last"
    ):
        exposition.Page(65535, 1, dict)


def test_without_prometheus_client(world, monkeypatch, port):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert hvd.metrics().steps == 0
    with pytest.raises(hvd.NotAvailableError, match=r"pip install prometheus_client"):
        casync.metrics.prometheus()
    hvd.shutdown()
    with pytest.raises(hvd.NotAvailableError, match=r"pip install prometheus_client"):
        hvd.init(metrics_port=port)
    assert not hvd.is_initialized()


def test_a_forked_child_leaves_in_peace(port, tmp_path):
    program = f"""
import os
import casync.torch as hvd
hvd.init(metrics_port={port})
child = os.fork()
if child == 0:
    hvd.shutdown()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
hvd.shutdown()
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=40)


def test_every_rank_has_a_port(job, port, monkeypatch):
    monkeypatch.setenv("CASYNC_METRICS_PORT", str(port))
    body = """
        import urllib.request
        port = int(os.environ["CASYNC_METRICS_PORT"]) + hvd.local_rank()
        with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
            note(text=answer.read().decode())
        hvd.barrier()
    """
    status, output, notes = job(2, body)
    assert status == 0, output
    assert all(f'rank="{rank}"' in notes[rank]["text"] for rank in (0, 1))


def test_a_job_in_which_one_rank_has_no_port_ends(job, port, monkeypatch):
    monkeypatch.setenv("CASYNC_METRICS_PORT", str(port))
    with socket.create_server(("", port + 1)):
        status, output, notes = job(2, "note()")
    assert status != 0 and notes == {}
    assert f"CASYNC_METRICS_PORT={port}: local rank 1 serves its metrics on port {port + 1}" in output
