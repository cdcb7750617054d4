"""D1, D2, D4 to D6: checks whether this launch can form a process group at all."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from hangscope.toolkit.doctor.command import LaunchCommand, parse_command
from hangscope.toolkit.doctor.model import ERROR, NOTE, WARNING, Finding, Surroundings
from hangscope.toolkit.launching.world import get_world_info

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
DEFAULT_PORT = 29500


def check_launch(s: Surroundings) -> Iterator[Finding]:
    """Check all launch-time conditions visible in the environment and the command."""
    command = parse_command(s.command)
    if command is not None:
        yield from _command(s, command)
    else:
        yield from _environment(s)


def _environment(s: Surroundings) -> Iterator[Finding]:
    """Without a command: check this process's own variables."""
    env = s.env
    try:
        world = get_world_info(env)
    except ValueError as error:
        yield Finding(ERROR, "world", str(error), "Launch with torchrun.", "D1")
        return
    inside = world.launcher != "none"
    if not inside and len(s.devices) > 1:
        yield Finding(
            WARNING,
            "no-launcher",
            f"RANK and WORLD_SIZE are not set and this host has {len(s.devices)} devices: a plain "
            "python would use one of them",
            f"Launch with torchrun --standalone --nproc-per-node={len(s.devices)} SCRIPT.",
            "D1",
        )
    if inside and world.world_size > 1:
        missing = [n for n in ("MASTER_ADDR", "MASTER_PORT") if not env.get(n)]
        if missing and world.launcher not in ("slurm", "openmpi"):
            yield Finding(
                ERROR,
                "master",
                f"WORLD_SIZE={world.world_size}, but {' and '.join(missing)} is not set: "
                "init_process_group would wait for ever or fail",
                "Launch with torchrun, or set them to the host of rank 0 and a free port.",
                "D1",
            )
        elif missing:
            yield Finding(
                NOTE,
                "master",
                f"{' and '.join(missing)} is not set; {world.launcher} gives the ranks",
                "hangscope.init_distributed derives them from the job; plain env:// does not.",
                "D1",
            )
        address = env.get("MASTER_ADDR", "")
        if address in LOCAL_NAMES and world.local_world_size < world.world_size:
            yield _localhost(address, "MASTER_ADDR")


def _localhost(address: str, name: str) -> Finding:
    return Finding(
        ERROR,
        "localhost-master",
        f"{name}={address}, but the job has ranks on other nodes: each node would wait for itself",
        "Give every node the same --rdzv-endpoint, the address of the first node.",
        "D2",
    )


def _command(s: Surroundings, command: LaunchCommand) -> Iterator[Finding]:
    by_launcher = {
        "torchrun": _torchrun,
        "accelerate": _accelerate,
        "deepspeed": _deepspeed,
        "python": _python,
    }
    check = by_launcher.get(command.launcher)
    if check is not None:
        yield from check(s, command)
    inner = command.inner
    if inner is not None and inner.launcher != "python":
        if command.launcher in ("torchrun", "accelerate", "deepspeed"):
            yield Finding(
                ERROR,
                "two-launchers",
                f"{command.launcher} starts {inner.launcher}: every process would start a whole "
                "job of its own",
                "Use one launcher.",
                "D6",
            )
        else:  # srun or mpirun that starts torchrun once per node is the usual way
            yield from _command(s, inner)


def _python(s: Surroundings, command: LaunchCommand) -> Iterator[Finding]:
    if s.env.get("RANK") or s.env.get("SLURM_PROCID") or len(s.devices) < 2:
        return
    yield Finding(
        WARNING,
        "no-launcher",
        f"a plain python uses one of the {len(s.devices)} devices of this host, and sets neither "
        "RANK nor WORLD_SIZE",
        f"Launch with torchrun --standalone --nproc-per-node={len(s.devices)} "
        f"{command.script or 'SCRIPT'}.",
        "D1",
    )


def _torchrun(s: Surroundings, command: LaunchCommand) -> Iterator[Finding]:
    options = command.options
    nodes = options.get("nnodes", s.env.get("PET_NNODES", "1"))
    most = nodes.split(":")[-1]
    endpoint = options.get("rdzv-endpoint", s.env.get("PET_RDZV_ENDPOINT", ""))
    host, _, port = endpoint.rpartition(":") if ":" in endpoint else (endpoint, "", "")
    several = most.isdigit() and int(most) > 1
    if several:
        yield from _nodes_that_meet(s, options, nodes, host or endpoint)
    yield from _processes(s, options.get("nproc-per-node", "1"))
    if several:
        yield from _interfaces(s)
    elif "standalone" not in options and port != "0":
        yield from port_finding(options.get("master-port") or port or str(DEFAULT_PORT))


def _nodes_that_meet(
    s: Surroundings, options: Mapping[str, str], nodes: str, host: str
) -> Iterator[Finding]:
    """Check that the agents of several nodes find each other; ``host`` is the endpoint's host."""
    if "standalone" in options:
        yield Finding(
            ERROR,
            "standalone",
            f"--standalone with --nnodes={nodes}: every node would form a job of its own",
            "Replace it by --rdzv-backend=c10d --rdzv-id=ID --rdzv-endpoint=FIRST_NODE:29400, the "
            "same on every node.",
            "D2",
        )
        return
    static = "master-addr" in options
    if (host or options.get("master-addr", "")) in LOCAL_NAMES:
        name = "--rdzv-endpoint" if host else "--master-addr"
        yield _localhost(host or options["master-addr"], name)
    elif not host and not static:
        yield Finding(
            ERROR,
            "no-endpoint",
            f"--nnodes={nodes} without --rdzv-endpoint: the nodes cannot find each other",
            "Give every node the same --rdzv-id and --rdzv-endpoint=FIRST_NODE:29400.",
            "D2",
        )
    if not static and "rdzv-id" not in options:
        yield Finding(
            WARNING,
            "no-rdzv-id",
            f"--nnodes={nodes} without --rdzv-id: two jobs on one endpoint would mix",
            "Give every node of a job the same --rdzv-id, and every job another.",
            "D2",
        )
    if static and "node-rank" not in options and "GROUP_RANK" not in s.env:
        yield Finding(
            ERROR,
            "no-node-rank",
            f"--nnodes={nodes} with --master-addr, but no --node-rank: all nodes would be 0",
            "Pass --node-rank (0 on the first node), or use --rdzv-endpoint.",
            "D2",
        )


def _interfaces(s: Surroundings) -> Iterator[Finding]:
    """Check whether nodes may choose different networks for the rendezvous."""
    ifname = s.env.get("NCCL_SOCKET_IFNAME") or s.env.get("GLOO_SOCKET_IFNAME")
    real = [i for i in s.interfaces if i.kind != "loop" and i.usable]
    if not ifname and len(real) > 1:
        yield Finding(
            NOTE,
            "interface",
            f"several interfaces are up ({', '.join(i.name for i in real)}) and none is chosen: "
            "nodes may pick different ones",
            "Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; see hangscope env.",
            "D2",
        )


def _processes(s: Surroundings, text: str) -> Iterator[Finding]:
    if not text.isdigit() or not s.devices:
        return
    yield from _too_many(s, text)
    visible = visible_count(s)
    if int(text) == 1 and visible > 1:
        yield Finding(
            WARNING,
            "idle-devices",
            f"one process per node on a host with {visible} visible devices",
            f"Use --nproc-per-node={visible} if the job is meant to use them.",
            "D1",
        )


def _too_many(s: Surroundings, text: str) -> Iterator[Finding]:
    """Check that ``text`` processes on a node have a device each."""
    visible = visible_count(s)
    if text.isdigit() and s.devices and int(text) > visible:
        yield Finding(
            ERROR,
            "too-many-processes",
            f"{text} processes per node, but {visible} device(s) are visible: two ranks would "
            "share a device, or fail",
            f"Use --nproc-per-node={visible}, or make more devices visible.",
            "D3",
        )


def visible_count(s: Surroundings) -> int:
    """Number of devices visible to a process in this environment."""
    text = s.env.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return len(s.devices)
    return len([part for part in text.split(",") if part.strip() not in ("", "-1")])


def _accelerate(s: Surroundings, command: LaunchCommand) -> Iterator[Finding]:
    options = command.options
    default = (
        Path(s.env.get("HF_HOME") or Path(s.home or "/") / ".cache/huggingface")
        / "accelerate/default_config.yaml"
    )
    config = options.get("config-file")
    if config is not None and not (Path(s.cwd) / config).is_file():
        yield Finding(
            ERROR,
            "accelerate-config",
            f"--config_file {config} does not exist",
            "Write it with accelerate config, or correct the path.",
            "D5",
        )
    configured = config is not None or default.is_file()
    count = options.get("num-processes", "1" if not configured else "")
    parallel = {"multi-gpu", "use-fsdp", "use-deepspeed", "tpu"} & set(options)
    if not configured and not parallel and count == "1" and len(s.devices) != 1:
        level = ERROR if len(s.devices) > 1 else WARNING
        having = f" although this host has {len(s.devices)} devices" if s.devices else ""
        yield Finding(
            level,
            "accelerate-one-process",
            f"accelerate launch without a configuration starts one process{having}",
            "Pass --multi_gpu --num_processes=N, or --config_file FILE.",
            "D5",
        )
    machines = options.get("num-machines", "1")
    if machines == "1":
        yield from _too_many(s, count)
    elif machines.isdigit() and int(machines) > 1:
        address = options.get("main-process-ip", "")
        if not address or address in LOCAL_NAMES:
            yield _localhost(address or "unset", "--main_process_ip")


def _deepspeed(s: Surroundings, command: LaunchCommand) -> Iterator[Finding]:
    options = command.options
    hostfile = options.get("hostfile") or options.get("H")
    nodes = options.get("num-nodes", "1")
    several = nodes.isdigit() and int(nodes) > 1
    if hostfile is not None and not (Path(s.cwd) / hostfile).is_file():
        yield Finding(
            ERROR,
            "hostfile",
            f"--hostfile {hostfile} does not exist: deepspeed would silently use this node only",
            "Create it with one line 'HOST slots=DEVICES' per node.",
            "D6",
        )
    elif several and hostfile is None and not Path("/job/hostfile").is_file():
        yield Finding(
            ERROR,
            "hostfile",
            f"--num_nodes {nodes} without a hostfile: deepspeed cannot find the other nodes",
            "Pass --hostfile FILE with one line 'HOST slots=DEVICES' per node.",
            "D6",
        )
    if s.env.get("TORCHELASTIC_RUN_ID"):
        yield Finding(ERROR, "two-launchers", "deepspeed under torchrun", "Use one launcher.", "D6")
    count = options.get("num-gpus", "")
    yield from _too_many(s, count)
    if not several and hostfile is None:
        yield from port_finding(options.get("master-port", str(DEFAULT_PORT)))


def port_finding(text: str) -> Iterator[Finding]:
    """Check that the port is free on this host now."""
    if not text.isdigit() or not 0 < int(text) < 65536:
        yield Finding(ERROR, "port", f"{text!r} is not a port", "Use 1024 to 65535.", "D4")
        return
    if port_in_use(int(text)):
        yield Finding(
            ERROR,
            "port-in-use",
            f"port {text} is in use on this host, probably by another job",
            "Give the job another --master-port, or use --standalone or "
            "--rdzv-endpoint=localhost:0.",
            "D4",
        )


def port_in_use(port: int) -> bool:
    """Whether something listens on the port; a connection in TIME_WAIT does not count."""
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
