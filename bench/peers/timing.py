"""Timing on a CUDA device by llmk-bench's rules: sets of buffers that rotate beyond the last-level
cache, batches of back-to-back calls, the median of many. A batch is one CUDA graph, so that no
launch cost is charged to the peer; peers that synchronise with the host are called eagerly."""

import statistics
import time

import torch

LEAST_BATCHES = 12
MOST_CALLS = 2000  # in a graph
WARM_UP_US = 5e4  # as llmk-bench: under load clocks rise, and fall again where power is the limit
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Job:
    """What one peer does in one case: `make` gives a set of buffers, `call` runs on one."""

    def __init__(self, make, call, set_bytes, graph=True):
        self.make, self.call, self.set_bytes, self.graph = make, call, set_bytes, graph


def choose_sets(set_bytes):
    """As bench_choose_sets in llmk-bench."""
    device = torch.cuda.get_device_properties(0)
    target = max(4 * getattr(device, "L2_cache_size", 0), 400_000_000)
    sets = min(max(target // max(set_bytes, 1) + 1, 2), 64)
    return int(max(1, min(sets, device.total_memory // 2 // max(set_bytes, 1))))


def _elapsed_us(work):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


class Prepared:
    """A job with its buffers made, warmed up and, where possible, captured."""

    def __init__(self, job, seconds):
        self.job = job
        self.sets = [job.make() for _ in range(choose_sets(job.set_bytes))]
        self.position = 0
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for buffers in self.sets[:3]:
                job.call(*buffers)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        batch_us = max(2e3, seconds * 1e6 / (2 * LEAST_BATCHES))
        self.calls, self.graph = len(self.sets), None
        for _ in range(2):  # called eagerly, a short kernel takes as long as its launch: once more
            took_us = _elapsed_us(self._batch)
            wanted = self.calls * batch_us / took_us
            self.calls = int(min(max(wanted, len(self.sets)), MOST_CALLS))
            if job.graph:
                self._capture()

    def _capture(self):
        self.graph = None  # its memory, before the next one takes as much
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._batch()
        self.graph = graph
        graph.replay()
        torch.cuda.synchronize()

    def _batch(self):
        if self.graph:
            self.graph.replay()
        else:
            self._calls(self.calls)

    def _calls(self, count):
        for _ in range(count):
            self.job.call(*self.sets[self.position])
            self.position = (self.position + 1) % len(self.sets)

    def measure(self, seconds):
        warm = 0.0
        while warm < WARM_UP_US:
            warm += _elapsed_us(self._batch)
        times, total = [], 0.0
        while len(times) < 400 and (len(times) < LEAST_BATCHES or total < seconds * 1e6):
            took = _elapsed_us(self._batch)
            total += took
            times.append(took / self.calls)
        return summary(times)


    def sustain(self, seconds):
        """As bench_sustain in llmk-bench: the time of a call in consecutive windows of a second."""
        count = int(min(max(seconds, 2), 120))
        end, windows = time.monotonic() + seconds, []
        for i in range(count):
            took, calls = 0.0, 0
            window_end = end - seconds * (count - 1 - i) / count
            while not calls or time.monotonic() < window_end:
                took += _elapsed_us(lambda: [self._batch() for _ in range(4)])
                calls += 4 * self.calls
            windows.append(took / calls)
        return windows


def summary(times):
    ordered = sorted(times)
    last = len(ordered) - 1
    median = statistics.median(ordered)
    low, high = ordered[round(0.05 * last)], ordered[round(0.95 * last)]
    return {"us": median, "us_p5": low, "us_p95": high, "spread": (high - low) / median,
            "batches": len(ordered)}
