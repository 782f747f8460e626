"""Kinds of waits, by the name of the call and of the operators around it."""

from __future__ import annotations

import re
from typing import Final

#: Kinds by the name of the call alone. CUDA, HIP, MUSA, Level Zero, SYCL/UR (XPU), MTIA and Ascend (ACL).
CALLS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "device sync",
            r"^(cuda|hip|musa)DeviceSynchronize|^(cu|hip)CtxSynchronize|^aclrtSynchronizeDevice"
            r"|^synchronize(Device)?$|^zeCommandQueueSynchronize|^nrt_.*wait$",
        ),
        (
            "stream sync",
            r"^(cuda|hip|musa|cu)StreamSynchronize|^aclrtSynchronizeStream|^synchronizeStream$"
            r"|^zeCommandListHostSynchronize|^(ur|pi)QueueFinish",
        ),
        (
            "event sync",
            r"^(cuda|hip|musa|cu)EventSynchronize|^aclrtSynchronizeEvent|^synchronizeEvent$"
            r"|^ze(Event|Fence)HostSynchronize|^(ur|pi)Events?Wait$",
        ),
        (
            "blocking copy",
            r"^(cuda|hip|musa)Memcpy(2D|3D|Peer|ToSymbol|FromSymbol|ToArray|FromArray|HtoD|DtoH|DtoD)?(_v\d+)?$"
            r"|^hipMemcpyWithStream$|^cuMemcpy(2D|3D|HtoD|DtoH|DtoD)?(_v\d+)?(_ptds)?$|^aclrtMemcpy$",
        ),
        (
            "allocator",
            r"^(cuda|hip|musa)(Malloc(Host|Managed|Pitch|3D)?|Free(Host)?|HostAlloc|HostMalloc|HostFree"
            r"|HostRegister|HostUnregister|ExtMallocWithFlags)$"
            r"|^cuMem(Alloc|AllocPitch|AllocHost|AllocManaged|HostAlloc|Free|FreeHost)(_v\d+)?$"
            r"|^aclrt(Malloc|MallocHost|Free|FreeHost)$",
        ),
    )
)

#: Kinds by the operators around a call; the outermost counts, because that is what the script called: ``unique`` and
#: not the ``item`` inside it.
OPERATORS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("item", r"^aten::(_local_scalar_dense|item)$"),
        ("bool", r"^aten::is_nonzero$"),
        ("equal", r"^aten::(equal|allclose)$"),
        ("nonzero", r"^aten::(nonzero|nonzero_numpy|argwhere)$"),
        ("masked_select", r"^aten::masked_select$"),
        ("unique", r"^aten::(unique|_unique|_unique2|unique_dim|unique_consecutive)$"),
        ("repeat_interleave", r"^aten::repeat_interleave$"),
        ("bincount", r"^aten::(bincount|histc)$"),
        ("one_hot", r"^aten::one_hot$"),
        ("multinomial", r"^aten::multinomial$"),
        ("error check", r"^aten::_linalg_check_errors$"),
        ("pin memory", r"^aten::(_pin_memory|pin_memory)$"),
        ("collective wait", r"^(c10d|nccl|rccl|gloo|mpi|hccl|xccl)[:_]|^record_param_comms$"),
    )
)
#: Indexing reads a size only if the index is a mask, indicated by the ``nonzero`` inside it.
MASKED: Final = re.compile(r"^aten::(index|index_put|index_put_|_index_put_impl_)$")
MASK, NONZERO = "boolean mask", "nonzero"
#: Results whose size is computed on the device.
SIZE_KINDS: Final = frozenset(
    {"nonzero", MASK, "masked_select", "unique", "repeat_interleave", "bincount", "one_hot"}
)
#: Reads of one value.
READ_KINDS: Final = frozenset({"item", "bool", "equal"})
#: Copies by direction; then non-blocking copies that blocked because the host memory is pageable.
TO_HOST, TO_DEVICE = "copy to host", "copy to device"
PAGEABLE_TO_HOST, PAGEABLE_TO_DEVICE = "pageable copy to host", "pageable copy to device"
COPY_KINDS: Final = (TO_HOST, TO_DEVICE, PAGEABLE_TO_HOST, PAGEABLE_TO_DEVICE)

#: XLA: the host waits for a buffer, or reads one; Neuron: it reads one, or its call runs a program to the end.
AWAIT, READ, EXECUTE = "await", "device read", "blocking execute"

KINDS: Final[tuple[str, ...]] = (
    *dict.fromkeys(kind for kind, _ in (*OPERATORS, *CALLS)),
    MASK,
    AWAIT,
    READ,
    EXECUTE,
    *COPY_KINDS,
)
