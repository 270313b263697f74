# How the row kernels of the CPU (JK_SIMD_SOURCES) are vectorised: by the compiler, once for each
# instruction set that a machine may have, chosen when the module is loaded. One binary serves every
# x86-64 machine.

set(JK_SIMD_FLAGS -fopenmp-simd -fno-math-errno -fno-trapping-math -fno-signed-zeros)

# GCC's partial redundancy elimination computes the exponential of the smallest argument beforehand and
# branches around the loop's body for it. A loop with a branch is not vectorised.
# GCC 12 bf16 softmax of 33 columns, ns per element (2026-11): with 2.2, without 0.5
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND JK_SIMD_FLAGS -fno-tree-pre)
endif()

check_cxx_compiler_flag(-mprefer-vector-width=512 JK_HAS_PREFER_VECTOR_WIDTH)
if(JK_HAS_PREFER_VECTOR_WIDTH)
  list(APPEND JK_SIMD_FLAGS -mprefer-vector-width=512)
endif()

# Function multiversioning needs the loader's indirect functions (Linux with glibc) and a compiler
# that knows these names (GCC 12; Clang 17, but not of templates); elsewhere the one target of the
# build is used.
set(JK_CLONES "\"arch=x86-64-v4\",\"arch=x86-64-v3\",\"default\"")
function(jk_check_clones declaration argument result)
  set(CMAKE_REQUIRED_FLAGS -Werror)
  check_cxx_source_compiles("
    #include <stdlib.h>
    #ifndef __GLIBC__
    #error needs glibc
    #endif
    ${declaration} __attribute__((target_clones(${JK_CLONES}))) int f(${argument} x) { return x + 1; }
    int main(int argc, char**) { return f(argc); }" ${result})
endfunction()
jk_check_clones("" int JK_HAS_TARGET_CLONES)
jk_check_clones("template <typename T>" T JK_HAS_CLONES_OF_TEMPLATES)

set_source_files_properties(${JK_SIMD_SOURCES} PROPERTIES COMPILE_OPTIONS "${JK_SIMD_FLAGS}")
if(JK_HAS_TARGET_CLONES)
  set_property(SOURCE ${JK_SIMD_SOURCES} APPEND PROPERTY COMPILE_DEFINITIONS
               "JK_TARGET_CLONES=${JK_CLONES}")
endif()
if(JK_HAS_CLONES_OF_TEMPLATES)
  set_property(SOURCE ${JK_SIMD_SOURCES} APPEND PROPERTY COMPILE_DEFINITIONS JK_CLONES_TEMPLATES)
endif()
