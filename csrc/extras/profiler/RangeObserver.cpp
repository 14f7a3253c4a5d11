// The profiler state PRIVATEUSE1: records every operator as a range (openreg/range.h), and nothing
// else.

#include <ATen/record_function.h>
#include <openreg/range.h>
#include <torch/csrc/profiler/standalone/privateuse1_observer.h>
#include <torch/csrc/profiler/util.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>

#include "torch_openreg/core/Exception.h"

namespace at::openreg {
namespace {

using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerStateBase;

// torch looks it up, and removes the callback, when the profiler is disabled.
class RangeState final : public ProfilerStateBase {
 public:
  explicit RangeState(const ProfilerConfig& config) : ProfilerStateBase(config) {}

  ActiveProfilerType profilerType() override { return ActiveProfilerType::PRIVATEUSE1; }
  void reportMemoryUsage(void* /*address*/, int64_t /*size*/, size_t /*allocated*/,
                         size_t /*reserved*/, c10::Device /*device*/) override {}
};

std::string describe(const at::RecordFunction& function) {
  std::string text = function.name();
  if (function.seqNr() >= 0) {
    text += c10::str(", seq = ", function.seqNr());
  }
  if (function.needsInputs()) {
    text += ", sizes = " +
            torch::profiler::impl::shapesToStr(torch::profiler::impl::inputSizes(function));
  }
  return text;
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  OPENREG_CHECK(orRangePush(describe(function).c_str(), nullptr));
  return nullptr;
}

void leave(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {
  OPENREG_CHECK(orRangePop(nullptr));
}

void pushCallbacks(const ProfilerConfig& config,
                   const std::unordered_set<at::RecordScope>& scopes) {
  auto state = std::make_shared<RangeState>(config);
  RangeState* pushed = state.get();
  ProfilerStateBase::push(std::move(state));
  pushed->setCallbackHandle(at::addThreadLocalCallback(at::RecordFunctionCallback(&enter, &leave)
                                                           .needsInputs(config.report_input_shapes)
                                                           .scopes(scopes)));
}

const torch::profiler::impl::RegisterPRIVATEUSE1Observer observer_registration(&pushCallbacks);

}  // namespace
}  // namespace at::openreg
