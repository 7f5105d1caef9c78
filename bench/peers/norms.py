"""Peers of rmsnorm and gated_activation."""

import torch
import torch.nn.functional as F

from timing import DTYPES, Job

try:
    import triton_kernels
except ImportError:
    triton_kernels = None
try:
    import flashinfer
except ImportError:
    flashinfer = None


def _random(case, *shape):
    return torch.randn(*shape, device="cuda", dtype=DTYPES[case["x"]])


def _rmsnorm(case, plain, with_residual):
    """A job on (x, weight), or (x, residual, weight); None where the peer lacks that form."""
    rows, h = case.number("rows"), case.number("h")
    size = rows * h * DTYPES[case["x"]].itemsize
    if case["r"] in ("", "none"):
        make, call, tensors = lambda: (_random(case, rows, h), _random(case, h)), plain, 2
    else:
        make = lambda: (_random(case, rows, h), _random(case, rows, h), _random(case, h))
        call, tensors = with_residual, 4
    return Job(make, call, tensors * size) if call else None


def rmsnorm_torch(case):
    h = case.number("h")

    def with_residual(x, residual, weight):
        residual.add_(x)
        return F.rms_norm(residual, (h,), weight, 1e-6)

    return _rmsnorm(case, lambda x, w: F.rms_norm(x, (h,), w, 1e-6), with_residual)


def rmsnorm_triton(case):
    """Its fused form does not store the sum: three tensors, where llmk moves four with `sum`."""
    return _rmsnorm(case, triton_kernels.rmsnorm, triton_kernels.rmsnorm_residual_fused)


def rmsnorm_flashinfer(case):
    return _rmsnorm(case, flashinfer.norm.rmsnorm, flashinfer.norm.fused_add_rmsnorm)


def _gated(case, packed, call):
    rows, d = case.number("rows"), case.number("d")
    if case["act"] != "silu":
        return None
    if packed:
        make = lambda: (_random(case, rows, 2 * d),)
    else:
        make = lambda: (_random(case, rows, d), _random(case, rows, d))
    return Job(make, call, 3 * rows * d * DTYPES[case["x"]].itemsize)


def gated_torch(case):
    return _gated(case, False, lambda gate, up: F.silu(gate) * up)


def gated_triton(case):
    return _gated(case, False, triton_kernels.swiglu_fused)


def gated_flashinfer(case):
    return _gated(case, True, flashinfer.activation.silu_and_mul)


PEERS = [
    ("rmsnorm", "torch", rmsnorm_torch, None),
    ("rmsnorm", "triton", rmsnorm_triton, triton_kernels or "triton_kernels"),
    ("rmsnorm", "flashinfer", rmsnorm_flashinfer, flashinfer or "flashinfer"),
    ("gated_activation", "torch", gated_torch, None),
    ("gated_activation", "triton", gated_triton, triton_kernels or "triton_kernels"),
    ("gated_activation", "flashinfer", gated_flashinfer, flashinfer or "flashinfer"),
]
