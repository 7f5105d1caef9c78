#!/usr/bin/env python3
"""An estimate of the main loops on MFMA, from the gfx942 images of a build: no hardware is asked.

    estimate_mfma.py IMAGES_DIR

The loop is the one with the most MFMA instructions, and of the ways through it the one with the most of them and
without gathered loads: what runs where x lies in whole chunks (and weights have minimums). llvm-mca issues it for a wave that has its unit to itself, in its model's cycles of
4 clocks. Its model knows s_waitcnt, has 20 clocks for a read of local memory and 320 for one of global
memory, which hardware exceeds, and no barrier, no other wave and no conflicts. The other columns count:
clocks of MFMA as in the CDNA3 ISA, of local memory at 128 bytes a clock, of all waves of a compute unit.
Exit code 1: a loop is not found, or below its bound. 77: nothing to estimate in this build.
"""

import re
import shutil
import subprocess
import sys

from check_images import code_object, images, items_of, run, tool

CLOCKS = {"32x32x8": 32, "32x32x16": 32, "16x16x16": 16, "16x16x32": 16}  # of an instruction
MCA_CYCLE = 4
SIMDS, LANES, REGISTERS, LDS = 4, 64, 512, 64 << 10
LEAST = {"linear": 0.75, "grouped_linear": 0.2}  # share of MFMA in what a lone wave takes
ITERATIONS = 100


def instructions(disassembly):
    """(address, text, target of a branch or None) of all kernels of a code object."""
    base, found = 0, []
    for line in disassembly.splitlines():
        label = re.match(r"([0-9a-f]+) <(\w+)>:", line)
        if label:
            base = int(label[1], 16)
        code = re.match(r"\s+(\w.*?)\s*// ([0-9A-F]+): [0-9A-F ]+(?:<\w+\+0x([0-9a-f]+)>)?", line)
        if code:
            branch = base + int(code[3], 16) if code[3] and "branch" in code[1] else None
            found.append((int(code[2], 16), code[1], branch))
    return found


def way_through(loop):
    """The instructions of a turn of a loop, whose last one branches to its first: of all ways without
    inner loops that with the most MFMA, then the fewest gathered loads, then the most whole ones."""
    index = {address: i for i, (address, _, _) in enumerate(loop)}
    best = {}  # of an instruction: what counts from there on, and the instruction after it
    for i in range(len(loop) - 1, -1, -1):
        address, text, target = loop[i]
        after = []
        if target is None or not text.startswith("s_branch"):
            after.append(i + 1)
        if target is not None and target != loop[0][0] and target in index:
            after.append(index[target])
        ways = [best[n][0] + (n,) for n in after if n > i and n in best]
        if target == loop[0][0]:
            ways.append((0, 0, 0, 0, None))
        if ways:
            mfma, gathered, whole, length, n = max(ways, key=lambda way: way[:4])
            best[i] = ((mfma + text.startswith("v_mfma"),
                        gathered - text.startswith(("global_load_u", "flat_load_u")),
                        whole + text.startswith("global_load_dwordx4"), length - 1), n)
    body, i = [], 0 if 0 in best else None
    while i is not None:
        body.append(loop[i][1])
        i = best[i][1]
    return body


def main_loop(found):
    """A turn of the loop with the most MFMA, and of those the shortest."""
    index, best = {address: i for i, (address, _, _) in enumerate(found)}, []
    for end, (address, _, target) in enumerate(found):
        if target is None or target > address or target not in index:
            continue
        body = way_through(found[index[target]:end + 1])
        if (mfmas(body), -len(body)) > (mfmas(best), -len(best)):
            best = body
    return best


def mfmas(body):
    return sum(text.startswith("v_mfma") for text in body)


def mfma_clocks(body):
    return sum(CLOCKS[re.match(r"v_mfma_\w+?_(\d+x\d+x\d+)", text)[1]]
               for text in body if text.startswith("v_mfma"))


def alone(mca, body):
    """Clocks of an iteration, and those that the model has the matrix unit busy."""
    done = subprocess.run([mca, "-march=amdgcn", "-mcpu=gfx942", f"-iterations={ITERATIONS}"],
                          input="\n".join(body) + "\n", capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    cycles = int(re.search(r"Total Cycles: +(\d+)", done.stdout)[1]) / ITERATIONS
    unit = re.search(r"\[(\d+)\] +- HWXDL", done.stdout)[1]
    header, row = re.search(r"Resource pressure per iteration:\n(.*)\n(.*)\n", done.stdout).groups()
    busy = dict(zip(re.findall(r"\[(\d+)\]", header), row.split()))[unit]
    return cycles * MCA_CYCLE, float(busy) * MCA_CYCLE


def estimate(mca, stem, path):
    disassembly = run(tool("llvm-objdump-19", "llvm-objdump"), "-d", path)
    body = main_loop(instructions(disassembly))
    if not body:
        print(f"{stem}: no loop with MFMA")
        return False
    kernel = max(code_object(path).values(), key=lambda k: int(k[".vgpr_count"]))
    waves = items_of(kernel[".reqd_workgroup_size"]) // LANES
    groups = min(LDS // int(kernel[".group_segment_fixed_size"]),
                 SIMDS * (REGISTERS // int(kernel[".vgpr_count"])) // waves)
    clocks = mfma_clocks(body)
    total, modelled = alone(mca, body)
    local = 8 * sum(text.startswith(("ds_read_b128", "ds_write_b128")) for text in body)
    share = clocks / total
    print(f"{clocks:6} {total:6.0f} {share:6.0%} {groups * waves // SIMDS:6} "
          f"{SIMDS * local / clocks:6.0%} {min(1, groups * waves / SIMDS * share):6.0%}  {stem}")
    if modelled != clocks:
        print(f"{stem}: llvm-mca's model has {modelled:.0f} clocks of MFMA")
        return False
    operator = stem.split("/")[0]
    if share < LEAST[operator] or (operator == "linear" and SIMDS * local >= clocks):
        print(f"{stem}: too far from the peak")
        return False
    return True


def main(folder):
    mca = shutil.which("llvm-mca-19") or shutil.which("llvm-mca")
    found = [image for image in images(folder, ".gfx942.hsaco") if "FRAGMENT_MFMA" in image[0]]
    if not mca or not found:
        print("no llvm-mca" if found else "no images of MFMA")
        sys.exit(77)
    print("clocks of an iteration of a wave: of MFMA, of llvm-mca's lone wave, the share; waves a SIMD; "
          "local memory's\nshare of the time at the peak; the bound by issue for these waves. Estimates.")
    good = [estimate(mca, stem, path) for stem, path in found]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
