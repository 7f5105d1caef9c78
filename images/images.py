#!/usr/bin/env python3
"""Kernel images: expands cl/manifest.txt and compiles its configurations offline.

    images.py list MANIFEST TARGET...           one line a job: stem|target|file|defines|outputs
    images.py compile TOOLS CL OUT JOB          compiles one job into OUT/raw and OUT/packed
    images.py index OUT MANIFEST                writes OUT/packed/index, of the images in OUT/list

A target is what one compilation makes: `spirv` and `spirv1.3` a module, `coopmat` one with
spirv/coopmat.ll in it, `sm_80` and `sm_90a` PTX and
the cubins that ptxas makes of it, `gfx942` a code object. Outputs are named STEM.SUFFIX, where the
stem is the kernel file without ".cl" and its defines: "-DX=f16 -DY=f32" becomes "-X.f16-Y.f32".
OUT/raw has them as they are, OUT/packed compressed, which is what the library embeds.
docs/images-and-caches.md explains the choices.
"""

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

# The suffixes that a target's job makes; the cubins only where there is a ptxas.
OUTPUTS = {
    "spirv": ["spv"],
    "spirv1.3": ["spv"],
    "coopmat": ["spv"],
    "sm_80": ["sm_80.ptx", "sm_80.cubin", "sm_90.cubin"],
    "sm_90a": ["sm_90a.ptx", "sm_90a.cubin"],
    "gfx942": ["gfx942.hsaco"],
}
GROUPS = {"all": ["spirv", "sm_80", "gfx942"], "source": []}
# The lowest PTX version that has what the kernels need (7.4: ld with L1::no_allocate; 8.3:
# tensormap.replace), because drivers refuse versions newer than they are.
PTX_VERSION = {"sm_80": "ptx74", "sm_90a": "ptx83"}


def fail(message):
    sys.exit("images.py: " + message)


# ---- The manifest


def stem_of(file, defines):
    return file.removesuffix(".cl") + "".join(
        "-" + define.removeprefix("-D").replace("=", ".", 1) for define in defines.split()
    )


def expand(text):
    """'a{b,c}d{e,f}' in order: abde, abdf, acde, acdf."""
    parts = re.split(r"\{([^{}]*)\}", text)
    choices = [[p] if i % 2 == 0 else p.split(",") for i, p in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def read_manifest(path):
    """Yields (file, defines, targets), each configuration once."""
    seen = set()
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = " ".join(line.split("#")[0].split())
            if not line:
                continue
            where = f"{path}:{number}: "
            if line.count(" ") < 1:
                fail(where + "expected FILE TARGETS [DEFINES]")
            file, targets, defines = (line + " ").split(" ", 2)
            targets = [t for word in targets.split(",") for t in GROUPS.get(word, [word])]
            unknown = [t for t in targets if t not in OUTPUTS]
            if unknown:
                fail(where + f"unknown target {unknown[0]}")
            if not re.fullmatch(r"(-D[A-Z][A-Z0-9_]*(=[a-z0-9_{},]+)? ?)*", defines):
                fail(where + f"cannot read the defines {defines!r}")
            for expanded in expand(defines.strip()):
                if (file, expanded) in seen:
                    fail(where + f"{file} ({expanded}) is listed twice")
                seen.add((file, expanded))
                yield file, expanded, targets


def list_jobs(manifest, wanted):
    for file, defines, targets in read_manifest(manifest):
        for target in targets:
            if target in wanted:
                stem = stem_of(file, defines)
                print("|".join([stem, target, file, defines, ",".join(OUTPUTS[target])]))


# ---- Compiling


def run(command):
    """Runs a tool; its output is shown, and its failure ends the program."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        fail(" ".join(command) + "\n" + done.stdout)
    return done.stdout


def write(path, text):
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


def read(path):
    with open(path, encoding="utf-8") as text:
        return text.read()


class Job:
    def __init__(self, tools, cl, out, job):
        self.tools = tools
        self.stem, self.target, file, defines, outputs = job.split("|")
        self.raw = os.path.join(out, "raw", self.stem)
        self.packed = os.path.join(out, "packed", self.stem)
        self.cubins = [s for s in outputs.split(",") if s.endswith(".cubin")]
        # clang adds to the depfile what it reads.
        self.front = ["-x", "cl", "-cl-std=CL1.2", "-I", cl, *defines.split(), os.path.join(cl, file)]
        self.front += ["-MD", "-MF", f"{self.raw}.{self.target}.d"]
        self.front += ["-MT", f"{self.packed}.{OUTPUTS[self.target][0]}"]
        self.front += ["-Wall", "-Werror", "-Wno-unused-function", "-Wno-ignored-pragmas",
                       "-Wno-linker-warnings"]
        os.makedirs(os.path.dirname(self.raw), exist_ok=True)
        os.makedirs(os.path.dirname(self.packed), exist_ok=True)

    def pack(self, suffix):
        zstd = [self.tools["zstd"], "-" + self.tools["level"], "--check", "--force", "--quiet"]
        run(zstd + [f"{self.raw}.{suffix}", "-o", f"{self.packed}.{suffix}"])

    def coopmat(self):
        """A 1.3 module with cooperative matrices, which are LLVM IR beside the OpenCL C."""
        loop = f"{self.raw}.loop.bc"
        run([self.tools["coopmat_clang"], "-target", "spir64-unknown-unknown", "-x", "ir", "-Xclang",
             "-disable-llvm-passes", "-emit-llvm", "-c", os.path.join(HERE, "../spirv/coopmat.ll"),
             "-o", loop])
        self.module("1.3", self.tools["coopmat_clang"], self.tools["coopmat_llvm_spirv"],
                    ["-Xclang", "-mlink-bitcode-file", "-Xclang", loop],
                    ["--spirv-ext=+SPV_KHR_cooperative_matrix"])

    def spirv(self):
        self.module(self.target.removeprefix("spirv") or "1.2", self.tools["spirv_clang"],
                    self.tools["llvm_spirv"], [], [])

    def module(self, version, clang, llvm_spirv, linked, extensions):
        # Optimised IR becomes modules that spirv-val refuses; drivers optimise anyway.
        run([clang, "-target", "spir64-unknown-unknown", "-include",
             os.path.join(HERE, "spirv.clh"), "-DLLMK_IMAGE_SPIRV=" + version.replace(".", "0"),
             "-O1", "-Xclang", "-disable-llvm-passes", *linked, "-emit-llvm", "-c", *self.front,
             "-o", f"{self.raw}.spir.bc"])
        run([llvm_spirv, f"--spirv-max-version={version}", *extensions, f"{self.raw}.spir.bc",
             "-o", f"{self.raw}.spv"])
        if extensions:
            stamp_version(f"{self.raw}.spv", version)
        environment = "opencl2.2" if version == "1.2" else f"spv{version}"
        run([self.tools["spirv_val"], "--target-env", environment, f"{self.raw}.spv"])
        self.pack("spv")

    def device_ir(self, header, library, flags):
        """Optimised LLVM IR as text. The built-ins of `header` come before libclc's."""
        path = f"{self.raw}.{self.target}.ll"
        run([self.tools["native_clang"], *flags, "-include", os.path.join(HERE, header), "-Xclang",
             "-mlink-builtin-bitcode", "-Xclang", library, "-O3", "-S", "-emit-llvm", *self.front,
             "-o", path])
        return path

    def nvidia(self):
        flags = ["-target", "nvptx64-nvidia-nvcl", "--cuda-path=/nonexistent", "-Xclang",
                 "-target-cpu", "-Xclang", self.target, "-Xclang", "-target-feature", "-Xclang",
                 "+" + PTX_VERSION[self.target]]
        ir = self.device_ir("nvptx.clh", self.tools["nvptx_libclc"],
                            [*flags, "-Xclang", "-cl-ext=+cl_khr_fp16", "-fasm"])
        write(ir, bound_launches(read(ir)))
        ptx = f"{self.raw}.{self.target}.ptx"
        # Division and square root to OpenCL's accuracy rather than IEEE's.
        run([self.tools["native_clang"], *flags, "-x", "ir", "-O3", "-Xclang",
             "-disable-llvm-passes", "-mllvm", "-nvptx-prec-divf32=1", "-mllvm",
             "-nvptx-prec-sqrtf32=0", "-S", ir, "-o", ptx])
        missing = re.findall(r"^\s*\.extern \.func.*?(\w+)\s*$", read(ptx), re.M)
        if missing:
            fail(f"{ptx} calls what nobody defines: {', '.join(missing)}")
        self.pack(f"{self.target}.ptx")
        for cubin in self.cubins:
            arch = cubin.removesuffix(".cubin")
            log = run([self.tools["ptxas"], "-v", f"-arch={arch}", ptx, "-o", f"{self.raw}.{cubin}"])
            write(f"{self.raw}.{cubin}.log", log)
            self.pack(cubin)

    def amd(self):
        flags = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={self.target}", "-nogpulib"]
        ir = self.device_ir("amdgcn.clh", self.tools["amdgcn_libclc"], flags)
        run([self.tools["native_clang"], *flags, "-x", "ir", "-O3", "-Xclang",
             "-disable-llvm-passes", f"-fuse-ld={self.tools['lld']}", ir, "-o",
             f"{self.raw}.{self.target}.hsaco"])
        self.pack(f"{self.target}.hsaco")

    def compile(self):
        {"spirv": self.spirv, "coopmat": self.coopmat, "sm": self.nvidia, "gfx942": self.amd}[
            re.match("spirv|coopmat|sm|gfx942", self.target).group()
        ]()


def stamp_version(path, version):
    """llvm-spirv stamps the lowest version that it knows a reason for; an extension may ask for more."""
    major, minor = map(int, version.split("."))
    with open(path, "r+b") as module:
        module.seek(4)
        module.write(bytes([0, minor, major, 0]))


def bound_launches(ir):
    """Gives reqd_work_group_size, and what annotate("minnctapersm=N") asks for, to the NVPTX back
    end, which looks for them in !nvvm.annotations alone."""
    nodes = dict(re.findall(r"^(!\d+) = !\{(i32 \d+, i32 \d+, i32 \d+)\}$", ir, re.M))
    strings = dict(re.findall(r'^(@[\w.]+) = .*c"([^"]*)\\00"', ir, re.M))
    minimum = {}
    for line in re.findall(r"^@llvm\.global\.annotations = .*$", ir, re.M):
        names = re.findall(r"@[\w.]+", line)[1:]
        for kernel, text in zip(names, names[1:]):
            match = re.fullmatch(r"minnctapersm=(\d+)", strings.get(text, ""))
            if match:
                minimum[kernel] = match.group(1)
    rows = []
    for kernel, attributes in re.findall(r"^define [^@]*(@[\w.]+)\(.*?(\![^{]*)?\{$", ir, re.M):
        limits = []
        size = re.search(r"!reqd_work_group_size (!\d+)", attributes)
        if size:
            x, y, z = nodes[size.group(1)].split(", ")
            limits += [f'!"reqntidx", {x}, !"reqntidy", {y}, !"reqntidz", {z}']
        if kernel in minimum:
            if not size:
                fail(f"{kernel}: minnctapersm needs reqd_work_group_size")
            limits += [f'!"minctasm", i32 {minimum[kernel]}']
        if limits:
            rows.append(f"ptr {kernel}, {', '.join(limits)}")
    first = 1 + max((int(n) for n in re.findall(r"^!(\d+) =", ir, re.M)), default=0)
    for number, row in enumerate(rows, first):
        ir += f"!nvvm.annotations = !{{!{number}}}\n!{number} = !{{{row}}}\n"
    return ir


# ---- The index


def write_index(out, manifest):
    """The first line identifies the images as a whole; the others are the manifest's stems."""
    packed = os.path.join(out, "packed")
    stems = sorted(stem_of(file, defines) for file, defines, _ in read_manifest(manifest))
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(read(os.path.join(out, "list")).split()):
        with open(os.path.join(packed, name), "rb") as image:
            digest.update(name.encode() + b"\0" + image.read())
    write(os.path.join(packed, "index"), "\n".join([digest.hexdigest(), *stems]) + "\n")


def main(arguments):
    match arguments:
        case ["list", manifest, *targets]:
            list_jobs(manifest, targets)
        case ["compile", tools, cl, out, job]:
            Job(json.loads(read(tools)), cl, out, job).compile()
        case ["index", out, manifest]:
            write_index(out, manifest)
        case _:
            fail("see the usage at the top of this file")


main(sys.argv[1:])
