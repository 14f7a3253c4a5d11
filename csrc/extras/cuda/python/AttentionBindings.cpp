#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "csrc/aten/attention/AttentionChoice.h"
#include "csrc/python/Bindings.h"

namespace torch_openreg {

namespace {

// The arguments from `query` on are those of torch.backends.cuda.SDPAParams, in its order; the
// algorithm is a number of torch.nn.attention.SDPBackend.
bool canUseAttention(int64_t algorithm, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::optional<at::Tensor>& attn_mask,
                     double dropout, bool is_causal, bool enable_gqa, bool warns) {
  return at::openreg::canUseAttention(
      static_cast<at::SDPBackend>(algorithm),
      {query, key, value, attn_mask, dropout, is_causal, enable_gqa}, warns);
}

void bindAttention(pybind11::module_& m) {
  using pybind11::arg;
  // The wrapper turns warnings into Python's.
  m.def("_can_use_attention", torch::wrap_pybind_function(&canUseAttention), arg("algorithm"),
        arg("query"), arg("key"), arg("value"), arg("attn_mask"), arg("dropout"), arg("is_causal"),
        arg("enable_gqa"), arg("warns"));
}

const Bindings kAttentionBindings(&bindAttention);

}  // namespace

}  // namespace torch_openreg
