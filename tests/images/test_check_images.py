#!/usr/bin/env python3
"""That check_images.py finds the faults it is for: texts as the compilers write them, each with one
fault."""

import contextlib
import io
import os
import shutil
import subprocess
import tempfile
import unittest

import check_images

PTX = """
.visible .entry tiled
(
	.param .u64 .ptr .global .align 1 tiled_param_0
)
;
.visible .entry tiled(
	.param .u64 .ptr .global .align 1 tiled_param_0,
	.param .align 8 .b8 tiled_param_1[56],
	.param .u32 tiled_param_2
)
.reqntid 128, 1, 1
.minnctapersm 2
{
	mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1};
	ret;
}
.visible .entry other(
	.param .u64 .ptr .shared .align 4 other_param_0
)
.reqntid 8, 16, 1
{
	ret;
}
"""
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'tiled' for 'sm_80'
ptxas info    : Function properties for tiled
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 36932 bytes smem
ptxas info    : Compiling entry function 'other' for 'sm_80'
ptxas info    : Function properties for other
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers
"""
STEM = "linear/linear_tiled-X.f16-FRAGMENT_MMA-PATCH.4"

NOTES = """amdhsa.kernels:
  - .agpr_count:     64
    .args:
      - .address_space:  global
        .size:           8
        .value_kind:     global_buffer
      - .offset:         8
        .size:           56
        .value_kind:     by_value
      - .offset:         64
        .size:           4
        .value_kind:     by_value
      - .offset:         72
        .size:           8
        .value_kind:     hidden_global_offset_x
    .language_version:
      - 1
      - 2
    .max_flat_workgroup_size: 256
    .name:           tiled
    .reqd_workgroup_size:
      - 256
      - 1
      - 1
    .sgpr_count:     106
"""
MFMA = "linear/linear_tiled-X.f16-FRAGMENT_MFMA.32-PATCH.1"
LAUNCHES = f"""{STEM}|tiled|128,1,1|global,56,4|
{STEM}|other|8,16,1|local|
{MFMA}|tiled|256,1,1|global,56,4|amd
"""


class Faults(unittest.TestCase):
    def setUp(self):
        check_images.problems.clear()

    def finds(self, text):
        self.assertIn(text, "\n".join(check_images.problems))

    def log(self, ptx=PTX, log=LOG, stem=STEM, target="sm_80"):
        with contextlib.redirect_stdout(io.StringIO()):
            check_images.check_log(f"{stem}.{target}", stem, target, ptx, log)

    def ptx(self, ptx=PTX, launches=LAUNCHES, stem=STEM):
        check_images.check_launches_of(stem, stem, check_images.read_launches(launches),
                                       check_images.arguments_of_ptx_text(ptx),
                                       check_images.sizes_of_ptx(ptx))

    def notes(self, notes=NOTES, launches=LAUNCHES, stem=MFMA):
        kernels = check_images.kernels_of_notes(notes)
        check_images.check_launches_of(
            stem, stem, check_images.read_launches(launches), check_images.arguments_of_notes(kernels),
            check_images.sizes_of_notes(kernels), check_images.most_of_notes(kernels))

    def test_none(self):
        self.log()
        self.ptx()
        self.notes()
        self.assertEqual(check_images.problems, [])

    # What ptxas said

    def test_empty_log(self):
        self.log(log="")
        self.finds("ptxas spoke of []")

    def test_kernel_not_in_log(self):
        self.log(log=LOG[:LOG.index("ptxas info    : Compiling entry function 'other'")])
        self.finds("ptxas spoke of ['tiled']")

    def test_no_kernels(self):
        self.log(ptx="mma.sync", log="")
        self.finds("its kernels are []")

    def test_stack_frame(self):
        self.log(log=LOG.replace("0 bytes stack", "16 bytes stack", 1))
        self.finds("tiled: sm_80: a stack frame of 16 bytes")

    def test_stack_frame_of_portable_kernels(self):
        portable = PTX.replace("mma.sync", "mov")
        self.log(portable, LOG.replace("0 bytes stack", "128 bytes stack", 1), "linear/linear_gemm-X.f16")
        self.assertEqual(check_images.problems, [])
        self.log(portable, LOG.replace("0 bytes stack", "512 bytes stack", 1), "linear/linear_gemm-X.f16")
        self.finds("a stack frame of 512 bytes")

    def test_spills(self):
        self.log(log=LOG.replace("0 bytes spill stores", "4 bytes spill stores", 1))
        self.finds("tiled: sm_80: spills")

    def test_warning(self):
        self.log(log=LOG + "ptxas warning : Potential Performance Loss: wgmma serialized\n")
        self.finds("Performance Loss")

    def test_shared_memory(self):
        self.log(log=LOG.replace("36932 bytes smem", "49156 bytes smem"))
        self.finds("49156 bytes of shared memory")

    def test_registers(self):
        self.log(PTX.replace("128, 1, 1", "512, 1, 1"))
        self.finds("512 items of 168 registers do not fit")

    def test_registers_without_a_size(self):
        self.log(PTX.replace(".reqntid 128, 1, 1", "").replace("mma.sync", "mov"),
                 LOG.replace("168", "300"), "linear/linear_gemm-X.f16")
        self.finds("256 items of 300 registers do not fit")

    def test_no_size(self):
        self.log(PTX.replace(".reqntid 128, 1, 1", ""))
        self.finds("tiled: sm_80: requires no work-group size")

    def test_no_mma(self):
        self.log(PTX.replace("mma.sync", "mov"))
        self.finds("has no mma.sync")

    def test_no_wgmma(self):
        for stem in ("linear/linear_wgmma-X.f16", "linear/linear_wgmma_packed-X.f16-W.u4_nv-GROUPED.0",
                     "grouped_linear/grouped_wgmma-X.bf16"):
            check_images.problems.clear()
            self.log(stem=stem, target="sm_90a")
            self.finds("has no wgmma")
            check_images.problems.clear()
            self.log(PTX.replace("mma.sync", "wgmma.mma_async.sync"), stem=stem, target="sm_90a")
            self.assertEqual(check_images.problems, [])

    # Launches

    def test_size_of_ptx(self):
        for size in ("64, 1, 1", "256, 1, 1", "1, 128, 1"):
            check_images.problems.clear()
            self.ptx(PTX.replace("128, 1, 1", size))
            self.finds(f"requires work-groups of {size.replace(' ', '')}, and the host asks for 128,1,1")

    def test_no_size_of_ptx(self):
        self.ptx(PTX.replace(".reqntid 128, 1, 1", ""))
        self.finds("tiled: requires no work-group size")

    def test_another_argument_of_ptx(self):
        self.ptx(PTX.replace(".u32 tiled_param_2", ".u32 tiled_param_2,\n\t.param .u32 tiled_param_3"))
        self.finds("takes global,56,4,4,\n  and the host sets global,56,4")

    def test_arguments_of_ptx(self):
        self.ptx(PTX.replace(".u32 tiled_param_2", ".u64 tiled_param_2"))
        self.finds("takes global,56,8,")
        self.ptx(PTX.replace("[56]", "[48]"))
        self.finds("takes global,48,4,")
        self.ptx(PTX.replace(".ptr .shared", ".ptr .global"))
        self.finds("takes global,\n  and the host sets local")

    def test_missing_kernel(self):
        self.ptx(PTX.replace("entry other(", "entry another("))
        self.finds("other: is launched, and not in the image")

    def test_no_launches(self):
        self.ptx(launches="")
        self.finds("tiled: requires work-groups of 128,1,1, and its neighbours have none")
        self.finds("tiled: takes global,56,4,\n  and its like nothing")

    def test_kernel_that_no_case_launches(self):
        sibling = LAUNCHES.replace(f"{STEM}|other", f"{STEM.replace('4', '8')}|other").replace("8,16,1", "128,1,1")
        own = PTX.replace("8, 16, 1", "128, 1, 1")
        self.ptx(own, sibling)
        self.assertEqual(check_images.problems, [])
        self.ptx(PTX, sibling)
        self.finds("other: requires work-groups of 8,16,1, and its neighbours have 128,1,1")
        self.ptx(own.replace(".ptr .shared", ".ptr .global"), sibling)
        self.finds("takes global,\n  and its like local")

    def test_neighbours_decide_the_size(self):
        # Other configurations have other sizes, this one among them.
        launches = "".join(f"{STEM.replace('4', warps)}|other|{size},1,1|local|\n"
                           for warps, size in (("8", 256), ("16", 512))) + LAUNCHES.splitlines()[0]
        own = PTX.replace("8, 16, 1", "128, 1, 1")
        self.ptx(own, launches)
        self.assertEqual(check_images.problems, [])
        self.ptx(PTX.replace("8, 16, 1", "256, 1, 1"), launches)
        self.finds("other: requires work-groups of 256,1,1, and its neighbours have 128,1,1")

    def test_portable_kernel_that_no_case_launches(self):
        stem = "add/add_portable-X.f16"
        launches = f"{stem}|tiled|128,1,1|global,56,4|\nadd/add_portable-X.f32|other|8,16,1|local|\n"
        check_images.unlaunched.clear()
        self.ptx(PTX, launches, stem)
        self.assertEqual(check_images.problems, [])
        self.assertEqual(check_images.unlaunched, {(stem, "other")})
        self.ptx(PTX.replace(".ptr .shared", ".ptr .global"), launches, stem)
        self.finds("other: takes global,\n  and its like local")

    def test_size_of_gfx942(self):
        self.notes(NOTES.replace("- 256", "- 128"))
        self.finds("requires work-groups of 128,1,1, and the host asks for 256,1,1")

    def test_no_size_of_gfx942(self):
        self.notes(NOTES.replace("""    .reqd_workgroup_size:
      - 256
      - 1
      - 1
""", ""))
        self.finds("tiled: requires no work-group size")

    def test_most_items_of_gfx942(self):
        self.notes(NOTES.replace("_size: 256", "_size: 128"))
        self.finds("takes 128 items, and the host asks for 256,1,1")

    def test_another_argument_of_gfx942(self):
        self.notes(NOTES.replace("    .language_version:", """      - .offset:         80
        .size:           4
        .value_kind:     by_value
    .language_version:"""))
        self.finds("takes global,56,4,4,\n  and the host sets global,56,4")

    # Where ids and sizes of gfx942 come from

    def test_block_counts(self):
        load = "  %v = load i16, ptr addrspace(4) {}, align 4\n"
        gep = "  {} = getelementptr inbounds i8, ptr addrspace(4) {}, i64 {}\n"
        first = gep.format("%a", "%p", 16)
        for expected, body in (
                (False, first + load.format("%a")),
                (True, load.format("%p")),
                (True, gep.format("%a", "%p", 4) + load.format("%a")),
                (True, first + gep.format("%b", "%a", -8) + load.format("%b")),
                (False, first + gep.format("%b", "%a", -4) + load.format("%b")),
                (True, gep.format("%a", "%p", 4) + gep.format("%b", "%a", 4) + load.format("%b")),
                (False, gep.format("%a", "%p", 4) + gep.format("%b", "%a", 8) + load.format("%b")),
                (True, gep.format("%a", "%p", 2).replace("i8", "i16") + load.format("%a")),
                (True, "  %a = phi ptr addrspace(4) [ %p, %1 ], [ %b, %2 ]\n" +
                 gep.format("%b", "%a", 16) + load.format("%b")),
                (True, "  %a = addrspacecast ptr addrspace(4) %p to ptr\n"),
                (True, first + "  call void @f(ptr addrspace(4) %a)\n")):
            call = "  %p = tail call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()\n"
            self.assertEqual(check_images.reads_block_counts(call + body), expected, body)


@unittest.skipUnless(shutil.which("zstd"), "no zstd")
class Folders(unittest.TestCase):
    """What of a build's folder is looked at."""

    def setUp(self):
        check_images.problems.clear()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        for part in "raw", "packed":
            os.mkdir(os.path.join(self.folder, part))
        self.put("list", "a.sm_80.ptx\na.sm_80.cubin\n")
        for name, text in (("a.sm_80.ptx", PTX), ("a.sm_80.cubin", "code")):
            self.put("raw/" + name, text)
            self.pack(name, text)
        self.put("raw/a.sm_80.cubin.log", LOG)

    def put(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def pack(self, name, text):
        with open(os.path.join(self.folder, "packed", name), "wb") as file:
            file.write(subprocess.run(["zstd", "-qc"], input=text.encode(), check=True,
                                      capture_output=True).stdout)

    def check(self, function):
        with contextlib.redirect_stdout(io.StringIO()):
            function(self.folder)
        return "\n".join(check_images.problems)

    def test_none(self):
        self.assertEqual(self.check(check_images.check_ptx), "")

    def test_left_over(self):
        for part in "raw", "packed":
            self.put(part + "/b.sm_80.ptx", "of a configuration that was removed")
            self.put(part + "/b.sm_80.cubin", "and its cubin")
        self.put("raw/b.sm_80.cubin.log", "ptxas warning : an old one")
        self.assertEqual(self.check(check_images.check_ptx), "")
        self.assertEqual(len(check_images.images(self.folder, "")), 2)

    def test_no_log(self):
        os.unlink(os.path.join(self.folder, "raw/a.sm_80.cubin.log"))
        self.assertIn("a.sm_80: ptxas left no log", self.check(check_images.check_ptx))

    def test_packed(self):
        self.assertEqual(self.check(check_images.check_packed), "")
        self.pack("a.sm_80.cubin", "other code")
        self.assertIn("a.sm_80.cubin: is not what was compiled", self.check(check_images.check_packed))
        check_images.problems.clear()
        self.put("packed/a.sm_80.cubin", "junk")
        self.assertIn("a.sm_80.cubin: is not what was compiled", self.check(check_images.check_packed))


if __name__ == "__main__":
    unittest.main()
