"""The extension module of the CPU kernels and of the GPU kernels' plans; it is always built."""

from typing import Any, Final, Literal

from jaxkernels.typing import Algorithm, Tier

class DeviceLimits:
    """The properties of a GPU that plans depend on. Sizes are bytes of shared memory.

    Plans of products estimate times by the peak bandwidth of the memory (10^9 bytes/s) and the maximum clock.
    The defaults are those of an H200.
    """

    name: Final[str]
    sm_count: Final[int]
    smem_per_block: Final[int]
    smem_per_sm: Final[int]
    threads_per_sm: Final[int]
    blocks_per_sm: Final[int]
    registers_per_sm: Final[int]
    compute_capability: Final[int]
    cluster_blocks: Final[int]
    memory_gb_per_s: Final[int]
    clock_mhz: Final[int]
    compiled_for: Final[int]
    has_wgmma: Final[bool]
    def __init__(
        self,
        *,
        name: str,
        sm_count: int,
        smem_per_block: int,
        smem_per_sm: int,
        threads_per_sm: int,
        blocks_per_sm: int,
        registers_per_sm: int,
        compute_capability: int,
        cluster_blocks: int = 1,
        memory_gb_per_s: int = 4917,
        clock_mhz: int = 1980,
        compiled_for: int | None = None,
        has_wgmma: bool | None = None,
    ) -> None: ...

class AttentionKernelPlan:
    """How float32 flash attention is launched."""

    padded_depth: Final[int]
    groups: Final[int]
    batch_of_group: Final[int]
    tiles: Final[int]
    heads_of_group: Final[int]
    sm_count: Final[int]
    block_threads: Final[int]
    smem_bytes: Final[int]
    scratch_bytes: Final[int]

class SoftmaxPlan:
    """The launch plan of a row operation on a GPU."""

    part: Final[Literal["whole", "statistics", "finish"]]
    tier: Final[Tier | Literal["stream"]]
    pack: Final[int]
    warp_shape: Final[int]
    lanes: Final[int]
    packs_per_lane: Final[int]
    kept_packs: Final[int]
    cluster_blocks: Final[int]
    few_rows: Final[bool]
    rows_per_access: Final[int]
    elements_per_lane: Final[int]
    row_spacing: Final[int]
    aligned: Final[bool]
    on_packs: Final[bool]
    offset: Final[int]
    staged: Final[bool]
    leaf_turns: Final[int]
    branches: Final[int]
    two_sums: Final[bool]
    xla_by_default: Final[bool]
    block_threads: Final[int]
    grid_blocks: Final[int]
    workers: Final[int]
    rounds: Final[int]
    halves: Final[bool]
    smem_bytes: Final[int]
    blocks_per_sm: Final[int]
    def rows_of(self, worker: int, rows: int) -> tuple[int, int, int]: ...

class SgemmPlan:
    """The launch plan of a matrix product on a GPU."""

    algorithm: Final[Algorithm]
    tile: Final[int]
    engine: Final[Literal["floats", "tma"]]
    thin: Final[Literal["none", "along_k", "across_k", "shallow"]]
    many_is_a: Final[bool]
    block_m: Final[int]
    block_n: Final[int]
    block_k: Final[int]
    thread_m: Final[int]
    thread_n: Final[int]
    block_threads: Final[int]
    stages: Final[int]
    slices: Final[int]
    cluster_blocks: Final[int]
    split_k: Final[int]
    launches: Final[int]
    k_per_split: Final[int]
    tiles_m: Final[int]
    tiles_n: Final[int]
    grid_blocks: Final[int]
    sm_count: Final[int]
    stagger_cycles: Final[int]
    smem_bytes: Final[int]
    blocks_per_sm: Final[int]
    partial_elements: Final[int]
    groups: Final[int]
    compensated: Final[bool]
    most_marked_tiles: Final[int]
    tiles_before_look: Final[int]
    pad_a: Final[int]
    pad_b: Final[int]
    pack_a: Final[int]
    pack_b: Final[int]
    pack_c: Final[int]
    reduce_pack: Final[int]

# The rest is private: `jaxkernels._core.registry` reads it.
def __getattr__(name: str) -> Any: ...
