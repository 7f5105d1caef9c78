#!/usr/bin/env python3
"""Static checks of the kernel images of a build.

    check_images.py spirv|ptx|gfx942|arguments IMAGES_DIR

spirv: spirv-val accepts every module. ptx: what ptxas said of every kernel, without spills and within
the limits. gfx942: the metadata of every code object, and where its ids come from. arguments: all
images of a configuration have the same kernels with the same arguments. Exit code 77: nothing to check
in this build.
"""

import glob
import json
import os
import re
import subprocess
import sys

REGISTERS = 65536  # of a multiprocessor, for one work-group
SHARED = {"sm_80": 48 << 10, "sm_90": 48 << 10, "sm_90a": 227 << 10}
VGPRS, LDS = 512, 64 << 10
WORK_GROUP = 256  # AMD_MAX_WORK_GROUP of src/core/device.c
# Of kernels that are not AMD's own: the array of a slow path. (Scalar registers of any kernel may spill:
# they go to lanes of vector registers.)
PORTABLE_SCRATCH = 256
REF_SCRATCH = 16384  # references keep their arrays where they like

problems = []


def problem(name, text):
    problems.append(f"{name}: {text}")


def read(path):
    with open(path, encoding="utf-8") as text:
        return text.read()


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def tool(*names):
    for name in names:
        for folder in os.environ["PATH"].split(":"):
            if os.access(os.path.join(folder, name), os.X_OK):
                return name
    print("none of these is installed:", *names)
    sys.exit(77)


def images(folder, suffix):
    raw = os.path.join(folder, "raw")
    return [(os.path.relpath(path, raw).removesuffix(suffix), path)
            for path in sorted(glob.glob(f"{raw}/**/*{suffix}", recursive=True))
            if os.path.exists(path.replace(raw, os.path.join(folder, "packed")).removesuffix(".log"))]


# ---- SPIR-V


def version_of(path):
    with open(path, "rb") as module:
        words = module.read(8)
    return f"{words[6]}.{words[5]}"


def check_spirv(folder):
    found = images(folder, ".spv")
    for name, path in found:
        environment = "opencl2.2" if version_of(path) <= "1.2" else "spv" + version_of(path)
        done = subprocess.run([tool("spirv-val"), "--target-env", environment, path],
                              capture_output=True, text=True)
        if done.returncode != 0:
            problem(name, done.stdout + done.stderr)
    print(f"{len(found)} modules, versions", *sorted({version_of(path) for _, path in found}))
    return found


# ---- PTX


def check_ptx(folder):
    found = images(folder, ".cubin.log")
    print(f"{'registers':>9} {'shared':>7} {'stack':>6} {'spilled':>7} {'items':>6}  target  kernel")
    for name, path in found:
        stem, target = name.rsplit(".", 1)
        log = read(path)
        for line in re.findall(r".*(?:warning|Performance Loss).*", log):
            problem(name, line)
        ptx = glob.glob(f"{folder}/raw/{stem}.{'sm_90a' if target == 'sm_90a' else 'sm_80'}.ptx")[0]
        if "FRAGMENT_MMA" in stem and "mma.sync" not in read(ptx):
            problem(name, "has no mma.sync")
        sizes = {kernel: int(x) * int(y) * int(z) for kernel, x, y, z in re.findall(
            r"\.entry (\w+)\([^{]*?\.reqntid (\d+), (\d+), (\d+)", read(ptx))}
        entries = re.split(r"Compiling entry function '(\w+)'", log)[1:]
        for kernel, text in zip(entries[::2], entries[1::2]):
            stack, stores, loads = map(int, re.search(
                r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", text).groups())
            registers = int(re.search(r"Used (\d+) registers", text).group(1))
            shared = sum(map(int, re.findall(r"(\d+) bytes smem", text)))
            items = sizes.get(kernel, 0)
            where = f"{stem} {kernel}"
            print(f"{registers:9} {shared:7} {stack:6} {stores + loads:7} {items or '':>6}  "
                  f"{target:7} {where}")
            if stores + loads:
                problem(where, f"{target}: spills")
            if shared > SHARED[target]:
                problem(where, f"{target}: {shared} bytes of shared memory")
            if registers * items > REGISTERS:
                problem(where, f"{target}: {items} items of {registers} registers do not fit")
    return found


# ---- gfx942


def code_object(path):
    """{kernel: {".key": value, "args": [{".key": value}]}} of the metadata note."""
    kernels = []
    for line in run(tool("llvm-readelf-19", "llvm-readelf"), "--notes", path).splitlines():
        match = re.match(r"( *)(- )?(\.\w+): *(.*)", line)
        if not match:
            continue
        indent, dash, key, value = len(match[1]), match[2], match[3], match[4].strip("' ")
        if dash and indent == 2:
            kernels.append({"args": []})
        elif dash and indent == 6 and kernels:
            kernels[-1]["args"].append({})
        if not kernels:
            continue
        if indent + (2 if dash else 0) >= 8:
            kernels[-1]["args"][-1][key] = value
        elif key != ".args":
            kernels[-1][key] = value
    return {kernel[".name"]: kernel for kernel in kernels}


def reads_block_counts(function):
    """The implicit arguments begin with three block counts, 12 bytes, which are no size or id."""
    pointers = set(re.findall(r"(%\w+) = .*@llvm\.amdgcn\.implicitarg\.ptr\(\)", function))
    pending = list(pointers)
    while pending:
        pointer = pending.pop()
        for line in re.findall(rf"^.*{pointer}\b.*$", function, re.M):
            result, text = re.fullmatch(r"\s*(?:(%\w+) = )?(.*)", line).groups()
            offset = re.fullmatch(rf"getelementptr .*{pointer}, i64 (\d+)", text)
            if "implicitarg.ptr" in text or offset and int(offset[1]) >= 12:
                continue
            if not text.startswith("phi "):
                return True
            if result not in pointers:
                pointers.add(result)
                pending.append(result)
    return False


def check_gfx942(folder):
    found = images(folder, ".gfx942.hsaco")
    print(f"{'vgprs':>6} {'agprs':>6} {'sgprs':>6} {'LDS':>6} {'scratch':>7} {'items':>6} {'spilled':>7}  kernel")
    for stem, path in found:
        own = "_amd" in stem or "FRAGMENT_MFMA" in stem
        if "FRAGMENT_MFMA" in stem and "v_mfma" not in run(
                tool("llvm-objdump-19", "llvm-objdump"), "-d", path):
            problem(stem, "has no MFMA instruction")
        for kernel, data in code_object(path).items():
            where = f"{stem} {kernel}"
            count = {key: int(data.get(key, 0)) for key in (
                ".vgpr_count", ".agpr_count", ".sgpr_count", ".group_segment_fixed_size",
                ".private_segment_fixed_size", ".max_flat_workgroup_size", ".vgpr_spill_count",
                ".sgpr_spill_count", ".wavefront_size")}
            spilled = count[".vgpr_spill_count"] + count[".sgpr_spill_count"]
            print("%6d %6d %6d %6d %7d %6d %7d  %s" % (*list(count.values())[:6], spilled, where))
            limit = 0 if own else REF_SCRATCH if kernel.endswith("_ref") else PORTABLE_SCRATCH
            if (count[".private_segment_fixed_size"] > limit or
                    data[".uses_dynamic_stack"] != "false"):
                problem(where, "uses scratch")
            if count[".vgpr_spill_count"]:
                problem(where, "spills")
            if count[".vgpr_count"] > VGPRS or count[".group_segment_fixed_size"] > LDS:
                problem(where, "too many registers or too much LDS")
            if (".reqd_workgroup_size" not in data and
                    count[".max_flat_workgroup_size"] < WORK_GROUP):
                problem(where, f"takes work-groups smaller than {WORK_GROUP}")
            if count[".wavefront_size"] != 64:
                problem(where, "the wavefront is not 64")
        for body in re.split(r"^define ", read(f"{folder}/raw/{stem}.gfx942.ll"), flags=re.M)[1:]:
            if reads_block_counts(body):
                problem(stem, "loads a block count as if it were an id or a size")
    return found


# ---- Arguments: "global" and "local" are pointers, a number is the size of a value


def arguments_of_ptx(path):
    kernels = {}
    for kernel, parameters in re.findall(r"\.entry (\w+)\(([^)]*)\)", read(path)):
        kernels[kernel] = []
        for parameter in re.findall(r"\.param ([^,\n]*)", parameters):
            array = re.search(r"\.b8 \w+\[(\d+)\]", parameter)
            if ".ptr" in parameter:
                kernels[kernel].append("local" if ".shared" in parameter else "global")
            else:
                kernels[kernel].append(
                    array.group(1) if array else str(int(re.match(r"\.\w(\d+)", parameter)[1]) // 8))
    return kernels


def arguments_of_gfx942(path):
    kinds = {"global_buffer": "global", "dynamic_shared_pointer": "local"}
    return {name: [kinds.get(a[".value_kind"], a[".size"]) for a in kernel["args"]
                   if not a[".value_kind"].startswith("hidden")]
            for name, kernel in code_object(path).items()}


def size_and_alignment(types, name):
    kind, *operands = types[name]
    if kind in ("OpTypeInt", "OpTypeFloat"):
        return int(operands[0]) // 8, int(operands[0]) // 8
    if kind == "OpTypeVector":
        size = size_and_alignment(types, operands[0])[0] * (4 if operands[1] == "3" else int(operands[1]))
        return size, size
    if kind == "OpTypeStruct":
        end, most = 0, 1
        for member in operands:
            size, alignment = size_and_alignment(types, member)
            end = -(-end // alignment) * alignment + size
            most = max(most, alignment)
        return -(-end // most) * most, most
    raise ValueError(f"size of {kind}")


def arguments_of_spirv(path):
    types, kernels, entries, function = {}, {}, {}, None
    for line in run(tool("spirv-dis"), "--raw-id", "--no-indent", path).splitlines():
        words = line.split()
        if words[:2] == ["OpEntryPoint", "Kernel"]:
            entries[words[2]] = words[3].strip('"')
        elif len(words) > 2 and words[2].startswith("OpType"):
            types[words[0]] = words[2:]
        elif len(words) > 2 and words[2] == "OpFunction":
            function = entries.get(words[0])
            if function:
                kernels[function] = []
        elif len(words) > 2 and words[2] == "OpFunctionParameter" and function:
            kind, *operands = types[words[3]]
            if kind == "OpTypePointer" and operands[0] != "Function":
                kernels[function].append({"CrossWorkgroup": "global", "Workgroup": "local"}[operands[0]])
            else: # a struct by value is a pointer to Function storage
                value = operands[1] if kind == "OpTypePointer" else words[3]
                kernels[function].append(str(size_and_alignment(types, value)[0]))
    return kernels


def check_arguments(folder):
    readers = {".spv": arguments_of_spirv, ".sm_80.ptx": arguments_of_ptx,
               ".sm_90a.ptx": arguments_of_ptx, ".gfx942.hsaco": arguments_of_gfx942}
    stems, compared = {}, 0
    for suffix, reader in readers.items():
        for stem, path in images(folder, suffix):
            stems.setdefault(stem, {})[suffix] = reader(path)
    for stem, of in stems.items():
        first = next(iter(of))
        for suffix in of:
            compared += 1
            if of[suffix] != of[first]:
                problem(stem, f"{first} has {json.dumps(of[first])},\n  {suffix} {json.dumps(of[suffix])}")
    print(f"{compared} images of {len(stems)} configurations")
    return stems


def main(kind, folder):
    checks = {"spirv": check_spirv, "ptx": check_ptx, "gfx942": check_gfx942,
              "arguments": check_arguments}
    if not checks[kind](folder):
        print("nothing of this kind in this build")
        sys.exit(77)
    for text in problems:
        print("FAILED", text)
    sys.exit(1 if problems else 0)


main(*sys.argv[1:])
