"""Names of kernels and operators as people read them: the same in every run of a script."""

from __future__ import annotations

import pytest

from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.kernel_names import is_fp32_gemm, is_tensor_core, short_name, short_names


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_Z28flash_fwd_splitkv_mla_kernelI19FlashMlaKernelTraitILi576EEv", "flash_fwd_splitkv_mla_kernel"),
        (
            "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_E",
            "ImplicitGemmConvolution",
        ),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16EEEvPT0_", "add_rmsnorm_quant_kernel"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineE", "Rmsnorm2dFwd"),
        ("_ZN9999x", "_ZN9999x"),  # cut off, or no symbol at all
        ("_Z", "_Z"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("void at::native::sum_kernel<4, float>(int)", "sum_kernel"),
        (
            "sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32"
            "_warpgroupsize1x1x1_g1_execute_split_k_kernel__5x_cudnn",
            "sm90_xmma_wgrad_tf32_128x64x32_split_k",
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4"
            "_execute_kernel__5x_cublas",
            "sm80_xmma_gemm_tn_f32_32x32x8",
        ),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_cgasize1x1x1_warpgroupsize1x1x1_execute",
            "sm90_xmma_gemm_nn_bf16_128x128x64",
        ),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT448x32x64_MI16x16x1_SN_LDSB1_AFC1_WG64_4_1",
            "Cijk_Alik_Bljk_BBS_MT448x32x64",
        ),
    ],
)
def test_short_names(symbol: str, name: str) -> None:
    assert short_name(symbol) == name


def test_kernels_of_one_short_name_are_told_apart_by_what_differs() -> None:
    norm = "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, {}, true, 1>(float, float)"
    add = "void at::native::elementwise_kernel<{}, at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<{}>>>(int)"
    names = {
        0: norm.format(128),
        1: norm.format(512),
        2: add.format(4, "float"),
        3: add.format(4, "c10::Half"),
        4: "void alone<float>(int)",
        5: "_ZN5outer5innerIiEEvi",
        6: "_ZN5outer5innerIfEEvi",
    }
    assert list(short_names(names).values()) == [
        "bn_bw_1C11_kernel_new<128>",
        "bn_bw_1C11_kernel_new<512>",
        "elementwise<add, float>",
        "elementwise<add, Half>",
        "alone",
        "inner",
        "inner",
    ]


def test_a_wrapper_is_named_by_the_kernel_and_not_by_the_chip() -> None:
    name = "void ck_tile::kentry<ck_tile::gfx950_t, 2, ck_tile::FmhaFwdKernel<ck_tile::Pipeline<float>>>(int)"
    assert short_name(name) == "FmhaFwdKernel"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("aten::item", "item"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0"),
        ("torchvision::nms", "torchvision::nms"),
        ("PjitFunction(true_divide)", "jit(true_divide)"),
        (
            "## Call CompiledFxGraph fzqwfgrwewfy3y53piq6uadhr7lneg4pofvx3yzepjdzwy5qjary ##",
            "CompiledFxGraph",
        ),
    ],
)
def test_operators(name: str, label: str) -> None:
    assert operator_label(name) == label


@pytest.mark.parametrize(
    ("name", "in_fp32", "on_tensor_cores"),
    [
        ("volta_sgemm_128x64_nn", True, False),
        (
            "void implicit_convolveNd_sgemm<float, 3, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(int)",
            True,
            False,
        ),
        ("void implicit_convolveNd_sgemm<__nv_bfloat16, 3, 1024, 5, 5, 3, 3, 3, 1>(int)", False, False),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize32x32x8_stage3", False, True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", False, True),
        ("sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", False, True),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckcrs_nhwc", True, False),
    ],
)
def test_products_in_full_fp32(name: str, in_fp32: bool, on_tensor_cores: bool | None) -> None:
    assert (is_fp32_gemm(name), is_tensor_core(name)) == (in_fp32, on_tensor_cores)
