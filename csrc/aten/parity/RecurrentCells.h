// One step of a recurrent network.
//
// Note [Recurrent networks]
// ATen composes recurrent networks of other operators, differently for each kind of device. On a
// device like this one it calls fused cells that only CUDA has. Here they are composed as on the
// CPU, with the same sums in the same order, so that results and gradients have the CPU's bits;
// test_recurrent_networks.py compares them for all cells and options. The functions are also
// registered for autograd: the operators that they call compute the gradients.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

#include <optional>
#include <utility>
#include <vector>

namespace at::openreg {

// Parameters of one layer in one direction; undefined if the network does not have them.
struct LayerParameters {
  Tensor input_weight;
  Tensor hidden_weight;
  Tensor input_bias;
  Tensor hidden_bias;
  Tensor projection;

  Tensor inputGates(const Tensor& input) const {
    return at::linear(input, input_weight, optional(input_bias));
  }
  Tensor hiddenGates(const Tensor& hidden) const {
    return at::linear(hidden, hidden_weight, optional(hidden_bias));
  }
  Tensor project(const Tensor& hidden) const {
    return projection.defined() ? at::linear(hidden, projection) : hidden;
  }

 private:
  static std::optional<Tensor> optional(const Tensor& tensor) {
    return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
  }
};

// A cell has a type State, the function step, and access to the state's tensors for reordering
// sequences. `input_gates` are the gates computed from the input only.

struct PlainState {
  Tensor hidden;

  template <typename Function>
  PlainState map(const Function& function) const {
    return {function(hidden)};
  }
  template <typename Function>
  static PlainState combine(const std::vector<PlainState>& states, const Function& function) {
    std::vector<Tensor> hidden;
    for (const PlainState& state : states) {
      hidden.push_back(state.hidden);
    }
    return {function(hidden)};
  }
};

struct LstmState {
  Tensor hidden;
  Tensor cell;

  template <typename Function>
  LstmState map(const Function& function) const {
    return {function(hidden), function(cell)};
  }
  template <typename Function>
  static LstmState combine(const std::vector<LstmState>& states, const Function& function) {
    std::vector<Tensor> hidden;
    std::vector<Tensor> cell;
    for (const LstmState& state : states) {
      hidden.push_back(state.hidden);
      cell.push_back(state.cell);
    }
    return {function(hidden), function(cell)};
  }
};

template <Tensor (*Nonlinearity)(const Tensor&)>
struct PlainCell {
  using State = PlainState;
  static State step(const Tensor& input_gates, const State& state, const LayerParameters& layer) {
    return {Nonlinearity(layer.hiddenGates(state.hidden).add_(input_gates))};
  }
};

inline Tensor tanhOf(const Tensor& tensor) { return tensor.tanh(); }
inline Tensor reluOf(const Tensor& tensor) { return at::relu(tensor); }

struct LstmCell {
  using State = LstmState;
  static State step(const Tensor& input_gates, const State& state, const LayerParameters& layer) {
    const Tensor gates = layer.hiddenGates(state.hidden).add_(input_gates);
    const std::vector<Tensor> parts = gates.unsafe_chunk(4, 1);
    const Tensor in_gate = parts[0].sigmoid_();
    const Tensor forget_gate = parts[1].sigmoid_();
    const Tensor cell_gate = parts[2].tanh_();
    const Tensor out_gate = parts[3].sigmoid_();
    Tensor cell = (forget_gate * state.cell).add_(in_gate * cell_gate);
    Tensor hidden = layer.project(out_gate * cell.tanh());
    return {std::move(hidden), std::move(cell)};
  }
};

struct GruCell {
  using State = PlainState;
  static State step(const Tensor& input_gates, const State& state, const LayerParameters& layer) {
    const std::vector<Tensor> from_input = input_gates.unsafe_chunk(3, 1);
    const std::vector<Tensor> from_hidden = layer.hiddenGates(state.hidden).unsafe_chunk(3, 1);
    const Tensor reset_gate = from_hidden[0].add_(from_input[0]).sigmoid_();
    const Tensor update_gate = from_hidden[1].add_(from_input[1]).sigmoid_();
    const Tensor candidate = from_input[2].add(from_hidden[2].mul_(reset_gate)).tanh_();
    return {(state.hidden - candidate).mul_(update_gate).add_(candidate)};
  }
};

}  // namespace at::openreg
