"""The machines of envs/: found by what their sites say, and complete."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from megads.cluster.machine import known_machine, read_machines
from megads.config.machine_facts import Facts, parse_hosts_range
from megads.config.sources.presets import read_machine
from megads.config.sources.resolve import resolve
from megads.device.needs import read_needs
from megads.errors import ConfigError

ROOT = Path(__file__).parents[2]
MACHINES = sorted(path.stem for path in (ROOT / "envs").glob("*.yaml"))
SITES = [name for name in MACHINES if name not in ("cpu", "generic", "pbs", "slurm")]

AURORA_JOB = {"PBS_JOBID": "1227576.aurora-pbs-0001.hostmgmt.cm.aurora.alcf.anl.gov"}
POLARIS_JOB = {"PBS_JOBID": "2037042.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"}
SIRIUS_JOB = {"PBS_JOBID": "8224.sirius-pbs-0001.hsn.cm.sirius.alcf.anl.gov"}
SUNSPOT_JOB = {"PBS_JOBID": "12458339.sunspot-pbs-0001.head.cm.sunspot.alcf.anl.gov"}
SOPHIA_JOB = {"PBS_JOBID": "175972.sophia-pbs-01.lab.alcf.anl.gov"}


@pytest.mark.parametrize(
    ("host", "env", "expected"),
    [
        ("x4712c2s1b0n0", AURORA_JOB, "aurora"),
        ("x4712c2s1b0n0.hostmgmt2712.cm.aurora.alcf.anl.gov", {}, "aurora"),
        ("aurora-uan-0009", {}, "aurora"),
        ("x4712c2s1b0n0", {"PBS_O_HOST": "aurora-uan-0009", "PBS_JOBID": "7.aurora-pbs-0001"}, "aurora"),
        ("x3006c0s13b1n0", POLARIS_JOB, "polaris"),
        ("polaris-login-02", {}, "polaris"),
        ("x3006c0s13b1n0", SIRIUS_JOB, "sirius"),
        ("x1921c0s3b0n0", SUNSPOT_JOB, "sunspot"),
        ("sophia-gpu-02", SOPHIA_JOB, "sophia"),
        ("sophia-login-01", {}, "sophia"),
        ("nid001234", {"NERSC_HOST": "perlmutter", "SLURM_JOB_ID": "1"}, "perlmutter"),
        ("login07", {"NERSC_HOST": "perlmutter"}, "perlmutter"),
        ("frontier00256", {}, "frontier"),
        ("login05", {"LMOD_SYSTEM_NAME": "frontier"}, "frontier"),
    ],
)
def test_what_a_site_says(host, env, expected, tmp_path):
    assert known_machine(host, env, ROOT, tmp_path) == expected


@pytest.mark.parametrize(
    ("host", "env"),
    [
        # Names that other clusters of the same vendors have.
        *((host, {}) for host in ("login01", "login1", "nid000001", "nid001234", "uan-0001", "uan01", "frontierlab")),
        *((f"x{number}000c0s0b0n0", {}) for number in range(1, 5)),
        ("x4000c0s0b0n0", {"PBS_JOBID": "7.pbs-server", "PBS_O_HOST": "login01"}),
        ("sirius-login1", {"PBS_JOBID": "42634.sirius-pbs", "PBS_O_HOST": "sirius-login1"}),
        ("nid000001", {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "lumi", "NERSC_HOST": ""}),
    ],
)
def test_names_of_other_clusters_mean_nothing(host, env, tmp_path):
    assert known_machine(host, env, ROOT, tmp_path) == ""


@pytest.mark.parametrize(
    ("host", "path", "expected"),
    [("x4000c0s0b0n0", "lus/flare", "aurora"), ("x1921c0s3b0n0", "opt/aurora", "sunspot"), ("login1", "lus/flare", "")],
)
def test_a_host_name_with_a_folder_of_the_site(host, path, expected, tmp_path):
    (tmp_path / path).mkdir(parents=True)
    assert known_machine(host, {}, ROOT, tmp_path) == expected


def test_every_row_names_a_machine():
    named = {name for _, name in read_machines(ROOT / "envs/machines.txt")}
    assert named == set(SITES)
    assert {path.stem for path in (ROOT / "envs").glob("*.sh")} - {"python", "modules"} == set(MACHINES)


@pytest.mark.parametrize("name", SITES)
def test_facts_of_a_site_are_complete(name):
    facts = read_machine(name, ROOT).facts
    assert facts.device
    assert facts.scheduler in ("pbs", "slurm")
    assert facts.starter
    assert facts.ranks_per_host
    assert facts.fabric
    assert all("{host}" in pattern for pattern in facts.fabric)
    assert facts.submit.queues
    assert (facts.scheduler == "pbs") == bool(facts.submit.filesystems)


@pytest.mark.parametrize("name", SITES)
def test_every_communication_variable_has_a_reason(name):
    """A comment above it or above its group, here or in the file that the first line names."""
    text = (ROOT / f"envs/{name}.yaml").read_text()
    if match := re.search(r"see (\w+)\.yaml for the reasons", text):
        theirs = read_machine(match[1], ROOT).facts.environment
        assert set(read_machine(name, ROOT).facts.environment) <= set(theirs)
        return
    environment = read_machine(name, ROOT).facts.environment
    if environment:
        block = text.partition("environment:\n")[2]
        assert block.lstrip().startswith("#")
        assert block.partition("  submit:")[0].count("#") * 3 >= len(environment)


# Megatron-DeepSpeed's table.
@pytest.mark.parametrize(
    ("machine", "hosts", "dtype", "micro", "accumulation"),
    [
        ("aurora", 1, "bf16", 1, 16),
        ("aurora", 15, "bf16", 1, 16),
        ("aurora", 16, "bf16", 1, 8),
        ("aurora", 32, "bf16", 1, 8),
        ("aurora", 33, "bf16", 1, 4),
        ("aurora", 127, "bf16", 1, 4),
        ("aurora", 128, "bf16", 1, 2),
        ("sunspot", 255, "bf16", 1, 2),
        ("sunspot", 256, "bf16", 1, 1),
        ("polaris", 2, "fp16", 1, 8),
        ("polaris", 3, "fp16", 2, 8),
        ("sirius", 7, "fp16", 2, 8),
        ("sirius", 8, "fp16", 4, 8),
        ("sophia", 8, "bf16", 1, 8),
        ("frontier", 100, "bf16", 1, 0),
    ],
)
def test_batch_and_precision_by_hosts(machine, hosts, dtype, micro, accumulation):
    train = resolve("7B", env={}, machine=machine, num_hosts=hosts).run.train
    assert (train.dtype, train.micro_batch, train.grad_acc_steps) == (dtype, micro, accumulation)


def test_by_hosts_is_a_layer_with_an_origin():
    resolved = resolve("7B", env={}, machine="aurora", num_hosts=20)
    assert str(resolved.origins["train.grad_acc_steps"]) == "machine aurora, 16-32 hosts"
    assert resolve("7B", env={"NHOSTS": "200"}, machine="aurora").run.train.grad_acc_steps == 2
    assert resolve("7B", env={"GRAD_ACC_STEPS": "3"}, machine="aurora", num_hosts=20).run.train.grad_acc_steps == 3
    whole = resolve("7B", env={"GLOBAL_BATCH": "960"}, machine="aurora", num_hosts=20).run.train
    assert (whole.global_batch, whole.grad_acc_steps) == (960, 0)


def test_a_preset_that_has_a_batch_keeps_all_of_it():
    train = resolve("gpt-530B", env={}, machine="polaris", num_hosts=10).run.train
    assert (train.global_batch, train.micro_batch, train.grad_acc_steps, train.dtype) == (2520, 1, 0, "fp16")
    assert resolve("gpt2-8B", env={}, machine="aurora", num_hosts=1).run.train.dtype == "fp16"


def test_a_preset_that_needs_no_machine_has_none_of_its_batches():
    assert str(resolve("tiny", env={}, machine="cpu", num_hosts=3).origins["train.micro_batch"]) == "preset tiny"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0-3: {}", "'0-3' is not a number of hosts such as 1-15, 256- or 7"),
        ("4-3: {}", "'4-3' ends before it begins"),
        ("1-3: {}\n  3-: {}", "3- overlaps another range"),
        ("1-: {train.micro: 1}", "no setting named 'train.micro'"),
        ("1-: 4", "must hold 'key: value' lines"),
    ],
)
def test_wrong_ranges(tmp_path, rows, said):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/mine.yaml").write_text(f"by_hosts:\n  {rows}\n")
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_machine("mine", tmp_path)


def test_ranges_of_hosts():
    assert [count for count in range(1, 30) if count in parse_hosts_range("3-5")] == [3, 4, 5]
    assert 10**6 in parse_hosts_range("256-")
    assert [str(parse_hosts_range(text)) for text in ("1", "7", "1-4", "9-", "1-")] == [
        *("1 host", "7 hosts", "1-4 hosts", "9 hosts or more", "any number of hosts"),
    ]


def test_facts_know_nothing_by_default():
    assert Facts().submit.queues == ()


# Words that are no machine: presets that a site's users call by its name, where a default or a list
# of variables comes from, a folder, and the places that tell users of machines.
ALLOWED = re.compile(
    # The last ones are an optimizer.
    r"Aurora-?GPT|aurora-gpt|ALCF/|^graft ALCF$|ALCF'?s? |as ALCF|argonne-lcf|\"ALCF\"|\bALCF\b\s*(=|\.values)|"
    r"sophia(g\b|-g\b|_(beta|rho|interval)|\.(py|SophiaG)|'s? |'?s Hessian| import)|optim\.sophia",
    re.IGNORECASE,
)
NAMES = re.compile(r"aurora|sunspot|polaris|sirius|sophia|perlmutter|frontier|alcf|nersc|olcf", re.IGNORECASE)


def test_nothing_outside_envs_and_alcf_names_a_site():
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    named = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if (
            name.startswith(("envs/", "ALCF/", "docs/", "tests/", "README.md", "CHANGELOG.md", "data-lists/"))
            or not path.is_file()
        ):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if NAMES.search(ALLOWED.sub("", line)):
                named.append(f"{name}:{number}: {line.strip()}")
    assert not named


LIBRARIES = re.compile(r"(NCCL|RCCL|CCL|FI|HSA|MIOPEN|ZE|GLOO|PALS)_\w+")


def set_by(machine: str) -> dict[str, str]:
    """Return the variables of communication libraries that a machine's two files set."""
    script = (ROOT / f"envs/{machine}.sh").read_text()
    exported = re.findall(r'^ *export (\w+)="\$\{\1:-([^}]*\}?[^}"]*)\}"', script, re.MULTILINE)
    assert len(exported) == len(re.findall(r"^ *export ", script, re.MULTILINE)), "the pattern reads every export"
    return {**dict(exported), **read_machine(machine, ROOT).facts.environment}


@pytest.mark.parametrize("machine", SITES)
def test_a_machine_sets_what_its_vendor_and_network_need(machine):
    needs, device = read_needs(ROOT), read_machine(machine, ROOT).facts.device
    given, fabric = set_by(machine), needs.fabric_of(machine)
    rows = {row.name: row for row in needs.variables_of(device, fabric)}
    unknown = {name for name in given if LIBRARIES.fullmatch(name)} - rows.keys()
    assert not unknown, f"add a row with its source to envs/vendors/needs.yaml: {', '.join(sorted(unknown))}"
    for name, row in rows.items():
        value = given.get(name, "").replace("$(id -un)", "user").replace("${MIOPEN_USER_DB_PATH}", "/tmp/x")
        if not value and row.level in ("required", "recommended"):
            assert row.exceptions.get(machine), f"{machine} does not set {name} ({row.level}): {row.why}"
        elif value:
            assert row.state(value) == "ok", f"{machine} sets {name}={value}: {row.why}; {row.line}"
            assert machine not in row.exceptions, f"{machine} sets {name}, of which {machine} is an exception"
