"""The choice of what carries messages between the hosts of a job: CaSync's own sockets, or MPI.

Over TCP the sockets are faster than MPI, so they carry unless MPI has something better. `choose_carrier` is pure;
`active_fabric` looks at this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from casync.launcher.options import Options

__all__ = ["Carrier", "active_fabric", "choose_carrier", "is_chosen"]

_TRANSPORT, _INTERFACE = "CASYNC_TRANSPORT", "CASYNC_NETWORK_INTERFACE"
_COMPONENTS = ("pml", "mtl", "btl")
"""The components of Open MPI that decide by what its messages travel."""
_DEVICES = Path("/sys/class/infiniband")  # Omni-Path's are there, too


@dataclass(frozen=True)
class Carrier:
    """`asked` is what the user wants ("auto": no wish), `environ` what the ranks are told, `notes` what is said."""

    asked: str
    environ: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def choose_carrier(options: Options, environ: Mapping[str, str], remote: bool, fabric: str) -> Carrier:
    """Choose, and return what the ranks are told. `remote`: some are on other hosts. `fabric` is `active_fabric()`.

    Inside one host the ranks decide for themselves.
    """
    given = {**environ, **dict(item.split("=", 1) for item in options.exports if "=" in item)}
    asked = given.get(_TRANSPORT) or "auto"
    networks = {_INTERFACE: ",".join(options.networks)} if options.networks and not given.get(_INTERFACE) else {}
    if not remote:
        return Carrier(asked)
    if asked != "auto":
        what = "MPI carries" if asked == "mpi" else "CaSync's sockets carry"
        return Carrier(asked, networks, (f"{what} between hosts ({_TRANSPORT}={asked})",))
    chosen = [name for name in _COMPONENTS if is_chosen(name, options.mpi_args, environ)]
    if chosen:
        return Carrier(asked, networks, (f"MPI carries between hosts, since you chose its {' and '.join(chosen)}",))
    if fabric:
        return Carrier(asked, networks, (f"MPI carries between hosts, since this one has {fabric} (--gloo: sockets)",))
    note = "CaSync's sockets carry between hosts (--mpi: MPI)"
    return Carrier(asked, {_TRANSPORT: "tcp", **networks}, (note,))


def is_chosen(name: str, mpi_args: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the user has made this setting of Open MPI."""
    pairs = zip(mpi_args, mpi_args[1:], strict=False)
    flags = ("--mca", "-mca", "--gmca", "-gmca", "--omca", "-omca", "--prtemca")
    return bool({f"OMPI_MCA_{name}", f"PRTE_MCA_{name}"} & set(environ)) or any(
        flag in flags and word == name for flag, word in pairs
    )


def active_fabric(devices: Path = _DEVICES) -> str:
    """An InfiniBand or Omni-Path port of this host that is up, as "InfiniBand (mlx5_0)"; "" if there is none.

    A port whose link layer is Ethernet is none: TCP has that network, too.
    """
    for port in sorted(devices.glob("*/ports/*")):
        try:
            layer, state = (port / "link_layer").read_text(), (port / "state").read_text()
        except OSError:
            continue
        if layer.strip() == "InfiniBand" and "ACTIVE" in state:
            device = port.parent.parent.name
            return f"{'Omni-Path' if device.startswith('hfi1') else 'InfiniBand'} ({device})"
    return ""
