"""Accelerators by the name in a node's label `nvidia.com/gpu.product`: memory, bandwidth and arithmetic.

Figures are from the makers' data sheets, arithmetic without sparsity. Memory is the total that the driver reports, a
little less than the name says. A product that is not listed can be described on the command line (`parse_accelerator`).
"""

from dataclasses import dataclass
from types import MappingProxyType

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    name: str
    memory_bytes: int
    bytes_per_s: float  # memory bandwidth
    flops_16: float  # a second, bf16 and fp16, dense
    flops_8: float  # fp8 or int8; the same as flops_16 if the hardware has none


class AcceleratorUnknown(ValueError):
    """No product has this name; the message lists the known ones and how to describe another."""


def _make_accelerator(
    name: str, memory_gib: float, terabytes_per_s: float, tflops_16: float, tflops_8: float
) -> Accelerator:
    return Accelerator(
        name=name,
        memory_bytes=int(memory_gib * GIB),
        bytes_per_s=terabytes_per_s * 1e12,
        flops_16=tflops_16 * 1e12,
        flops_8=tflops_8 * 1e12,
    )


ACCELERATORS = MappingProxyType(
    {
        each.name: each
        for each in (
            _make_accelerator("NVIDIA-B200", 179.1, 8.0, 2250, 4500),
            _make_accelerator("NVIDIA-H200", 140.4, 4.8, 989, 1979),
            _make_accelerator("NVIDIA-H100-80GB-HBM3", 79.6, 3.35, 989, 1979),
            _make_accelerator("NVIDIA-H100-NVL", 93.6, 3.9, 835, 1671),
            _make_accelerator("NVIDIA-H100-PCIe", 79.6, 2.0, 756, 1513),
            _make_accelerator("NVIDIA-A100-SXM4-80GB", 79.2, 2.039, 312, 312),
            _make_accelerator("NVIDIA-A100-SXM4-40GB", 39.5, 1.555, 312, 312),
            _make_accelerator("NVIDIA-L40S", 44.5, 0.864, 362, 733),
            _make_accelerator("NVIDIA-L4", 22.0, 0.3, 121, 242),
            _make_accelerator("NVIDIA-A10", 22.5, 0.6, 125, 125),
        )
    }
)


def accelerator(name: str) -> Accelerator:
    """Return an accelerator by its product label, or from a description (`parse_accelerator`); AcceleratorUnknown if it
    is neither."""
    if "=" in name:
        return parse_accelerator(name)
    found = ACCELERATORS.get(name)
    if found is None:
        raise AcceleratorUnknown(
            f"no accelerator is called {name!r}; known: {', '.join(ACCELERATORS)}. Describe another as "
            f"NAME=GiB:TB/s:TFLOPS16:TFLOPS8, such as MI300X=191.5:5.3:1307:2614"
        )
    return found


def parse_accelerator(text: str) -> Accelerator:
    """Parse `MI300X=191.5:5.3:1307:2614`: memory in GiB, TB/s, dense TFLOPS in 16 and in 8 bits. AcceleratorUnknown if
    it is malformed."""
    name, _, figures = text.partition("=")
    try:
        memory_gib, terabytes_per_s, tflops_16, tflops_8 = (float(part) for part in figures.split(":"))
    except ValueError:
        raise AcceleratorUnknown(f"{text!r} is not a description: write NAME=GiB:TB/s:TFLOPS16:TFLOPS8") from None
    if not name or not all(0 < each < 1e6 for each in (memory_gib, terabytes_per_s, tflops_16, tflops_8)):
        raise AcceleratorUnknown(f"{text!r}: give a name and four figures above 0")
    return _make_accelerator(name, memory_gib, terabytes_per_s, tflops_16, tflops_8)
