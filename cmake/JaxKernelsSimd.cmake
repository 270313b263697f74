# Vectorisation of the CPU row kernels (JK_SIMD_SOURCES): the compiler makes one version of each
# function for every instruction set, and a call chooses one at run time. One binary serves every
# x86-64 machine.

set(JK_SIMD_FLAGS -fopenmp-simd -fno-math-errno -fno-trapping-math -fno-signed-zeros)

# GCC's partial redundancy elimination computes the exponential of the smallest argument beforehand
# and branches around the loop body for it. A loop with a branch is not vectorised.
# GCC 12 bf16 softmax of 33 columns, ns per element (2026-11): with it 2.2, without 0.5
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND JK_SIMD_FLAGS -fno-tree-pre)
endif()

check_cxx_compiler_flag(-mprefer-vector-width=512 JK_HAS_PREFER_VECTOR_WIDTH)
if(JK_HAS_PREFER_VECTOR_WIDTH)
  list(APPEND JK_SIMD_FLAGS -mprefer-vector-width=512)
endif()

# Function versions need a compiler that knows these names (GCC 12; Clang 17). Other compilers build
# for the one target.
check_cxx_source_compiles("
  __attribute__((target(\"arch=x86-64-v3\"))) int f(int x) { return x + 1; }
  __attribute__((target(\"arch=x86-64-v4\"))) int g(int x) { return x + 2; }
  int main(int argc, char**) { return __builtin_cpu_supports(\"x86-64-v4\") ? g(argc) : f(argc); }"
  JK_HAS_X86_LEVELS)

set_source_files_properties(${JK_SIMD_SOURCES} PROPERTIES COMPILE_OPTIONS "${JK_SIMD_FLAGS}")
if(JK_HAS_X86_LEVELS)
  set_property(SOURCE ${JK_SIMD_SOURCES} ffi/rows/cpu/kernels.cc APPEND PROPERTY COMPILE_DEFINITIONS
               JK_X86_LEVELS)
  # JAX itself needs AVX, so that few machines run this version. Its flags make it compile fast:
  # loops are not vectorised, and JK_BASELINE leaves out the unrolled code.
  target_sources(jk_cpu PRIVATE ffi/rows/cpu/kernels_baseline.cc)
  set_source_files_properties(ffi/rows/cpu/kernels_baseline.cc PROPERTIES
    COMPILE_OPTIONS "${JK_SIMD_FLAGS};-O1;-fno-openmp-simd;-Wno-unknown-pragmas" COMPILE_DEFINITIONS JK_BASELINE)
endif()
