#!/usr/bin/env python3
"""Tests of bench/bars, bench/compare and bench/peers, with stand-ins for what needs a GPU.

test_scripts.py LLMK_BENCH runs also what talks to the real llmk-bench.
"""

import contextlib
import fcntl
import importlib.machinery
import importlib.util
import io
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(ROOT, "bench")
LLMK_BENCH = None
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)


def load(name):
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(BENCH, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


bars, compare = load("bars"), load("compare")

# Answers as llmk-bench --stdin does: 10 us, 8 of them launch, 800 GB/s of 1000.
FAKE_BENCH = """
    import json, sys
    print(json.dumps({"device": "A GPU", "driver": "1", "library": "llmk", "copy_gbs": 1000.0,
                      "launch_us": 8.0, "arguments": sys.argv[1:]}), flush=True)
    for line in sys.stdin:
        case = line.strip()
        row = {"case": case, "variant": "v", "us": 10.0, "us_p5": 9.9, "us_p95": 10.1,
               "bytes": 8000000}
        if case == "die":
            sys.exit(3)
        if case == "wrong":
            row = {"case": case, "error": "LLMK_INTERNAL"}
        if case.startswith("future"):
            row = {"case": case, "unknown": "no operator"}
        if case.startswith("clblast"):
            row["us"] = 12.0
        if case == "big":
            row.update(us=20.0, us_p95=20.2, bytes=10000000)
        if case == "short":
            row.update(launch_us=9.25, beyond_launch_us=0.75, beyond_launch_us_p5=0.5,
                       beyond_launch_us_p95=1.25)
        print(json.dumps(row), flush=True)
"""
FAKE_PEERS = """
    import json, sys
    print(json.dumps({"device": "A GPU"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        rows = [{"peer": p, "us": 15.0} if p == "cublas" else {"peer": p, "absent": "not there"}
                for p in request["peers"]]
        print(json.dumps({"case": request["case"], "peers": rows}), flush=True)
"""
# Enough of PyTorch for the peers to go through their motions; every batch takes a millisecond.
FAKE_TORCH = """
    import sys
    from unittest.mock import MagicMock, Mock

    class Tensor(MagicMock):
        def __mul__(self, other): return self
        def __matmul__(self, other): return self

    class Dtype:
        def __init__(self, itemsize): self.itemsize = itemsize

    torch = MagicMock(randn=lambda *a, **k: Tensor(), randint=lambda *a, **k: Tensor(),
                      float32=Dtype(4), float16=Dtype(2), bfloat16=Dtype(2), __version__="2.0")
    torch.cuda.is_available.return_value = True
    torch.cuda.get_device_properties.return_value = Mock(L2_cache_size=1 << 20,
                                                         total_memory=1 << 37)
    torch.cuda.get_device_properties.return_value.name = "A GPU"
    torch.cuda.Event = lambda **k: Mock(elapsed_time=lambda end: 1.0)
    torch._weight_int4pack_mm.side_effect = RuntimeError("not on this GPU")
    torch.nn.functional.rms_norm.side_effect = lambda *a: print("noise")
    sys.modules.update({"torch": torch, "torch.nn": torch.nn,
                        "torch.nn.functional": torch.nn.functional})
"""


class Scripts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable}\n" + textwrap.dedent(text))
        os.chmod(path, 0o755)
        return path

    def run_bars(self, lines, *options, bench=FAKE_BENCH, peers=FAKE_PEERS):
        """The exit status, the report's rows and what was printed."""
        listing = self.write("bars.txt", "group g: a group\n" + textwrap.dedent(lines))
        command = [sys.executable, os.path.join(BENCH, "bars"), "--bars", listing, "--bench",
                   self.write("bench", bench), "--peers", self.write("peers", peers), "--out",
                   self.folder.name, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        path = os.path.join(self.folder.name, "bars.json")
        self.assertTrue(os.path.exists(path), done.stderr)
        with open(path, encoding="utf-8") as file:
            return done.returncode, json.load(file)["bars"], done.stdout

    def verdict(self, line, **fakes):
        _, rows, _ = self.run_bars(line + "\n", **fakes)
        return rows[0]["verdict"], rows[0].get("value")

    def test_list_of_bars(self):
        with open(os.path.join(BENCH, "bars.txt"), encoding="utf-8") as file:
            groups = bars.read_bars(file.read())
        self.assertIn("foundation", [name for name, _, _ in groups])
        for name, title, entries in groups:
            self.assertTrue(title and entries, name)
        for bad in ("a b | us < 3", "a b", "a b | us <= 3 | with x | y"):
            with self.assertRaises(ValueError):
                bars.Bar("g", bad)

    def test_verdicts(self):
        for line, verdict, value in (
                ("op a=1 | us <= 10", "holds", 10), ("op a=1 | us <= 9.9", "misses", 10),
                ("op a=1 | copy >= 80 %", "holds", 80), ("op a=1 | copy >= 81 %", "misses", 80),
                ("op a=1 | beyond launch <= 2 us", "holds", 2),
                ("op a=1 | beyond launch <= 1 us", "misses", 2),
                ("short | beyond launch <= 1 us", "holds", 0.75),
                ("op a=1 | speed >= 1.5 x cublas", "holds", 1.5),
                ("op a=1 | speed >= 1.51 x cublas", "misses", 1.5),
                ("op a=1 | speed >= 1 x clblast", "holds", 1.2),
                ("op a=1 | speed >= 1 x triton", "no peer", None),
                ("big | us <= 2 x op a=1", "holds", 2), ("big | us <= 1.9 x op a=1", "misses", 2),
                ("big | us <= 1.9 x future a=1", "absent", None),
                ("big | us a byte <= 1.6 x op a=1", "holds", 1.6),
                ("big | us a byte <= 1.5 x op a=1", "misses", 1.6),
                ("big | us a byte <= 1.5 x future a=1", "absent", None),
                ("future x=1 | us <= 1", "absent", None), ("wrong | us <= 1", "failed", None),
                ("die | us <= 1", "failed", None)):
            with self.subTest(line):
                got, figure = self.verdict(line)
                self.assertEqual(got, verdict)
                if value is not None:
                    self.assertAlmostEqual(figure, value)

    def test_status_and_report(self):
        status, rows, text = self.run_bars(
            "op a=1 | us <= 11 | with cublas, triton\nfuture b=1 | us <= 3\n")
        self.assertEqual(status, 0)
        self.assertEqual(rows[0]["peers"], {"cublas": 15})
        self.assertEqual(rows[0]["notes"], {"triton": "not there"})
        self.assertAlmostEqual(rows[0]["spread"], 0.02)
        self.assertIn("1 absent, 1 holds", text)
        self.assertEqual(self.run_bars("op a=1 | us <= 1\n")[0], 1)

    def test_page_of_results(self):
        self.run_bars("op a=1 | us <= 11 | with cublas, triton\nbig | us <= 1.9 x op a=1\n"
                      "op a=1 | speed >= 1.5 x cublas\nfuture b=1 | us <= 3\n")
        command = [sys.executable, os.path.join(BENCH, "results")]
        done = subprocess.run(command + [os.path.join(self.folder.name, "bars.json")],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("1 absent, 2 holds, 1 misses", "| µs ≤ 11 | 10.0 µs, holds |",
                     "cublas 15.0 (1.50)", "triton: not there", "| 1.500 ×, holds |",
                     "| 2.00 ×, misses |", "absent"):
            self.assertIn(part, done.stdout)
        for text in ("", "[]", "{}", '{"device": 1}'):
            path = self.write("bad.json", "")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            done = subprocess.run(command + [path], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("expected what bench/bars writes", done.stderr)
            self.assertEqual(done.stdout, "")

    def test_launch_is_timed_beside_the_case(self):
        _, rows, text = self.run_bars("short | beyond launch <= 1 us\nop a=1 | us <= 11\n"
                                      "op a=1 | beyond launch <= 3 us\n")
        self.assertEqual([rows[0][key] for key in ("launch_us", "value_low", "value_high")],
                         [9.25, 0.5, 1.25])
        self.assertIn("0.50 to 1.25 us", text)
        self.assertNotIn("value_low", rows[1])
        self.assertAlmostEqual(rows[2]["value_low"], 1.9)  # the launch of the start
        self.assertAlmostEqual(rows[2]["value_high"], 2.1)

    def test_goes_on_after_a_crash(self):
        _, rows, _ = self.run_bars("die | us <= 1\nop a=1 | us <= 11\n")
        self.assertEqual([row["verdict"] for row in rows], ["failed", "holds"])

    def test_forces_variants(self):
        command = ["--variant", "nv"]
        bench = FAKE_BENCH.replace('"us": 10.0', f'"us": 10.0 if sys.argv[-2:] == {command} else 99')
        self.assertEqual(self.verdict("op a=1 variant=nv | us <= 10", bench=bench)[0], "holds")

    def test_without_peers(self):
        absent = 'print(\'{"absent": "no PyTorch"}\')'
        self.assertEqual(self.verdict("op a=1 | us <= 10 | with cublas", peers=absent)[0], "holds")
        self.assertEqual(self.verdict("op a=1 | speed >= 1 x cublas", peers=absent)[0], "no peer")
        self.assertEqual(self.verdict("op a=1 | speed >= 1 x cublas", peers="exit(1)")[0],
                         "no peer")

    def test_budget(self):
        status, rows, _ = self.run_bars("op a=1 | us <= 11\n", "--budget", "0")
        self.assertEqual((status, rows[0]["verdict"]), (0, "not run"))

    def test_peers_that_are_only_shown_come_last(self):
        _, rows, text = self.run_bars("op a=1 | us <= 11 | with cublas\nop b=1 | us <= 11\n")
        self.assertLess(text.index("op b=1"), text.index("beside peers"))
        self.assertIn("cublas 15.00 (1.50 x)", text)
        self.assertEqual([row.get("peers") for row in rows], [{"cublas": 15}, {}])
        slow = FAKE_PEERS.replace("print(json.dumps({\"case\"", "__import__('time').sleep(3); print(json.dumps({\"case\"")
        _, rows, text = self.run_bars("op a=1 | us <= 11 | with cublas\nop b=1 | us <= 11 | with "
                                      "cublas\n", "--budget", "2", "--rounds", "1", peers=slow)
        self.assertEqual([row["verdict"] for row in rows], ["holds", "holds"])
        self.assertIn("not run: the budget is spent", text)

    def test_sustain(self):
        bench = self.write("bench", FAKE_BENCH.replace(
            '"bytes": 8000000}', '"bytes": 8000000, "sustained_us": [10, 10, 11, 12, 12, 12]}'))
        peers = self.write("peers", FAKE_PEERS.replace(
            '"us": 15.0}', '"us": 15.0, "sustained_us": [15] * 3 + [24] * 3}'))
        command = [os.path.join(BENCH, "sustain"), "--bench", bench, "--peer-command", peers,
                   "--seconds", "6", "op a=1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"v +10\.00 +10\.00 +12\.00 +11\.50 +10\.00 - 12\.00 us")
        self.assertRegex(done.stdout, r"cublas +15\.00 +15\.00 +24\.00 +19\.50 .*1\.696 x it "
                                      r"sustained, 1\.500 x short")
        command[-1] = "wrong"
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("LLMK_INTERNAL", done.stderr)

    def test_tune_compare(self):
        def rows(*found):
            return json.dumps({"rows": [
                {"op": "linear", "variant": variant, **({"config": config} if config else {}),
                 "measured": {"case": case, "us": us, "default_us": fallback}}
                for case, variant, config, us, fallback in found]})
        paths = [os.path.join(self.folder.name, name) for name in ("a.json", "b.json")]
        for path, text in zip(paths, (
                rows(("linear m=1", "default", None, 100, 100), ("linear m=2", "nv", "x", 10, 12)),
                rows(("linear m=1", "nv", None, 104, 106), ("linear m=2", "nv", "x", 10.9, 12),
                     ("linear m=3", "nv", None, 1, 2)))):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        command = [os.path.join(BENCH, "tune_compare"), *paths]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("default | nv", done.stdout)
        self.assertIn("summary compared=2 only_first=0 only_second=1 same_kept=1 agree=2 by_their_spread=0 "
                      "worst_percent=9.0 default_over_10_percent_slower=1,2", done.stdout)
        done = subprocess.run(command + ["--noise", "3"], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("BEYOND THE NOISE", done.stdout)

    def test_tune_compare_noise(self):
        """The greatest of the fixed noise and both rows' spreads, these up to a bound."""
        paths = [os.path.join(self.folder.name, name) for name in ("a.json", "b.json")]
        for first_us, first, second_us, second, noise, status in (
                (100, None, 104, None, 5, 0), (100, None, 106, None, 5, 1),
                (10, None, 10.9, None, 10, 0), (10, None, 11.1, None, 10, 1),
                (100, 0.08, 107, 0.01, 8, 0), (107, 0.01, 100, 0.08, 8, 0),
                (100, 0.08, 109, 0.01, 8, 1), (100, 0.01, 104, 0.02, 5, 0),
                (10, 0.12, 11.1, 0, 12, 0), (100, 0.9, 114, 0.9, 15, 0),
                (100, 0.9, 116, 0.9, 15, 1)):
            for path, us, spread in zip(paths, (first_us, second_us), (first, second)):
                with open(path, "w", encoding="utf-8") as file:
                    json.dump({"rows": [{"op": "x", "variant": "v\x1b\ud800", "measured": {
                        "case": "x\x1b[2J\ud800", "us": us, "default_us": us,
                        **({} if spread is None else {"spread": spread})}}]}, file)
            with self.subTest(f"{first_us} {first} {second_us} {second}"):
                done = subprocess.run([os.path.join(BENCH, "tune_compare"), *paths],
                                      capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr), (status, ""))
                self.assertIn(f" {noise:.1f}%  v", done.stdout)
                self.assertNotIn("\x1b", done.stdout)
                stated = status == 0 and max(first_us, second_us) / min(first_us, second_us) > \
                    (1.05 if first_us >= 50 else 1.1)
                self.assertIn(f" by_their_spread={stated:d} ", done.stdout)
        done = subprocess.run([os.path.join(BENCH, "tune_compare"), *paths, "--most", "17"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0)

    def refused(self, *command, status=1):
        """Ends with a sentence, not a traceback, and nothing on stdout."""
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertIn(os.path.basename(command[0]) + ": ", done.stderr)
        return done.stderr

    def test_tune_compare_refuses_what_are_no_rows(self):
        command = os.path.join(BENCH, "tune_compare")
        row = {"op": "linear", "variant": "cpu", "measured": {"case": "c", "us": 1, "default_us": 2}}
        good, path = (os.path.join(self.folder.name, name) for name in ("good.json", "bad.json"))
        with open(good, "w", encoding="utf-8") as file:
            json.dump({"rows": [row]}, file)
        documents = ["", "[]", "{}", '{"rows": null}', '{"rows": [1]}', "[" * 100000, "\xff",
                     json.dumps({"rows": [{**row, "variant": 3}]}),
                     json.dumps({"rows": [{**row, "config": []}]}),
                     json.dumps({"rows": [{**row, "measured": "yes, case"}]}),
                     json.dumps({"rows": [{"op": "linear", "measured": row["measured"]}]})]
        for name in ("us", "default_us"):
            for value in (0, -1, "1", None, True, [], float("nan"), float("inf"), 10 ** 400):
                documents.append(json.dumps(
                    {"rows": [{**row, "measured": {**row["measured"], name: value}}]}))
        for name, value in (("case", ["c"]), ("spread", "0.1"), ("spread", -0.1), ("spread", None),
                            ("spread", float("nan"))):
            documents.append(json.dumps(
                {"rows": [{**row, "measured": {**row["measured"], name: value}}]}))
        for document in documents:
            with self.subTest(document[:60]):
                with open(path, "w", encoding="latin-1") as file:
                    file.write(document)
                self.assertIn("bad.json", self.refused(command, good, path, status=2))
        self.assertIn("nowhere", self.refused(command, "/nowhere", good, status=2))
        self.refused(command, good, good, "--noise", "nan", status=2)
        self.refused(command, good, good, "--most", "-1", status=2)
        with open(path, "w", encoding="utf-8") as file:  # notes are no rows, and no fault
            json.dump({"rows": [row, {**row, "measured": None}]}, file)
        done = subprocess.run([command, good, path], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("summary compared=1 ", done.stdout)

    def test_sustain_refuses(self):
        bench = self.write("bench", FAKE_BENCH)
        command = [os.path.join(BENCH, "sustain"), "--bench", bench, "--peers", "", "op a=1"]
        for seconds in ("0", "-1", "nan", "inf", "x"):
            with self.subTest(seconds):
                self.assertIn("--seconds", self.refused(*command, "--seconds", seconds, status=2))
        self.assertIn("/nowhere/at/all", self.refused(*command, "--json", "/nowhere/at/all"))
        path = os.path.join(self.folder.name, "sustained.json")
        self.assertEqual(subprocess.run([*command, "--json", path, "--bench", "/nowhere"],
                                        capture_output=True, check=False).returncode, 1)
        self.assertFalse(os.path.exists(path))  # looked at, and not left behind
        self.write("bench", 'print(\'{"tool": "x"}\\n{"case": "op", "error": "no operator x"}\')')
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (1, "sustain: no operator x\n"))

    def test_results_refuses(self):
        command, path = os.path.join(BENCH, "results"), os.path.join(self.folder.name, "bad.json")
        self.assertIn("nowhere", self.refused(command, "/nowhere"))
        row = {"group": "g", "case": "c", "bar": "us <= 1", "verdict": "holds", "variant": "v",
               "us": 1.0, "spread": 0.1, "value": 1.0, "peers": {"p": 1.0}, "notes": {}}
        good = {"device": {"device": "d\x1b[2J\ud800", "driver": "1", "library": "l", "copy_gbs": 1,
                           "launch_us": 1}, "peers": {}, "date": "2026-11-30", "bars": [row]}
        for document in ("", "[]", "{}", "[" * 100000, "\xff", '{"bars": 3}',
                         *(json.dumps({**good, "bars": bars}) for bars in (
                             3, [3], [{**row, "us": 0}], [{**row, "us": None}], [{**row, "bar": 1}],
                             [{**row, "peers": []}], [{"group": "g"}]))):
            with self.subTest(document[:60]):
                with open(path, "w", encoding="latin-1") as file:
                    file.write(document)
                self.assertIn("bad.json", self.refused(command, path))
        with open(path, "w", encoding="utf-8") as file:
            json.dump(good, file)
        done = subprocess.run([command, path, path], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotIn("\x1b", done.stdout)
        self.assertIn("Of the bars: 2 holds.", done.stdout)

    def test_bars_refuses(self):
        command = [os.path.join(BENCH, "bars"), "--bench", self.write("bench", FAKE_BENCH), "--bars"]
        self.assertIn("nowhere", self.refused(*command, "/nowhere", status=2))
        for lines in ("op a=1 | us <= 3\n", "group g: a group\nop a=1\n"):
            with self.subTest(lines):
                self.assertIn("bars.txt", self.refused(*command, self.write("bars.txt", lines),
                                                       status=2))
        listing = self.write("bars.txt", "group g: a group\nop a=1 | us <= 11\n")
        self.assertIn("--out", self.refused(*command, listing, "--out", os.path.join(command[2], "x"),
                                            status=2))
        os.mkdir(os.path.join(self.folder.name, "bars.json"))
        self.assertIn("--out", self.refused(*command, listing, "--out", self.folder.name, status=2))

    def test_compare_refuses(self):
        command, path = os.path.join(BENCH, "compare"), os.path.join(self.folder.name, "bad.json")
        self.assertIn("nowhere", self.refused(command, "/nowhere", "/nowhere"))
        for document in ("", "[]", "{}", '{"device": 1, "library": 1, "date": 1, "torch": 1}',
                         "[" * 100000):
            with self.subTest(document[:60]):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(document)
                self.assertIn("bad.json", self.refused(command, path, path))
        ours = {"device": "d\x1b[2J\ud800", "library": "l", "date": "t",
                "results": [{"case": "c", "variant": "v", "us": 1.0}]}
        peers = {"device": "d", "torch": "2", "date": "t",
                 "results": [{"case": "c", "peer": "p", "us": 1.0}]}
        paths = [os.path.join(self.folder.name, name) for name in ("ours.json", "bad.json")]
        for us in (1.0, 0, -1.0, None, "1"):
            peers["results"][0]["us"] = us
            for name, document in zip(paths, (ours, peers)):
                with open(name, "w", encoding="utf-8") as file:
                    json.dump(document, file)
            if us == 1.0:
                done = subprocess.run([command, *paths, "--json", "/nowhere/at/all"],
                                      capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn("compare: [Errno 2]", done.stderr)
                self.assertNotIn("\x1b", done.stdout)
            else:
                self.assertIn("bad.json", self.refused(command, *paths))

    def test_moe_roofline_refuses(self):
        command = os.path.join(BENCH, "moe_roofline")
        data, page = (os.path.join(self.folder.name, name) for name in ("data.json", "page.md"))
        with open(page, "w", encoding="utf-8") as file:
            file.write("<!-- moe_roofline -->\n<!-- moe_roofline -->\n")
        nowhere = os.path.join(self.folder.name, "nowhere")
        self.assertIn("llmk-bench", self.refused(command, "measure", data, "--build", nowhere))
        self.assertIn("nowhere", self.refused(command, "draw", nowhere, "a.svg", page))
        for document in ("", "[]", "{}", '{"bench": {}, "dense": {}, "layers": []}', "[" * 100000):
            with self.subTest(document[:60]):
                with open(data, "w", encoding="utf-8") as file:
                    file.write(document)
                self.assertIn("data.json", self.refused(command, "draw", data, "a.svg", page))
        self.write("llmk-bench", FAKE_BENCH.replace('"us": 10.0,', '"us": 10.0, "tflops": 1.0,'))
        self.write("llmk-demo", "import sys; sys.exit('no such model')")
        measure = (command, "measure", data, "--build", self.folder.name)
        self.assertIn("no such model", self.refused(*measure))
        for case in ("", "mixtral-8x7b", "mixtral-8x7b many"):
            self.assertIn("MODEL TOKENS", self.refused(*measure, "--case", case))
        self.write("llmk-demo", "print('nothing of interest')")
        self.assertIn("llmk-demo", self.refused(*measure))
        self.write("llmk-bench", "import sys; sys.exit('no device')")
        self.assertIn("llmk-bench", self.refused(*measure))
        self.assertIn("/nowhere/at/all", self.refused(command, "measure", "/nowhere/at/all", "--build",
                                                      self.folder.name))

    def test_roofline_table(self):
        """What is between the page's marks becomes rows with the numbers of their points."""
        command = os.path.join(BENCH, "roofline_table")
        data, page = (os.path.join(self.folder.name, name) for name in ("a.dat", "page.md"))
        head = "# device, driver 1\n# library\n# copy 10.00 GB/s\n# name variant\n\n\n# linear\n"
        point = ('"mine" nv 1000000 2e9 1999.6 31.5 0.01 100 0.0123456 1 5.4 memory '
                 '"linear m=1 n=2"\n')
        marks = "before\n<!-- roofline -->\nold\n<!-- roofline -->\nafter\n"

        def run(content, text=marks):
            for path, what in ((data, content), (page, text)):
                with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(what)
            return command, data, page

        done = subprocess.run(run(head + point * 2), capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        with open(page, encoding="utf-8") as file:
            self.assertEqual(file.read().split("\n"), [
                "before", "<!-- roofline -->", "device, driver 1; library; copy 10.00 GB/s.", "",
                "| | case | variant | MB | FLOPs a byte | µs | TFLOP/s | % of roof |",
                "| --- | --- | --- | --- | --- | --- | --- | --- |",
                *(f"| {i} | `linear m=1 n=2` | nv | 1 | 2000 | 31.5 | 0.0123 | 5 (memory) |"
                  for i in (1, 2)), "<!-- roofline -->", "after", ""])
        for content in ("", head, point, head + "linear\n", head + point.replace("31.5", "fast"),
                        head + point.replace('"mine"', '"mine'), head + "\udcff", head + '"'):
            with self.subTest(content[-60:]):
                self.assertIn("a.dat", self.refused(*run(content)))
        self.assertIn("two lines", self.refused(*run(head + point, "no marks")))
        self.assertIn("nowhere", self.refused(command, "nowhere", page))

    def test_moe_roofline_draws_what_a_file_says(self):
        """As text: neither Markdown's page nor gnuplot's script can be told to do something else."""
        command = os.path.join(BENCH, "moe_roofline")
        data, page, figure, ran = (os.path.join(self.folder.name, name) for name in
                                   ("data.json", "page.md", "it's.svg", "ran"))
        evil = f"it's \"\n system 'touch {ran}' \x1b \ud800"
        stage = {"stage": "gate, up, down", "kernel": "grouped_wgmma", "us": 2.0, "bytes": 1e6}
        layer = {"case": evil + " 1", "tokens": 1, "stages": [stage, {"stage": "all", "kernel": "",
                                                                      "us": 3.0, "bytes": 1e6}],
                 "sizes": {"hidden": 64, "width": 64, "experts": 4, "k": 2, "shared": 0},
                 "whole": {"bytes": 1e6, "us": 3.0}}
        document = {"bench": {"device": evil, "driver": evil, "library": evil, "copy_gbs": 1000.0},
                    "dense": {"tflops": 100.0}, "layers": [layer]}
        def draw(changed):
            with open(data, "w", encoding="utf-8") as file:
                json.dump(changed, file)
            with open(page, "w", encoding="utf-8") as file:
                file.write("<!-- moe_roofline -->\n<!-- moe_roofline -->\n")
            return command, "draw", data, figure, page
        for changed in ({**document, "layers": [{**layer, "stages": [{**stage, "us": 0}] * 2}]},
                        {**document, "bench": {**document["bench"], "device": 3}},
                        {**document, "bench": {**document["bench"], "copy_gbs": 0}},
                        {**document, "dense": {"tflops": "much"}}):
            self.assertIn("data.json", self.refused(*draw(changed)))
        if not shutil.which("gnuplot"):
            self.skipTest("no gnuplot")
        done = subprocess.run(draw(document), capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(os.path.getsize(figure))
        self.assertFalse(os.path.exists(ran))
        with open(page, encoding="utf-8") as file:
            self.assertNotIn("\x1b", file.read())
        self.assertIn("gnuplot failed", self.refused(*draw(
            {**document, "dense": {"tflops": float("nan")}})))

    def test_compare(self):
        ours = {"device": "d", "library": "l", "date": "t", "results": [
            {"case": "linear m=1 n=2", "variant": "ref", "us": 10.0},
            {"case": "linear m=9", "variant": "ref", "us": 1.0}, {"case": "x", "error": "no"}]}
        peers = {"device": "d", "torch": "2", "date": "t", "results": [
            {"case": "linear n=2 m=1", "peer": "cublas", "us": 25.0},
            {"case": "linear n=2 m=1", "peer": "triton", "absent": "not installed"}]}
        joined = compare.join(ours, peers)
        self.assertEqual([len(rows) for _, _, rows in joined], [2, 0])
        lines, ratios = compare.table(joined)
        self.assertEqual(ratios, {"cublas": [2.5]})
        self.assertTrue(any("not installed" in line for line in lines))
        paths = [os.path.join(self.folder.name, name) for name in ("o.json", "p.json", "r.json")]
        for path, document in zip(paths, (ours, peers)):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(document, file)
        argv, sys.argv = sys.argv, ["compare", *paths[:2], "--json", paths[2]]
        try:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(compare.main(), 0)
        finally:
            sys.argv = argv
        self.assertIn("geometric mean of 1 ratios 2.50x", out.getvalue())
        with open(paths[2], encoding="utf-8") as file:
            self.assertEqual(json.load(file)["ratios"][0]["peers"], {"cublas": 2.5})

    def test_peers_refuse(self):
        self.assertIn("--json", self.refused(os.path.join(BENCH, "peers", "run.py"), "--json",
                                             "/nowhere/at/all", status=2))

    def test_peers_without_pytorch(self):
        self.write("torch.py", "raise ImportError('no PyTorch here')")
        environment = {**os.environ, "PYTHONPATH": self.folder.name}
        command = [sys.executable, os.path.join(BENCH, "peers", "run.py")]
        done = subprocess.run([*command, "--stdin"], env=environment, input="", text=True,
                              capture_output=True, check=False)
        self.assertEqual((done.returncode, json.loads(done.stdout)),
                         (0, {"absent": "no PyTorch here"}))
        done = subprocess.run([*command, "linear m=1"], env=environment, text=True,
                              capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (1, "no peers: no PyTorch here\n"))

    def test_peers_go_through_their_motions(self):
        self.write("torch.py", FAKE_TORCH)
        environment = {**os.environ, "PYTHONPATH": self.folder.name}
        command = [sys.executable, os.path.join(BENCH, "peers", "run.py"), "--seconds", "0.002"]
        cases = ["rmsnorm rows=2 h=8", "rmsnorm rows=2 h=8 r=f16", "gated_activation rows=2 d=8",
                 "linear m=1 n=64 k=64", "linear m=1 n=64 k=64 w=w4 group=32",
                 "linear m=64 n=64 k=64 w=w8", "moe_forward t=1", "gated_linear m=2 n=64 k=64",
                 "nothing"]
        requests = "".join(json.dumps({"case": case}) + "\n" for case in cases + cases[:1])
        done = subprocess.run([*command, "--stdin"], env=environment, input=requests, text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        hello, *answers = map(json.loads, done.stdout.splitlines())
        self.assertEqual((hello["device"], len(answers)), ("A GPU", len(cases) + 1))
        rows = [{row["peer"]: row for row in answer["peers"]} for answer in answers]
        self.assertEqual(list(rows[0]), ["torch", "triton", "flashinfer"])
        self.assertGreater(rows[0]["torch"]["us"], 0)
        self.assertEqual(rows[0]["triton"]["absent"], "triton_kernels is not installed")
        self.assertEqual(list(rows[3]), ["cublas", "triton"])
        self.assertIn("not on this GPU", rows[4]["tinygemm"]["error"])
        self.assertGreater(rows[4]["cublas"]["us"], 0)
        self.assertIn("us", rows[5]["cublas_int8"])
        self.assertIn("grouped_mm", rows[6])
        self.assertGreater(rows[7]["torch"]["us"], 0)
        self.assertEqual(rows[8], {})
        self.assertIn("noise", done.stderr)  # and not among the answers
        path = os.path.join(self.folder.name, "peers.json")
        done = subprocess.run([*command, "--peers", "cublas", "--json", path, cases[3]],
                              env=environment, text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual([row["peer"] for row in document["results"]], ["cublas"])

    def llmk_bench(self, *arguments, **keywords):
        if not LLMK_BENCH:
            self.skipTest("no llmk-bench given")
        return subprocess.run([os.path.abspath(LLMK_BENCH), *arguments], capture_output=True, text=True,
                              check=False, **keywords)

    def test_llmk_bench_answers_lines(self):
        done = self.llmk_bench("--stdin", "--seconds", "0.01", input="nothing a=1\n\n")
        hello, *answers = map(json.loads, done.stdout.splitlines())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(hello["copy_gbs"], 0)
        self.assertIn('no operator "nothing"', answers[0]["unknown"])
        self.assertIn("unknown", answers[1])

    def test_llmk_tune_shows_progress_without_a_budget(self):
        tune = os.path.join(os.path.dirname(LLMK_BENCH or ""), "llmk-tune")
        if not LLMK_BENCH or not os.path.exists(tune):
            self.skipTest("no llmk-tune beside the llmk-bench given")
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 45, 0, 0))
        with subprocess.Popen(
                [tune, "--budget", "0", "--db",
                 os.path.join(self.folder.name, "rows.json"), "--seconds", "0.01", "add cols=64",
                 "add cols=4096"], stdout=subprocess.DEVNULL, stderr=theirs) as run:
            os.close(theirs)
            text = b""
            with contextlib.suppress(OSError):  # how a terminal ends
                while more := os.read(ours, 4096):
                    text += more
        os.close(ours)
        self.assertEqual(run.returncode, 0, text)
        self.assertRegex(text, rb"\[ {20}\] 1/2 cases, \d+ s  add")
        self.assertRegex(text, rb"\[={10} {10}\] 2/2 cases, \d+ s  add")
        for line in text.replace(b"\x1b[K", b"").split(b"\r"):  # none goes on in the next
            self.assertLess(len(line), 45, text)
        self.assertTrue(text.endswith(b"\r\x1b[K"), text)

    HUGE = ("rmsnorm rows=99999999999 h=99999999", "linear n=99999999999 k=99999999",
            "linear n=9999999 k=9999999", "gated_activation rows=0 d=9007199254740992",
            "quantize n=9007199254740992 k=9007199254740992")

    def test_llmk_bench_refuses_huge_cases(self):
        for case in self.HUGE:
            for option in ([], ["--check"]):
                with self.subTest(case, option=option):
                    done = self.llmk_bench(*option, "rmsnorm rows=1 h=8", case)
                    self.assertEqual((done.returncode, done.stdout), (1, ""))  # nothing measured
                    self.assertIn(f"llmk-bench: {case}: ", done.stderr)
                    self.assertNotIn("rmsnorm rows=1 h=8", done.stderr)
        done = self.llmk_bench("--seconds", "0.01", "--sets", "99999999999999", "rmsnorm h=8")
        self.assertEqual(done.returncode, 1)
        self.assertIn("sets of 0 MiB do not fit", done.stdout)
        with open(os.path.join(self.folder.name, "m.txt"), "w", encoding="utf-8") as file:
            file.write(f"large: {self.HUGE[2]}\nsmall: rmsnorm rows=1 h=8\n")
        done = self.llmk_bench("--lists", self.folder.name, "--model", "m", "--seconds", "0.01")
        self.assertEqual(done.returncode, 0, done.stderr)  # a model's other cases are timed
        self.assertRegex(done.stdout, r"(?m)^large .* skipped: ")
        self.assertRegex(done.stdout, r"(?m)^small +\w+ +[\d.]+ ")
        long = "x" * 5000
        done = self.llmk_bench("--stdin", "--seconds", "0.01",
                               input="\n".join([*self.HUGE, long, "rmsnorm rows=1 h=8"]))
        _, *rows = map(json.loads, done.stdout.splitlines())
        self.assertEqual(len(rows), len(self.HUGE) + 2, done.stderr)
        for row in rows[:-2]:
            self.assertTrue(row.get("error") or row.get("skipped"), row)
        self.assertIn("at most", rows[-2]["unknown"])
        self.assertGreater(rows[-1]["us"], 0)
        if rows[-1]["us"] < 50:
            self.assertAlmostEqual(rows[-1]["beyond_launch_us"],
                                   rows[-1]["us"] - rows[-1]["launch_us"], places=3)

    def test_llmk_bench_looks_before_it_measures(self):
        path = os.path.join(self.folder.name, "rows.json")
        for arguments, status, text in (
                (["rmsnorm", "nothing"], 2, 'no operator "nothing"'),
                (["rmsnorm", "rmsnorm what=1"], 2, 'no field "what"'),
                (["quantize k=3 scheme=int4-symmetric"], 1, "even with int4"),
                (["--json", "/nowhere/at/all", "rmsnorm"], 2, "/nowhere/at/all"),
                (["--json", self.folder.name, "rmsnorm"], 2, "not a regular file"),
                (["--json", path, "--check", "rmsnorm"], 2, "--json is for timing"),
                (["--json", path, "rmsnorm", "nothing"], 2, "no operator"),
                (["--roofline", "/nowhere/at/all", "rmsnorm"], 2, "/nowhere/at/all.dat"),
                (["--roofline", "/" * 1100, "rmsnorm"], 2, "too long"),
                (["--json", path + ".dat", "--roofline", path, "rmsnorm"], 2, "--roofline makes"),
                *(([f"--{name}", "", "rmsnorm"], 2, f"llmk-bench: --{name} is empty") for name in (
                    "model", "phase", "tokens", "lists", "variant", "device", "image", "seconds",
                    "sustain", "sets", "json", "roofline")),
                (["-d", "", "rmsnorm"], 2, "llmk-bench: --device is empty")):
            with self.subTest(arguments):
                done = self.llmk_bench(*arguments)
                self.assertEqual((done.returncode, done.stdout), (status, ""))
                self.assertIn(text, done.stderr)
        self.assertEqual(os.listdir(self.folder.name), [])
        for end in ("dat", "gp", "svg", "png"):
            with self.subTest(end):
                taken = os.path.join(self.folder.name, "points." + end)
                os.mkdir(taken)
                done = self.llmk_bench("--roofline", taken.removesuffix("." + end), "rmsnorm")
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(f"points.{end} exists and is not a regular file", done.stderr)
                os.rmdir(taken)

    def test_llmk_bench_draws_rooflines_of_any_name(self):
        if not shutil.which("gnuplot"):
            self.skipTest("no gnuplot")
        deep = os.path.join(*["d" * 200] * 5, "e" * 60)
        os.makedirs(os.path.join(self.folder.name, os.path.dirname(deep)))
        for name in ("-points", "it's", deep):
            with self.subTest(name):
                done = self.llmk_bench("--seconds", "0.01", "--roofline", name, "rmsnorm h=64",
                                       cwd=self.folder.name)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                for end in ("dat", "gp", "svg", "png"):
                    self.assertTrue(os.path.getsize(os.path.join(self.folder.name, f"{name}.{end}")))

    def test_llmk_bench_writes_json(self):
        path = self.write("rows.json", "as it was")
        done = self.llmk_bench("--json", path, "--seconds", "0.01", "rmsnorm rows=1 h=8")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["results"][0]["case"], "rmsnorm rows=1 h=8")
        self.assertEqual(os.listdir(self.folder.name), ["rows.json"])

    def test_llmk_bench_forces_variants(self):
        for variant, status, text in (
                ("ref", 0, "[ref]"), ("add:ref", 0, "[ref]"), ("portable", 0, "[portable]"),
                ("linear:ref,add:portable", 0, "[portable]"),
                ("subgroup", None, "add cols=8"),  # served, or refused for another reason
                ("fastest", 1, '--variant: no operator has a variant "fastest"'),
                ("add:fastest", 1, "--variant: operator add has no variant"),
                (",".join(["linear:ref", "add:fastest"] * 200), 1, "--variant: operator add has no"),
                (",".join(["rmsnorm:ref"] * 99 + ["add:ref"]), 1, "--variant: "),
                ("x" * 3000, 1, "--variant: "),
                (":", 1, "--variant: ")):
            with self.subTest(variant):
                done = self.llmk_bench("--check", "--variant", variant, "add cols=8")
                self.assertIn(text, done.stdout + done.stderr)
                self.assertNotIn("LLMK_VARIANT", done.stdout + done.stderr)
                self.assertNotIn("only where forced", done.stdout)
                if status is not None:
                    self.assertEqual(done.returncode, status)
                if status is None and done.returncode:
                    self.assertIn("--variant subgroup", done.stdout)

    def test_llmk_bench_names_lines_of_model_lists(self):
        for text, status, message in (
                ("# m\nnorm: rmsnorm h=64\nno colon here\n", 2, "m.txt:3: expected"),
                ("n" * 100 + ": rmsnorm\n", 2, "m.txt:1: expected"),
                ("a: rmsnorm " + "h" * 500 + "\n", 2, "m.txt:1: expected"),
                ("# nothing\n", 2, "m.txt:1: no cases"),
                ('a"b: rmsnorm h=64\n', 2, "m.txt:1: expected"),
                ("\x1b[2Ja: \x1bfuture h=64\nnorm: rmsnorm h=64\n", 0, "[2Ja is not timed: no operator"),
                ("later: future h=64\nnorm: rmsnorm h=64\n", 0, "later is not timed: no operator")):
            with self.subTest(message), open(os.path.join(self.folder.name, "m.txt"), "w",
                                             encoding="utf-8") as file:
                file.write(text)
                file.close()
                done = self.llmk_bench("--check", "--lists", self.folder.name, "--model", "m")
                self.assertIn(message, done.stderr)
                self.assertNotIn("\x1b", done.stdout + done.stderr)
                self.assertEqual(done.returncode, status)

    def test_llmk_bench_reads_regular_lists(self):
        os.mkfifo(os.path.join(self.folder.name, "pipe.txt"))
        with open(os.path.join(self.folder.name, "\x1b[2J.txt"), "w", encoding="utf-8") as file:
            file.write("# \x1b[31mred\n")
        done = self.llmk_bench("--list", "--lists", self.folder.name, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("\x1b", done.stdout)
        done = self.llmk_bench("--check", "--lists", self.folder.name, "--model", "pipe", timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("not a regular file", done.stderr)

    def llmk_demo(self, *arguments):
        if not LLMK_BENCH:
            self.skipTest("no programs given")
        program = os.path.join(os.path.dirname(LLMK_BENCH), "llmk-demo")
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)

    def test_llmk_demo_names_a_file_once(self):
        pipe = os.path.join(self.folder.name, "m.gguf")
        os.mkfifo(pipe)
        for arguments, text in (
                (["/nowhere/m.gguf"], "/nowhere/m.gguf cannot be opened: No such"),
                (["/nowhere/m.safetensors"], "/nowhere/m.safetensors cannot be opened: No such"),
                ([pipe], f"{pipe} is not a regular file"),
                (["--generate", "/nowhere/m.gguf"], "/nowhere/m.gguf cannot be created: No such"),
                (["--slice", ""], "--slice is empty"), (["-d", ""], "--device is empty"),
                (["--generate", ""], "--generate is empty"), (["--moe", ""], "--moe is empty")):
            with self.subTest(arguments):
                done = self.llmk_demo(*arguments)
                self.assertTrue(done.stderr.startswith("llmk-demo: " + text), done.stderr)

    def test_llmk_demo_spares_its_model(self):
        model, other = (os.path.join(self.folder.name, name) for name in ("m.gguf", "o.gguf"))
        done = self.llmk_demo("--generate", model)
        self.assertEqual(done.returncode, 0, done.stderr)
        os.symlink(model, model + ".symbolic")
        os.link(model, model + ".hard")
        os.mkfifo(model + ".fifo")
        with open(model, "rb") as file:
            before = file.read()
        for path, text in ((model, "is the model itself"),
                           (os.path.join(self.folder.name, ".", "m.gguf"), "is the model itself"),
                           (model + ".symbolic", "is the model itself"),
                           (model + ".hard", "is the model itself"),
                           (model + ".fifo", "not a regular file")):
            with self.subTest(path):
                done = self.llmk_demo(model, "--slice", path, "--rows", "1")
                self.assertEqual(done.returncode, 1)
                self.assertIn(text, done.stderr)
        with open(model, "rb") as file:
            self.assertEqual(file.read(), before)
        done = self.llmk_demo(model, "--slice", other, "--rows", "2", "--layers", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.llmk_demo(other, "--seconds", "0.01")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        row = next(line for line in done.stdout.splitlines() if line.startswith("whole block"))
        self.assertRegex(row, r"us/layer +[\d.]+ GB/s +[\d.]+ \.\. [\d.]+ us$")

    def test_llmk_bench_command_line(self):
        for arguments, status, text in (
                (["--help"], 0, "usage: llmk-bench"), (["--version"], 0, "libllmk_cl"),
                ([], 2, "nothing to do"), (["nothing"], 2, 'no operator "nothing"'),
                (["--tokens", "x"], 2, "--tokens is a whole number"),
                (["--phase", "x"], 2, "decode or prefill"), (["--what"], 2, "--help"),
                (["--model", "x"], 2, 'no model "x"'), (["--list"], 0, "Models"),
                (["--device", "no such device", "rmsnorm"], 1, "no such device")):
            with self.subTest(arguments):
                arguments = arguments + ["--lists", os.path.join(BENCH, "models")]
                done = self.llmk_bench(*arguments)
                self.assertIn(text, done.stdout + done.stderr)
                self.assertEqual(done.returncode, status)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        LLMK_BENCH = sys.argv.pop(1)
    unittest.main()
