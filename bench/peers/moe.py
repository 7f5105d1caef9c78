"""Peers of moe_forward: router product, top-k of random logits, experts, weighted sum; no shared
experts. The buffers do not rotate: a model's experts are larger than any cache."""

import torch
import torch.nn.functional as F

from timing import Job

try:
    import triton_kernels
except ImportError:
    triton_kernels = None

# experts, experts a token, hidden, intermediate, gating
MODELS = {
    "mixtral-8x7b": (8, 2, 4096, 14336, "softmax"),
    "qwen2-57b-top4": (64, 4, 3584, 2560, "softmax"),
    "deepseek-v3": (256, 8, 7168, 2048, "sigmoid"),
}


class Weights:
    """One model's experts for each peer, kept from case to case: making them takes longer than
    timing them."""

    model, kept = None, {}

    @classmethod
    def get(cls, model, dtype, packed):
        """Router, gate and up (packed: in one), down: normal, of deviation 0.02, as llmk-bench's."""
        if model != cls.model:
            cls.model = model
            cls.kept.clear()
            torch.cuda.empty_cache()
        if dtype not in cls.kept:
            experts, _, hidden, inner, _ = MODELS[model]

            def make(*shape):
                return torch.randn(*shape, device="cuda", dtype=dtype).mul_(0.02)

            gates = [2 * inner] if packed else [inner, inner]
            cls.kept[dtype] = (make(experts, hidden), *(make(experts, g, hidden) for g in gates),
                               make(experts, hidden, inner))
        return cls.kept[dtype]


def _tokens(case, dtype):
    """As llmk-bench's: normal, of deviation 1."""
    hidden = MODELS[case["model"]][2]
    return (torch.randn(case.number("t"), hidden, device="cuda", dtype=dtype),)


def triton_moe(case):
    if case["model"] not in MODELS:
        return None
    experts, k, _, _, gating = MODELS[case["model"]]
    router, gate, up, down = Weights.get(case["model"], torch.float16, False)

    def call(x):
        return triton_kernels.fused_moe_forward(x, router, gate, up, down, experts, k, gating)

    return Job(lambda: _tokens(case, torch.float16), call, 200_000_000, graph=False)


def grouped_mm(case):
    """CUTLASS grouped products, which take bf16 only; routing on the device."""
    if case["model"] not in MODELS:
        return None
    experts, k, _, _, gating = MODELS[case["model"]]
    router, both, down = Weights.get(case["model"], torch.bfloat16, True)
    both, down = both.transpose(1, 2), down.transpose(1, 2)

    def call(x):
        logits = (x @ router.t()).float()
        scores = logits.sigmoid() if gating == "sigmoid" else logits.softmax(-1)
        weight, index = scores.topk(k, -1)
        flat = index.flatten()
        order = flat.argsort()
        token = order // k
        offsets = torch.bincount(flat, minlength=experts).cumsum(0).int()
        g, u = torch._grouped_mm(x[token], both, offs=offsets).chunk(2, -1)
        y = torch._grouped_mm(F.silu(g) * u, down, offs=offsets)
        y = y * weight.flatten()[order, None].to(y.dtype)
        return torch.zeros_like(x).index_add_(0, token, y)

    return Job(lambda: _tokens(case, torch.bfloat16), call, 200_000_000, graph=False)


PEERS = [
    ("moe_forward", "triton", triton_moe, triton_kernels or "triton_kernels"),
    ("moe_forward", "grouped_mm", grouped_mm, None),
]
