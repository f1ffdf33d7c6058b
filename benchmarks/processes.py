"""A step of two ranks: gradients that are reduced while the backward pass goes on, against all of them after it, and
against torch's DistributedDataParallel, in one run.

python benchmarks/processes.py             two processes on this machine
python benchmarks/processes.py 1gbit       two joined by a link of that rate (Linux, as root: network namespaces)
"""

import os
import subprocess
import sys

import step
import torch
from torch.nn.parallel import DistributedDataParallel

from shiftcal import _distributed
from shiftcal.training.engine import distributed

NAMES = ("shiftcal-a", "shiftcal-b")


def with_buckets(size: int, steps):
    def run() -> None:
        distributed.BUCKET = size
        steps()

    return run


def measure(name: str) -> None:
    torch.set_num_threads(1)
    _distributed.initialise()
    data = step.dataset(8 * step.BATCH)
    plain = step.ours(name, data, "ce", "off")
    loops = {
        "DistributedDataParallel": step.eager(
            name, data, step.BATCH // _distributed.world_size(), DistributedDataParallel
        ),
        "after the backward pass": with_buckets(2**62, plain),
        **{f"while it goes on, {size} MiB": with_buckets(size * 2**20, plain) for size in (1, 4, 10, 25)},
        "fgr-shared, one reduction": step.ours(name, data, "fgr-shared", "off"),
    }
    times: dict[str, list[float]] = {key: [] for key in loops}
    for _ in range(step.ROUNDS + 1):
        for key, steps in loops.items():
            _distributed.barrier()
            times[key].append(step.milliseconds(steps))
    if _distributed.rank() == 0:
        best = {key: min(values[1:]) for key, values in times.items()}  # the first was for warming up
        ranks = _distributed.world_size()
        print(f"{name}, batch {step.BATCH} on {ranks} ranks of one thread, torch {torch.__version__}")
        for key, value in best.items():
            print(f"{key:26} {value:7.1f} ms  {best['DistributedDataParallel'] / value:5.2f}x as fast as the first")
    _distributed.destroy()


def torchrun(*words: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *words, __file__, *sys.argv[1:]]


def over_a_link(rate: str) -> None:
    """Give each process a network of its own, joined by a pair of interfaces with that rate."""
    a, b = NAMES
    try:
        shell(f"ip netns add {a}", f"ip netns add {b}", f"ip link add {a} netns {a} type veth peer name {b} netns {b}")
        for number, name in enumerate(NAMES, 1):
            inside = f"ip netns exec {name}"
            shell(f"{inside} ip addr add 10.77.0.{number}/24 dev {name}", f"{inside} ip link set {name} up")
            shell(
                f"{inside} ip link set lo up",
                f"{inside} tc qdisc add dev {name} root tbf rate {rate} burst 1mb latency 50ms",
            )
        started = []
        for number, name in enumerate(NAMES):
            words = torchrun(
                "--nnodes", "2", "--node-rank", str(number), "--master-addr", "10.77.0.1", "--master-port", "29500"
            )
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": name}
            started.append(subprocess.Popen(["ip", "netns", "exec", name, *words], env=environment))
        codes = [process.wait() for process in started]
        if any(codes):
            sys.exit("one of the processes failed")
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], check=False)


def shell(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


if __name__ == "__main__":
    rates = sys.argv[1:]
    if "RANK" in os.environ:
        measure("resnet18")
    elif rates:
        over_a_link(rates[0])
    else:
        subprocess.run(torchrun("--standalone", "--nproc-per-node", "2"), check=True)
