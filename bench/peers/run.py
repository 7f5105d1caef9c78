#!/usr/bin/env python3
"""Times what a user would pick instead of llmk, on the CUDA device that PyTorch finds.

    run.py [--seconds S] [--peers NAME,NAME] [--json FILE] CASE...
    run.py --stdin      a request {"case": ..., "peers": [...]} a line, answered a line each;
                        "sustain": S in it: also the time of a call in each of S seconds on end

CASE is llmk-bench's: 'linear m=1 n=28672 k=8192'. What is not installed is a line, not a failure.
"""

import argparse
import datetime
import json
import os
import sys

from cases import Case

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from documents import Refused, check_writable, write  # pylint: disable=wrong-import-position


class Answers:
    """Lines of JSON on what was standard output; what peers print goes to standard error."""

    def __init__(self):
        self.file = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, **fields):
        print(json.dumps(fields), file=self.file, flush=True)


class Bench:
    def __init__(self):
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no CUDA device")
        import linears
        import moe
        import norms
        import timing

        self.torch, self.timing = torch, timing
        self.peers = norms.PEERS + linears.PEERS + moe.PEERS
        self.kept, self.kept_case = {}, None  # jobs of the last case, so that repeating it is quick

    def device(self):
        properties = self.torch.cuda.get_device_properties(0)
        return {"tool": "peers", "device": properties.name, "torch": self.torch.__version__,
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat()}

    def _drop(self):
        self.kept.clear()
        self.torch.cuda.empty_cache()

    def _measure(self, case, name, function, seconds, sustain):
        if name not in self.kept:
            job = function(case)
            self.kept[name] = self.timing.Prepared(job, seconds) if job else None
        if not self.kept[name]:
            return None
        figures = self.kept[name].measure(seconds)
        if sustain:
            figures["sustained_us"] = self.kept[name].sustain(sustain)
        return figures

    def time(self, text, wanted, seconds, sustain=0):
        """A row for each peer of the case's operator, or of `wanted`, that has this case."""
        case = Case(text)
        if text != self.kept_case:
            self._drop()
            self.kept_case = text
        rows = []
        for op, name, function, needs in self.peers:
            if op != case.op or (wanted and name not in wanted):
                continue
            row = {"case": text, "peer": name}
            if isinstance(needs, str):
                rows.append({**row, "absent": f"{needs} is not installed"})
                continue
            try:
                figures = self._measure(case, name, function, seconds, sustain)
            except Exception as error:  # whatever a peer does wrong, the others go on
                self._drop()
                figures = {"error": f"{type(error).__name__}: {error}"[:200]}
            if figures:
                rows.append({**row, **figures})
        return rows


def print_row(row):
    if "us" in row:
        print(f"{row['case']:<60} {row['peer']:<12} {row['us']:10.2f} us {row['spread']:6.1%}")
    else:
        print(f"{row['case']:<60} {row['peer']:<12} {row.get('absent') or row['error']}")
    sys.stdout.flush()


def serve(bench, seconds, answers):
    answers.say(**bench.device())
    for line in sys.stdin:
        request = json.loads(line)
        rows = bench.time(request["case"], request.get("peers"), request.get("seconds", seconds),
                          request.get("sustain", 0))
        answers.say(case=request["case"], peers=rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--seconds", type=float, default=0.3, help="timed, a case and peer")
    parser.add_argument("--peers", help="only these, separated by commas")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--stdin", action="store_true")
    options = parser.parse_args()
    if options.json:  # before minutes of timing
        try:
            check_writable(options.json)
        except Refused as error:
            parser.error(f"--json: {error}")
    answers = Answers() if options.stdin else None
    try:
        bench = Bench()
    except (ImportError, RuntimeError) as error:
        if options.stdin:
            answers.say(absent=str(error))
        print(f"no peers: {error}", file=sys.stderr)
        return 0 if options.stdin else 1
    if options.stdin:
        serve(bench, options.seconds, answers)
        return 0
    document = {**bench.device(), "results": []}
    print(f"{document['device']}, PyTorch {document['torch']}\n")
    for text in options.cases:
        for row in bench.time(text, options.peers and options.peers.split(","), options.seconds):
            document["results"].append(row)
            print_row(row)
    if options.json:
        try:
            write(options.json, document)
        except Refused as error:
            sys.exit(f"run.py: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
