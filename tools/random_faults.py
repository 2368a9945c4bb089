"""Runs jobs in each of which a random rank is killed or stopped at a random moment, and checks how they end. Some have
no fault, in some strangers talk to every port (random_faults_stranger.py), and some ranks are stopped for a while only.

    python tools/random_faults.py                       100 jobs, one after the other
    python tools/random_faults.py --jobs 5 --seed 7     five others
    python tools/random_faults.py --jobs 1 --first 41   the 42nd job of seed 0 alone
    python tools/random_faults.py --rounds              jobs with rounds of DiLoCo, in place of gradients in every step
    python tools/random_faults.py --json report.json    all that was found, for a program

A job trains a small model on 2 to 5 ranks with a random codec and topology: one in four with PyTorch, the others with
NumPy, whose ranks start in a tenth of the time. The moment is drawn from all of a rank's
life: while it imports, in init(), in training, and while it leaves. What must come of it: a job without a fault, or
whose rank goes on within a second, ends well. Any other ends with casyncrun's error and the victim's number, and every
other rank is told of it, all within `--limit` seconds of the fault. No process is left. A job that ends well because
the fault came too late is counted apart. The exit status is 1 if a job did anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

PROGRAM = Path(__file__).with_name("random_faults_rank.py")
STRANGER = Path(__file__).with_name("random_faults_stranger.py")
RATE = 1000  # connections a second of a stranger
MARKER = "CASYNC_RANDOM_FAULTS"  # in the environment of every process of a job
# Any of these, where a codec can go by it.
TOPOLOGIES = {
    "none": ("auto", "direct", "ps", "ring", "two_level"),
    "fp16": ("auto", "direct", "ps", "ring", "two_level"),
    "onebit": ("auto", "direct", "ps", "ring", "two_level"),
    "terngrad(bits=2)": ("auto", "direct", "ps", "ring", "two_level"),
    "tbq": ("auto", "direct", "ps"),
    "dgc(ratio=0.01)": ("auto",),
    "powersgd(rank=2)": ("auto", "direct", "ps"),
}
# What a rank notes as it goes, and how many seconds after that note the fault comes at most.
PHASES = {"importing": 4.0, "init": 1.0, "training": 3.0, "leaving": 0.5}
IMPORTS_NUMPY = 0.5  # the same for `importing`, without PyTorch
PAUSE_SECONDS = 1.0  # less than the time-out below
SETTINGS = {"CASYNC_PEER_TIMEOUT_SECONDS": "4", "CASYNC_TIMEOUT_SECONDS": "20"}
FLAGS = ("--start-timeout", "10")


@dataclass(frozen=True)
class Plan:
    """One job, drawn from a seed. The fault comes `delay` seconds after the victim has noted `phase`."""

    number: int
    ranks: int
    codec: str
    topology: str
    victim: int
    signal: str
    phase: str
    delay: float
    explicit: bool  # whether the program calls shutdown() itself
    transport: str  # what CASYNC_TRANSPORT says
    strangers: bool
    adaptor: str
    rounds: str = ""
    """Of rounds of DiLoCo: steps between them, fragments, delay, and how many steps each rank makes more than the one
    before it. "": gradients in every step.
    """

    @property
    def ends_well(self) -> bool:
        return self.signal in ("nothing", "pause")

    def __str__(self) -> str:
        beside = ", beside strangers" * self.strangers + (f", rounds {self.rounds}" if self.rounds else "")
        return (
            f"job {self.number}: {self.ranks} ranks of {self.adaptor}, {self.codec}, {self.topology}, {self.transport}"
            f"{beside}, {self.signal} to rank {self.victim} {self.delay:.2f} s after it noted {self.phase!r}"
        )


@dataclass
class Result:
    """What came of it. `seconds` are those from the fault to casyncrun's end; `faults` what must not be."""

    plan: Plan
    phase: str = ""
    status: int | None = None
    seconds: float = 0.0
    verdict: str = ""
    too_late: bool = False
    faults: list[str] = field(default_factory=list)
    output: str = ""

    def __str__(self) -> str:
        if self.too_late:
            return f"{self.plan}: too late, the job ended well"
        ended = f"hit while {self.phase}, ended after {self.seconds:.1f} s with status {self.status}: {self.verdict}"
        return f"{self.plan}: {ended}" + "".join(f"\n    FAULT: {fault}" for fault in self.faults)


def draw(seed: int, number: int, *, rounds: bool = False) -> Plan:
    """The `number`-th job of `seed`."""
    dice = random.Random(f"{seed}/{number}")
    plan = _draw(dice, number)
    if not rounds:
        return plan
    every = dice.randint(1, 12)
    fragments = dice.randint(1, min(every, 3))
    codec = "onebit" if plan.codec.startswith("dgc") else plan.codec  # which is for gradients
    spec = f"{every},{fragments},{dice.randrange(every)},{dice.choice([0, 0, 7])}"
    return replace(plan, codec=codec, topology="auto" if codec != plan.codec else plan.topology, rounds=spec)


def _draw(dice: random.Random, number: int) -> Plan:
    ranks = dice.randint(2, 5)
    codec = dice.choice(list(TOPOLOGIES))
    phase = dice.choice(list(PHASES))
    adaptor = dice.choice(["torch", "numpy", "numpy", "numpy"])
    longest = IMPORTS_NUMPY if (phase, adaptor) == ("importing", "numpy") else PHASES[phase]
    return Plan(
        number,
        ranks,
        codec,
        dice.choice(TOPOLOGIES[codec]),
        dice.randrange(ranks),
        dice.choice(["SIGKILL", "SIGKILL", "SIGSTOP", "SIGSTOP", "pause", "nothing"]),
        phase,
        round(dice.uniform(0, longest), 3),
        dice.random() < 0.5,
        transport := dice.choice(["auto", "tcp"]),
        transport == "tcp" and dice.random() < 0.5,  # Open MPI's own ports are not ours to try
        adaptor,
    )


def alive(token: str) -> list[int]:
    """Processes that carry the token."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARKER}={token}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def noted(folder: Path, rank: int) -> dict[str, float]:
    """The phases that a rank has come to, and its process."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(line) for line in (folder / f"rank.{rank}").read_text().splitlines())
    return {}


def strike(plan: Plan, folder: Path, job: subprocess.Popen[str], limit: float) -> str:
    """Bring about the fault; returns the phase in which it hit the victim. Empty: it was gone, or never came there."""
    deadline = time.monotonic() + limit
    while plan.phase not in noted(folder, plan.victim):
        if job.poll() is not None or time.monotonic() > deadline:
            return ""
        time.sleep(0.01)
    time.sleep(plan.delay)
    notes = noted(folder, plan.victim)
    try:
        if plan.signal == "pause":
            os.kill(int(notes["process"]), signal.SIGSTOP)
            time.sleep(PAUSE_SECONDS)
            os.kill(int(notes["process"]), signal.SIGCONT)
        elif plan.signal != "nothing":
            os.kill(int(notes["process"]), signal.Signals[plan.signal])
    except ProcessLookupError:
        return ""
    return next(phase for phase in reversed(PHASES) if phase in notes)


def judge(result: Result, folder: Path) -> None:
    """What of it must not be."""
    plan, output = result.plan, result.output
    lines = [line for line in output.splitlines() if line.startswith("casyncrun: ")]
    if plan.ends_well:
        result.verdict = "well" if result.status == 0 else lines[-1]
        if result.status != 0:
            result.faults.append("the job did not end well")
        return
    result.verdict = lines[-1].removeprefix("casyncrun: ") if lines else "nothing"
    if result.status == 0:
        if result.phase in ("", "leaving"):
            result.too_late = True
        else:
            result.faults.append("the job ended well")
        return
    if not re.match(rf"the first rank to fail: rank {plan.victim} on host ", result.verdict):
        result.faults.append(f"casyncrun does not say that rank {plan.victim} failed first")
    for rank in range(plan.ranks):
        own = [line for line in output.splitlines() if line.startswith(f"[{rank}]<std")]
        told = any(re.search(rf"\brank {plan.victim}\b", line) for line in own)
        if rank != plan.victim and not told and "left" not in noted(folder, rank):
            result.faults.append(f"rank {rank} was not told of rank {plan.victim}")


def run(plan: Plan, folder: Path, limit: float) -> Result:
    """One job, from its start until nothing of it is left."""
    token = uuid.uuid4().hex
    command = [sys.executable, "-m", "casync", "run", "-np", str(plan.ranks), *FLAGS, "--", sys.executable]
    arguments = [str(PROGRAM), str(folder), plan.adaptor, plan.codec, "shutdown" if plan.explicit else "return"]
    arguments += [plan.rounds]
    result = Result(plan)
    with open(folder / "output", "w", encoding="utf-8") as output:
        job = subprocess.Popen(
            [*command, *arguments],
            env={
                **os.environ,
                **SETTINGS,
                MARKER: token,
                "CASYNC_TOPOLOGY": plan.topology,
                "CASYNC_TRANSPORT": plan.transport,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        stranger = None
        if plan.strangers:
            command = [sys.executable, str(STRANGER), f"{MARKER}={token}", str(RATE), str(4 * limit)]
            stranger = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            result.phase = strike(plan, folder, job, 3 * limit)
            begin = time.monotonic()
            try:
                result.status = job.wait(limit)
            except subprocess.TimeoutExpired:
                result.faults.append(f"the job had not ended after {limit:g} s")
            result.seconds = time.monotonic() - begin
        finally:
            if job.poll() is None:
                job.kill()
                job.wait()
            if stranger is not None:
                stranger.kill()
                stranger.wait()
    result.output = (folder / "output").read_text(encoding="utf-8", errors="replace")
    deadline = time.monotonic() + 5
    while (left := alive(token)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        result.faults.append(f"{len(left)} processes were left")
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    if result.status is not None:
        judge(result, folder)
    return result


def run_all(seed: int, numbers: Sequence[int], limit: float, *, rounds: bool = False) -> Iterator[Result]:
    """The jobs `numbers` of `seed`, one after the other."""
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            yield run(draw(seed, number, rounds=rounds), Path(folder), limit)


def summary(results: Sequence[Result]) -> str:
    """How many ended how, and how long that took."""
    counts = Counter("bad" if r.faults else "too late" if r.too_late else "good" for r in results)
    lines = [
        f"{len(results)} jobs: {counts['good']} ended well or with the victim's name, {counts['too late']} "
        f"were hit too late, {counts['bad']} did something else"
    ]
    for name in ("SIGKILL", "SIGSTOP", "pause", "nothing"):
        for phase in PHASES:
            times = sorted(
                r.seconds for r in results if (r.plan.signal, r.phase) == (name, phase) and not (r.too_late or r.faults)
            )
            if times:
                middle = times[len(times) // 2]
                lines.append(f"  {name} while {phase}: {len(times)}, median {middle:.1f} s, longest {times[-1]:.1f} s")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first job")
    parser.add_argument("--limit", type=float, default=60, help="seconds from the fault to the end of the job")
    parser.add_argument("--rounds", action="store_true", help="rounds of DiLoCo, in place of gradients in every step")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    results = []
    numbers = range(options.first, options.first + options.jobs)
    for result in run_all(options.seed, numbers, options.limit, rounds=options.rounds):
        print(result, flush=True)
        if result.faults:
            print("    " + result.output.replace("\n", "\n    "), flush=True)
        results.append(result)
    print(summary(results))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 1 if any(result.faults for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
