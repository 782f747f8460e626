"""Kernel names as people read them."""

from __future__ import annotations

import pytest

from tuiprof.analyses._kernel_names import short_name


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
    ],
)
def test_short_names(symbol: str, name: str) -> None:
    assert short_name(symbol) == name
