// Serialization of a tensor's backend metadata.
//
// A vendor stores here what its kernels need for a tensor, such as a private memory format or the
// version of a packing. torch.save stores it as a dictionary of booleans by name; torch.load passes
// it on if the tensor is loaded to the device, and drops it on other devices. Our kernels need no
// metadata: the two flags, `version_number` and `format_number`, are examples.

#include <c10/core/TensorImpl.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <array>
#include <string>
#include <unordered_map>

#include "torch_openreg/core/Functions.h"

namespace at::openreg {
namespace {

using Flags = std::unordered_map<std::string, bool>;

constexpr std::array<const char*, 2> kFlags = {"version_number", "format_number"};

// Immutable, because c10 shares it between a tensor and its shallow copies.
struct TensorMetadata final : c10::BackendMeta {
  std::array<bool, kFlags.size()> values{};
};

// docs: tensor-metadata
void saveMetadata(const Tensor& tensor, Flags& flags) {
  const auto* metadata =
      dynamic_cast<const TensorMetadata*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  for (size_t i = 0; metadata != nullptr && i < kFlags.size(); ++i) {
    if (metadata->values[i]) {
      flags[kFlags[i]] = true;
    }
  }
}

void loadMetadata(const Tensor& tensor, Flags& flags) {
  auto metadata = c10::make_intrusive<TensorMetadata>();
  for (size_t i = 0; i < kFlags.size(); ++i) {
    const auto flag = flags.find(kFlags[i]);
    metadata->values[i] = flag != flags.end() && flag->second;
  }
  tensor.unsafeGetTensorImpl()->set_backend_meta(std::move(metadata));
}

struct MetadataRegistration {
  // torch keeps metadata only for a list of device types.
  MetadataRegistration() {
    if (torch::jit::GetBackendMetaAllowlist().contains(c10::openreg::kDeviceType)) {
      torch::jit::TensorBackendMetaRegistry(c10::openreg::kDeviceType, &saveMetadata,
                                            &loadMetadata);
    }
  }
} metadata_registration;
// docs: end

}  // namespace
}  // namespace at::openreg
