#include "csrc/extras/dry_run/ResultSizes.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/result_type.h>
#include <c10/util/Exception.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "csrc/aten/fallback/BoxedCall.h"
#include "csrc/aten/fallback/CallPlan.h"
#include "csrc/aten/fallback/Prediction.h"
#include "csrc/extras/dry_run/SparseResults.h"

namespace at::openreg {
namespace {

// The arguments of a call by their names, and the number that is guessed.
class Sizing {
 public:
  Sizing(const BoxedCall& call, GuessedSizes policy) : call_(call), policy_(policy) {}

  const c10::IValue& argument(const char* name) const {
    const auto index = call_.schema().argumentIndexWithName(name);
    TORCH_INTERNAL_ASSERT(index.has_value(), call_.schema().name(), " has no argument ", name);
    return call_.argument(*index);
  }
  Tensor tensor(const char* name) const {
    const c10::IValue& value = argument(name);
    return value.isNone() ? Tensor() : value.toTensor();
  }
  Tensor operand(size_t index) const { return call_.argument(index).toTensor(); }
  Tensor strided(size_t index) const {
    Tensor tensor = operand(index);
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == kStrided, call_.known().name(),
                                ": its kernel is skipped, and the number of elements of a sparse "
                                "result depends on data");
    return tensor;
  }
  const c10::FunctionSchema& schema() const { return call_.schema(); }
  bool flag(const char* name) const { return argument(name).toBool(); }

  // A number of results of at most so many, and at least one if there is an element at all.
  int64_t guess(int64_t most, int64_t least = 0) const {
    return policy_ == GuessedSizes::Worst ? most : std::min(least, most);
  }

 private:
  const BoxedCall& call_;
  const GuessedSizes policy_;
};

PlannedResult newTensor(IntArrayRef sizes, ScalarType dtype) {
  PlannedTensor planned;
  planned.kind = PlannedTensor::Kind::New;
  planned.dtype = dtype;
  planned.sizes = DimVector(sizes);
  planned.strides = c10::contiguous_strides(sizes);
  return {.is_list = false, .tensors = {std::move(planned)}};
}

PlannedResult newLike(const Tensor& tensor) {
  return newTensor(tensor.sizes(), tensor.scalar_type());
}

// As LAPACK writes matrices: column by column.
PlannedResult newMatrices(const Tensor& tensor) {
  PlannedResult result = newLike(tensor);
  DimVector& strides = result.tensors.front().strides;
  const auto dims = static_cast<size_t>(tensor.dim());
  strides[dims - 2] = 1;
  strides[dims - 1] = std::max<int64_t>(tensor.size(-2), 1);
  return result;
}

using Results = std::vector<PlannedResult>;
using Rule = Results (*)(const Sizing& call);

// --- Sizes in data

Results nonzero(const Sizing& call) {
  const Tensor self = call.tensor("self");
  return {newTensor({call.guess(self.numel()), self.dim()}, kLong)};
}

Results maskedSelect(const Sizing& call) {
  const Tensor self = call.tensor("self");
  const auto sizes = at::infer_size(self.sizes(), call.tensor("mask").sizes());
  return {newTensor({call.guess(c10::multiply_integers(sizes))}, self.scalar_type())};
}

Results uniqueElements(const Sizing& call, bool has_inverse, bool has_counts) {
  const Tensor self = call.tensor("self");
  const int64_t count = call.guess(self.numel(), /*least=*/1);
  const auto some = [](bool is_there, IntArrayRef sizes) {
    return newTensor(is_there ? sizes : IntArrayRef{0}, kLong);
  };
  return {newTensor({count}, self.scalar_type()), some(has_inverse, self.sizes()),
          some(has_counts, {count})};
}

Results unique(const Sizing& call) {
  Results results = uniqueElements(call, call.flag("return_inverse"), /*has_counts=*/false);
  results.pop_back();
  return results;
}

Results unique2(const Sizing& call) {
  return uniqueElements(call, call.flag("return_inverse"), call.flag("return_counts"));
}

Results uniqueSlices(const Sizing& call, int64_t dim, bool has_inverse, bool has_counts) {
  const Tensor self = call.tensor("self");
  DimVector sizes(self.sizes());
  const int64_t wrapped = dim < 0 ? dim + self.dim() : dim;
  const int64_t all = sizes[wrapped];
  sizes[wrapped] = call.guess(all, /*least=*/1);
  return {newTensor(sizes, self.scalar_type()), newTensor({has_inverse ? all : 0}, kLong),
          newTensor({has_counts ? sizes[wrapped] : 0}, kLong)};
}

Results uniqueAlong(const Sizing& call) {
  return uniqueSlices(call, call.argument("dim").toInt(), call.flag("return_inverse"),
                      call.flag("return_counts"));
}

Results uniqueConsecutive(const Sizing& call) {
  return call.argument("dim").isNone() ? unique2(call) : uniqueAlong(call);
}

// As many bins as elements: the number of bins is the largest element, which has no limit.
Results bincount(const Sizing& call) {
  const Tensor weights = call.tensor("weights");
  const ScalarType dtype = !weights.defined()                ? kLong
                           : weights.scalar_type() == kFloat ? kFloat
                                                             : kDouble;
  const int64_t least = call.argument("minlength").toInt();
  return {newTensor({std::max(least, call.guess(call.tensor("self").numel()))}, dtype)};
}

// Each element once: the number of repetitions has no limit.
Results repeatInterleave(const Sizing& call) {
  const Tensor repeats = call.tensor("repeats");
  return {newTensor({call.guess(repeats.numel())}, repeats.scalar_type())};
}

// --- Sizes in arguments

// Of a dense and a sparse operand.
Results sum(const Sizing& call) {
  const Tensor self = call.strided(0);
  return {newTensor(self.sizes(), at::result_type(self, call.operand(1)))};
}

// Of a sparse and a dense operand.
Results product(const Sizing& call) {
  const c10::FunctionSchema& schema = call.schema();
  const bool has_addend = schema.argumentIndexWithName("mat1").has_value() ||
                          schema.argumentIndexWithName("batch1").has_value();
  const Tensor first = call.operand(has_addend ? 1 : 0);
  const Tensor second = call.strided(has_addend ? 2 : 1);
  DimVector sizes(first.sizes().slice(0, first.dim() - 1));
  if (second.dim() > 1) {
    sizes.push_back(second.size(-1));
  }
  return {newTensor(sizes, second.scalar_type())};
}

Results noResults(const Sizing& /*call*/) { return {}; }
Results likeSelf(const Sizing& call) { return {newLike(call.tensor("self"))}; }
Results likeLogProbs(const Sizing& call) { return {newLike(call.tensor("log_probs"))}; }

Results factorsOfQr(const Sizing& call) {
  const Tensor self = call.tensor("self");
  DimVector sizes(self.sizes().slice(0, self.dim() - 1));
  sizes.back() = std::min(self.size(-2), self.size(-1));
  return {newMatrices(self), newTensor(sizes, self.scalar_type())};
}

Results histogramOfCount(const Sizing& call) {
  const int64_t bins = call.argument("bins").toInt();
  const ScalarType dtype = call.tensor("self").scalar_type();
  return {newTensor({bins}, dtype), newTensor({bins + 1}, dtype)};
}

Results histogramOfEdges(const Sizing& call) {
  const Tensor bins = call.tensor("bins");
  return {newTensor({bins.numel() - 1}, call.tensor("self").scalar_type()), newLike(bins)};
}

Results edgesOfHistogram(const Sizing& call) {
  PlannedResult edges{.is_list = true, .tensors = {}};
  for (const int64_t bins : call.argument("bins").toIntVector()) {
    PlannedResult one = newTensor({bins + 1}, call.tensor("self").scalar_type());
    edges.tensors.push_back(std::move(one.tensors.front()));
  }
  return {std::move(edges)};
}

Results histogramOfCounts(const Sizing& call) {
  return {newTensor(call.argument("bins").toIntVector(), call.tensor("self").scalar_type())};
}

Results histogramOfTensors(const Sizing& call) {
  DimVector sizes;
  for (const Tensor& bins : call.argument("bins").toTensorVector()) {
    sizes.push_back(bins.numel() - 1);
  }
  return {newTensor(sizes, call.tensor("self").scalar_type())};
}

struct Entry {
  Rule rule;
  bool is_guess;
};

const Entry* entryOf(std::string_view kernel) {
  static const std::unordered_map<std::string_view, Entry> entries{
      {"aten::nonzero", {&nonzero, true}},
      {"aten::masked_select", {&maskedSelect, true}},
      {"aten::_unique", {&unique, true}},
      {"aten::_unique2", {&unique2, true}},
      {"aten::unique_dim", {&uniqueAlong, true}},
      {"aten::unique_consecutive", {&uniqueConsecutive, true}},
      {"aten::unique_dim_consecutive", {&uniqueAlong, true}},
      {"aten::bincount", {&bincount, true}},
      {"aten::repeat_interleave.Tensor", {&repeatInterleave, true}},
      {"aten::_cummax_helper", {&noResults, false}},
      {"aten::_cummin_helper", {&noResults, false}},
      {"aten::multi_margin_loss_backward", {&likeSelf, false}},
      {"aten::multilabel_margin_loss_backward", {&likeSelf, false}},
      {"aten::fractional_max_pool3d_backward", {&likeSelf, false}},
      {"aten::_ctc_loss_backward", {&likeLogProbs, false}},
      {"aten::geqrf", {&factorsOfQr, false}},
      {"aten::histogram.bin_ct", {&histogramOfCount, false}},
      {"aten::histogram.bins_tensor", {&histogramOfEdges, false}},
      {"aten::_histogramdd_bin_edges", {&edgesOfHistogram, false}},
      {"aten::_histogramdd_from_bin_cts", {&histogramOfCounts, false}},
      {"aten::_histogramdd_from_bin_tensors", {&histogramOfTensors, false}},
      {"aten::add.Tensor", {&sum, false}},
      {"aten::add_.Tensor", {&sum, false}},
      {"aten::addmm", {&product, false}},
      {"aten::addmm_", {&product, false}},
      {"aten::addmm.out", {&product, false}},
      {"aten::bmm", {&product, false}},
      {"aten::bmm.out", {&product, false}},
      {"aten::mm", {&product, false}},
      {"aten::mm.out", {&product, false}},
      {"aten::mv", {&product, false}},
      {"aten::sub.Tensor", {&sum, false}},
      {"aten::sub_.Tensor", {&sum, false}},
  };
  const auto found = entries.find(kernel);
  return found == entries.end() ? nullptr : &found->second;
}

GuessedSizes policy = GuessedSizes::Worst;  // set before the first call
ReportGuess report = nullptr;

void noteGuess(const std::string& kernel) {
  TORCH_CHECK(policy != GuessedSizes::Error, kernel,
              ": in a dry run, the sizes of its results are unknown, since they depend on data "
              "that is made up; OPENREG_DRY_RUN_SIZES=worst or none guesses them");
  report(kernel.c_str());
}

// The rules are for new results. Those that the call writes are its arguments.
void replaceWritten(const BoxedCall& call, CallPlan& plan) {
  const auto tensors = call.deviceTensors();
  for (size_t i = 0; i < plan.results.size(); ++i) {
    const c10::AliasInfo* const alias = call.schema().returns()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) {
      continue;
    }
    PlannedTensor& planned = plan.results[i].tensors.front();
    for (size_t index = 0; index < call.schema().arguments().size(); ++index) {
      const c10::AliasInfo* const written = call.schema().arguments()[index].alias_info();
      if (written == nullptr || written->beforeSets() != alias->beforeSets()) {
        continue;
      }
      const Tensor& argument = call.argument(index).toTensor();
      const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor* tensor) {
        return tensor->is_same(argument);
      });
      TORCH_INTERNAL_ASSERT(found != tensors.end(), call.known().name(), " writes no tensor here");
      const auto place = static_cast<size_t>(found - tensors.begin());
      if (argument.sizes() != planned.sizes) {
        plan.resizes.push_back({place, planned.sizes, planned.strides});
      }
      planned = PlannedTensor::argument(place);
      break;
    }
  }
}

std::shared_ptr<CallPlan> describe(BoxedCall& call) {
  const std::string& name = call.known().name();
  const Entry* const entry = entryOf(name);
  if (entry == nullptr) {
    return nullptr;
  }
  if (entry->is_guess) {
    noteGuess(name);
  }
  auto plan = std::make_shared<CallPlan>();
  plan->results = entry->rule(Sizing(call, policy));
  replaceWritten(call, *plan);
  return plan;
}

bool compose(BoxedCall& call, torch::jit::Stack* stack) {
  return composeSparse(call, stack, [&](int64_t most, int64_t least) {
    noteGuess(call.known().name());
    return policy == GuessedSizes::Worst ? most : least;
  });
}

}  // namespace

void startDescribing(GuessedSizes sizes, ReportGuess report_guess) {
  policy = sizes;
  report = report_guess;
  setDescription(&describe, &compose);
}

bool areSizesInData(std::string_view kernel) {
  const Entry* const entry = entryOf(kernel);
  return kernel == "aten::_coalesce" || (entry != nullptr && entry->is_guess);
}

}  // namespace at::openreg
