"""A step of two processes: gradients that travel while the backward pass goes on, against all of them after it, and
against torch's DistributedDataParallel, in one run.

python benchmarks/processes.py             two processes on this machine
python benchmarks/processes.py 1gbit       two joined by a link of that rate (Linux, as root: network namespaces)
"""

import os
import subprocess
import sys
import time

import step
import torch
from torch.nn.parallel import DistributedDataParallel

from shiftcal import _ranks, models
from shiftcal.data import Dataset

NAMES, ROUNDS = ("shiftcal-a", "shiftcal-b"), 5


def data_parallel(name: str, data: Dataset):
    """The peer: every process takes its rows, and the mean of the losses is descended."""
    model = DistributedDataParallel(models.build(name, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, foreach=True)
    order = torch.randperm(len(data.train.images), generator=torch.Generator().manual_seed(0)).split(step.BATCH)

    def steps() -> None:
        for index in order[: step.STEPS]:
            here = index[_ranks.rows(len(index))]
            batch = data.normalise(data.train.images[here])
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(batch), data.train.targets[here]).backward()
            optimizer.step()

    return steps


def with_buckets(size: int, steps):
    def run() -> None:
        _ranks._BUCKET = size
        steps()

    return run


def measure(name: str) -> None:
    torch.set_num_threads(1)
    _ranks.join()
    data = step.dataset(8 * step.BATCH)
    plain, usual = step.ours(name, data, "ce", "off"), _ranks._BUCKET
    loops = {
        "DistributedDataParallel": data_parallel(name, data),
        "after the backward pass": with_buckets(2**62, plain),
        "while it goes on": with_buckets(usual, plain),
        "fgr-shared, one reduction": step.ours(name, data, "fgr-shared", "off"),
    }
    times: dict[str, list[float]] = {key: [] for key in loops}
    for number in range(ROUNDS + 1):
        for key, steps in loops.items():
            _ranks.barrier()
            clock = time.perf_counter()
            steps()
            if number:  # the first is for warming up
                times[key].append((time.perf_counter() - clock) / step.STEPS * 1000)
    if _ranks.rank() == 0:
        print(f"{name}, batch {step.BATCH} in {_ranks.world()} processes of one thread, torch {torch.__version__}")
        for key, values in times.items():
            best = min(values)
            print(f"{key:26} {best:7.1f} ms  {min(times['DistributedDataParallel']) / best:5.2f}x as fast as the first")
    _ranks.leave()


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
