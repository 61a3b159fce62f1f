"""Huge pages for malloc, which reduce the time of a training step on a CPU by a third.

XLA's CPU backend allocates temporary memory in each step. By default, Linux maps it in pages of 4 KiB, with
a page fault and zeroing for each. Huge pages reduce the page faults of a ListOps step from 350,000 to 2,000.
Allocating a huge page in fragmented memory can take milliseconds, so malloc also keeps freed memory, in one
heap; then there are no page faults. glibc reads the tunables for both when a process starts, so the program
restarts itself in the same process. Losses are identical to the last bit.

If the user has set the tunable for huge pages, for example GLIBC_TUNABLES=glibc.malloc.hugetlb=0, it is kept.
Source: glibc manual, "Memory Allocation Tunables"; Linux, admin-guide/mm/transhuge.
"""

import os
import platform
import sys
from pathlib import Path

TUNABLE = "glibc.malloc.hugetlb"
KEEP = f"glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={2**48}:glibc.malloc.arena_max=1"
SINCE = (2, 35)  # first version of glibc with the tunable
KERNEL_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def restart() -> None:
    """Restarts this program with huge pages; returns if they are unavailable or the user set the tunable.

    Must be called first under `if __name__ == "__main__":`.
    """
    if TUNABLE in os.environ.get("GLIBC_TUNABLES", "") or not _available():
        return
    others = os.environ.get("GLIBC_TUNABLES")
    ours = f"{KEEP}:{TUNABLE}=1"
    os.environ["GLIBC_TUNABLES"] = f"{ours}:{others}" if others else ours
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def in_use() -> bool:
    """Returns True if this process uses huge pages."""
    return f"{TUNABLE}=1" in os.environ.get("GLIBC_TUNABLES", "").split(":") and _available()


def _available() -> bool:
    """Returns True if glibc has the tunable, the kernel is in madvise mode, and the program is a file."""
    library, version = platform.libc_ver()
    try:
        knows = library == "glibc" and tuple(map(int, version.split(".")[:2])) >= SINCE
        on_request = "[madvise]" in KERNEL_SETTING.read_text(encoding="utf-8")
    except (OSError, ValueError):  # not Linux, or unknown format of the version
        return False
    return knows and on_request and Path(sys.argv[0]).is_file()
