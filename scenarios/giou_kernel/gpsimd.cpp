// GIoU scores on GpSimd, the eight general-purpose cores of a NeuronCore-v2. Compiled by torch_neuronx's custom_op for
// these cores, whose C++ is of 2014.
#include <torch/torch.h>

#include "giou_pairs.h"
#include "neuron/neuron-utils.hpp"

// Every core runs this. A core copies the boxes of some pairs into its tightly coupled memory (TCM), computes, and copies
// the scores back; with several cores at work, there is no other way to read and write tensors.
torch::Tensor giou_scores(const torch::Tensor& first, const torch::Tensor& second, double epsilon) {
  constexpr size_t kPairs = 384;  // 9 floats each: 13.5 KiB of the 16 KiB that can be had
  torch::Tensor scores = get_dst_tensor();
  float* const boxes = static_cast<float*>(torch::neuron::tcm_malloc(9 * kPairs * sizeof(float)));
  if (boxes == nullptr) return scores;
  float* const others = boxes + 4 * kPairs;
  float* const results = others + 4 * kPairs;
  auto firstMemory = first.tcm_accessor();
  auto secondMemory = second.tcm_accessor();
  auto scoresMemory = scores.tcm_accessor();

  const giou::Range mine = giou::pairsOf(get_cpu_id(), get_cpu_count(), scores.numel());
  for (size_t done = 0; done < mine.count; done += kPairs) {
    const size_t pairs = mine.count - done < kPairs ? mine.count - done : kPairs;
    const size_t pair = mine.first + done;
    firstMemory.tensor_to_tcm<float>(boxes, 4 * pair, 4 * pairs);
    secondMemory.tensor_to_tcm<float>(others, 4 * pair, 4 * pairs);
    giou::scorePairs(boxes, others, results, pairs, static_cast<float>(epsilon));
    scoresMemory.tcm_to_tensor<float>(results, pair, pairs);
  }
  torch::neuron::tcm_free(boxes);
  return scores;
}
