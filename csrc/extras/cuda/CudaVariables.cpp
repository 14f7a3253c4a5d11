#include "csrc/extras/cuda/CudaVariables.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "csrc/core/Settings.h"
#include "torch_openreg/core/Exception.h"

namespace at::openreg {
namespace {

using c10::openreg::Setting;

const Setting kCapability{"OPENREG_CUDA_CAPABILITY", "8.0", "<version>",
                          "The compute capability that devices have with OPENREG_DEVICE_TYPE=cuda.",
                          "a major and a minor version, such as 9.0"};

const Setting kVersion{"OPENREG_CUDA_VERSION", "none", "none <version>",
                       "What torch.version.cuda is with OPENREG_DEVICE_TYPE=cuda in a build of "
                       "torch without CUDA. Read by import torch.",
                       "none, or a major and a minor version, such as 12.8"};

const Setting kOverGpu{
    "OPENREG_CUDA_OVER_GPU", "0", "0 1",
    "1: OPENREG_DEVICE_TYPE=cuda takes the place of GPUs that torch could use; 0: it is refused "
    "on such a machine. Read by import torch."};

const Setting kNotice{
    "OPENREG_CUDA_NOTICE", "1", "0 1",
    "1: with OPENREG_DEVICE_TYPE=cuda, the first use says so, in one line on stderr."};

std::optional<int> parseDevice(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  text = text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
  int number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc{} && rest == text.data() + text.size();
  return is_number ? std::optional(number) : std::nullopt;
}

// CUDA's list of devices, as OPENREG_VISIBLE_DEVICES names them.
std::string visibleDevices(std::string_view rest, int device_count) {
  std::vector<int> devices;
  std::string text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::optional<int> device = parseDevice(rest.substr(0, comma));
    if (!device || *device < 0 || *device >= device_count) {
      break;
    }
    if (std::find(devices.begin(), devices.end(), *device) != devices.end()) {
      return {};
    }
    devices.push_back(*device);
    text += (text.empty() ? "" : ",") + std::to_string(*device);
    if (comma == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(comma + 1);
  }
  return text;
}

// See orSettingSourceFn, and Note [CUDA's variables].
const char* findInCudasVariables(const char* variable, int device_count, const char** source) {
  const char* type = std::getenv("OPENREG_DEVICE_TYPE");
  if (type == nullptr || std::string_view(type) != "cuda") {
    return nullptr;
  }
  const std::string_view name = variable;
  if (name == "OPENREG_VISIBLE_DEVICES") {
    *source = "CUDA_VISIBLE_DEVICES";
  } else if (name == "OPENREG_LAUNCH_BLOCKING") {
    *source = "CUDA_LAUNCH_BLOCKING";
  } else {
    return nullptr;
  }
  const char* given = std::getenv(*source);
  if (given == nullptr) {
    return nullptr;
  }
  if (name == "OPENREG_LAUNCH_BLOCKING") {
    return std::string_view(given) == "1" ? "1" : "0";
  }
  thread_local std::string devices;
  devices = visibleDevices(given, device_count);
  return devices.c_str();
}

[[maybe_unused]] const bool is_source_set = [] {
  OPENREG_CHECK(orSetSettingSource(&findInCudasVariables));
  return true;
}();

}  // namespace

std::string_view cudaCapability() { return kCapability.text(); }

}  // namespace at::openreg
