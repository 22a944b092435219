"""Which cluster flags and environments describe, as arguments for jax."""

import pytest

from jaxcomp.core.errors import UserError
from jaxcomp.parallel.cluster import Cluster, find_cluster, time_limit

TORCHRUN = {
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NODELIST": "node[001-002]",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
}
ONE_PER_NODE = {
    **SLURM,
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_GPUS_ON_NODE": "8",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
OURS = {
    "JAXCOMP_COORDINATOR": "a:1",
    "JAXCOMP_PROCESSES": "2",
    "JAXCOMP_PROCESS": "1",
}
AUTO = {"coordinator": "auto"}
AGENTS = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}
ALL_SEEN = {**TORCHRUN, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
ONE_SEEN = {**TORCHRUN, "CUDA_VISIBLE_DEVICES": "3"}
BOUND = {**SLURM, "SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "1"}
FOUND = [
    (OURS, {}, Cluster("a:1", 2, 1)),
    (OURS, {"process": 0}, Cluster("a:1", 2, 0)),
    (OURS, {"coordinator": "b:2"}, Cluster("b:2", 2, 1)),
    ({**TORCHRUN, **OURS}, {}, Cluster("a:1", 2, 1, [1])),
    (TORCHRUN, {}, Cluster("node0:29500", 8, 5, [1])),
    (AGENTS, {}, Cluster("node0:29501", 8, 5, [1])),
    (TORCHRUN, AUTO, Cluster("node0:29500", 8, 5, [1])),
    (ONE_SEEN, {}, Cluster("node0:29500", 8, 5, [])),
    (ALL_SEEN, {}, Cluster("node0:29500", 8, 5, [2, 3])),
    (SLURM, AUTO, Cluster(None, 16, 9, [1])),
    (SLURM, {"coordinator": "a:1"}, Cluster("a:1", 16, 9, [1])),
    # One process for each host takes all GPUs, which jax alone would not do.
    (ONE_PER_NODE, AUTO, Cluster(None, 2, 1, [])),
    # Slurm has given each task GPUs of its own.
    (BOUND, AUTO, Cluster(None, 16, 9, [])),
    ({**SLURM, "JAX_LOCAL_DEVICE_IDS": "5"}, AUTO, Cluster(None, 16, 9)),
    (OPEN_MPI, AUTO, Cluster(None, 2, 1, [1])),
    (OPEN_MPI, {"coordinator": "a:1"}, Cluster("a:1", 2, 1, [1])),
    (
        {"PMI_SIZE": "2", "PMI_RANK": "0"},
        AUTO,
        Cluster(None, None, None, None, "mpi4py"),
    ),
    ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, AUTO, Cluster(None, None, None)),
    ({}, {}, None),
    ({**TORCHRUN, "WORLD_SIZE": "1"}, {}, None),
    ({**SLURM, "SLURM_NTASKS": "1"}, AUTO, None),
]


@pytest.mark.parametrize(("variables", "flags", "cluster"), FOUND)
def test_what_jax_is_told(variables, flags, cluster):
    assert find_cluster(variables, **flags, has=lambda name: True) == cluster


@pytest.mark.parametrize(
    ("variables", "flags", "says"),
    [
        (SLURM, {}, "SLURM_NTASKS=16 says that 16 .* give --coordinator=auto or"),
        (OPEN_MPI, {}, "each would train alone.*unset OMPI_COMM_WORLD_SIZE"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, {}, "WORLD_SIZE=2 says that 2 processes"),
        ({}, {"coordinator": "a:99999"}, "a port of 1 to 65535, not 'a:99999'"),
        ({**TORCHRUN, "MASTER_PORT": "0"}, {}, "1 to 65535, not 'node0:0'"),
        (
            {**SLURM, "SLURM_STEP_NODELIST": ""},
            AUTO,
            "SLURM_STEP_NODELIST is not set: start the program with srun",
        ),
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},
            AUTO,
            "Open MPI does not say where process 0 runs. pip install mpi4py",
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            AUTO,
            r"pip install 'jax\[k8s\]', or set JAXCOMP_COORDINATOR",
        ),
    ],
)
def test_what_is_missing_is_said(variables, flags, says):
    with pytest.raises(UserError, match=says):
        find_cluster(variables, **flags, has=lambda name: None)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_time_limit_is_a_number_of_seconds(text):
    with pytest.raises(UserError, match=f"--peer-timeout .* not '{text}'"):
        time_limit("peer-timeout", {"JAXCOMP_PEER_TIMEOUT": text})
