"""Running a function in two processes of one gloo world, as torchrun starts them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp

from tests.support.patience import PATIENCE
from tests.support.ports import free_port


def _child(rank: int, port: int, function: Callable[..., Any], arguments: tuple[Any, ...], queue: Any) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    try:
        queue.put((rank, function(*arguments), ""))
    except BaseException:
        queue.put((rank, None, traceback.format_exc()))


def run_in_two(function: Callable[..., Any], *arguments: Any, timeout: float = 120) -> list[Any]:
    """Return values of ``function(*arguments)`` on rank 0 and rank 1. Fails if one raises or hangs."""
    port = free_port()
    queue = mp.get_context("forkserver").Queue()
    processes = mp.start_processes(  # type: ignore[attr-defined]
        _child, (port, function, arguments, queue), nprocs=2, join=False, start_method="forkserver"
    )
    try:
        results = sorted((queue.get(timeout=timeout) for _ in range(2)), key=lambda item: item[0])
        processes.join(timeout=30 * PATIENCE)
    finally:
        for process in processes.processes:
            if process.is_alive():
                process.kill()
    for rank, _, error in results:
        assert not error, f"rank {rank}: {error}"
    return [result for _, result, _ in results]
