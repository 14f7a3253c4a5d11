// LSTM, GRU and plain recurrent networks: cells applied to sequences, directions and layers. See
// Note [Recurrent networks].

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/aten/parity/RecurrentCells.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

std::vector<LayerParameters> splitParameters(const char* name, TensorList params, bool has_biases,
                                             bool has_projections, int64_t layers) {
  const size_t per_layer = (has_biases ? 4 : 2) + (has_projections ? 1 : 0);
  TORCH_CHECK(params.size() == per_layer * static_cast<size_t>(layers), name, ": expected ",
              per_layer, " parameters for each of ", layers, " layers and directions, got ",
              params.size());
  std::vector<LayerParameters> result;
  for (size_t i = 0; i < params.size(); i += per_layer) {
    LayerParameters layer{params[i], params[i + 1], {}, {}, {}};
    if (has_biases) {
      layer.input_bias = params[i + 2];
      layer.hidden_bias = params[i + 3];
    }
    if (has_projections) {
      layer.projection = params[i + per_layer - 1];
    }
    result.push_back(std::move(layer));
  }
  return result;
}

// The result of one layer in one direction: the outputs in time order, and the last state.
template <typename State>
struct LayerResult {
  Tensor outputs;
  State state;
};

// Over sequences of equal length, `input` of shape (time, batch, feature).
template <typename Cell>
LayerResult<typename Cell::State> runLayer(const Tensor& input, typename Cell::State state,
                                           const LayerParameters& layer, bool is_reverse) {
  std::vector<Tensor> gates = layer.inputGates(input).unbind(0);
  if (is_reverse) {
    std::reverse(gates.begin(), gates.end());
  }
  std::vector<Tensor> outputs;
  for (const Tensor& gate : gates) {
    state = Cell::step(gate, state, layer);
    outputs.push_back(state.hidden);
  }
  if (is_reverse) {
    std::reverse(outputs.begin(), outputs.end());
  }
  return {at::stack(outputs, 0), std::move(state)};
}

// Sequences of different lengths, sorted by decreasing length, stored step by step: `batch_sizes`
// has the number of sequences at each step.
struct PackedInput {
  Tensor data;
  std::vector<int64_t> batch_sizes;
};

template <typename Cell>
LayerResult<typename Cell::State> runPackedLayer(const PackedInput& input,
                                                 typename Cell::State state,
                                                 const LayerParameters& layer) {
  using State = typename Cell::State;
  const Tensor gates = layer.inputGates(input.data);
  std::vector<Tensor> outputs;
  std::vector<State> ended;  // states of finished sequences, shortest last
  int64_t offset = 0;
  int64_t previous = input.batch_sizes.front();
  for (const int64_t size : input.batch_sizes) {
    if (size < previous) {
      ended.push_back(
          state.map([&](const Tensor& tensor) { return tensor.narrow(0, size, previous - size); }));
      state = state.map([&](const Tensor& tensor) { return tensor.narrow(0, 0, size); });
    }
    state = Cell::step(gates.narrow(0, offset, size), state, layer);
    outputs.push_back(state.hidden);
    offset += size;
    previous = size;
  }
  ended.push_back(state);
  std::reverse(ended.begin(), ended.end());
  return {at::cat(outputs, 0), State::combine(ended, [](const std::vector<Tensor>& parts) {
            return at::cat(parts, 0);
          })};
}

template <typename Cell>
LayerResult<typename Cell::State> runReversedPackedLayer(const PackedInput& input,
                                                         const typename Cell::State& initial,
                                                         const LayerParameters& layer) {
  using State = typename Cell::State;
  const Tensor gates = layer.inputGates(input.data);
  std::vector<Tensor> outputs;
  int64_t offset = input.data.size(0);
  int64_t previous = input.batch_sizes.back();
  State state = initial.map([&](const Tensor& tensor) { return tensor.narrow(0, 0, previous); });
  for (auto size = input.batch_sizes.rbegin(); size != input.batch_sizes.rend(); ++size) {
    if (*size > previous) {
      const State joining = initial.map(
          [&](const Tensor& tensor) { return tensor.narrow(0, previous, *size - previous); });
      state = State::combine({state, joining},
                             [](const std::vector<Tensor>& parts) { return at::cat(parts, 0); });
    }
    offset -= *size;
    state = Cell::step(gates.narrow(0, offset, *size), state, layer);
    outputs.push_back(state.hidden);
    previous = *size;
  }
  std::reverse(outputs.begin(), outputs.end());
  return {at::cat(outputs, 0), std::move(state)};
}

template <typename Cell>
LayerResult<typename Cell::State> runDirection(const Tensor& input, typename Cell::State state,
                                               const LayerParameters& layer, bool is_reverse) {
  return runLayer<Cell>(input, std::move(state), layer, is_reverse);
}

template <typename Cell>
LayerResult<typename Cell::State> runDirection(const PackedInput& input, typename Cell::State state,
                                               const LayerParameters& layer, bool is_reverse) {
  return is_reverse ? runReversedPackedLayer<Cell>(input, state, layer)
                    : runPackedLayer<Cell>(input, std::move(state), layer);
}

Tensor& dataOf(Tensor& input) { return input; }
Tensor& dataOf(PackedInput& input) { return input.data; }

struct Options {
  bool is_bidirectional;
  double dropout;
  bool is_training;

  int64_t directions() const { return is_bidirectional ? 2 : 1; }

  Tensor dropBetweenLayers(const Tensor& output) const {
    return is_training && dropout != 0 ? at::dropout(output, dropout, /*train=*/true) : output;
  }
};

// All layers. `states` and the returned states are ordered by layer, then direction.
template <typename Cell, typename Input>
std::pair<Tensor, std::vector<typename Cell::State>> runLayers(
    Input input, const std::vector<typename Cell::State>& states,
    const std::vector<LayerParameters>& layers, const Options& options) {
  std::vector<typename Cell::State> last;
  const auto directions = static_cast<size_t>(options.directions());
  for (size_t first = 0; first < layers.size(); first += directions) {
    std::vector<Tensor> outputs;
    for (size_t direction = 0; direction < directions; ++direction) {
      auto result = runDirection<Cell>(input, states[first + direction], layers[first + direction],
                                       /*is_reverse=*/direction == 1);
      outputs.push_back(std::move(result.outputs));
      last.push_back(std::move(result.state));
    }
    const Tensor output = directions == 1 ? outputs.front() : at::cat(outputs, -1);
    dataOf(input) = first + directions < layers.size() ? options.dropBetweenLayers(output) : output;
  }
  return {dataOf(input), std::move(last)};
}

Tensor timeFirst(const Tensor& input, bool batch_first) {
  return batch_first ? input.transpose(0, 1) : input;
}

PackedInput packed(const Tensor& data, const Tensor& batch_sizes) {
  TORCH_CHECK(batch_sizes.is_cpu() && batch_sizes.scalar_type() == kLong && batch_sizes.dim() == 1,
              "packed sequence: expected batch_sizes as an int64 vector on the CPU, got ",
              batch_sizes.toString(), " of ", batch_sizes.dim(), " dimensions");
  TORCH_CHECK(batch_sizes.numel() > 0,
              "packed sequence: expected at least one time step, got none");
  const int64_t* sizes = batch_sizes.const_data_ptr<int64_t>();
  return {data, std::vector<int64_t>(sizes, sizes + batch_sizes.numel())};
}

// The rules of cuDNN, for networks that CUDA runs by it: the device type is CUDA, cuDNN is not
// disabled, and it has the dtype.
class CudnnRules {
 public:
  // Errors: those of cuDNN's kernel.
  CudnnRules(const Tensor& input, TensorList params, TensorList hiddens, bool is_training)
      : allows_backward_(is_training || !areInForce(input)) {
    if (!areInForce(input)) {
      return;
    }
    at::native::check_attributes(input, params, hiddens, /*check_dtype=*/true);
    TORCH_CHECK(hiddens[0].is_contiguous(), "rnn: hx is not contiguous");
    TORCH_CHECK(hiddens.size() == 1 || hiddens[1].is_contiguous(), "rnn: cx is not contiguous");
  }

  // Returns the results. A backward pass from them raises an error where cuDNN's does.
  template <typename... Tensors>
  std::tuple<Tensors...> of(std::tuple<Tensors...> results) const {
    if (!allows_backward_) {
      std::apply([](const auto&... result) { (forbidBackward(result), ...); }, results);
    }
    return results;
  }

 private:
  static bool areInForce(const Tensor& input) {
    const ScalarType dtype = input.scalar_type();
    return c10::openreg::servesCuda() && at::globalContext().userEnabledCuDNN() &&
           input.numel() != 0 && (dtype == kFloat || dtype == kDouble || dtype == kHalf);
  }

  static void forbidBackward(const Tensor& result) {
    if (result.requires_grad()) {
      result.register_hook([](const Tensor& /*gradient*/) {
        TORCH_CHECK(false, "cudnn RNN backward can only be called in training mode");
      });
    }
  }

  const bool allows_backward_;
};

// Networks whose state is one tensor.
template <typename Cell>
struct PlainNetwork {
  static std::tuple<Tensor, Tensor> run(const Tensor& input, const Tensor& hx, TensorList params,
                                        bool has_biases, int64_t num_layers, double dropout,
                                        bool train, bool bidirectional, bool batch_first) {
    const CudnnRules rules(input, params, hx, train);
    at::native::check_attributes(input, params, hx);
    auto [output, hidden] = runOn(timeFirst(input, batch_first), hx, params, has_biases, num_layers,
                                  {bidirectional, dropout, train});
    return rules.of(std::tuple(timeFirst(output, batch_first), std::move(hidden)));
  }

  static std::tuple<Tensor, Tensor> runPacked(const Tensor& data, const Tensor& batch_sizes,
                                              const Tensor& hx, TensorList params, bool has_biases,
                                              int64_t num_layers, double dropout, bool train,
                                              bool bidirectional) {
    const CudnnRules rules(data, params, hx, train);
    return rules.of(runOn(packed(data, batch_sizes), hx, params, has_biases, num_layers,
                          {bidirectional, dropout, train}));
  }

 private:
  template <typename Input>
  static std::tuple<Tensor, Tensor> runOn(Input input, const Tensor& hx, TensorList params,
                                          bool has_biases, int64_t num_layers, Options options) {
    const auto layers = splitParameters("rnn", params, has_biases, /*has_projections=*/false,
                                        num_layers * options.directions());
    std::vector<PlainState> states;
    for (const Tensor& hidden : hx.unbind(0)) {
      states.push_back({hidden});
    }
    auto [output, last] = runLayers<Cell>(std::move(input), states, layers, options);
    const auto stack = [](const std::vector<Tensor>& parts) { return at::stack(parts, 0); };
    return {std::move(output), PlainState::combine(last, stack).hidden};
  }
};

using Lstm = std::tuple<Tensor, Tensor, Tensor>;

template <typename Input>
Lstm runLstm(Input input, TensorList hx, TensorList params, bool has_biases, int64_t num_layers,
             Options options) {
  TORCH_CHECK(hx.size() == 2, "lstm: expected two hidden states, got ", hx.size());
  const bool has_projections = hx[0].size(2) != hx[1].size(2);
  const auto layers = splitParameters("lstm", params, has_biases, has_projections,
                                      num_layers * options.directions());
  const std::vector<Tensor> hidden = hx[0].unbind(0);
  const std::vector<Tensor> cell = hx[1].unbind(0);
  std::vector<LstmState> states;
  for (size_t i = 0; i < hidden.size(); ++i) {
    states.push_back({hidden[i], cell[i]});
  }
  auto [output, last] = runLayers<LstmCell>(std::move(input), states, layers, options);
  const LstmState stacked = LstmState::combine(
      last, [](const std::vector<Tensor>& parts) { return at::stack(parts, 0); });
  return {std::move(output), stacked.hidden, stacked.cell};
}

// oneDNN's LSTM, one layer at a time.
constexpr int64_t kOneDnnLstm = 2;

// Calls an operator "mkldnn::..." that returns whether the machine supports its instructions.
bool askOneDnn(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<bool()>().call();
}

bool hasOneDnn(ScalarType dtype) {
  if (dtype == kBFloat16) {
    static const bool has_bfloat16 = askOneDnn("mkldnn::_is_mkldnn_bf16_supported");
    return has_bfloat16;
  }
  if (dtype == kHalf) {
    static const bool has_half = askOneDnn("mkldnn::_is_mkldnn_fp16_supported");
    return has_half && !at::GradMode::is_enabled();
  }
  return dtype == kFloat;
}

bool usesOneDnn(const Tensor& input, TensorList hx) {
  return at::globalContext().userEnabledMkldnn() && hasOneDnn(input.scalar_type()) &&
         input.numel() != 0 && hx[0].size(2) == hx[1].size(2);
}

Lstm runOneDnnLstm(const Tensor& sequence, TensorList hx, TensorList params, bool has_biases,
                   int64_t num_layers, Options options, bool batch_first) {
  const auto layers = splitParameters("lstm", params, has_biases, /*has_projections=*/false,
                                      num_layers * options.directions());
  const Tensor hidden = hx[0].contiguous();
  const Tensor cell = hx[1].contiguous();
  Tensor input = timeFirst(sequence, batch_first).contiguous();
  std::vector<Tensor> last_hidden;
  std::vector<Tensor> last_cell;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < options.directions(); ++direction) {
      const int64_t index = layer * options.directions() + direction;
      const LayerParameters& parameters = layers[static_cast<size_t>(index)];
      const auto bias = [&](const Tensor& given, const Tensor& weight) {
        return given.defined() ? given : at::zeros(weight.sizes(), weight.options());
      };
      auto [output, next_hidden, next_cell, workspace] = at::mkldnn_rnn_layer(
          input, parameters.input_weight, parameters.hidden_weight,
          bias(parameters.input_bias, parameters.input_weight),
          bias(parameters.hidden_bias, parameters.hidden_weight), hidden[index], cell[index],
          /*reverse=*/direction == 1, /*batch_sizes=*/{}, kOneDnnLstm, hidden.size(2), num_layers,
          has_biases, options.is_bidirectional, batch_first, options.is_training);
      outputs.push_back(std::move(output));
      last_hidden.push_back(std::move(next_hidden));
      last_cell.push_back(std::move(next_cell));
    }
    input = outputs.size() == 1 ? outputs.front() : at::cat(outputs, -1);
    if (layer + 1 < num_layers) {
      input = options.dropBetweenLayers(input);
    }
  }
  return {timeFirst(input, batch_first), at::stack(last_hidden, 0), at::stack(last_cell, 0)};
}

Lstm lstm(const Tensor& input, TensorList hx, TensorList params, bool has_biases,
          int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  TORCH_CHECK(hx.size() == 2, "lstm: expected two hidden states, got ", hx.size());
  const CudnnRules rules(input, params, hx, train);
  at::native::check_attributes(input, params, hx);
  const Options options{bidirectional, dropout, train};
  if (usesOneDnn(input, hx)) {
    return rules.of(runOneDnnLstm(input, hx, params, has_biases, num_layers, options, batch_first));
  }
  auto [output, hidden, cell] =
      runLstm(timeFirst(input, batch_first), hx, params, has_biases, num_layers, options);
  return rules.of(std::tuple(timeFirst(output, batch_first), std::move(hidden), std::move(cell)));
}

Lstm lstmPacked(const Tensor& data, const Tensor& batch_sizes, TensorList hx, TensorList params,
                bool has_biases, int64_t num_layers, double dropout, bool train,
                bool bidirectional) {
  TORCH_CHECK(hx.size() == 2, "lstm: expected two hidden states, got ", hx.size());
  const CudnnRules rules(data, params, hx, train);
  return rules.of(runLstm(packed(data, batch_sizes), hx, params, has_biases, num_layers,
                          {bidirectional, dropout, train}));
}

void registerNetworks(torch::Library& m) {
  using Gru = PlainNetwork<GruCell>;
  using RnnTanh = PlainNetwork<PlainCell<tanhOf>>;
  using RnnRelu = PlainNetwork<PlainCell<reluOf>>;
  m.impl("lstm.input", TORCH_FN(lstm));
  m.impl("lstm.data", TORCH_FN(lstmPacked));
  m.impl("gru.input", TORCH_FN(Gru::run));
  m.impl("gru.data", TORCH_FN(Gru::runPacked));
  m.impl("rnn_tanh.input", TORCH_FN(RnnTanh::run));
  m.impl("rnn_tanh.data", TORCH_FN(RnnTanh::runPacked));
  m.impl("rnn_relu.input", TORCH_FN(RnnRelu::run));
  m.impl("rnn_relu.data", TORCH_FN(RnnRelu::runPacked));
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) { registerNetworks(m); }
OPENREG_LIBRARY_IMPL(aten, AutogradFunctionality, m) { registerNetworks(m); }

}  // namespace at::openreg
