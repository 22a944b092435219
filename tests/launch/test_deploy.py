"""The files of deploy/ name flags and variables that exist, and can be read."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from configs import default
from jaxcomp.cli.config import FLAGS
from jaxcomp.parallel.cluster import find_cluster

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "cluster.md").read_text()


@pytest.fixture(scope="module")
def parts():
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {document["kind"]: document for document in documents}


def test_pods_find_pod_0_by_its_name(parts):
    job, service = parts["Job"], parts["Service"]
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    values = {entry["name"]: entry for entry in container["env"]}
    index = values["JAXCOMP_PROCESS"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    variables = {name: entry.get("value", "1") for name, entry in values.items()}
    cluster = find_cluster(variables)
    assert cluster is not None
    port = container["ports"][0]["containerPort"]
    assert cluster.coordinator == f"{name}-0.{pod['subdomain']}:{port}"
    assert cluster.processes == spec["completions"] == spec["parallelism"]


def test_the_slurm_script_is_one():
    bash = shutil.which("bash")
    assert bash
    subprocess.run([bash, "-n", str(DEPLOY / "slurm.sh")], check=True)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, str(DEPLOY / "slurm.sh")], check=True)
    text = (DEPLOY / "slurm.sh").read_text()
    options = re.findall(r"^#SBATCH (--[a-z-]+)", text, re.MULTILINE)
    assert {"--nodes", "--ntasks-per-node", "--requeue", "--signal"} <= {*options}
    # Options behind the first command would be read by nobody.
    assert text.rindex("#SBATCH") < text.index("\nset -")


def test_what_the_image_copies_is_there():
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.*)", text, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)
    assert re.search(r"^FROM \S+:(?!latest)\S+$", text, re.MULTILINE)


@pytest.mark.parametrize(
    "text",
    [
        (DEPLOY / "kubernetes.yaml").read_text(),
        (DEPLOY / "slurm.sh").read_text(),
        *re.findall(r"^    .*(train\.py .*)", PAGE, re.MULTILINE),
    ],
)
def test_their_flags_exist(text):
    keys = default.get_config().keys()
    words = re.findall(
        r"--(config\.\w+|[a-z-]+)=", text.partition("train.py")[2] or text
    )
    assert words
    for word in words:
        known = keys if word.startswith("config.") else FLAGS
        assert word.removeprefix("config.") in known
