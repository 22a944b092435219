"""Start the processes of a run on this machine or on several, and watch them."""

from jaxcomp.launch.hosts import parse_hosts, read_hosts
from jaxcomp.launch.plan import Child, local_plan, remote_plan
from jaxcomp.launch.supervise import Limits, supervise
from jaxcomp.launch.watch import Ended, watch

__all__ = [
    "Child",
    "Ended",
    "Limits",
    "local_plan",
    "parse_hosts",
    "read_hosts",
    "remote_plan",
    "supervise",
    "watch",
]
