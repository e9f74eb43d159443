"""The system calls that a program in a sandbox is refused, as a filter for `bwrap --seccomp`.

Namespaces leave a few things shared: keyrings, sockets of kinds that know no network namespace
(vsock reaches the host of a virtual machine), and the kernel's larger and younger interfaces, which
most escapes go through. Memory that no limit of a process counts is refused as well: memfd_create
and System V's. Python's standard library needs none of them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

EPERM, ENOSYS = 1, 38
AF_UNIX = 1

CALLS = {
    # Others' memory and processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # Keyrings belong to a user, and to no namespace.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Large interfaces of the kernel.
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    # Namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # Memory that counts as nobody's.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # The machine's own.
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "personality": (135, 92),
}
"""Numbers on x86_64 and on aarch64, from the kernel's tables (asm/unistd_64.h, asm-generic)."""

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET of linux/sched.h."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_OF, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
"""Where they stand in struct seccomp_data of linux/seccomp.h, on a little-endian machine."""

Instruction = tuple[int, int, int, int]


def seccomp_filter(machine: str | None = None) -> bytes | None:
    """An array of struct sock_filter (linux/filter.h); None for a processor not known here."""
    machine = machine or os.uname().machine
    if machine not in _AUDIT:
        return None
    column = [*_AUDIT].index(machine)
    program = [
        (_LOAD, 0, 0, _ARCH),
        *_unless((_EQUAL, _AUDIT[machine]), _refuse(EPERM)),
        (_LOAD, 0, 0, _NUMBER),
        *_if((_AT_LEAST, _X32), _refuse(EPERM)),
    ]
    for numbers in CALLS.values():
        program += _if((_EQUAL, numbers[column]), _refuse(EPERM))
    # It hides its flags behind a pointer; without it the C library calls clone.
    program += _if((_EQUAL, _CLONE3[column]), _refuse(ENOSYS))
    program += _with_argument(_CLONE[column], [*_if((_ANY_OF, _NEW_NAMESPACES), _refuse(EPERM))])
    for numbers in (_SOCKET, _SOCKETPAIR):
        program += _with_argument(numbers[column], [*_unless((_EQUAL, AF_UNIX), _refuse(EPERM))])
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _if(test: tuple[int, int], then: Instruction) -> Iterator[Instruction]:
    yield (test[0], 0, 1, test[1])
    yield then


def _unless(test: tuple[int, int], then: Instruction) -> Iterator[Instruction]:
    yield (test[0], 1, 0, test[1])
    yield then


def _with_argument(number: int, block: list[Instruction]) -> list[Instruction]:
    """Runs the block with the call's first argument, for that call; nothing else is called so."""
    inner = [(_LOAD, 0, 0, _FIRST_ARGUMENT), *block, (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(inner), number), *inner]
