; The loop of cl/linear/linear_coopmat.cl on cooperative matrices (SPV_KHR_cooperative_matrix), which
; OpenCL C has no names for. llvm-spirv 19 knows the target types and functions below by their names.
;
;     target("spirv.CooperativeMatrixKHR", element, scope 3: a sub-group, rows, columns, use)
;     use      0: A, 1: B, 2: sums
;     layout   0: rows follow each other, 1: columns do; then the elements from one to the next
;
; Local memory, in halves: x [64][72], then W [64][72], of which 64 are K; at the end the sums of
; part p as floats [32][32], from 1024 p on. Part p is rows 32 (p % 2) ... of x, 32 (p / 2) ... of W.

target datalayout = "e-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-G1"
target triple = "spir64-unknown-unknown"

declare spir_func target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 0) @_Z32__spirv_CooperativeMatrixLoadKHR_a(ptr addrspace(3), i32, i32) #0
declare spir_func target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 1) @_Z32__spirv_CooperativeMatrixLoadKHR_b(ptr addrspace(3), i32, i32) #0
declare spir_func target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) @_Z26__spirv_CompositeConstruct(float) #0
declare spir_func target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) @_Z34__spirv_CooperativeMatrixMulAddKHR(target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 0), target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 1), target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2)) #0
declare spir_func void @_Z33__spirv_CooperativeMatrixStoreKHR(ptr addrspace(3), target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2), i32, i32) #0
declare spir_func void @_Z7barrierj(i32) #0
declare spir_func void @coopmat_stage(ptr, ptr addrspace(3), i32) #0

define spir_func void @coopmat_multiply(ptr %c, ptr addrspace(3) %tiles, i32 %count, i32 %part) #0 {
entry:
  %zero = call spir_func target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) @_Z26__spirv_CompositeConstruct(float 0.0) #0
  %m = and i32 %part, 1
  %n = lshr i32 %part, 1
  %x.begin = mul i32 %m, 2304                       ; 32 rows
  %w.rows = mul i32 %n, 2304
  %w.begin = add i32 %w.rows, 4608                  ; 64 rows
  br label %stages

stages:
  %t = phi i32 [ 0, %entry ], [ %t.next, %staged ]
  %s00 = phi target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) [ %zero, %entry ], [ %p00, %staged ]
  %s01 = phi target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) [ %zero, %entry ], [ %p01, %staged ]
  %s10 = phi target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) [ %zero, %entry ], [ %p10, %staged ]
  %s11 = phi target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) [ %zero, %entry ], [ %p11, %staged ]
  %more = icmp ult i32 %t, %count
  call spir_func void @_Z7barrierj(i32 1) #0        ; all have loaded the last of what lies there
  br i1 %more, label %stage, label %end

stage:
  call spir_func void @coopmat_stage(ptr %c, ptr addrspace(3) %tiles, i32 %t) #0
  call spir_func void @_Z7barrierj(i32 1) #0
  br label %steps

steps:
  %k = phi i32 [ 0, %stage ], [ %k.next, %steps ]
  %a00 = phi target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) [ %s00, %stage ], [ %p00, %steps ]
  %a01 = phi target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) [ %s01, %stage ], [ %p01, %steps ]
  %a10 = phi target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) [ %s10, %stage ], [ %p10, %steps ]
  %a11 = phi target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) [ %s11, %stage ], [ %p11, %steps ]
  %x0.at = add i32 %x.begin, %k
  %x1.at = add i32 %x0.at, 1152                     ; 16 rows
  %w0.at = add i32 %w.begin, %k
  %w1.at = add i32 %w0.at, 1152
  %x0.p = getelementptr half, ptr addrspace(3) %tiles, i32 %x0.at
  %x1.p = getelementptr half, ptr addrspace(3) %tiles, i32 %x1.at
  %w0.p = getelementptr half, ptr addrspace(3) %tiles, i32 %w0.at
  %w1.p = getelementptr half, ptr addrspace(3) %tiles, i32 %w1.at
  %x0 = call spir_func target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 0) @_Z32__spirv_CooperativeMatrixLoadKHR_a(ptr addrspace(3) %x0.p, i32 0, i32 72) #0
  %x1 = call spir_func target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 0) @_Z32__spirv_CooperativeMatrixLoadKHR_a(ptr addrspace(3) %x1.p, i32 0, i32 72) #0
  %w0 = call spir_func target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 1) @_Z32__spirv_CooperativeMatrixLoadKHR_b(ptr addrspace(3) %w0.p, i32 1, i32 72) #0
  %w1 = call spir_func target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 1) @_Z32__spirv_CooperativeMatrixLoadKHR_b(ptr addrspace(3) %w1.p, i32 1, i32 72) #0
  %p00 = call spir_func target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) @_Z34__spirv_CooperativeMatrixMulAddKHR(target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 0) %x0, target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 1) %w0, target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) %a00) #0
  %p01 = call spir_func target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) @_Z34__spirv_CooperativeMatrixMulAddKHR(target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 0) %x0, target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 1) %w1, target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) %a01) #0
  %p10 = call spir_func target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) @_Z34__spirv_CooperativeMatrixMulAddKHR(target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 0) %x1, target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 1) %w0, target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) %a10) #0
  %p11 = call spir_func target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) @_Z34__spirv_CooperativeMatrixMulAddKHR(target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 0) %x1, target("spirv.CooperativeMatrixKHR", half, 3, 16, 16, 1) %w1, target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) %a11) #0
  %k.next = add i32 %k, 16
  %deeper = icmp ult i32 %k.next, 64
  br i1 %deeper, label %steps, label %staged

staged:
  %t.next = add i32 %t, 1
  br label %stages

end:
  %y.begin = mul i32 %part, 1024
  %y01.at = add i32 %y.begin, 16
  %y10.at = add i32 %y.begin, 512                   ; 16 rows
  %y11.at = add i32 %y.begin, 528
  %y00.p = getelementptr float, ptr addrspace(3) %tiles, i32 %y.begin
  %y01.p = getelementptr float, ptr addrspace(3) %tiles, i32 %y01.at
  %y10.p = getelementptr float, ptr addrspace(3) %tiles, i32 %y10.at
  %y11.p = getelementptr float, ptr addrspace(3) %tiles, i32 %y11.at
  call spir_func void @_Z33__spirv_CooperativeMatrixStoreKHR(ptr addrspace(3) %y00.p, target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) %s00, i32 0, i32 32) #0
  call spir_func void @_Z33__spirv_CooperativeMatrixStoreKHR(ptr addrspace(3) %y01.p, target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) %s01, i32 0, i32 32) #0
  call spir_func void @_Z33__spirv_CooperativeMatrixStoreKHR(ptr addrspace(3) %y10.p, target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) %s10, i32 0, i32 32) #0
  call spir_func void @_Z33__spirv_CooperativeMatrixStoreKHR(ptr addrspace(3) %y11.p, target("spirv.CooperativeMatrixKHR", float, 3, 16, 16, 2) %s11, i32 0, i32 32) #0
  ret void
}

attributes #0 = { convergent }
