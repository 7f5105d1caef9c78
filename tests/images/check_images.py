#!/usr/bin/env python3
"""Static checks of the kernel images of a build.

    check_images.py packed|spirv|ptx|gfx942|arguments IMAGES_DIR
    check_images.py launches IMAGES_DIR LAUNCHES

Only what IMAGES_DIR/list names is looked at: what this build makes. packed: what the library embeds is what
the other checks read. spirv: spirv-val accepts every module. ptx: what ptxas said of every kernel, without spills and within
the limits. gfx942: the metadata of every code object, and where its ids come from. arguments: all
images of a configuration have the same kernels with the same arguments. launches: they are those that
the host sets, and the work-groups are those that it asks for; LAUNCHES is what tests/unit/test_manifest.c
writes. Exit code 77: nothing to check in this build.
"""

import json
import os
import re
import subprocess
import sys

REGISTERS = 65536  # of a multiprocessor, for one work-group
SHARED = {"sm_80": 48 << 10, "sm_90": 48 << 10, "sm_90a": 227 << 10}
VGPRS, LDS = 512, 64 << 10
WORK_GROUP = 256  # AMD_MAX_WORK_GROUP of src/core/device.c
# Of kernels that are no vendor's own, in bytes of an item: the array of a slow path. (Scalar registers of
# any kernel of gfx942 may spill: they go to lanes of vector registers.)
PORTABLE_SCRATCH = 256
MAX_POINTERS = 1000  # into the implicit arguments, of a function
REF_SCRATCH = 16384  # references keep their arrays where they like
# Kernels that are laid out for one size of work-group, and must say so.
ONE_SIZE = re.compile(r"FRAGMENT_M|wgmma|linear_dot")

problems = []
unlaunched = set()  # (stem, kernel): in an image, and launched by no case


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
    """[(name without the suffix, path in raw/)]."""
    return [(name.removesuffix(suffix), os.path.join(folder, "raw", name))
            for name in sorted(read(os.path.join(folder, "list")).split()) if name.endswith(suffix)]


# ---- Compression


def check_packed(folder):
    found = images(folder, "")
    for name, path in found:
        done = subprocess.run([tool("zstd"), "-dc", os.path.join(folder, "packed", name)],
                              capture_output=True)
        with open(path, "rb") as raw:
            if done.returncode != 0 or done.stdout != raw.read():
                problem(name, "is not what was compiled" + done.stderr.decode())
    print(f"{len(found)} images")
    return found


# ---- SPIR-V


def version_of(path):
    with open(path, "rb") as module:
        words = module.read(8)
    return f"{words[6]}.{words[5]}"


def check_spirv(folder):
    found = images(folder, ".spv")
    for name, path in found:
        version = version_of(path)
        environment = "opencl2.2" if version <= "1.2" else "spv" + version
        if "coopmat" in name and version < "1.3":
            problem(name, f"is SPIR-V {version}; SPV_KHR_cooperative_matrix asks for 1.3")
        done = subprocess.run([tool("spirv-val"), "--target-env", environment, path],
                              capture_output=True, text=True)
        if done.returncode != 0:
            problem(name, done.stdout + done.stderr)
        if "coopmat" in name and "OpCooperativeMatrixMulAddKHR" not in run(tool("spirv-dis"), path):
            problem(name, "multiplies no cooperative matrices")
    print(f"{len(found)} modules, versions", *sorted({version_of(path) for _, path in found}))
    return found


# ---- PTX


def sizes_of_ptx(text):
    """{kernel: required work-group size, "X,Y,Z" or ""}."""
    return {kernel: ",".join(re.findall(r"\d+", size)) for kernel, size in re.findall(
        r"\.entry (\w+)\([^{]*?\)[^{]*?(?:\.reqntid ([\d, ]+)[^{]*)?\{", text)}


def items_of(size):
    x, y, z = map(int, size.split(","))
    return x * y * z


def check_log(name, stem, target, ptx, log):
    """What ptxas said of every kernel of the PTX."""
    for line in re.findall(r".*(?:warning|Performance Loss).*", log):
        problem(name, line)
    if "FRAGMENT_MMA" in stem and "mma.sync" not in ptx:
        problem(name, "has no mma.sync")
    if "wgmma" in stem and "wgmma.mma_async" not in ptx:
        problem(name, "has no wgmma")
    sizes = sizes_of_ptx(ptx)
    entries = re.split(r"Compiling entry function '(\w+)'", log)[1:]
    if not sizes or set(sizes) != set(entries[::2]):
        problem(name, f"its kernels are {sorted(sizes)}, and ptxas spoke of {sorted(entries[::2])}")
    for kernel, text in zip(entries[::2], entries[1::2]):
        stack, stores, loads = map(int, re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", text).groups())
        registers = int(re.search(r"Used (\d+) registers", text).group(1))
        shared = sum(map(int, re.findall(r"(\d+) bytes smem", text)))
        items = items_of(sizes[kernel]) if sizes.get(kernel) else 0
        where = f"{stem} {kernel}"
        print(f"{registers:9} {shared:7} {stack:6} {stores + loads:7} {items or '':>6}  "
              f"{target:7} {where}")
        if stores + loads:
            problem(where, f"{target}: spills")
        own = ONE_SIZE.search(stem) or stem.split("-")[0].endswith("_nv")
        limit = 0 if own else REF_SCRATCH if "_ref" in stem else PORTABLE_SCRATCH
        if stack > limit:
            problem(where, f"{target}: a stack frame of {stack} bytes")
        if shared > SHARED[target]:
            problem(where, f"{target}: {shared} bytes of shared memory")
        if not items and ONE_SIZE.search(stem):
            problem(where, f"{target}: requires no work-group size")
        if registers * (items or WORK_GROUP) > REGISTERS:
            problem(where, f"{target}: {items or WORK_GROUP} items of {registers} registers do not fit")


def check_ptx(folder):
    found = images(folder, ".cubin")
    print(f"{'registers':>9} {'shared':>7} {'stack':>6} {'spilled':>7} {'items':>6}  target  kernel")
    for name, path in found:
        stem, target = name.rsplit(".", 1)
        ptx = f"{folder}/raw/{stem}.{'sm_90a' if target == 'sm_90a' else 'sm_80'}.ptx"
        if os.path.exists(path + ".log"):
            check_log(name, stem, target, read(ptx), read(path + ".log"))
        else:
            problem(name, "ptxas left no log")
    return found


# ---- gfx942


def code_object(path):
    return kernels_of_notes(run(tool("llvm-readelf-19", "llvm-readelf"), "--notes", path))


def kernels_of_notes(text):
    """{kernel: {".key": value, "args": [{".key": value}]}} of the metadata note; lists of numbers
    are "X,Y,Z"."""
    kernels, last = [], None
    for line in text.splitlines():
        match = re.match(r"( *)(- )?(\.\w+): *(.*)", line)
        if not match:
            number = re.fullmatch(r" {6}- +(\d+)", line)
            if number and kernels and last:
                kernels[-1][last] = ",".join(filter(None, [kernels[-1][last], number[1]]))
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
            last = key
    return {kernel[".name"]: kernel for kernel in kernels}


def reads_block_counts(function):
    """The implicit arguments begin with three block counts, 12 bytes, which are no size or id. What is
    done with a pointer into them, other than a load behind the counts, counts as reading them."""
    pending = [(pointer, 0) for pointer in re.findall(
        r"(%[\w.]+) = .*@llvm\.amdgcn\.implicitarg\.ptr\(\)", function)]
    seen = set(pending)
    while pending:
        pointer, offset = pending.pop()
        for line in re.findall(rf"^.*{re.escape(pointer)}(?![\w.]).*$", function, re.M):
            result, text = re.fullmatch(r"\s*(?:(%[\w.]+) = )?(.*)", line).groups()
            step = re.fullmatch(r"getelementptr (?:\w+ )*?i(8|16|32|64), ptr addrspace\(4\) "
                                rf"{re.escape(pointer)}, i64 (-?\d+)(?:, !.*)?", text)
            if result == pointer or offset >= 12 and re.match(r"load i\d+,", text):
                continue
            if not step and not text.startswith(("phi ", "select ")):
                return True
            at = (result, offset + (int(step[1]) // 8 * int(step[2]) if step else 0))
            if at not in seen:
                seen.add(at)
                pending.append(at)
            if len(seen) > MAX_POINTERS: # a loop that steps
                return True
    return False


def check_gfx942(folder):
    found = images(folder, ".gfx942.hsaco")
    print(f"{'vgprs':>6} {'agprs':>6} {'sgprs':>6} {'LDS':>6} {'scratch':>7} {'items':>6} {'spilled':>7}  kernel")
    for stem, path in found:
        own = "_amd" in stem or "FRAGMENT_MFMA" in stem
        kernels = code_object(path)
        if not kernels:
            problem(stem, "has no kernels")
        if "FRAGMENT_MFMA" in stem and "v_mfma" not in run(
                tool("llvm-objdump-19", "llvm-objdump"), "-d", path):
            problem(stem, "has no MFMA instruction")
        for kernel, data in kernels.items():
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
    return arguments_of_ptx_text(read(path))


def arguments_of_ptx_text(text):
    kernels = {}
    for kernel, parameters in re.findall(r"\.entry (\w+)\(([^)]*)\)", text):
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
    return arguments_of_notes(code_object(path))


def arguments_of_notes(kernels):
    kinds = {"global_buffer": "global", "dynamic_shared_pointer": "local"}
    return {name: [kinds.get(a[".value_kind"], a[".size"]) for a in kernel["args"]
                   if not a[".value_kind"].startswith("hidden")]
            for name, kernel in kernels.items()}


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


# ---- Launches


def sizes_of_notes(kernels):
    return {name: kernel.get(".reqd_workgroup_size", "") for name, kernel in kernels.items()}


def most_of_notes(kernels):
    return {name: int(kernel[".max_flat_workgroup_size"]) for name, kernel in kernels.items()}


def sizes_of_spirv(path):
    names, sizes = {}, {}
    for line in run(tool("spirv-dis"), "--raw-id", "--no-indent", path).splitlines():
        words = line.split()
        if words[:2] == ["OpEntryPoint", "Kernel"]:
            names[words[2]] = words[3].strip('"')
            sizes[names[words[2]]] = ""
        elif words[:1] == ["OpExecutionMode"] and words[2] == "LocalSize":
            sizes[names[words[1]]] = ",".join(words[3:6])
    return sizes


def read_launches(text):
    """{stem: {kernel: (sizes of work-groups, those on AMD's devices, lists of arguments)}}."""
    launches = {}
    for line in text.splitlines():
        stem, kernel, size, arguments, vendor = line.split("|")
        sizes, amd, lists = launches.setdefault(stem, {}).setdefault(kernel, (set(), set(), set()))
        sizes.add(size)
        lists.add(arguments)
        if vendor == "amd":
            amd.add(size)
    return launches


def layout_of(stem):
    """The file and the names of the defines: GATED adds arguments, the value of WARPS does not."""
    return [part.split(".")[0] for part in stem.split("-")]


def check_launches_of(name, stem, launches, arguments, sizes, most=None):
    """One image: its kernels with their arguments, the sizes they require, and the most items that
    those of gfx942 take."""
    asked = launches.get(stem, {})
    for kernel in sorted(set(asked) - set(arguments)):
        problem(f"{name} {kernel}", "is launched, and not in the image")
    for kernel in arguments:
        where = f"{name} {kernel}"
        taken, required = ",".join(arguments[kernel]), sizes[kernel]
        if ONE_SIZE.search(stem) and not required:
            problem(where, "requires no work-group size")
        if kernel in asked:
            groups, amd, lists = asked[kernel]
            for given in sorted(lists - {taken}):
                problem(where, f"takes {taken},\n  and the host sets {given}")
            for size in sorted(groups - {required} if required else ()):
                problem(where, f"requires work-groups of {required}, and the host asks for {size}")
            for size in sorted(amd if most else ()):
                if items_of(size) > most[kernel]:
                    problem(where, f"takes {most[kernel]} items, and the host asks for {size}")
            continue
        # Launched by no case. The arguments are those of its like in other configurations, or else of
        # a neighbour. So is the size where its like have one and the same; else the defines decide
        # it, and it is a neighbour's.
        unlaunched.add((stem, kernel))
        like = [kernels[kernel] for other, kernels in launches.items()
                if layout_of(other) == layout_of(stem) and kernel in kernels]
        near = list(asked.values())
        groups = {size for launched in like for size in launched[0]}
        if len(groups) != 1 and near:
            groups = {size for launched in near for size in launched[0]}
        lists = {given for launched in like or near for given in launched[2]}
        if required not in groups and (required or ONE_SIZE.search(stem)):
            problem(where, f"requires work-groups of {required}, and its neighbours "
                    f"have {' '.join(sorted(groups)) or 'none'}")
        if taken not in lists:
            problem(where, f"takes {taken},\n  and its like {' '.join(sorted(lists)) or 'nothing'}")


def check_launches(folder, file):
    launches, found = read_launches(read(file)), 0
    if not launches:
        problem(file, "has no launches")
    for suffix in (".spv", ".sm_80.ptx", ".sm_90a.ptx", ".gfx942.hsaco"):
        for stem, path in images(folder, suffix):
            most = None
            if suffix == ".spv":
                arguments, sizes = arguments_of_spirv(path), sizes_of_spirv(path)
            elif suffix == ".gfx942.hsaco":
                kernels = code_object(path)
                arguments, sizes = arguments_of_notes(kernels), sizes_of_notes(kernels)
                most = most_of_notes(kernels)
            else:
                arguments, sizes = arguments_of_ptx(path), sizes_of_ptx(read(path))
            check_launches_of(stem + suffix, stem, launches, arguments, sizes, most)
            found += 1
    print(f"{found} images, {sum(map(len, launches.values()))} kernels launched; compared with their "
          f"like, since no case launches them: {len(unlaunched)}")
    return found


def main(kind, *arguments):
    checks = {"packed": check_packed, "spirv": check_spirv, "ptx": check_ptx, "gfx942": check_gfx942,
              "arguments": check_arguments, "launches": check_launches}
    if not checks[kind](*arguments):
        print("nothing of this kind in this build")
        sys.exit(77)
    for text in problems:
        print("FAILED", text)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
