"""What drivers, libraries and schedulers print when something fails; docs/campaigns.md explains the classes.

Each row says whose words they are. Rows are tried from the top, so what names a cause stands above
what the other ranks print after it. The group ``host`` of an expression is the host that failed.
"""

from __future__ import annotations

import re
from typing import Literal

Cause = Literal["user", "memory", "node", "fabric", "filesystem", "time", "regression", "unknown"]
CAUSES: tuple[Cause, ...] = ("user", "memory", "node", "fabric", "filesystem", "time", "regression", "unknown")
HOST = r"(?P<host>[A-Za-z][\w.-]*)"


class Pattern:
    """A row: one of ``words``, regular expressions, in what was printed means ``cause``; ``says`` is for people."""

    def __init__(self, cause: Cause, says: str, source: str, *words: str) -> None:
        self.cause, self.says, self.source, self.words = cause, says, source, words
        self._compiled = [re.compile(each) for each in words]

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first of the words in ``text``."""
        return next((match for each in self._compiled if (match := each.search(text))), None)


PATTERNS = (
    # A scheduler that says why it ended the job knows better than everybody whom it ended.
    Pattern(
        "time",
        "the wall time is over",
        "SLURM, slurmstepd",
        r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        r"DUE TO TIME LIMIT",
    ),
    Pattern(
        "time",
        "the wall time is over",
        "PBS, mom",
        r"PBS: job killed: walltime \d+ exceeded limit \d+",
    ),
    Pattern(
        "time",
        "the wall time is over",
        "PBS, LSF",
        r"[Jj]ob exceeded (?:its )?wall(?:time|clock) limit",
        r"TERM_RUNLIMIT",
    ),
    Pattern(
        "time",
        "the wall time is over",
        "Flux",
        r"exception\b.*type=timeout.*resource allocation expired",
    ),
    Pattern(
        "time",
        "the job was preempted",
        "SLURM, LSF, Flux",
        r"DUE TO PREEMPTION",
        r"TERM_PREEMPT",
        r"type=preempt",
    ),
    Pattern(
        "node",
        "the scheduler lost a node",
        "SLURM, slurmctld",
        r"DUE TO NODE FAILURE",
        r"JobNodeFailure",
        r"Node failure on " + HOST,
    ),
    Pattern(
        "node",
        "the scheduler lost a node",
        "PBS, LSF",
        r"node_fail(?:ed|ure)",
        r"TERM_UNKNOWN.*host .* down",
    ),
    # Memory of the host and of the device; libraries have many words for it.
    Pattern(
        "memory",
        "the kernel or a control group ended a process for memory",
        "Linux, SLURM",
        r"[Oo]ut of memory: Kill(?:ed)? process",
        r"oom[-_]kill(?:er| event)",
        r"OOM Killed",
        r"error: " + HOST + r": tasks? [\d,-]+: Out Of Memory",
    ),
    Pattern(
        "memory",
        "the job used more memory than it asked for",
        "PBS, LSF",
        r"PBS: job killed: (?:mem|vmem) \S+ exceeded",
        r"TERM_MEMLIMIT",
    ),
    Pattern(
        "memory",
        "the host ran out of memory",
        "megads, torch, libc",
        r"host ran out of memory",
        r"std::bad_alloc",
        r"Cannot allocate memory",
        r"DefaultCPUAllocator: (?:can't|not enough)",
    ),
    Pattern(
        "memory",
        "a device ran out of memory",
        "torch, CUDA, HIP",
        r"(?:CUDA|HIP|XPU)(?: error:)? out of memory",
        r"OutOfMemoryError",
        r"CUDA_ERROR_OUT_OF_MEMORY",
        r"hipErrorOutOfMemory",
        r"CUBLAS_STATUS_ALLOC_FAILED",
    ),
    Pattern(
        "memory",
        "a device ran out of memory",
        "Level Zero, ROCm",
        r"(?:UR|ZE|PI)_(?:RESULT_)?ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES|HOST_MEMORY)",
        r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
    ),
    # Devices that broke. The kernel's NVRM lines reach a job's output where dmesg is copied there.
    Pattern(
        "node",
        "a device has an uncorrectable memory error",
        "CUDA, HIP, NVML",
        r"uncorrectable (?:ECC|NVLink) error",
        r"ECC_UNCORRECTABLE",
        r"Uncorrectable ECC",
        r"row remapp\w+ fail",
    ),
    Pattern(
        "node",
        "a device is gone",
        "CUDA, NVML",
        r"fallen off the bus",
        r"Unable to determine the device handle",
        r"CUDA_ERROR_DEVICE_UNAVAILABLE",
        r"device\(s\) is/are busy or unavailable",
        r"GPU is lost",
    ),
    Pattern(
        "node",
        "a device failed (Xid)",
        "NVIDIA driver",
        r"NVRM: Xid \([^)]*\): (?:48|6[1-4]|7[49]|9[245]|11[9-9]|12[0-9]|14[0-9])\b",
    ),
    Pattern(
        "node",
        "a device was lost",
        "Level Zero, ROCm",
        r"(?:UR|ZE)_RESULT_ERROR_DEVICE_LOST",
        r"ERROR_DEVICE_LOST",
        r"hipErrorDeviceLost",
        r"HSA_STATUS_ERROR_HARDWARE",
        r"HW Exception by GPU",
        r"GPU Hang",
    ),
    Pattern(
        "node",
        "no device answers",
        "torch, CUDA, HIP",
        r"No (?:CUDA|HIP|XPU) (?:GPUs|devices) are available",
        r"no CUDA-capable device",
        r"hipErrorNoDevice",
        r"nvidia-smi has failed",
        r"initialization error.*ProcessGroupNCCL",
    ),
    Pattern(
        "node",
        "NVLink or NVSwitch failed",
        "NVIDIA",
        r"(?:NVLink|NVSwitch)\b.*(?:fatal|error)",
        r"fabric manager .*(?:fail|not)",
        r"system not yet initialized",
    ),
    # What a person has to change: the same happens on every host.
    Pattern(
        "user",
        "a package is missing or broken",
        "Python, ld.so",
        r"ModuleNotFoundError",
        r"ImportError:",
        r"undefined symbol",
        r"(?m)^(?!.*NCCL INFO).*cannot open shared object file",  # of plugins NCCL says so, and does without them
        r"version `GLIBC\w*_[\d.]+' not found",
    ),
    Pattern(
        "user",
        "the driver is older than this build of torch needs",
        "CUDA, HIP",
        r"CUDA driver version is insufficient",
        r"NVIDIA driver on your system is too old",
        r"no kernel image is available",
        r"hipErrorNoBinaryForGpu",
    ),
    Pattern(
        "user",
        "two ranks use one device",
        "NCCL",
        r"Duplicate GPU detected",
    ),
    Pattern(
        "user",
        "an index or a shape is wrong",
        "torch",
        r"device-side assert triggered",
        r"size mismatch for",
        r"mat1 and mat2 shapes cannot be multiplied",
    ),
    Pattern(
        "user",
        "the program cannot be started",
        "srun, mpiexec, shells",
        r"execve\(\): \S+: No such file",
        r"[Cc]ommand not found",
        r"Permission denied.*(?:exec|python)",
        r"unable to exec",
    ),
    # Network libraries report errors in the words of files.
    Pattern(
        "fabric",
        "the network adapter failed",
        "libfabric, verbs",
        r"cxi\w*.*(?:PTLTE_NOT_FOUND|LINK_DOWN|error)",
        r"libfabric:.*:cxi:",
        r"mlx5\w*.*completion with error",
        r"IB(?:V)?_(?:WC|EVENT)_\w*(?:ERR|FATAL)",
        r"Got completion .* with error \d+",
        r"port \d+ .*(?:link|LINK).*(?:down|DOWN)",
    ),
    Pattern(
        "fabric",
        "MPI lost its network",
        "MPICH, UCX",
        r"OFI (?:poll|\w+) failed",
        r"MPIDI_OFI\w+.*(?:failed|error)",
        r"UCX +ERROR",
        r"MPICH ERROR",
        r"PMPI?X?_\w+.*Other MPI error",
    ),
    # Storage.
    Pattern(
        "filesystem",
        "the disk is full",
        "POSIX",
        r"No space left on device",
        r"free some space",
        r"Disk quota exceeded",
        r"ENOSPC",
        r"EDQUOT",
    ),
    Pattern(
        "filesystem",
        "a file system failed",
        "POSIX, NFS, Lustre",
        r"Input/output error",
        r"Stale file handle",
        r"Remote I/O error",
        r"Read-only file system",
        r"Transport endpoint is not connected",
        r"Errno (?:5|30|107|108|116|121)\]",
        r"Cannot send after transport endpoint shutdown",
    ),
    Pattern(
        "filesystem",
        "a file system lost its server",
        "Lustre, NFS, GPFS, DAOS",
        r"LustreError",
        r"nfs: server \S+ not responding",
        r"ptlrpc\w*.*(?:timed out|evict)",
        r"mmfsd.*(?:down|unmount)",
        r"DAOS.*DER_(?:TIMEDOUT|IO)",
    ),
    # A launcher that names a host which failed.
    Pattern(
        "node",
        "a host does not answer its launcher",
        "PALS",
        r"(?:ping failed|launch failed) on " + HOST,
        HOST + r": (?:rank \d+ died from signal 9 and dumped|ping failed)",
    ),
    Pattern(
        "node",
        "a host does not answer its launcher",
        "Open MPI",
        r"ORTE has lost communication with a remote daemon",
        r"PRRTE has lost communication",
        r"HNP daemon .*lost",
        r"pmix\w*.*lost connection to (?:daemon|server)",
    ),
    Pattern(
        "node",
        "a host does not answer its launcher",
        "SLURM, srun",
        r"srun: error: (?:Unable to confirm allocation|Aborting, (?:io|step) .*node)",
        r"srun: error: Task launch for \S+ failed on node " + HOST,
        r"Communication connection failure",
    ),
    Pattern(
        "node",
        "a host does not answer its launcher",
        "Hydra, ssh",
        r"HYD\w*.*(?:unable to write data to proxy|assert .*closed)",
        r"ssh: connect to host " + HOST + r" port \d+: (?:No route|Connection (?:timed out|refused))",
    ),
    Pattern(
        "node",
        "a host is down or not reachable",
        "POSIX, PRRTE",
        r"EHOSTDOWN",
        r"Host is down",
        r"prted.*failed to start on " + HOST,
    ),
    # The network between hosts. Most of these follow a failure that has no words of its own.
    Pattern(
        "fabric",
        "NCCL or RCCL lost its network",
        "NCCL, RCCL",
        r"NET/(?:IB|OFI|Socket)\b.*(?:rror|failed|WARN)",
        r"ncclSystemError",
        r"ncclRemoteError",
        r"ncclInternalError",
        r"remote process exited",
        r"NCCL WARN .*(?:Connection|socket|timeout)",
    ),
    Pattern(
        "fabric",
        "a collective did not end in its time",
        "torch, gloo",
        r"Watchdog caught collective operation timeout",
        r"Timeout at NCCL work",
        r"collective operation timeout",
        r"wait timeout after \d+ms",
        r"Timed out waiting \d+ms for (?:recv|send)",
    ),
    Pattern(
        "fabric",
        "oneCCL failed",
        "oneCCL",
        r"oneCCL\b.*(?:EXCEPTION|ERROR|failed)",
        r"\|CCL_ERROR\|",
        r"ccl::v1::exception",
        r"atl_\w+.*(?:fail|error)",
    ),
    Pattern(
        "fabric",
        "ranks could not meet",
        "torch, POSIX",
        r"DistStoreError",
        r"TCPStore.*(?:timed? ?out|reset)",
        r"client socket has (?:timed out|failed)",
        r"No route to host",
        r"Network is unreachable",
        r"did not join before the timeout",
        r"Temporary failure in name resolution",
    ),
    Pattern(
        "fabric",
        "another rank's connection closed",
        "gloo, POSIX",
        r"Connection (?:closed|reset) by peer",
        r"Broken pipe",
        r"Socket closed",
        r"lost another rank",
    ),
)
"""Rows in the order in which they are tried."""
