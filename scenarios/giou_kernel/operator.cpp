// Registers the kernel of giou.cu as torch.ops.tuiprof_giou.scores.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cstdint>

int launchGiouScores(const float* first, const float* second, float* scores, int pairs, float epsilon, void* stream);

namespace {

// Two batches of boxes [..., 4] in float32, the epsilon, and the stream's address; returns the scores [...].
at::Tensor scores(const at::Tensor& first, const at::Tensor& second, double epsilon, int64_t stream) {
  TORCH_CHECK(first.is_cuda() && second.device() == first.device(), "both batches must be on one CUDA device");
  TORCH_CHECK(first.scalar_type() == at::kFloat && second.scalar_type() == at::kFloat, "boxes must be float32");
  TORCH_CHECK(first.sizes() == second.sizes() && first.dim() > 0 && first.size(-1) == 4,
              "boxes must be two batches [..., 4] of one shape, not ", first.sizes(), " and ", second.sizes());
  TORCH_CHECK(first.numel() / 4 <= INT32_MAX, "too many boxes for one launch");
  const at::Tensor a = first.contiguous(), b = second.contiguous();
  at::Tensor result = at::empty(first.sizes().slice(0, first.dim() - 1), first.options());
  const int status = launchGiouScores(a.const_data_ptr<float>(), b.const_data_ptr<float>(),
                                      result.mutable_data_ptr<float>(), static_cast<int>(result.numel()),
                                      static_cast<float>(epsilon), reinterpret_cast<void*>(stream));
  TORCH_CHECK(status == 0, "the kernel could not be launched: CUDA error ", status);
  return result;
}

}  // namespace

TORCH_LIBRARY(tuiprof_giou, library) {
  library.def("scores(Tensor first, Tensor second, float epsilon, int stream) -> Tensor", scores);
}
