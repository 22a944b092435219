"""Hosts of a simulated network: namespaces behind one bridge, on links of limited rate.

Each host is a network namespace with one link (a veth pair) to the bridge, which stands
for a switch. A token bucket (tbf) at both ends of the link limits what the host sends
and what it receives. Names begin with PREFIX and the number of the process that made
them, so that what a killed run left behind can be found and removed.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

PREFIX = "jxn"
MOST_HOSTS = 200
# Some systems use others, which share a full link less well with their own answers.
TCP = "reno"
_OWN = re.compile(rf"{PREFIX}(\d+)[bnv]\d*")
_INSIDE = "JAXCOMP_NETWORK_INSIDE"  # set in a user namespace of our own
_MAY_NOT = (
    "needs root, or a user namespace with its own network "
    "(unshare --user --map-root-user --net)"
)

Command = list[str]


class Network(NamedTuple):
    """Hosts that were made; host i has the address `address(i)`."""

    owner: int  # pid in the names
    hosts: int

    def namespace(self, host: int) -> str:
        return f"{PREFIX}{self.owner}n{host}"

    def port(self, host: int) -> str:
        """The end of the host's link at the bridge."""
        return f"{PREFIX}{self.owner}v{host}"

    @property
    def bridge(self) -> str:
        return f"{PREFIX}{self.owner}b"

    def address(self, host: int) -> str:
        return f"10.77.{self.owner % 250}.{host + 1}"

    def inside(self, host: int, command: Sequence[str]) -> Command:
        """A command as it is run on a host, whose name is its own address there.

        Gloo listens at the address that the name of its host stands for.
        """
        named = f'hostname {self.address(host)} && exec "$@"'
        unshared = ["unshare", "--uts", "sh", "-c", named, "sh", *command]
        return ["ip", "netns", "exec", self.namespace(host), *unshared]


class Traffic(NamedTuple):
    """Bytes that the kernel counted at the link of one host."""

    sent: int
    received: int
    packets: int  # that were sent; segments count as one until the network cuts them


@contextlib.contextmanager
def network(hosts: int) -> Iterator[Network]:
    """Make hosts and remove them at the end, after an error or a signal too."""
    if not 2 <= hosts <= MOST_HOSTS:
        raise SystemExit(f"a network has 2 to {MOST_HOSTS} hosts, not {hosts}")
    made = Network(os.getpid(), hosts)
    remove(leftovers(_names(), _is_alive))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for command in build_commands(made):
            run(command)
        yield made
    finally:
        remove(name for name in _names() if _owner(name) == made.owner)
        signal.signal(signal.SIGTERM, before)


def build_commands(made: Network) -> list[Command]:
    """What makes a bridge and the hosts at it."""
    bridge = made.bridge
    lines = [f"ip link add {bridge} type bridge", f"ip link set {bridge} up"]
    settings = []
    for host in range(made.hosts):
        space, port = made.namespace(host), made.port(host)
        lines += [
            f"ip netns add {space}",
            f"ip link add {port} type veth peer name eth0 netns {space}",
            f"ip link set {port} master {bridge} up",
            f"ip -n {space} address add {made.address(host)}/24 dev eth0",
            f"ip -n {space} link set eth0 up",
            f"ip -n {space} link set lo up",
        ]
        setting = "/proc/sys/net/ipv4/tcp_congestion_control"
        write = ["sh", "-c", f"echo {TCP} > {setting}"]
        settings.append(["ip", "netns", "exec", space, *write])
    return [line.split() for line in lines] + settings


def limit_commands(made: Network, mbit: float | None) -> list[Command]:
    """What limits both directions of all links, or lifts the limit (None)."""
    ends = []
    for host in range(made.hosts):
        ends += [f"tc -n {made.namespace(host)} qdisc {{}} dev eth0 root"]
        ends += [f"tc qdisc {{}} dev {made.port(host)} root"]
    if mbit is None:
        return [end.format("delete").split() for end in ends]
    # What is saved while nothing is sent goes out at once: a millisecond's worth, and
    # some packets. The queue holds a tenth of a second, so that few packets are lost.
    burst = max(20_000, round(mbit * 1e6 / 8 / 1000))
    bucket = f"tbf rate {mbit:g}mbit burst {burst} latency 100ms"
    return [f"{end.format('replace')} {bucket}".split() for end in ends]


def limit(made: Network, mbit: float | None) -> None:
    """Set the rate of all links; None lifts a limit that was set before."""
    for command in limit_commands(made, mbit):
        if mbit is None:
            subprocess.run(command, capture_output=True)  # there may be none
        else:
            run(command)


def traffic(made: Network) -> list[Traffic]:
    """What each host has sent and received since it was made."""
    found = counters(run(["ip", "-json", "-stats", "link", "show"]))
    return [found[made.port(host)] for host in range(made.hosts)]


def counters(text: str) -> dict[str, Traffic]:
    """Bytes by port of the bridge, from what `ip -json -stats link` prints.

    What a port has received is what its host has sent.

    Example:
      >>> stats = {"rx": {"bytes": 10, "packets": 2}, "tx": {"bytes": 20}}
      >>> counters(json.dumps([{"ifname": "jxn1v0", "stats64": stats}]))
      {'jxn1v0': Traffic(sent=10, received=20, packets=2)}
    """
    result = {}
    for link in json.loads(text):
        stats = link["stats64"]
        sent, received = stats["rx"], stats["tx"]
        found = Traffic(sent["bytes"], received["bytes"], sent["packets"])
        result[link["ifname"]] = found
    return result


# --- Removing -------------------------------------------------------------------------


def removal_commands(names: Iterable[str]) -> list[Command]:
    """What removes namespaces, links and bridges of these names."""
    kinds = {"n": "ip netns delete", "v": "ip link delete", "b": "ip link delete"}
    # A link goes with either of its ends, and its name says nothing after that.
    order = sorted(names, key=lambda name: ("vbn".index(_kind(name)), name))
    return [[*kinds[_kind(name)].split(), name] for name in order]


def leftovers(names: Iterable[str], is_alive: Any) -> list[str]:
    """Those of our names whose process is no more.

    Args:
      names: of namespaces and links.
      is_alive: whether there is a process with a number.

    Example:
      >>> leftovers(["eth0", "jxn7n0", "jxn8v1"], lambda pid: pid == 7)
      ['jxn8v1']
    """
    return [n for n in names if _owner(n) is not None and not is_alive(_owner(n))]


def remove(names: Iterable[str]) -> None:
    """Remove what is there of these names."""
    for command in removal_commands(names):
        subprocess.run(command, capture_output=True)


def _owner(name: str) -> int | None:
    match = _OWN.fullmatch(name)
    return int(match[1]) if match else None


def _kind(name: str) -> str:
    return name.removeprefix(PREFIX).lstrip("0123456789")[0]


def _names() -> list[str]:
    """All network namespaces and links that can be seen from here."""
    spaces = json.loads(run(["ip", "-json", "netns", "list"]) or "[]")
    links = json.loads(run(["ip", "-json", "link", "show"]) or "[]")
    return [s["name"] for s in spaces] + [link["ifname"] for link in links]


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


# --- Permission -----------------------------------------------------------------------


def enter(module: str) -> None:
    """Start anew in a user namespace where the caller is not root.

    There the process is root of a network of its own, which ends with it.

    Args:
      module: of the benchmark, for `python -m`.

    Raises:
      SystemExit: it is not permitted, or a tool is missing; says which.
    """
    if reason := why_not():
        raise SystemExit(f"{module} {reason}")
    if os.geteuid() == 0:
        if os.environ.get(_INSIDE):
            run(
                ["mount", "-t", "tmpfs", "tmpfs", "/run"]
            )  # where `ip netns` keeps names
        return
    command = [*_UNSHARE, sys.executable, "-m", module, *sys.argv[1:]]
    os.execvpe(command[0], command, os.environ | {_INSIDE: "1"})


_UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount"]


def why_not() -> str:
    """Why no hosts can be made here; empty if they can."""
    missing = [tool for tool in ("ip", "tc", "unshare") if not shutil.which(tool)]
    if missing:
        return f"needs the programs {', '.join(missing)} (Debian: iproute2, util-linux)"
    own_network = ["unshare", "--net"] if os.geteuid() == 0 else _UNSHARE
    bucket = "tc qdisc add dev lo root tbf rate 1mbit burst 2kb latency 1ms"
    tried = subprocess.run([*own_network, *bucket.split()], capture_output=True)
    return "" if tried.returncode == 0 else _MAY_NOT


def run(command: Sequence[str]) -> str:
    """Run a command and return what it printed.

    Raises:
      RuntimeError: it failed; says what it wrote.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
