"""The environment variables that control how a distributed job waits, dumps and connects.

Sources: the variable table of PyTorch's ``ProcessGroupNCCL`` documentation and its source over
releases 2.1 to 2.13, torchrun's worker environment, and NCCL's environment documentation.
"""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.recording import native_dumps

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable: who reads it, from which torch version on, and what it does."""

    name: str
    read_by: str
    effect: str
    recommended: str | None = None
    """The value that `configure_environment` sets if there is none."""
    since: Version = (0, 0)
    old_name: str | None = None
    """The name that earlier releases read (and later ones may still accept)."""
    default: str = ""
    unit: str = ""
    """Unit to print after its value in a table."""
    timeout: bool = False
    """Whether it is a timeout, and so a row of the doctor's timeout table."""

    def name_for(self, version: Version) -> str:
        """The name that this torch version reads."""
        return self.old_name if self.old_name and version < self.since else self.name


NOTHING = "nothing"

VARIABLES = (
    Variable(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "PyTorch's NCCL watchdog",
        "3: a collective that times out ends the process; 0: it waits for ever",
        recommended="3",
        since=(2, 2),
        old_name="NCCL_ASYNC_ERROR_HANDLING",
        default="3 (1 under torchrun)",
    ),
    Variable(
        "TORCH_NCCL_BLOCKING_WAIT",
        "PyTorch's NCCL process group",
        "1: a timeout raises in the caller, but the flight recorder no longer sees work end",
        since=(2, 2),
        old_name="NCCL_BLOCKING_WAIT",
        default="0",
    ),
    Variable(
        "TORCH_NCCL_ENABLE_MONITORING",
        "PyTorch's NCCL monitor thread",
        "1: ends the process when the watchdog itself hangs",
        recommended="1",
        since=(2, 1),
        default="1",
    ),
    Variable(
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        "PyTorch's NCCL monitor thread",
        "seconds without a heartbeat of the watchdog until the process is ended",
        recommended="480",
        since=(2, 2),
        default="480 s (600 and 120 in older releases)",
        unit=" s",
        timeout=True,
    ),
    Variable(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "PyTorch's flight recorder",
        "1: every rank writes its last collectives when one times out",
        recommended="1",
        since=(2, 2),
        default="1 (0 in older releases)",
    ),
    Variable(
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
        "PyTorch's flight recorder",
        "milliseconds that a dying rank waits for its dump to be written",
        recommended="60000",
        since=(2, 2),
        default="15000 ms (60000 and 2000 in older releases)",
        unit=" ms",
        timeout=True,
    ),
    Variable(
        "TORCH_FR_BUFFER_SIZE",
        "PyTorch's flight recorder",
        "collectives kept per rank; 0 turns the recorder off",
        recommended="2000",
        since=(2, 8),
        old_name="TORCH_NCCL_TRACE_BUFFER_SIZE",
        default="2000 (0 in older releases)",
    ),
    Variable(
        native_dumps.VARIABLE,
        "PyTorch's flight recorder",
        "where dumps are written; the rank is appended",
        since=native_dumps.RENAMED_IN,
        old_name=native_dumps.OLD_VARIABLE,
        default="below ~/.cache/torch",
    ),
    Variable(
        "TORCH_NCCL_DESYNC_DEBUG",
        "PyTorch's NCCL watchdog",
        "1: writes to the store under a lock at every collective; has crashed jobs at start-up",
        since=(2, 1),
        old_name="NCCL_DESYNC_DEBUG",
        default="0",
    ),
    Variable(
        "TORCH_DISTRIBUTED_DEBUG",
        "PyTorch's process groups",
        "DETAIL: extra collectives check every call; for diagnosis only",
        default="OFF",
    ),
    Variable(
        "TORCH_DIST_INIT_BARRIER",
        "torch.distributed",
        "1: a store barrier at the end of init_process_group",
        default="0",
    ),
    Variable(
        "NCCL_SOCKET_IFNAME",
        "NCCL",
        "interface of NCCL's bootstrap and socket transport",
        default="chosen by NCCL",
    ),
    Variable(
        "GLOO_SOCKET_IFNAME",
        "Gloo",
        "interface of Gloo's connections",
        default="that of the host name",
    ),
    Variable("NCCL_IB_DISABLE", "NCCL", "1: no InfiniBand or RoCE", default="0"),
    Variable(
        "NCCL_NET_GDR_LEVEL",
        "NCCL",
        "how far apart a GPU and a network card may be for GPUDirect RDMA",
        default="chosen by NCCL",
    ),
    Variable("NCCL_DEBUG", "NCCL", "how much NCCL writes to the log", default="unset"),
    Variable("NCCL_ALGO", "NCCL", "algorithms NCCL may use", default="chosen by NCCL"),
    Variable("NCCL_PROTO", "NCCL", "protocols NCCL may use", default="chosen by NCCL"),
    Variable("NCCL_MIN_NCHANNELS", "NCCL", "fewest channels", default="chosen by NCCL"),
    Variable("NCCL_MAX_NCHANNELS", "NCCL", "most channels", default="chosen by NCCL"),
    Variable(
        "NCCL_IB_TIMEOUT",
        "NCCL's InfiniBand transport",
        "time until a packet is sent again: 4.096 µs times two to this power",
        default="20: 4.3 s until a packet is sent again",
        timeout=True,
    ),
    Variable("CUDA_VISIBLE_DEVICES", "CUDA", "devices this process sees", default="all"),
    Variable("CUDA_LAUNCH_BLOCKING", "CUDA", "1: every kernel launch waits", default="0"),
    Variable("NCCL_TIMEOUT", NOTHING, "none: pass timeout= to init_process_group", timeout=True),
    Variable("NCCL_TIMEOUT_MS", NOTHING, "none: pass timeout= to init_process_group", timeout=True),
    Variable(
        "TORCH_DIST_INIT_TIMEOUT",
        NOTHING,
        "none: pass init_timeout= to hangscope.init_distributed",
        timeout=True,
    ),
    Variable("HANGSCOPE", "HangScope", "1: record every rank", default="0"),
    Variable("HANGSCOPE_DIR", "HangScope", "the run directory", default="hangscope-runs/<run id>"),
    Variable(
        "HANGSCOPE_TIMEOUT",
        "HangScope",
        "seconds a collective may wait before the run counts as hung",
        default="120 s",
        unit=" s",
        timeout=True,
    ),
)

BY_NAME = {variable.name: variable for variable in VARIABLES} | {
    variable.old_name: variable for variable in VARIABLES if variable.old_name
}
"""Variables by their current and former names."""

DETERMINISTIC_NCCL_ENV = {
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_MIN_NCHANNELS": "1",
    "NCCL_MAX_NCHANNELS": "1",
}
"""The best-effort deterministic set: one ring, one protocol, one channel."""
