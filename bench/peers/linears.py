"""Peers of linear: cuBLAS with dense weights (for quantised cases too: what a user has without
them), the Triton project's W8A16, PyTorch's tinygemm W4A16, and int8 cuBLAS for W8A8; of
gated_linear: cuBLAS twice, and an activation."""

import torch
import torch.nn.functional as F

from timing import DTYPES, Job

try:
    import triton_kernels
except ImportError:
    triton_kernels = None


def activations(m, k, dtype):
    """x as llmk-bench makes it: normal, of deviation 0.3."""
    return torch.randn(m, k, device="cuda", dtype=dtype) * 0.3


def weights(n, k, dtype=torch.float32):
    """W likewise: normal, of deviation 0.02. Power, and so the clocks, depends on the numbers."""
    return torch.randn(n, k, device="cuda", dtype=dtype) * 0.02


def int8_rows(values):
    """Codes of normal numbers and a scale a row, as quantising gives them."""
    scale = values.abs().amax(1, keepdim=True).div(127)
    return values.div(scale).round().to(torch.int8), scale.flatten()


def int4_groups(n, k, group):
    """Two codes a byte, and tinygemm's scales and zeros: w = (code - 8) * scale + zero."""
    groups = weights(n, k).view(n, k // group, group)
    low = groups.amin(2, keepdim=True)
    scale = groups.amax(2, keepdim=True).sub(low).div(15)
    codes = groups.sub(low).div(scale).round().to(torch.uint8).view(n, k)
    packed = codes[:, 0::2].mul(16).add(codes[:, 1::2])
    return packed, torch.cat([scale, low.add(scale, alpha=8)], 2).transpose(0, 1).contiguous()


def _shape(case):
    return case.number("m"), case.number("n"), case.number("k")


def cublas(case):
    m, n, k = _shape(case)
    dtype = DTYPES[case["x"]]

    def make():
        return activations(m, k, dtype), weights(n, k, dtype)

    return Job(make, lambda x, w: x @ w.t(), (n * k + m * (n + k)) * dtype.itemsize)


def triton_w8(case):
    m, n, k = _shape(case)
    if case["w"] != "w8" or case["x"] != "f16":
        return None

    def make():
        q, scale = int8_rows(weights(n, k))
        return activations(m, k, torch.float16), q, scale, q.t().contiguous()

    def call(x, q, scale, transposed):
        return triton_kernels.int8_gemm(x, q, scale, weight_transposed=transposed,
                                        use_cublas=False)

    return Job(make, call, n * k + 2 * m * (n + k))


def tinygemm(case):
    m, n, k = _shape(case)
    group = case.number("group") or k
    if case["w"] not in ("w4", "u4", "q4_0", "q4_1") or group not in (32, 64, 128, 256):
        return None

    def make():
        codes, scales = int4_groups(n, k, group)
        return (activations(m, k, torch.bfloat16), torch._convert_weight_to_int4pack(codes, 8),
                scales.to(torch.bfloat16))

    return Job(make, lambda x, w, s: torch._weight_int4pack_mm(x, w, group, s),
               n * k // 2 + 2 * m * (n + k))


def cublas_int8(case):
    m, n, k = _shape(case)
    if case["w"] not in ("w8", "w8a8") or m <= 16:
        return None

    def make():
        return (int8_rows(activations(m, k, torch.float32))[0], int8_rows(weights(n, k))[0].t())

    return Job(make, torch._int_mm, n * k + m * (k + 4 * n))


def _gated(case, activation):
    """Two products by cuBLAS, in f16 or bf16 between, and their activation."""
    m, n, k = _shape(case)
    dtype = DTYPES[case["x"]]
    if case["act"] != "silu":
        return None

    def make():
        return activations(m, k, dtype), weights(n, k, dtype), weights(n, k, dtype)

    return Job(make, lambda x, gate, up: activation(x @ gate.t(), x @ up.t()),
               (2 * n * k + m * (n + k)) * dtype.itemsize)


def gated_torch(case):
    return _gated(case, lambda gate, up: F.silu(gate) * up)


def gated_triton(case):
    return _gated(case, triton_kernels.swiglu_fused)


PEERS = [
    ("linear", "cublas", cublas, None),
    ("linear", "triton", triton_w8, triton_kernels or "triton_kernels"),
    ("linear", "tinygemm", tinygemm, None),
    ("linear", "cublas_int8", cublas_int8, None),
    ("gated_linear", "torch", gated_torch, None),
    ("gated_linear", "triton", gated_triton, triton_kernels or "triton_kernels"),
]
