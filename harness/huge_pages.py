"""Huge pages for what the C library allocates, kept for good: on a CPU a step in two thirds of the time.

XLA's CPU backend allocates a step's temporaries anew for every step. Linux hands such memory out in pages
of 4 KiB, each at the price of a fault and of zeros written, unless the allocator asks for huge ones; and
where memory has come to pieces, making a huge one can take milliseconds. So the allocator also keeps what it
has got: one heap, which only grows. A step of the ListOps config: 350,000 faults, 2,000 with huge pages,
none with both. glibc does so if its tunables say so, and reads them as a process starts; so the program
starts itself again, as the same process. Losses stay the same to the last bit.

Whoever has set that for huge pages, `GLIBC_TUNABLES=glibc.malloc.hugetlb=0` too, has decided.
Source: glibc manual, "Memory Allocation Tunables"; Linux, admin-guide/mm/transhuge.
"""

import os
import platform
import sys
from pathlib import Path

TUNABLE = "glibc.malloc.hugetlb"
KEEP = f"glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={2**48}:glibc.malloc.arena_max=1"
SINCE = (2, 35)  # the glibc that has it
KERNEL_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def restart() -> None:
    """Starts this program again with huge pages, or returns: unavailable, already on, or decided against.

    To be called from a program's `if __name__ == "__main__":`, before it has done anything.
    """
    if not (_undecided() and _available()):
        return
    others = os.environ.get("GLIBC_TUNABLES")
    ours = f"{KEEP}:{TUNABLE}=1"
    os.environ["GLIBC_TUNABLES"] = f"{ours}:{others}" if others else ours
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def in_use() -> bool:
    """Whether this process asks for huge pages."""
    return f"{TUNABLE}=1" in os.environ.get("GLIBC_TUNABLES", "").split(":") and _available()


def _undecided() -> bool:
    return TUNABLE not in os.environ.get("GLIBC_TUNABLES", "")


def _available() -> bool:
    """Whether glibc knows the tunable, the kernel gives on request only, and the command can be repeated."""
    library, version = platform.libc_ver()
    try:
        knows = library == "glibc" and tuple(map(int, version.split(".")[:2])) >= SINCE
        on_request = "[madvise]" in KERNEL_SETTING.read_text(encoding="utf-8")
    except (OSError, ValueError):  # no Linux, or a version of another form
        return False
    return knows and on_request and Path(sys.argv[0]).is_file()
