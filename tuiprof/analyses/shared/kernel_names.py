"""Categories of kernels, from their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from tuiprof.model.intervals import Ints, distinct

#: Category by name, the first that matches. Library names first, then PyTorch's native kernels. Names and patterns are
#: compared in lower case, which is several times faster than ignoring case on names of a thousand characters.
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (category, re.compile(pattern.lower()))
    for category, pattern in (
        (
            "collective",
            r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|hccl|xccl|cross_device_reduce",
        ),
        (
            "attention",
            r"flash|fmha|attention|attn|mha_|softmax_warp.*mask|_ZN5flash|paged_|mla_|decode_kernel",
        ),
        ("triton", r"^triton_|^_?triton"),
        (
            "convolution",
            r"conv(?!ert)|cudnn_(?!bn)\d*x\d*|scudnn|compute\w*OffsetsKernel|scalePackedTensor|implicit_gemm|wgrad|dgrad|fprop|im2col|winograd|cudnn::cnn|miopen.*conv|igemm_(fwd|bwd|wrw)",
        ),
        (
            "gemm",
            r"gemm|gemv|cutlass|cublas|xmma|hgemm|sgemm|s\d+gemm|Cijk_|wmma|matmul|_mm_|tensorop|splitKreduce|nvjet|dot_kernel"
            r"|ck::.*(gemm|Gemm)",
        ),
        (
            "norm",
            r"layer_?norm|rms_?norm|batch_?norm|bn_fw|bn_bw|group_?norm|instance_?norm|GammaBeta|RowwiseMoments",
        ),
        ("optimizer", r"multi_tensor_apply|adam|\bsgd_|fused_?lamb|foreach|FusedOptimizer"),
        ("softmax or loss", r"softmax|nll_loss|ClassNLL|cross_entropy"),
        (
            "embedding or index",
            r"embedding|index|gather|scatter|sort|topk|radix|unique|nonzero|masked_select|cub::|rocprim",
        ),
        ("pooling", r"pool"),
        ("interpolation", r"upsample_|grid_sampler"),
        ("reduction", r"reduce|reduction|\bsum\b|argmax|norm_kernel|cumsum|scan"),
        ("copy", r"copy|memcpy|memset|transpose|permute|CatArray|concat|fill|nchwToNhwc|nhwcToNchw|_to_copy"),
        ("random", r"random|dropout|philox|distribution|curand"),
        (
            "elementwise",
            r"elementwise|vectorized|unrolled|pointwise|activation|gelu|relu|silu|sigmoid|tanh|swiglu|addcmul|add_kernel"
            r"|mul_kernel|axpy|OpTensor|fused_",
        ),
    )
)
CATEGORIES: tuple[str, ...] = (*dict.fromkeys(category for category, _ in _RULES), "other")
_TENSOR_CORE = re.compile(
    r"tensorop|wmma|hmma|xmma_(gemm|[fdw](prop|grad)\w*?)_(bf16|f16|e4m3|tf32|i8)|gmma|mma_sync|_tf32"
    r"|s\d{4,5}(gemm|cudnn|fprop|dgrad|wgrad)|(16816|1688|884|16832)|nvjet|fmha|flash|MFMA|_MI\d+x\d+"
    r"|MT\d+x\d+x\d+_MI",
    re.IGNORECASE,
)
#: Matrix products and convolutions on CUDA cores, in full fp32; cuDNN's scudnn has a variant with fp16 operands.
_FP32_GEMM = re.compile(
    r"sgemm|f32f32_f32f32|_ffma|simt_sgemm|gemm_f32f32_f32|Cijk_\w*_SB_|(?<!fp16_)scudnn_(?!fp16)"
    r"|[dw]grad\w*_engine<float\b",
    re.IGNORECASE,
)
#: A few of cuDNN's kernels of that name have operands of 16 bits.
_HALF_OPERANDS = re.compile(r"_s(gemm|cudnn)<(__nv_bfloat16|__half|half)\b")


@lru_cache(maxsize=1 << 16)
def category(name: str) -> str:
    """Return the category of a kernel."""
    lower = name.lower()
    return next((word for word, pattern in _RULES if pattern.search(lower)), "other")


def classify(names: list[str], codes: Ints) -> dict[int, str]:
    """Return the category of each of some distinct names."""
    return {code: category(names[code]) for code in distinct(codes).tolist()}


def is_tensor_core(name: str) -> bool | None:
    """Return whether a matrix product runs on tensor or matrix cores, from its name; None = unknown."""
    if category(name) not in ("gemm", "attention", "convolution"):
        return None
    if _on_cuda_cores(name):
        return False
    return True if _TENSOR_CORE.search(name) else None


def is_fp32_gemm(name: str) -> bool:
    """Return whether a kernel is a matrix product in full fp32, by its name."""
    return _on_cuda_cores(name) and not _HALF_OPERANDS.search(name)


def _on_cuda_cores(name: str) -> bool:
    return bool(_FP32_GEMM.search(name)) and "tf32" not in name.lower()


_RETURN = re.compile(r"^(void|int|float|auto) ")
_FUNCTOR = re.compile(r"::(\w+?)(?:Functor|_functor|_kernel_cuda|_kernel_impl|Ops?|_op)\b|CUDAFunctor_(\w+)")
#: Functors that only give the number of operands.
_GENERIC = {
    "AUnary",
    "BUnary",
    "Unary",
    "Binary",
    "gpu",
    "func_wrapper",
    "TensorList",
    "Reduce",
    "ReduceAdd",
    "opmath",
}
#: Matrix products and convolutions of NVIDIA's libraries: chip, operation, types of operands, arithmetic and result,
#: layouts, tile, and irrelevant details.
_TYPE = r"(?:tf32|bf16|f16|f32|f64|e4m3|e5m2|i8|i32)"
_XMMA = re.compile(
    rf"(?P<what>sm\d+_xmma_[a-z]+)_(?:\w+?_)?{_TYPE}{{2}}_(?P<math>{_TYPE}){_TYPE}_{_TYPE}(?P<layout>_[nt]{{2}}_[nt])?"
    r"\w*?_tilesize(?P<tile>\d+x\d+x\d+)(?:\w*_(?P<split>split_k))?"
)
#: The same for AMD: layouts of A and B, types, and the macro tile among about sixty settings.
_TENSILE = re.compile(r"(Cijk_A\w{3}_B\w{3}_[A-Z]\w*?)_(?:[A-Z]+_|Bias_)*\w*?(MT\d+x\d+x\d+)_")
#: Kernels whose first template argument is the operation.
_WRAPPERS = {"Kernel", "Kernel2", "device_kernel", "kernel", "kernel_kernel", "kentry"}
#: Template arguments that are a number or a chip.
_NO_KERNEL = re.compile(r"\d\w*|gfx\w+")
#: Words that may distinguish two kernels: not the inside of mangled names, nor namespaces.
_WORD = re.compile(r"(?<![A-Za-z0-9])(?!c10|anonymous|namespace)[A-Za-z0-9]{1,32}(?![A-Za-z0-9])")
#: Maximum number of distinguishing words to show.
_APART = 2


def short_names(names: Mapping[int, str]) -> dict[int, str]:
    """Return the short name of each kernel; kernels with the same one get distinguishing words.

    Two instances of one template become ``bn_fw<128>`` and ``bn_fw<512>``.
    """
    short = {code: short_name(name) for code, name in names.items()}
    same: dict[str, list[int]] = {}
    for code, text in short.items():
        if not names[code].startswith("_Z"):  # a mangled name is one word
            same.setdefault(text, []).append(code)
    for text, codes in same.items():
        if len(codes) > 1:
            words = {code: dict.fromkeys(_WORD.findall(names[code])) for code in codes}
            shared = set.intersection(*map(set, words.values()))
            for code in codes:
                own = ", ".join([word for word in words[code] if word not in shared][:_APART])
                inside = f"{text[:-1]}, {own}>" if text.endswith(">") else f"{text}<{own}>"
                short[code] = inside if own else text
    return short


@lru_cache(maxsize=1 << 16)
def short_name(name: str) -> str:
    """Return a kernel's name without return type, namespaces, template and call arguments.

    PyTorch's elementwise kernels differ by the functor, so it is kept: ``vectorized_elementwise<Mul>`` rather than
    ``vectorized_elementwise_kernel``. For generated matrix products and convolutions of NVIDIA's and AMD's libraries,
    the name has operation, arithmetic and tile, as in ``sm90_xmma_wgrad_tf32_128x64x32``.
    """
    if name.startswith("_Z") and (inner := _mangled(name)):
        return inner
    if found := _XMMA.match(name):
        layout = (found["layout"] or "")[:3]
        parts = (found["what"] + layout, found["math"], found["tile"], found["split"])
        return "_".join(part for part in parts if part)
    if found := _TENSILE.match(name):
        return f"{found[1]}_{found[2]}"
    plain = _RETURN.sub("", name).replace("(anonymous namespace)::", "")
    head, *rest = re.split(r"[<(]", plain, maxsplit=1)
    base = head.rsplit("::", 1)[-1] or head
    if base in _WRAPPERS and rest:
        arguments = (part.strip().rsplit("::", 1)[-1] for part in re.split(r"[<,>(]", rest[0]))
        return next((part for part in arguments if part and not _NO_KERNEL.fullmatch(part)), base)
    if "elementwise" in base or "reduce" in base or "multi_tensor" in base:
        words = [a or b for a, b in _FUNCTOR.findall(plain[len(head) :])]
        words = [word for word in words if word not in _GENERIC]
        if words:
            return f"{base.removesuffix('_kernel')}<{words[-1]}>"
    return base


def _mangled(name: str) -> str:
    """Return the innermost name of a symbol mangled by the Itanium C++ ABI; empty if it cannot be parsed."""
    base, rest = _identifier(name.removeprefix("_Z").removeprefix("N"))
    if base in _WRAPPERS and rest.startswith("I"):
        # The wrapped kernel is the first argument that is not a literal (`Li1E` is the number 1).
        first = re.sub(r"^I(?:L[a-z]\w*?E)*N?(?:S\d*_|St)?", "", rest)
        return _identifier(first)[0] or base
    return base


def _identifier(text: str) -> tuple[str, str]:
    """Parse names of the form `<length><name>` at the front of a text; return the last of them and the rest."""
    last = ""
    while match := re.match(r"\d+", text):
        start, length = match.end(), int(match[0])
        if start + length > len(text):
            break
        last, text = text[start : start + length], text[start + length :]
    return last, text
