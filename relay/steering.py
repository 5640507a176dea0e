"""Which worker a datagram or a new connection goes to, decided by the kernel.

Owner: the supervisor. The sockets of one address form a reuseport group; their indices in it are
the indices of the workers, in the order in which they were bound. A classic BPF program on the
group picks an index for each packet. Left alone the kernel hashes the flow, which puts all packets
of one client socket into one worker.

The program draws a random number below the count of those who serve and steps over the missing:

    A = random % (count - missing);  for every missing index m, ascending:  if A >= m then A += 1

With nobody missing that is three instructions. With nobody serving all indices stay in rotation:
what is queued then is answered by the successors.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Collection
from typing import Final

SO_ATTACH_REUSEPORT_CBPF: Final = 51
SO_DETACH_REUSEPORT_BPF: Final = 68

_LOAD_WORD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_MODULO: Final = 0x94  # BPF_ALU | BPF_MOD | BPF_K
_JUMP_IF_GE: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ADD: Final = 0x04  # BPF_ALU | BPF_ADD | BPF_K
_RETURN_A: Final = 0x16  # BPF_RET | BPF_A
_RANDOM: Final = (-0x1000 + 56) & 0xFFFFFFFF  # SKF_AD_OFF + SKF_AD_RANDOM


def program(count: int, serving: Collection[int]) -> bytes:
    """Return the instructions that pick evenly among `serving`, indices below `count`."""
    missing = [index for index in range(count) if index not in serving]
    if len(missing) == count:
        missing = []
    code = [
        _instruction(_LOAD_WORD, _RANDOM),
        _instruction(_MODULO, count - len(missing)),
    ]
    for index in missing:
        code.append(_instruction(_JUMP_IF_GE, index, if_false=1))
        code.append(_instruction(_ADD, 1))
    code.append(_instruction(_RETURN_A, 0))
    return b"".join(code)


def attach(member: socket.socket, code: bytes) -> None:
    """Put a program on the reuseport group of `member`, in place of the one there.

    Raises OSError where the kernel knows or allows no such program.
    """
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    member.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, header)


def detach(member: socket.socket) -> None:
    """Leave the group of `member` to the kernel's own hash. Raises OSError without a program."""
    member.setsockopt(socket.SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0)


def _instruction(code: int, operand: int, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, 0, if_false, operand)
