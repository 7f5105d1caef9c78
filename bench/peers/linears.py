"""Peers of linear: cuBLAS with dense weights (for quantised cases too: what a user has without
them), the Triton project's W8A16, PyTorch's tinygemm W4A16, and int8 cuBLAS for W8A8."""

import torch

from timing import DTYPES, Job

try:
    import triton_kernels
except ImportError:
    triton_kernels = None


def _shape(case):
    return case.number("m"), case.number("n"), case.number("k")


def cublas(case):
    m, n, k = _shape(case)
    dtype = DTYPES[case["x"]]

    def make():
        return (torch.randn(m, k, device="cuda", dtype=dtype) * 0.3,
                torch.randn(n, k, device="cuda", dtype=dtype) * 0.02)

    return Job(make, lambda x, w: x @ w.t(), (n * k + m * (n + k)) * dtype.itemsize)


def triton_w8(case):
    m, n, k = _shape(case)
    if case["w"] != "w8" or case["x"] != "f16":
        return None

    def make():
        q = torch.randint(-127, 127, (n, k), device="cuda", dtype=torch.int8)
        return (torch.randn(m, k, device="cuda", dtype=torch.float16), q,
                torch.rand(n, device="cuda"), q.t().contiguous())

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
        codes = torch.randint(0, 255, (n, k // 2), device="cuda", dtype=torch.uint8)
        scales = torch.randn(k // group, n, 2, device="cuda", dtype=torch.bfloat16) * 0.01
        return (torch.randn(m, k, device="cuda", dtype=torch.bfloat16),
                torch._convert_weight_to_int4pack(codes, 8), scales)

    return Job(make, lambda x, w, s: torch._weight_int4pack_mm(x, w, group, s),
               n * k // 2 + 2 * m * (n + k))


def cublas_int8(case):
    m, n, k = _shape(case)
    if case["w"] not in ("w8", "w8a8") or m <= 16:
        return None

    def make():
        return (torch.randint(-127, 127, (m, k), device="cuda", dtype=torch.int8),
                torch.randint(-127, 127, (n, k), device="cuda", dtype=torch.int8).t())

    return Job(make, torch._int_mm, n * k + m * (k + 4 * n))


PEERS = [
    ("linear", "cublas", cublas, None),
    ("linear", "triton", triton_w8, triton_kernels or "triton_kernels"),
    ("linear", "tinygemm", tinygemm, None),
    ("linear", "cublas_int8", cublas_int8, None),
]
